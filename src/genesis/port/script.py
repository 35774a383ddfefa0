"""run_script(), run_module(): a PyTorch script, or a module as `python -m` runs it, on Genesis."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from genesis.errors import describe
from genesis.port import processes
from genesis.port.main_module import Main, execute, spec_of
from genesis.port.redirect import NEVER

# Packages of layers, transforms and datasets that run on Genesis whole: a script hands its tensors to them, and takes
# theirs, so that they use Genesis wherever it does.
TOGETHER = ("torchvision", "timm", "segmentation_models_pytorch", "einops")


def run_script(path: Path, arguments: Sequence[str] = (), also: Sequence[str] = ()) -> None:
    """Run a script as `python path arguments` would, with Genesis as its torch.

    The imports of the script, of modules beside it and of the packages in also are redirected, for the rest of the
    process: threads and exit handlers of the script outlive this call. So are those of the processes that it starts
    by multiprocessing; other ones, as by subprocess, have PyTorch.

    Args:
        path: the script.
        arguments: its sys.argv[1:].
        also: installed packages that shall use Genesis too, beside TOGETHER.
    Raises: FileNotFoundError, ValueError: see check_script; and what the script raises.
    """
    check_script(path, also)
    folder = path.resolve().parent
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(folder))
    main = Main(str(path), None)
    processes.redirect(processes.Redirection(_with_tested(also), (folder,), main))
    execute(main, "__main__")


def run_module(name: str, arguments: Sequence[str] = (), also: Sequence[str] = ()) -> None:
    """Run a module, or the `__main__` of a package, as `python -m name arguments` would, with Genesis as its torch.

    What run_script says of the script's folder holds for the working directory, and for the package of the module.

    Args:
        name: its dotted name.
        arguments: its sys.argv[1:].
        also: installed packages that shall use Genesis too, beside TOGETHER.
    Raises: ImportError: there is no such module, or it has no source; ValueError: see check_module; and what the
        module raises.
    """
    own = check_module(name, also)
    folder = Path.cwd()
    sys.argv = ["-m", *arguments]
    sys.path.insert(0, str(folder))
    redirection = processes.Redirection(_with_tested((*also, *own)), (folder,), None)
    processes.redirect(redirection)
    found = spec_of(name)
    sys.argv[0] = str(found.origin)
    redirection.main = Main(str(found.origin), found.name)
    execute(redirection.main, "__main__")


def check_script(path: Path, also: Sequence[str]) -> None:
    """Raise FileNotFoundError if there is no such script, ValueError if a package can't be redirected."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    _check_packages("also", also)


def check_module(name: str, also: Sequence[str]) -> tuple[str, ...]:
    """Raise ValueError if a package can't be redirected; the module's own package, unless it is Python's."""
    top = name.partition(".")[0]
    own = () if top in sys.stdlib_module_names or top in also else (top,)
    _check_packages("-m", own)
    _check_packages("also", also)
    return own


def _with_tested(packages: Sequence[str]) -> tuple[str, ...]:
    """These packages, and those of TOGETHER that the process has not imported with PyTorch yet."""
    return tuple(dict.fromkeys((*packages, *(each for each in TOGETHER if each not in sys.modules))))


def _check_packages(argument: str, packages: Sequence[str]) -> None:
    for package in packages:
        if not package.isidentifier() or package in NEVER:
            raise ValueError(describe("run", argument, "packages that use torch", repr(package)))
        if package in sys.modules:
            raise ValueError(describe("run", argument, "packages that are not imported yet", repr(package)))
