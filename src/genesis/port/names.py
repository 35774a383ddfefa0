"""Look-up of a name of PyTorch's in Genesis: find("torch.nn", "Linear").

The module of Genesis of the same name comes first, then the one that SOURCES names, then a stand-in. A name that
Genesis has and PyTorch has not is no answer: hasattr(torch, name) says what it says of PyTorch.
"""

from __future__ import annotations
import __future__

import enum
import functools
import importlib
import importlib.util
import pkgutil
import sys
from types import ModuleType

import torch

from genesis.port import stand_ins

SOURCES: dict[str, tuple[str, ...]] = {  # beside the module of the same name
    "torch": (f"{stand_ins.__name__}.toplevel_tensors",),
    "torch.cuda.amp": ("genesis.amp",),
    "torch.nn.modules": ("genesis.nn",),
    "torch.nn.parameter": ("genesis.nn",),
    "torch.random": ("genesis",),
    "torch.serialization": ("genesis",),
    "torch.amp.autocast_mode": ("genesis.amp",),
    "torch.utils.data": ("genesis.data",),
    "torch.utils.data.dataloader": ("genesis.utils.data", "genesis.data"),
    "torch.utils.data.dataset": ("genesis.utils.data", "genesis.data"),
    "torch.utils.data.distributed": ("genesis.data",),
    "torch.utils.data.sampler": ("genesis.utils.data", "genesis.data"),
}
_FLAT = {  # packages of PyTorch's whose files' names Genesis has in one namespace
    "torch.nn.modules.": "genesis.nn",
    "torch.distributions.": "genesis.distributions",
    "torch.optim.": "genesis.optim",
    "torch.autograd.": "genesis.autograd",
}
OTHER = {  # Genesis' are something else
    "torch.autograd.Variable", "torch.backends", "torch.device", "torch.export",
    "torch.finfo", "torch.hub", "torch.load", "torch.manual_seed", "torch.port", "torch.random.manual_seed",
    "torch.save", "torch.serialization.load", "torch.serialization.save", "torch.torch",
}  # fmt: skip


class Found(enum.Enum):
    """The reason why a name has no object."""

    MISSING = "PyTorch has it, Genesis has not"
    UNKNOWN = "PyTorch has no such name"


@functools.cache
def sources(module: str) -> tuple[ModuleType, ...]:
    """The namespaces in which the names of a module of PyTorch's are looked up, the first one first.

    Raises: ImportError: one of them needs a package that is not installed, as genesis.utils.tensorboard does.
    """
    return tuple(importlib.import_module(name) for name in source_names(module))


@functools.cache
def source_names(module: str) -> tuple[str, ...]:
    """The names of these namespaces; none is loaded."""
    below = module.removeprefix("torch").removeprefix(".")
    own = () if module in OTHER else (f"genesis.{below}".rstrip("."),)
    flat = tuple(space for package, space in _FLAT.items() if module.startswith(package))
    found = [name for name in (*own, *flat, *SOURCES.get(module, ())) if _is_module(name)]
    stand_in = below.replace(".", "_") or "toplevel"
    if stand_in in _stand_ins():
        found.append(f"{stand_ins.__name__}.{stand_in}")
    return tuple(found)


def lacks_package(error: ImportError) -> bool:
    """Whether a namespace could not be loaded for want of someone else's package."""
    return not (error.name or "").startswith("genesis")


@functools.cache
def _stand_ins() -> frozenset[str]:
    return frozenset(each.name for each in pkgutil.iter_modules(stand_ins.__path__))


@functools.cache
def _is_module(name: str) -> bool:
    """Whether there is a module of this name; its parents are imported."""
    if name in sys.modules:
        return sys.modules[name] is not None
    parent = name.rpartition(".")[0]
    if parent and not _is_module(parent):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError, TypeError):  # the parent is no package, or like torch.classes
        return False


def is_module(module: str) -> bool:
    """Whether PyTorch has a module of this name."""
    return _is_module(module)


def find(module: str, name: str) -> object:
    """The object that stands for a name of a module of PyTorch's; a member of Found if there is none."""
    if name.startswith("__") or not in_pytorch(module, name):
        return torch.__version__ if (module, name) == ("torch", "__version__") else Found.UNKNOWN
    for space in sources(module):
        is_stand_in = space.__name__.startswith(stand_ins.__name__)
        if f"{module}.{name}" in OTHER and not is_stand_in:
            continue
        value = vars(space).get(name, Found.MISSING) if is_stand_in else getattr(space, name, Found.MISSING)
        if value is not Found.MISSING and not _is_for_itself(value):
            return value
    return Found.MISSING


def _is_for_itself(value: object) -> bool:
    """Whether a file imports this for its own use only."""
    if isinstance(value, ModuleType):
        return not value.__name__.startswith("genesis.")
    return isinstance(value, __future__._Feature)


@functools.cache
def in_pytorch(module: str, name: str) -> bool:
    """Whether PyTorch has this name. The question loads nothing: of torch.onnx, it is answered by yes."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return _is_module(module)
    return hasattr(loaded, name) or _is_module(f"{module}.{name}")
