"""`genesis kernels build`: compile a project's CUDA C++ ahead, for its wheel. Needs no GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from genesis.cli.exit_codes import FAILED
from genesis.errors import CompileError

HELP = "compile the CUDA C++ kernels that pyproject.toml names, ahead of time"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    build = actions.add_parser("build", help=HELP)
    root = "the folder with pyproject.toml (default: this one)"
    build.add_argument("root", nargs="?", type=Path, default=Path(), help=root)
    build.add_argument(
        "--arch", nargs="+", metavar="sm_NN", help="architectures, instead of those that pyproject.toml names"
    )


def run(arguments: argparse.Namespace) -> int:
    from genesis.cuda.build import build

    try:
        for path in build(arguments.root, arguments.arch):
            print(f"{path} ({path.stat().st_size / 1024:.0f} KiB)")
    except CompileError as error:  # as the compiler gave it: lines, and the caret below its place
        print(error, file=sys.stderr)
        return FAILED
    return 0
