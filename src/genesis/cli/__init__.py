"""The command line: `genesis <command>`. Each command is a module of this package.

A command has HELP (one line), add_arguments(parser) and run(arguments), which gives the exit code; what takes long to
import, it imports in run. COMMANDS lists them.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

import genesis
from genesis.cli import bench, demo, info, kernels, segment, train, tune
from genesis.cli.exit_codes import FAILED, INTERRUPTED
from genesis.errors import GenesisError
from genesis.settings import settings

COMMANDS = {
    "bench": bench,
    "demo": demo,
    "info": info,
    "kernels": kernels,
    "segment": segment,
    "train": train,
    "tune": tune,
}

# What a user can cause and mend. Anything else is a fault of Genesis, and its traceback is wanted.
_EXPECTED = (GenesisError, OSError, ValueError, FloatingPointError, ImportError)

_CUDA_PACKAGES = ("triton", "cuda", "cudnn", "nvidia")  # as they are imported; all others are of the extra demo


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command with these arguments (those of the process by default) and give the exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return FAILED
    try:
        return COMMANDS[arguments.command].run(arguments)
    except KeyboardInterrupt:
        print(f"genesis {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except _EXPECTED as error:
        if settings.debug >= 1:
            traceback.print_exc()
        said = _sentence(error).removeprefix(f"{arguments.command}: ")
        print(f"genesis {arguments.command}: {said}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    more = "genesis COMMAND --help tells what a command takes."
    parser = argparse.ArgumentParser(prog="genesis", description=genesis.__doc__, epilog=more)
    parser.add_argument("--version", action="version", version=f"genesis {genesis.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(
                name, help=command.HELP, description=_as_sentence(command.HELP), formatter_class=_Formatter
            )
        )
    return parser


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Names the defaults, but for those that only say that an option was not given."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"{action.help} (default: {action.option_strings[0]})"
        return super()._get_help_string(action)


def _as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _sentence(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        extra = "cuda" if str(error.name).partition(".")[0] in _CUDA_PACKAGES else "demo"
        return f"needs the package '{error.name}'; install Genesis with its extra: pip install 'genesis[{extra}]'"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
