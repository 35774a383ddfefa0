"""Facade: a module of PyTorch's as redirected code sees it; Missing: a name in it that Genesis lacks.

A name that Genesis lacks may be imported, annotated with, subclassed and asked about by isinstance(): an error comes
when it is used. But a file that asks whether it is there (hasattr, getattr with a default, an import inside try) hears
at once that it is not.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

from genesis.errors import MissingNameError
from genesis.port import names
from genesis.port.advice import advice_for
from genesis.port.names import Found

_PLAIN = {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"}  # instructions that take an attribute without asking whether it is
_CAUGHT = {"ImportError": "import", "ModuleNotFoundError": "import", "AttributeError": "attribute"}
_PACKAGE = str(Path(__file__).parent)


class Facade(ModuleType):
    """The module that `import torch` gives to redirected code, or one of its submodules; made by facade()."""

    _torch_name: str

    def __init__(self, torch_name: str) -> None:
        super().__init__(f"{__package__}.{torch_name}", f"Genesis in place of {torch_name}.")
        self.__dict__["_torch_name"] = torch_name

    def __repr__(self) -> str:
        return f"<module {self._torch_name!r}: Genesis>"

    def __getattr__(self, name: str) -> object:
        if name == "__all__":
            return public(self._torch_name)
        value = member(self._torch_name, name)
        if value is not Found.UNKNOWN and value is not Found.MISSING:
            setattr(self, name, value)
            return value
        where = f"{self._torch_name}.{name}"
        if value is Found.UNKNOWN:
            raise AttributeError(f"module {self._torch_name!r} has no attribute {name!r}, in PyTorch neither")
        frame = sys._getframe(1)
        if is_asking(frame):
            raise AttributeError(message(where, frame))
        return Missing(where)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *public(self._torch_name)})


@functools.cache
def facade(torch_name: str) -> Facade:
    """The one facade of a module of PyTorch's."""
    return Facade(torch_name)


def member(module: str, name: str) -> object:
    """The object for a name of a module of PyTorch's, a facade for its submodules, or a member of Found."""
    path = f"{module}.{name}"
    if path == "torch.torch":
        return facade("torch")
    value = names.find(module, name)
    is_submodule = isinstance(value, ModuleType) or (value is Found.MISSING and names.is_module(path))
    return facade(path) if is_submodule else value


def public(module: str) -> list[str]:
    """The names of a module that `from module import *` takes."""
    real = sys.modules.get(module) or importlib.import_module(module)
    listed = getattr(real, "__all__", None) or [name for name in dir(real) if not name.startswith("_")]
    return [name for name in listed if not isinstance(member(module, name), Found)]


class Missing:
    """A name of PyTorch's that Genesis lacks. Using it raises; naming it does not."""

    _name: str

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __repr__(self) -> str:
        return f"<{self._name}, which Genesis lacks>"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise MissingNameError(message(self._name, _user_frame()))

    __call__ = __bool__ = __iter__ = __len__ = __enter__ = __exit__ = __index__ = __float__ = __setattr__ = _refuse

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        frame = sys._getframe(1)
        if is_asking(frame):
            raise AttributeError(message(f"{self._name}.{name}", frame))
        return Missing(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """Stand for a base class: one that cannot be instantiated."""
        refused = functools.partialmethod(lambda own, *_, **__: self._refuse())
        return (type(self._name.rpartition(".")[2], (), {"__init__": refused, "__module__": "torch"}),)

    def __instancecheck__(self, instance: object) -> bool:
        return False  # nobody could make one

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __or__(self, other: object) -> Missing:  # in annotations
        return self

    __ror__ = __getitem__ = __or__


def is_asking(frame: FrameType) -> bool:
    """Whether this line would rather hear that a name is missing: by hasattr or getattr, or because it catches that."""
    if dis.opname[frame.f_code.co_code[frame.f_lasti]] not in _PLAIN:
        return True
    return is_caught(frame, "attribute")


def is_caught(frame: FrameType, failing: str) -> bool:
    """Whether the line stands in a try that catches a failing "import", or one of an "attribute"."""
    tries = _tries(frame.f_code.co_filename)
    return any(first <= frame.f_lineno <= last and failing in caught for first, last, caught in tries)


@functools.cache
def _tries(path: str) -> tuple[tuple[int, int, frozenset[str]], ...]:
    """The try statements of a file that catch a name which is not there: first and last line, and what they catch."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):  # typed by hand, or made by exec()
        return ()
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    return tuple((node.body[0].lineno, node.body[-1].end_lineno or 0, _caught_by(node)) for node in tries)


def _caught_by(node: ast.Try) -> frozenset[str]:
    caught: set[str] = set()
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            if kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")):
                caught |= {"import", "attribute"}
            elif isinstance(kind, ast.Name) and kind.id in _CAUGHT:
                caught.add(_CAUGHT[kind.id])
    return frozenset(caught)


def message(name: str, frame: FrameType) -> str:
    """The sentence on a name that Genesis lacks: where it is used, and what to do instead."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}: Genesis has no {name}; {advice_for(name)}"


def _user_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame
