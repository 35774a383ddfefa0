"""`genesis kernels build`: compile a project's CUDA C++ ahead, for its wheel. Needs no GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "compile the CUDA C++ kernels that pyproject.toml names, ahead of time"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    build = actions.add_parser("build", help=HELP, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    build.add_argument("root", nargs="?", type=Path, default=Path(), help="the folder with pyproject.toml")
    build.add_argument(
        "--arch", nargs="+", metavar="sm_NN", help="architectures, instead of those that pyproject.toml names"
    )


def run(arguments: argparse.Namespace) -> int:
    from genesis.cuda.build import build

    for path in build(arguments.root, arguments.arch):
        print(f"{path} ({path.stat().st_size / 1024:.0f} KiB)")
    return 0
