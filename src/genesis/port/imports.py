"""The import statement of redirected code, and its importlib.import_module: modules of PyTorch are facades."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import FrameType, ModuleType

from genesis.port import names
from genesis.port.facade import Facade, Missing, facade, is_caught, member, message
from genesis.port.names import Found

plain_import = builtins.__import__


def redirecting_import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> object:
    """The __import__ of redirected modules: as Python's, but modules of PyTorch's are facades."""
    if level or not is_pytorch(name):
        return _in_place_of(plain_import(name, globals, locals, fromlist, level))
    frame = sys._getframe(1)
    module: object = facade("torch")
    for part in name.split(".")[1:]:
        module = _imported(module, part, frame, name)
    if not fromlist:
        return facade("torch")
    for each in fromlist:
        if each != "*":
            _imported(module, each, frame, name)
    return module


def _in_place_of(found: ModuleType) -> ModuleType:
    """The module that redirected code gets for one that is not PyTorch's."""
    if found is importlib:
        return redirecting_importlib()
    if found.__name__ in ("safetensors", "safetensors.torch"):
        from genesis.port import safe

        return safe.in_place_of(found)
    return found


def _imported(module: object, name: str, frame: FrameType, asked: str) -> object:
    """An attribute of a facade, as an import statement takes it."""
    if not isinstance(module, Facade):
        return getattr(module, name)
    if name in module.__dict__:
        return module.__dict__[name]
    value = member(module._torch_name, name)
    if not isinstance(value, Found):
        return value
    path = f"{module._torch_name}.{name}"
    if value is Found.MISSING and not is_caught(frame, "import"):
        return Missing(path)
    kind = ModuleNotFoundError if path == asked else ImportError
    said = message(path, frame) if value is Found.MISSING else f"cannot import name {name!r} from {asked!r}"
    raise kind(said, name=path)


def is_pytorch(name: str) -> bool:
    """Whether a dotted name is torch or one of its modules."""
    return name == "torch" or name.startswith("torch.")


@functools.cache
def redirecting_importlib() -> ModuleType:
    """The importlib of redirected code: Python's, but import_module() gives facades."""
    module = ModuleType(importlib.__name__, importlib.__doc__)
    vars(module).update(vars(importlib), import_module=import_module)
    vars(module)["__getattr__"] = functools.partial(getattr, importlib)  # submodules that are imported later
    return module


def import_module(name: str, package: str | None = None) -> ModuleType:
    """importlib.import_module of redirected code.

    Example:
        >>> from genesis.port.imports import import_module
        >>> import_module("torch.nn").Linear is genesis.nn.Linear
        True
    """
    name = importlib.util.resolve_name(name, package) if name.startswith(".") else name
    if not is_pytorch(name):
        return _in_place_of(importlib.import_module(name))
    module = facade("torch")
    for part in name.split(".")[1:]:
        path = f"{module._torch_name}.{part}"
        below = member(module._torch_name, part) if names.is_module(path) else None
        if not isinstance(below, Facade):
            raise ModuleNotFoundError(f"No module named {path!r}", name=path)
        module = below
    return module
