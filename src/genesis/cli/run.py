"""`genesis run SCRIPT`: a PyTorch script on Genesis, with no file changed."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from genesis.cli.exit_codes import SCRIPT_FAILED

HELP = "run a PyTorch script on Genesis, without changing a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "genesis run SCRIPT [ARGUMENT ...] [--also PACKAGE ...]"
    parser.epilog = "All behind -- is the script's own, an option --also too."
    whole = "the script and its arguments; modules beside it use Genesis too"
    parser.add_argument("script", nargs=argparse.PARSER, metavar="SCRIPT", help=whole)
    # Shown by --help; split() finds it, as it may stand behind the script's own options.
    parser.add_argument("--also", nargs="+", metavar="PACKAGE", help="installed packages that shall use Genesis too")


def run(arguments: argparse.Namespace) -> int:
    from genesis.port import run_script  # takes its time
    from genesis.port.script import check_script

    path = Path(arguments.script[0])
    own, also = split(arguments.script[1:])
    check_script(path, also)
    try:
        run_script(path, own, also)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != str(path):
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace or error.__traceback__))
        return SCRIPT_FAILED
    finally:
        sys.stdout.flush()
    return 0


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The script's own arguments, and the packages named by --also.

    Example:
        >>> from genesis.cli.run import split
        >>> split(["--epochs", "3", "--also", "timm", "torchvision"])
        (['--epochs', '3'], ['timm', 'torchvision'])
        >>> split(["x", "--", "--also", "y"])
        (['x', '--also', 'y'], [])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before, behind = arguments[:end], arguments[end + 1 :]
    if "--also" not in before:
        return before + behind, []
    start = before.index("--also")
    also = before[start + 1 :]
    return before[:start] + behind, also
