"""What tests of copies have in common: the ways to copy, and comparisons of what was copied."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from genesis import nn
from genesis.tensor import Tensor

Copy = Callable[[Any], Any]
PROTOCOLS = (0, 2, 5)


def through_buffers(value: Any) -> Any:
    """Pickled with its arrays outside, as processes hand them to each other without a copy."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return pickle.loads(text, buffers=[bytes(buffer) for buffer in buffers])


WAYS: dict[str, Copy] = {
    "deepcopy": copy.deepcopy,
    "buffers": through_buffers,
    **{f"pickle {n}": functools.partial(lambda value, n: pickle.loads(pickle.dumps(value, n)), n=n) for n in PROTOCOLS},
}
ways = pytest.mark.parametrize("again", WAYS.values(), ids=WAYS)


def equal(copied: Tensor, original: Tensor) -> None:
    assert type(copied) is type(original)
    for name in ("shape", "dtype", "device", "requires_grad", "is_leaf"):
        assert getattr(copied, name) == getattr(original, name), name
    assert copied.stride() == original.stride()
    np.testing.assert_array_equal(copied.array.bits(), original.array.bits())


def values(outputs: Any) -> Any:
    if isinstance(outputs, tuple | list):
        return [values(output) for output in outputs]
    return outputs if outputs is None else outputs.tolist()


def tensors_in(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, tuple):
        return [tensor for output in outputs for tensor in tensors_in(output)]
    return [] if outputs is None else [outputs]


def learn(module: nn.Module, inputs: list[Tensor]) -> Any:
    """A forward and a backward pass; the outputs and the gradients."""
    outputs = module(*inputs)
    learned = [output.sum() for output in tensors_in(outputs) if output.requires_grad]
    if learned:
        sum(learned).backward()
    return values(outputs), values([parameter.grad for parameter in module.parameters()])


def plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items() if key != "lr_lambdas"}
    if isinstance(state, list | tuple):
        return [plain(value) for value in state]
    return state.tolist() if isinstance(state, Tensor) else state
