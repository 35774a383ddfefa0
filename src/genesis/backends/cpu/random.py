"""Random numbers from torch's default CPU generator: the same draws as PyTorch's under the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu.storage import TORCH_DTYPES
from genesis.dtypes import DType, float32
from genesis.records import RandomStream


def manual_seed(seed: int, device_index: int | None = None) -> None:
    torch.default_generator.manual_seed(seed)


def get_rng_state(device_index: int = 0) -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def set_rng_state(state: bytes, device_index: int = 0) -> None:
    torch.set_rng_state(torch.from_numpy(np.frombuffer(state, dtype=np.uint8).copy()))


@contextmanager
def drawing_from(stream: RandomStream, device_index: int = 0) -> Iterator[None]:
    before = get_rng_state()
    if stream.state:
        set_rng_state(stream.state)
    try:
        yield
        stream.state = get_rng_state()
    finally:
        set_rng_state(before)


def fork_rng(stream: RandomStream, device_index: int = 0) -> None:
    stream.state = get_rng_state()


def rand(shape: Shape, seed: int | None = None, dtype: DType = float32, device_index: int = 0) -> Tensor:
    return torch.rand(shape, dtype=TORCH_DTYPES[dtype], generator=_generator(seed))


def randn(shape: Shape, seed: int | None = None, dtype: DType = float32, device_index: int = 0) -> Tensor:
    return torch.randn(shape, dtype=TORCH_DTYPES[dtype], generator=_generator(seed))


def _generator(seed: int | None) -> torch.Generator | None:
    """A new generator for a seed; without one torch's default."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def randint(low: int, high: int, shape: Shape, dtype: DType, device_index: int = 0) -> Tensor:
    return torch.randint(low, high, shape, dtype=TORCH_DTYPES[dtype])


def randperm(n: int, dtype: DType, device_index: int = 0) -> Tensor:
    return torch.randperm(n, dtype=TORCH_DTYPES[dtype])


def dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    if x.is_contiguous() or x.ndim < 3 or not x.movedim(1, -1).is_contiguous():
        return tuple(torch.native_dropout(x, p, True))
    # Draws in row-major order: where PyTorch has contiguous activations, ours may be channels-last, and the same seed
    # must drop the same elements. In other layouts, as transposed ones, PyTorch draws in the order of memory.
    mask = torch.empty(x.shape, dtype=torch.bool).bernoulli_(1 - p)
    if x.is_contiguous(memory_format=torch.channels_last):
        mask = mask.contiguous(memory_format=torch.channels_last)
    return mask.to(x.dtype).mul_(1 / (1 - p)).mul_(x), mask
