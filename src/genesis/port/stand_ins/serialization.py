"""torch.save() and torch.load() as scripts use them: PyTorch's own files, which hold any object that can be pickled.

A file has PyTorch's tensors, so that PyTorch reads it too; a module in it keeps Genesis' class. Reading turns PyTorch's
tensors into Genesis', within modules as well. Without `weights_only=False` no code of a file runs, as in PyTorch.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import torch
from torch.serialization import add_safe_globals as add_safe_globals
from torch.serialization import clear_safe_globals as clear_safe_globals
from torch.serialization import get_safe_globals as get_safe_globals
from torch.serialization import safe_globals as safe_globals

import genesis
from genesis.checkpoint import MapLocation, target_of
from genesis.checkpoint import load as load_plain
from genesis.errors import CheckpointError, GraphError
from genesis.files import Source, kind_of_start, reading, replaced
from genesis.ndarray import CPU, Device, NDArray
from genesis.nn import Module, Parameter
from genesis.nn.stateful import StateDict
from genesis.port import names
from genesis.tensor import Tensor

PROTOCOL = 2  # of the pickles that PyTorch reads without running code


def save(
    obj: object, f: Source, pickle_module: object = pickle, pickle_protocol: int = PROTOCOL,
    _use_new_zipfile_serialization: bool = True, _disable_byteorder_record: bool = False,
) -> None:  # fmt: skip
    """Write an object to a file that PyTorch reads; a path is replaced atomically.

    Raises: OSError: the file cannot be written; TypeError, pickle.PicklingError: something in obj cannot be pickled.
    """
    as_pickle: Any = SimpleNamespace(Pickler=_Pickler, __name__="pickle")
    if not isinstance(f, str | os.PathLike):
        torch.save(obj, f, as_pickle, pickle_protocol, _use_new_zipfile_serialization)
        return
    with replaced(f, make_folder=False) as temporary:
        torch.save(obj, temporary, as_pickle, pickle_protocol, _use_new_zipfile_serialization)


def load(
    f: Source, map_location: MapLocation = None, pickle_module: object = None, *, weights_only: bool = True,
    mmap: bool | None = None, **pickle_load_args: Any,
) -> Any:  # fmt: skip
    """Read what torch.save() or genesis.save() wrote, with Genesis' tensors, on the CPU unless map_location says more.

    Raises: CheckpointError: the file is damaged, or holds what only weights_only=False restores.
    """
    with reading(f) as (name, file):
        if weights_only or kind_of_start(file.read(9)) != "torch":
            file.seek(0)
            return load_plain(f if isinstance(f, str | os.PathLike) else file, map_location)
        file.seek(0)
        unpickler = _unpickler_onto(target_of(map_location))
        as_pickle: Any = SimpleNamespace(Unpickler=unpickler, load=pickle.load, __name__="pickle")
        try:
            return torch.load(file, "cpu", as_pickle, weights_only=False, **pickle_load_args)
        except (EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{name}: not a complete PyTorch checkpoint ({error})") from None


class _Pickler(pickle.Pickler):
    """Writes Genesis' tensors, and the dictionaries and sizes that it gives out, as PyTorch's."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, Parameter):
            return torch._utils._rebuild_parameter, (obj.detach(), obj.requires_grad, OrderedDict())
        if isinstance(obj, Tensor):
            return _torch_of(obj).__reduce_ex__(PROTOCOL)
        if isinstance(obj, genesis.Size):
            return torch.Size, (tuple(obj),)
        if isinstance(obj, StateDict):
            return OrderedDict, (), {"_metadata": obj._metadata}, None, iter(obj.items())
        return NotImplemented


def _torch_of(tensor: Tensor) -> torch.Tensor:
    """A tensor as PyTorch's on the CPU, of the same storage if it is there."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise GraphError("save: only leaves can be saved; use .detach()")
    own: torch.Tensor = tensor.detach().cpu().array.handle
    return own.detach().requires_grad_(tensor.requires_grad)


def _unpickler_onto(device: Device) -> type[pickle.Unpickler]:
    """Reads what _Pickler wrote, or PyTorch, with tensors on a device."""

    def tensor(*args: Any) -> Tensor:
        theirs = torch._utils._rebuild_tensor_v2(*args)
        found = Tensor(NDArray.from_dlpack(theirs.detach(), CPU).to_device(device))
        return found.requires_grad_() if theirs.requires_grad else found

    def parameter(data: Tensor, requires_grad: bool, hooks: object) -> Parameter:
        return Parameter(data, requires_grad)

    rebuilt = {"_rebuild_tensor_v2": tensor, "_rebuild_parameter": parameter}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            if module == "torch._utils" and name in rebuilt:
                return rebuilt[name]
            if module.partition(".")[0] != "torch" or module == "torch._utils":
                return super().find_class(module, name)
            found = names.find(module, name)
            if isinstance(found, names.Found) or (isinstance(found, type) and issubclass(found, Module)):
                reason = "load its state_dict() instead"
                raise CheckpointError(f"load: the file holds an object of PyTorch's class {module}.{name}; {reason}")
            return found

    return Unpickler
