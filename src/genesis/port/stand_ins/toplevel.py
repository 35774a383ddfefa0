"""torch: names that have no function of their own here; those of tensors stand in toplevel_tensors.py."""

from __future__ import annotations

import builtins
import functools
from typing import TYPE_CHECKING

import torch

import genesis
from genesis.amp import GradScaler as GradScaler
from genesis.amp import is_autocast_enabled as is_autocast_enabled
from genesis.autograd.modes import state as thread
from genesis.errors import OutOfMemoryError as OutOfMemoryError
from genesis.errors import describe
from genesis.port.facade import Missing
from genesis.port.stand_ins.default_generator import default_generator as default_generator
from genesis.port.stand_ins.device import device as device
from genesis.port.stand_ins.serialization import load as load
from genesis.port.stand_ins.serialization import save as save
from genesis.settings import settings

if TYPE_CHECKING:
    from genesis.dtypes import DType

strided = "strided"  # the only layout of tensors that there is
layout = str
memory_format = str
sym_int, sym_float = builtins.int, builtins.float


def finfo(type: DType | None = None) -> genesis.finfo | torch.finfo:
    """The limits of a floating dtype; also of one that Genesis only has the name of, as float8_e4m3fn."""
    if isinstance(type, Missing):
        return torch.finfo(getattr(torch, type._name.removeprefix("torch.")))
    return genesis.finfo(type)


class SymInt:
    """No size is one: sizes are numbers."""


class SymFloat:
    """No number is one."""


class SymBool:
    """No truth value is one."""


def _assert(condition: object, message: object = "") -> None:
    """PyTorch's assert that tracers see."""
    assert builtins.bool(condition), message() if callable(message) else message


_assert_async = _assert


def _check(cond: object, message: object = None) -> None:
    """PyTorch's check of arguments: a RuntimeError unless cond holds."""
    _check_with(RuntimeError, cond, message)


def _check_with(error_type: type[Exception], cond: object, message: object = None) -> None:
    """_check() whose error is of this type."""
    if not builtins.bool(cond):
        raise error_type(message() if callable(message) else message or "Expected cond to be True")


_check_index = functools.partial(_check_with, IndexError)
_check_value = functools.partial(_check_with, ValueError)
_check_type = functools.partial(_check_with, TypeError)
_check_not_implemented = functools.partial(_check_with, NotImplementedError)


# --- settings ---------------------------------------------------------------------------------------------------------


def get_autocast_dtype(device_type: str) -> DType:
    """The dtype to which autocast converts on a device: that of the block, or PyTorch's default."""
    default = genesis.bfloat16 if device_type == "cpu" else genesis.float16
    chosen: DType | None = getattr(thread.autocast, "targets", {}).get(device_type)
    return chosen or default


def get_autocast_cpu_dtype() -> DType:
    """Return that of the CPU. See get_autocast_dtype."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> DType:
    """Return that of the GPU. See get_autocast_dtype."""
    return get_autocast_dtype("cuda")


def is_autocast_cpu_enabled() -> bool:
    """Whether autocast is on for the CPU."""
    return is_autocast_enabled("cpu")


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of matrix products, and with it that of convolutions. See genesis.set_float32_precision."""
    genesis.set_float32_precision(precision)


def get_float32_matmul_precision() -> str:
    """The precision of matrix products. See genesis.get_float32_precision."""
    return genesis.get_float32_precision()


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Choose algorithms whose results never vary, as GENESIS_DETERMINISTIC does."""
    if not isinstance(mode, bool):
        raise ValueError(describe("use_deterministic_algorithms", "mode", "a bool", repr(mode)))
    settings.deterministic = mode


def are_deterministic_algorithms_enabled() -> bool:
    """Whether only algorithms are chosen whose results never vary."""
    return settings.deterministic


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether others only warn: never."""
    return False


get_num_threads, set_num_threads = torch.get_num_threads, torch.set_num_threads  # the CPU's ops are PyTorch's
get_num_interop_threads, set_num_interop_threads = torch.get_num_interop_threads, torch.set_num_interop_threads


def manual_seed(seed: int) -> genesis.Generator:
    """Seed the generators of all devices, and return the CPU's. See genesis.manual_seed."""
    genesis.manual_seed(seed)
    return default_generator


def initial_seed() -> int:
    """The seed of the CPU's generator, which is PyTorch's."""
    return torch.initial_seed()


# --- more of the machine and of names ------------------------------------------------------------------------------

newaxis = None


def set_flush_denormal(mode: bool) -> bool:
    """Do as PyTorch's: its threads compute on the CPU."""
    return torch.set_flush_denormal(mode)


def seed() -> int:
    """Seed the generators of all devices with a random number, and return it."""
    number = genesis.Generator().initial_seed()
    genesis.manual_seed(number)
    return number


def typename(obj: object) -> str:
    """The type's name, of a tensor its tensor type."""
    if isinstance(obj, genesis.Tensor):
        return str(obj.type()).replace("genesis", "torch")
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"
