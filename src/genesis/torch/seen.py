"""Whether tensors are as they were at the last call, asked in one call into PyTorch's C++: Python's checks take longer
than the launches that they guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from genesis.torch.guards import watching
from genesis.torch.shapes import Plan

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def seen(*tensors: Tensor) -> Callable[..., bool]:
    """as_seen(*tensors): have these the very types, dtypes, devices, shapes, strides and requires_grad of those?

    It is false too where autocast, a mode of dispatch, a transform or a tracer is on for one and off for the other, as
    these work by dispatch keys. Values and addresses may be others.
    """
    try:
        sizes, strides = [list(each.shape) for each in tensors], [list(each.stride()) for each in tensors]
        guards = _guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = guards.check
    except (AttributeError, TypeError):  # they are Dynamo's own, and may be gone in another version
        return _seen_in_python(*tensors)
    return check


def _seen_in_python(*tensors: Tensor) -> Callable[..., bool]:
    then = [_facts(each) for each in tensors]
    return lambda *tensors: [_facts(each) for each in tensors] == then


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    return (
        type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad,
        tensor.is_inference(), torch._C._is_any_autocast_enabled(), watching(),
    )  # fmt: skip


class SeenConvolution:
    """What a convolution was called with, and what was found for it."""

    __slots__ = ("_autocast", "_number", "_same", "_settings", "_strides", "device", "dtype", "make", "norm", "plan")

    def __init__(
        self, operands: tuple[Tensor, ...], strides: tuple[int, ...] | None, settings: tuple[Any, ...], plan: Plan,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self._same, self._strides, self._settings = seen(*operands), strides, settings
        self._number, self._autocast = len(operands), autocast_dtype(operands[0])
        self.plan, self.dtype = plan, dtype
        self.norm: SeenNorm | None = None
        self.device = operands[0].device
        self.make: Callable[[], Any] | None = None  # what makes its Pendings

    def fits(self, operands: tuple[Tensor, ...], strides: tuple[int, ...] | None, settings: tuple[Any, ...]) -> bool:
        """strides: those that the input has for PyTorch, where they are not its own."""
        if len(operands) != self._number or self._strides != strides or self._settings != settings:
            return False
        if not self._same(*operands):
            return False
        return self._autocast is None or self._autocast is autocast_dtype(operands[0])


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """None without autocast on any device."""
    return torch.get_autocast_dtype("cuda" if tensor.is_cuda else "cpu") if _any_autocast() else None


_any_autocast = torch._C._is_any_autocast_enabled


class SeenNorm:
    """Which batch norm followed such a convolution, and what was prepared for both."""

    __slots__ = ("_same", "_training", "chain", "counts", "folded")

    def __init__(self, tensors: tuple[Tensor, ...], training: bool) -> None:
        """tensors: gamma, beta, running mean and variance; and the count of batches, where it is to grow."""
        self._training, self._same, self.counts = training, seen(*tensors), len(tensors) == 5
        self.chain: Any = None  # what was prepared for training
        self.folded: dict[
            tuple[bool, str | None], Any
        ] = {}  # for inference: by whether a residual is added, activation

    def fits(self, tensors: tuple[Tensor, ...], training: bool) -> bool:
        return self._training is training and (len(tensors) == 5) is self.counts and self._same(*tensors)
