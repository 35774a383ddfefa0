"""`genesis run SCRIPT` and `genesis run -m MODULE`: a PyTorch script on Genesis, with no file changed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import TracebackType

import genesis
from genesis.cli.exit_codes import FAILED, SCRIPT_FAILED

HELP = "run a PyTorch script on Genesis, without changing a file"
_USAGE = """genesis run SCRIPT [ARGUMENT ...] [--also PACKAGE ...]
       genesis run -m MODULE [ARGUMENT ...] [--also PACKAGE ...]"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = _USAGE
    parser.epilog = "All behind -- is the script's own, an option --also too."
    whole = "the script and its arguments; modules beside it use Genesis too"
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help=whole)
    as_module = "a module or package to run as a script, as by python -m, and its arguments"
    parser.add_argument("-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE", help=as_module)
    # Shown by --help; split() finds it, as it may stand behind the script's own options.
    parser.add_argument("--also", nargs="+", metavar="PACKAGE", help="installed packages that shall use Genesis too")


def run(arguments: argparse.Namespace) -> int:
    given = arguments.script or arguments.module
    if not given:
        print(f"usage: {_USAGE}\ngenesis run: expected a script, or -m and a module", file=sys.stderr)
        return FAILED
    from genesis.port import script  # takes its time

    name = given[0]
    own, also = split(given[1:])
    if arguments.module:
        script.check_module(name, also)
    else:
        script.check_script(Path(name), also)
    try:
        if arguments.module:
            script.run_module(name, own, also)
        else:
            script.run_script(Path(name), own, also)
    except Exception as error:  # by the hook that the script may have set
        if isinstance(error, ImportError) and "no known parent package" in str(error):
            error.add_note("A module of a package runs by its name: genesis run -m PACKAGE.MODULE")
        trace = _their_part(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return SCRIPT_FAILED
    finally:
        sys.stdout.flush()
    return 0


def _their_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of Genesis and of imports that led to the script."""
    own = str(Path(genesis.__file__).parent)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((own, "<frozen ")):
        trace = trace.tb_next
    return trace


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
