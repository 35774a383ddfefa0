"""What pending tensors stand for: a convolution, its norm and a summand, and how these are computed after all."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from genesis.torch import handing, ops
from genesis.torch.guards import nothing_watches
from genesis.torch.shapes import Plan

_any_autocast = torch._C._is_any_autocast_enabled


class Link:
    """What Pendings stand for, and what it takes to compute them: stage 0 the convolution, 1 its norm, 2 the sum."""

    __slots__ = (
        "begun", "bias", "dtype", "entry", "input", "modes", "norm", "norm_versions", "output", "plan", "ready",
        "residual", "residual_version", "versions", "weight",
    )  # fmt: skip

    def __init__(
        self, entry: Any, input: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, dtype: torch.dtype,
        modes: tuple[bool, bool], versions: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.entry, self.plan, self.dtype, self.modes = entry, plan, dtype, modes
        self.input, self.weight, self.bias, self.versions = input, weight, bias, versions
        self.output: Tensor | None = None  # of the convolution, where that could not wait
        self.norm: Any = None  # gamma, beta, running mean and variance, training, momentum, eps
        self.norm_versions: tuple[int, ...] = ()
        self.begun: Any = None  # convolution and statistics
        self.residual: Tensor | None = None
        self.residual_version = 0
        self.ready: Tensor | None = None  # with ReLU, computed in advance

    def copy(self, stage: int) -> Link:
        """To be taken elsewhere from a stage."""
        link = Link(self.entry, self.input, self.weight, self.bias, self.plan, self.dtype, self.modes, self.versions)
        link.output = self.output
        if stage:
            link.norm, link.norm_versions, link.begun = self.norm, self.norm_versions, self.begun
        return link

    def convolution_needs_gradients(self) -> bool:
        tensors = (self.input, self.weight, self.bias)
        return self.modes[0] and any(each is not None and each.requires_grad for each in tensors)

    def needs_gradients(self, stage: int) -> bool:
        if not self.modes[0]:
            return False
        if self.weight.requires_grad or self.input.requires_grad:
            return True
        tensors = [self.bias]
        if stage:
            tensors += self.norm[:2]
        if stage == 2:
            tensors.append(self.residual)
        return any(each is not None and each.requires_grad for each in tensors)

    # --- computing --------------------------------------------------------------------------------------------------
    def compute(self, stage: int) -> Tensor:
        """What a Pending stands for, as it was when it was made: with its modes, and what it was made of."""
        with _then(self.modes):
            if stage > 0:
                return self.finish(None, stage)
            if self.output is not None:
                return self.output.clone()  # what was made of it has it too
            self.check_convolution()
            return torch.conv2d(*self._operands(), *self.plan.geometry)

    def finish(self, activation: str | None, stage: int) -> Tensor:
        """activation(batch_norm(conv) + residual)."""
        if self.ready is not None:
            ready, self.ready = self.ready, None
            if activation is not None and stage == 1:
                return ready
        mean, var, training = self.norm[2:5]
        if self.begun is None:  # the statistics have moved already
            self.check_convolution()
            self.begin(None if training else mean, None if training else var, None)
        if self.norm_versions != versions_of(*(self.norm[:2] if training else self.norm[:4])):
            raise self._changed("its batch norm's weight, bias or statistics were")
        residual = self.residual if stage == 2 else None
        if residual is not None and self.residual_version != _version(residual):
            raise self._changed("the other summand was")
        unchanged = self.versions == versions_of(self.input, self.weight, self.bias)
        if not unchanged and self.begun[2].dim() != 4:  # the convolution has still to be done
            self.check_convolution()
        y = self._finished(activation, residual, stage)
        if not unchanged and self.convolution_needs_gradients():  # as PyTorch itself would say it in the backward
            y = torch._C._functions.DelayedError(_MODIFIED.format(self.entry.name), 1)(y)
        return y

    def whole(self, activation: str | None, count: Tensor | None) -> Tensor:
        """All of it in one call, the running statistics included."""
        gamma, beta, mean, var, *options = self.norm
        input, weight, bias = self._operands()
        options += (*self.plan.geometry, activation)
        if not self.needs_gradients(1):
            return ops.conv_bn_relu_values(input, weight, bias, gamma, beta, mean, var, None, *options, count)
        input, hands_on = handing.taken(self, input)
        result = ops.apply(hands_on, input, weight, bias, gamma, beta, None, (mean, var, count, None), options)
        return handing.note(self.entry, self.input, *result) if hands_on else result

    def begin(self, mean: Tensor | None, var: Tensor | None, count: Tensor | None) -> None:
        """The convolution and its statistics, which change the running ones."""
        gamma, beta, running_mean, running_var, training, momentum, eps = self.norm
        if self.output is not None:
            self.begun = None, None, self.output, None
        else:
            options = (training, momentum, eps, *self.plan.geometry, count)
            self.begun = ops.conv_bn_begin(*self._operands(), gamma, beta, mean, var, *options)
        if self.begun[0] is None:  # those of now: nothing counts their changes
            wide = torch.promote_types(self.dtype, torch.float32)
            with torch.no_grad():
                inverse_std = torch.rsqrt(running_var.to(wide) + eps)
                self.begun = running_mean.to(wide, copy=True), inverse_std, *self.begun[2:]

    def _finished(self, activation: str | None, residual: Tensor | None, stage: int) -> Tensor:
        gamma, beta, mean, var, *options = self.norm
        input, weight, bias = self._operands()
        if not self.needs_gradients(stage):
            return ops.conv_bn_finish_values(
                self.begun, input, weight, gamma, beta, mean, var, residual, options[2], activation
            )
        input, hands_on = handing.taken(self, input)
        residual = None if residual is None else handing.view_of(residual)
        others, options = (mean, var, None, *self.begun), (*options, *self.plan.geometry, activation)
        result = ops.apply(hands_on, input, weight, bias, gamma, beta, residual, others, options)
        return handing.note(self.entry, self.input, *result) if hands_on else result

    def _operands(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """As autocast would have them."""
        dtype, input, weight, bias = self.dtype, self.input, self.weight, self.bias
        if input.dtype is dtype and weight.dtype is dtype:
            return input, weight, bias
        return input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)

    def check_convolution(self) -> None:
        if self.versions != versions_of(self.input, self.weight, self.bias):
            raise self._changed("its input, weight or bias was")

    def _changed(self, what: str) -> RuntimeError:
        self.entry.stop(f"{what} changed in place before its result was used")
        return RuntimeError(
            f"genesis.torch.fuse: convolution '{self.entry.name}': {what} changed in place before its result was used; "
            "from the next call on it is computed at once. genesis.torch.unfuse(model) gives the plain model."
        )


_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: the input or "
    "weight of convolution '{}'"
)


def _version(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return -1


def versions_of(*tensors: Tensor | None) -> tuple[int, ...]:
    try:
        return tuple([0 if each is None else each._version for each in tensors])
    except RuntimeError:
        return tuple([_version(each) for each in tensors])


def _then(modes_then: tuple[bool, bool]) -> ExitStack:
    """The modes of an earlier moment, without what has begun to watch since."""
    stack = ExitStack()
    grad, inference = modes_then
    if torch.is_inference_mode_enabled() is not inference:
        stack.enter_context(torch.inference_mode(inference))
    if torch.is_grad_enabled() is not grad:
        stack.enter_context(torch.set_grad_enabled(grad))
    if _any_autocast():
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
    if not nothing_watches():
        stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
    return stack
