"""Guards: whether tensors look as they did at the last call, asked in one call into PyTorch's C++. The same checks in
Python take longer than the launches that they guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor

from genesis.torch.modes import dispatch_interceptors
from genesis.torch.shapes import Pair, Plan
from genesis.torch.unprepared import Unprepared

if TYPE_CHECKING:
    from genesis.torch.pending import Pending
    from genesis.torch.prepared import Chain, Folded
    from genesis.torch.prepared_act import Activated

_TensorGuards = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)


class Check(Protocol):
    def __call__(self, *tensors: Tensor) -> bool: ...


Settings: TypeAlias = tuple[Pair, Pair | str, Pair, int, str]  # stride, padding, dilation, groups, padding mode


def guard(*tensors: Tensor) -> Check:
    """Return check(*tensors): have these the very types, dtypes, devices, shapes, strides and requires_grad of those?

    It is false too if autocast, a dispatch mode, a transform or a tracer is on at one time and off at the other, as
    these work by dispatch keys. Values and addresses may differ.
    """
    if _TensorGuards is None:
        return _guard_in_python(*tensors)
    try:
        sizes, strides = [list(each.shape) for each in tensors], [list(each.stride()) for each in tensors]
        guards = _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Check = guards.check
    except (AttributeError, TypeError):  # they are Dynamo's own, and may be gone in another version
        return _guard_in_python(*tensors)
    return check


def _guard_in_python(*tensors: Tensor) -> Check:
    then = [_facts(each) for each in tensors]
    return lambda *tensors: [_facts(each) for each in tensors] == then


def _facts(tensor: Tensor) -> tuple[object, ...]:
    return (
        type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad,
        tensor.is_inference(), torch._C._is_any_autocast_enabled(), dispatch_interceptors(),
    )  # fmt: skip


class Look:
    """The plan, dtype and device of a result that no convolution gave."""

    __slots__ = ("device", "dtype", "make", "plan")

    def __init__(self, plan: Plan, dtype: torch.dtype, device: torch.device) -> None:
        self.plan, self.dtype, self.device = plan, dtype, device
        self.make: Callable[[], Pending] | None = None  # as GuardedConv's


class GuardedConv:
    """The plan of a convolution, and the guard of the operands and settings that it was made for."""

    __slots__ = (
        "activated", "autocast", "device", "dtype", "make", "norm", "number", "plan", "same", "settings", "strides",
        "summand", "trains",
    )  # fmt: skip

    def __init__(
        self, operands: tuple[Tensor, ...], strides: tuple[int, ...] | None, settings: Settings, plan: Plan,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.same, self.strides, self.settings = guard(*operands), strides, settings
        self.number, self.autocast = len(operands), autocast_dtype(operands[0])
        self.plan, self.dtype = plan, dtype
        self.norm: GuardedNorm | None = None
        # Where no norm follows: by the activation, and what its backward wants.
        self.activated: dict[tuple[str | None, str | None, bool], Activated | Unprepared] = {}
        self.summand: tuple[tuple[int, ...] | None, Check] | None = None  # strides as in fits()
        self.device = operands[0].device
        self.trains = True  # False: where gradients are recorded, PyTorch's own layers run
        self.make: Callable[[], Pending] | None = None  # constructs its Pendings

    def fits(self, operands: tuple[Tensor, ...], strides: tuple[int, ...] | None, settings: Settings) -> bool:
        """strides: those that the input has for PyTorch, where they are not its own."""
        if len(operands) != self.number or self.strides != strides or self.settings != settings:
            return False
        if not self.same(*operands):
            return False
        return self.autocast is None or self.autocast is autocast_dtype(operands[0])


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """None without autocast on any device."""
    return torch.get_autocast_dtype("cuda" if tensor.is_cuda else "cpu") if _any_autocast() else None


_any_autocast = torch._C._is_any_autocast_enabled


class GuardedNorm:
    """The launches prepared for a convolution and the batch norm after it, and the guard of the norm's tensors."""

    __slots__ = ("chain", "counts", "folded", "same", "training")

    def __init__(self, tensors: tuple[Tensor, ...], training: bool) -> None:
        """tensors: gamma, beta, running mean and variance; and the count of batches, if it is to be incremented."""
        self.training, self.same, self.counts = training, guard(*tensors), len(tensors) == 5
        self.chain: Chain | Unprepared | None = None  # for training
        # For inference: by whether a residual is added, and the activation.
        self.folded: dict[tuple[bool, str | None], Folded | Unprepared] = {}

    def fits(self, tensors: tuple[Tensor, ...], training: bool) -> bool:
        return self.training is training and (len(tensors) == 5) is self.counts and self.same(*tensors)
