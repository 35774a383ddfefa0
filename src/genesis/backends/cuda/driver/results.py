"""Results of calls of cuda.bindings: a status and values."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver.interface import KernelError


def check(result: tuple[Any, ...], doing: str) -> Any:
    """The value of a call that succeeded, or a tuple of several. Raises: KernelError."""
    error = result[0]
    if error != cu.CUresult.CUDA_SUCCESS:
        text = cu.cuGetErrorString(error)[1]
        raise KernelError(f"{doing}: {error.name}: {bytes(text or b'').decode()}")
    return result[1] if len(result) == 2 else result[1:]
