"""The command line: `genesis <command>`. Each command is a module of this package.

A command has HELP (one line), add_arguments(parser) and run(arguments), which returns the exit code; slow imports are
in run. TAKES_LESS, if it has one, names the options that save memory. COMMANDS lists the commands.
"""

from __future__ import annotations

import argparse
import io
import sys
import traceback
from collections.abc import Sequence

import genesis
from genesis.cli import bench, demo, export, info, kernels, port, run, segment, train, tune
from genesis.cli.exit_codes import FAILED, INTERRUPTED
from genesis.distribution import install_command
from genesis.errors import GenesisError, OutOfMemoryError, is_out_of_memory
from genesis.settings import settings

COMMANDS = {
    "bench": bench,
    "demo": demo,
    "export": export,
    "info": info,
    "kernels": kernels,
    "port": port,
    "run": run,
    "segment": segment,
    "train": train,
    "tune": tune,
}

# Errors that a user can cause and fix. Anything else is a bug in Genesis and keeps its traceback.
_EXPECTED = (GenesisError, OSError, ValueError, FloatingPointError, ImportError)

# As they are imported; all others are of the extra demo.
_PACKAGES = {
    "cuda": ("triton", "cuda", "cudnn", "nvidia"),
    "export": ("onnx", "onnx_ir", "onnxruntime", "ml_dtypes"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command with these arguments (default: those of the process) and return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may be no text at all: never fail to print it
        sys.stdout.reconfigure(errors="backslashreplace")
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
    except Exception as error:
        if not (isinstance(error, _EXPECTED) or is_out_of_memory(error)):
            raise
        if settings.debug >= 1:
            traceback.print_exc()
        said = _sentence(error, getattr(COMMANDS[arguments.command], "TAKES_LESS", ""))
        print(f"genesis {arguments.command}: {said.removeprefix(f'{arguments.command}: ')}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    more = "genesis COMMAND --help lists the options of a command."
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
    """Shows defaults, except those that only mean that an option was not given."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"{action.help} (default: {action.option_strings[0]})"
        return super()._get_help_string(action)


def _as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _sentence(error: BaseException, takes_less: str) -> str:
    if is_out_of_memory(error):
        said = str(error) if isinstance(error, OutOfMemoryError) else "not enough memory"
        return " ".join(said.split()) + (f"; try a smaller {takes_less}" if takes_less else "")
    if isinstance(error, ModuleNotFoundError):
        package = str(error.name).partition(".")[0]
        extra = next((extra for extra, packages in _PACKAGES.items() if package in packages), "demo")
        return f"needs the package '{error.name}'; install Genesis with its extra: {install_command(extra)}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    said = str(error).strip()
    if "\nOriginal Traceback" in said:  # from a process that prepares batches: its error is the last line
        said = said.rpartition("\n")[2].partition(": ")[2]
    return " ".join(said.split()) or type(error).__name__
