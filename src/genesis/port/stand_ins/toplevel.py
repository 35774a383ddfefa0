"""torch: names that have no function of their own here."""

from __future__ import annotations

import builtins
from typing import Any

import torch

import genesis
from genesis.autograd.modes import state

strided = "strided"  # the only layout of tensors that there is
layout = str
memory_format = str


def _assert(condition: Any, message: str = "") -> None:
    """PyTorch's assert that tracers see."""
    assert builtins.bool(condition), message


_assert_async = _assert


# --- the machine ------------------------------------------------------------------------------------------------------

newaxis = None
get_num_threads, set_num_threads = torch.get_num_threads, torch.set_num_threads  # the CPU backend is torch's
get_num_interop_threads, set_num_interop_threads = torch.get_num_interop_threads, torch.set_num_interop_threads


def set_flush_denormal(mode: bool) -> bool:
    """As PyTorch's: its threads compute on the CPU."""
    return torch.set_flush_denormal(mode)


def set_float32_matmul_precision(precision: str) -> None:
    """PyTorch's three precisions are Genesis' too."""
    genesis.set_float32_precision(precision)


def get_float32_matmul_precision() -> str:
    """See set_float32_matmul_precision."""
    return genesis.get_float32_precision()


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether autocast is on, on whatever device."""
    return state.autocast is not None


# --- random numbers ---------------------------------------------------------------------------------------------------


def seed() -> int:
    """Seed the generators of all devices with a random number, and return it."""
    number = genesis.Generator().initial_seed()
    genesis.manual_seed(number)
    return number


# --- complex numbers, of which all tensors have none ------------------------------------------------------------------


def real(input: genesis.Tensor) -> genesis.Tensor:
    """The tensor itself."""
    return input


conj = conj_physical = resolve_conj = resolve_neg = positive = real


def typename(obj: object) -> str:
    """The type's name, of a tensor its tensor type."""
    if isinstance(obj, genesis.Tensor):
        return str(obj.type()).replace("genesis", "torch")
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"
