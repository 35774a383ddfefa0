"""redirected(): packages whose imports of torch give Genesis, beside everything else, which keeps its torch.

A module sees the import statement that its globals' `__builtins__` hold. So modules of the redirected packages are
loaded as always, from the same files and the same bytecode, but with an `__import__` of their own.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Self

from genesis.errors import describe
from genesis.port.imports import redirecting_import

NEVER = ("torch", "genesis", "numpy", "triton")
_INSTALLED = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib"))


def builtins_of_redirected() -> dict[str, object]:
    """Python's builtins, with the import statement of redirected code."""
    return {**vars(builtins), "__import__": redirecting_import}


class RedirectingLoader(SourceFileLoader):
    """Loads a module from its file, with the redirecting import statement."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = builtins_of_redirected()
        super().exec_module(module)


class RedirectingFinder(MetaPathFinder):
    """Finds the modules of some packages, and all that lie in some folders, for the loader above."""

    def __init__(self, packages: Sequence[str], folders: Sequence[Path] = ()) -> None:
        self.packages, self.folders = frozenset(packages), tuple(folder.resolve() for folder in folders)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top in NEVER or (top not in self.packages and not self.folders):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
            return None
        if top in self.packages or self._is_local(Path(spec.origin).resolve()):
            spec.loader = RedirectingLoader(spec.loader.name, spec.loader.path)
            return spec
        return None

    def _is_local(self, origin: Path) -> bool:
        """Whether a file is the user's own: below one of the folders, and not where packages are installed."""
        if not any(origin.is_relative_to(folder) for folder in self.folders):
            return False
        return "site-packages" not in origin.parts and not any(origin.is_relative_to(each) for each in _INSTALLED)


class redirected:  # noqa: N801 as a function, which is what a context manager looks like
    """Import packages inside the block with Genesis as their torch.

    Modules of the packages that were imported before are set aside, and are back after the block. The block may be
    entered again, and finds the modules that it imported.

    Args:
        packages: top-level packages, as "timm".
        folders: all modules that are found in these folders, but for installed ones.
    Raises: ValueError: a name is dotted, or of a package that needs its torch.

    Example:
        >>> import sys, tempfile
        >>> from pathlib import Path
        >>> from genesis.port import redirected
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "net_of_mine.py").write_text("import torch\\nlayer = torch.nn.Linear(3, 2)")
        >>> sys.path.insert(0, str(folder))
        >>> with redirected("net_of_mine"):
        ...     import net_of_mine
        >>> isinstance(net_of_mine.layer, genesis.nn.Linear)
        True
    """

    def __init__(self, *packages: str, folders: Iterable[Path] = ()) -> None:
        for package in packages:
            if not package.isidentifier() or package in NEVER:
                expected = "top-level packages that use torch"
                raise ValueError(describe("redirected", "packages", expected, repr(package)))
        self._packages, self._finder = packages, RedirectingFinder(packages, tuple(folders))
        self._own: dict[str, ModuleType] = {}
        self._aside: dict[str, ModuleType] = {}

    def __enter__(self) -> Self:
        self._aside = take_modules(self._packages)
        sys.modules.update(self._own)
        sys.meta_path.insert(0, self._finder)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self._finder)
        self._own = take_modules(self._packages)
        sys.modules.update(self._aside)


def take_modules(packages: Iterable[str]) -> dict[str, ModuleType]:
    """Take the modules of these packages out of sys.modules."""
    tops = frozenset(packages)
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in tops}
