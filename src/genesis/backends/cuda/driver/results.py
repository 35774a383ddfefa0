"""Results of calls of cuda.bindings: a status and values."""

from __future__ import annotations

from typing import TypeVar, TypeVarTuple, overload

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver.interface import KernelError

T = TypeVar("T")
U = TypeVar("U")
Ts = TypeVarTuple("Ts")


@overload
def check(result: tuple[cu.CUresult], doing: str) -> tuple[()]: ...
@overload
def check(result: tuple[cu.CUresult, T], doing: str) -> T: ...
@overload
def check(result: tuple[cu.CUresult, T, U, *Ts], doing: str) -> tuple[T, U, *Ts]: ...
def check(result: tuple[object, ...], doing: str) -> object:
    """The value of a call that succeeded, or a tuple of several. Raises: KernelError."""
    error: cu.CUresult = result[0]
    if error != cu.CUresult.CUDA_SUCCESS:
        text = cu.cuGetErrorString(error)[1]
        raise KernelError(f"{doing}: {error.name}: {bytes(text or b'').decode()}")
    return result[1] if len(result) == 2 else result[1:]
