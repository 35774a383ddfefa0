"""What pending tensors stand for: a convolution, its norm and a summand, and how these are computed after all."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from genesis.torch import bridge, handing, ops
from genesis.torch.guards import Modes, modes, nothing_watches, without_newer_hooks
from genesis.torch.seen import SeenConvolution
from genesis.torch.shapes import Plan
from genesis.torch.unprepared import UNPREPARED

_any_autocast = torch._C._is_any_autocast_enabled


class Link:
    """What Pendings stand for, and what it takes to compute them: stage 0 the convolution, 1 its norm, 2 the sum."""

    __slots__ = (
        "begun", "bias", "cast", "dtype", "entry", "inner", "input", "known", "modes", "norm", "norm_versions",
        "output", "plan", "ready", "residual", "residual_inner", "residual_version", "seen",
        "versions", "weight",
    )  # fmt: skip

    def __init__(
        self, entry: Any, seen: SeenConvolution, input: Tensor, weight: Tensor, bias: Tensor | None,
        modes: Modes, versions: tuple[int, ...], inner: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.entry, self.seen, self.plan, self.dtype, self.modes = entry, seen, seen.plan, seen.dtype, modes
        self.input, self.weight, self.bias, self.versions = input, weight, bias, versions
        self.inner = inner  # the input's values in channels-last order, where they are known
        self.cast: tuple[Tensor, Tensor | None] | None = None  # values of weight and bias in dtype
        self.output: Tensor | None = None  # of the convolution, where that could not wait
        self.norm: Any = None  # gamma, beta, running mean and variance, training, momentum, eps
        self.norm_versions: tuple[int, ...] = ()
        self.known: Any = None  # what is known of its norm from earlier calls
        self.begun: Any = None  # convolution and statistics: what conv_bn_begin gives, or prepared.Begun
        self.residual: Tensor | None = None
        self.residual_inner: Tensor | None = None
        self.residual_version = 0
        self.ready: Tensor | Computed | None = None  # with ReLU, computed in advance

    def copy(self, stage: int) -> Link:
        """To be taken elsewhere from a stage."""
        link = Link(
            self.entry, self.seen, self.input, self.weight, self.bias, self.modes, self.versions, self.inner
        )  # fmt: skip
        link.output, link.cast = self.output, self.cast
        if stage:
            link.norm, link.norm_versions, link.begun, link.known = (
                self.norm, self.norm_versions, self.begun, self.known
            )  # fmt: skip
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
    def compute(self, stage: int) -> Tensor | Computed:
        """What a Pending stands for, as it was when it was made: with its modes, and what it was made of."""
        with _then(self.modes):
            if stage > 0:
                return self.finish(None, stage)
            if self.output is not None:
                return _ordered(self.output, self.plan)  # a copy: what was made of it has it too
            self.check_convolution()
            operands = (self._cast(self.input), self._cast(self.weight), self._cast(self.bias))
            y = torch.conv2d(*operands, *self.plan.geometry)
            return y if y.stride() == self.plan.strides else _ordered(y, self.plan)

    def finish(self, activation: str | None, stage: int) -> Tensor | Computed:
        """activation(batch_norm(conv) + residual)."""
        if self.ready is not None:
            ready, self.ready = self.ready, None
            if activation is not None and stage == 1:
                return ready
        mean, var, training = self.norm[2:5]
        at_once = self.begun is None and not training and self.output is None and not self.needs_gradients(stage)
        if self.begun is None and not at_once:  # the statistics have moved already
            self.check_convolution()
            self.begin(None if training else mean, None if training else var, None)
        if self.norm_versions != versions_of(*(self.norm[:2] if training else self.norm[:4])):
            raise self._changed("its batch norm's weight, bias or statistics were")
        residual = self.residual if stage == 2 else None
        if residual is not None and self.residual_version != _version(residual):
            raise self._changed("the other summand was")
        if at_once:
            self.check_convolution()
            return self.whole(activation, None, residual)
        unchanged = self.versions == versions_of(self.input, self.weight, self.bias)
        if not unchanged:
            kept = self.begun[2] if type(self.begun) is tuple else self.begun.kept
            if len(kept.shape) != 4:  # the convolution has still to be done
                self.check_convolution()
        y = self._finished(activation, residual, stage)
        if not unchanged and self.convolution_needs_gradients():  # as PyTorch itself would say it in the backward
            raises = torch._C._functions.DelayedError(_MODIFIED.format(self.entry.name), 1)
            if type(y) is Computed:
                y.value = raises(y.value)
            else:
                y = raises(y)
        return y

    def whole(self, activation: str | None, count: Tensor | None, residual: Tensor | None = None) -> Tensor | Computed:
        """All of it in one call, the running statistics included."""
        gamma, beta, mean, var, *options = self.norm
        geometry = self.plan.geometry
        if options[0] and self._begin_prepared(mean, var, count, False, activation):
            return self._finished(activation, None, 1)
        if self.needs_gradients(1):
            return self._applied(None, (mean, var, count, None), (*options, *geometry, activation))
        residual = residual if residual is None or self.residual_inner is None else self.residual_inner
        vectors = (gamma, beta, mean, var, residual)
        if options[0]:
            return self._plain(
                ops.conv_bn_relu_values(*self._values(), *vectors, *options, *geometry, activation, count)
            )
        operands = (self._cast(self.input if self.inner is None else self.inner), self.weight, self.bias)
        y = self._folded(operands, vectors, options[2], activation)
        if y is None:
            y = ops.conv_bn_relu_inference(*operands, *vectors, options[2], *geometry, activation)
        return self._plain(y)

    def _folded(self, operands: Any, vectors: Any, eps: float, activation: str | None) -> Tensor | None:
        """Inference by the short way, if there is one."""
        known = self.known
        if known is None:
            return None
        has_residual = vectors[4] is not None
        folded = known.folded.get((has_residual, activation))
        if folded is None or folded.eps != eps or not folded.is_current():
            if folded is UNPREPARED:
                return None
            tensors = (*operands, *vectors[:4])
            how = (eps, self.plan.geometry, has_residual, activation)
            folded = bridge.prepare_inference(*tensors[:2], tensors[2:], *how)
            known.folded[has_residual, activation] = folded
        y: Tensor | None = folded.run(*operands, *vectors)
        return y

    def _applied(self, residual: Any, others: Any, options: Any) -> Any:
        """By the op with a backward."""
        added = None if residual is None else self.residual_inner  # a stage before the sum may be asked for
        inner = None if self.inner is None else self._cast(self.inner)
        values = (inner, added, *self._parameters())
        input, hands_on = handing.taken(self, self._cast(self.input))
        return self._noted(
            hands_on,
            ops.apply(hands_on, input, self.weight, self.bias, *self.norm[:2], residual, others, options, values),
        )

    def _noted(self, hands_on: bool, y: Any) -> Any:
        """What the op with a backward gave, for whoever takes it."""
        view = None
        if hands_on:
            y, view = y
        if self.plan.contiguous:
            return self._given(y, view)
        if self.plan.output_shape[0] == 1 and y.stride() != self.plan.strides:
            y = _ordered(y, self.plan)  # views of one image are in no certain order
        return y if view is None else handing.note(self.entry, self.input, y, view)

    def _given(self, y: Tensor, view: Tensor | None) -> Computed:
        """What the op gave in channels-last order, where PyTorch's layers give contiguous tensors."""
        inner, value = y, None
        if y.requires_grad:
            inner, value = y.detach(), _ordered(y, self.plan)
            if view is not None:
                handing.note(self.entry, self.input, value, view)
                handing.keep(inner, view)  # which outlives the value: the next chain saves it
        return Computed(self, inner, value)

    def begin(self, mean: Tensor | None, var: Tensor | None, count: Tensor | None) -> None:
        """The convolution and its statistics, which change the running ones."""
        gamma, beta, running_mean, running_var, training, momentum, eps = self.norm
        if self.output is not None:
            self.begun = None, None, self.output, None
        elif self._begin_prepared(mean, var, count, True, "relu"):
            return
        else:
            options = (training, momentum, eps, *self.plan.geometry, count)
            self.begun = ops.conv_bn_begin(*self._values(), gamma, beta, mean, var, *options)
        if self.begun[0] is None:  # those of now: nothing counts their changes
            wide = torch.promote_types(self.dtype, torch.float32)
            with torch.no_grad():
                inverse_std = torch.rsqrt(running_var.to(wide) + eps)
                self.begun = running_mean.to(wide, copy=True), inverse_std, *self.begun[2:]

    def _begin_prepared(
        self, mean: Tensor | None, var: Tensor | None, count: Tensor | None, has_residual: bool, activation: str | None
    ) -> bool:
        """begin() by the short way, if there is one; for what is to be expected."""
        known = self.known
        if known is None or mean is None or (count is not None) is not known.counts:
            return False
        gamma, beta, _, _, training, momentum, eps = self.norm
        if not training:
            return False
        chain = known.chain
        if chain is UNPREPARED:
            return False
        x, weight, bias = (
            self._cast(self.input if self.inner is None else self.inner),
            self.weight,
            self._cast(self.bias),
        )
        if chain is None or chain.eps != eps or not chain.is_current():
            vectors = (bias, gamma, beta, mean, var, count)
            chain = known.chain = bridge.prepare(x, weight, vectors, eps, self.plan.geometry)
        begun = chain.begin(x, weight, bias, mean, var, count, momentum, has_residual, activation)
        if begun is None:
            return False
        self.begun = begun
        return True

    def _values(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The operands where no gradient is asked for."""
        return self._cast(self.input if self.inner is None else self.inner), *self._parameters()

    def _parameters(self) -> tuple[Tensor, Tensor | None]:
        """Values of weight and bias, cast once as autocast does it; their gradients are the op's."""
        weight, bias = self.weight, self.bias
        if weight.dtype is self.dtype:
            return weight, bias
        if self.cast is None:
            with torch.no_grad():
                self.cast = weight.to(self.dtype), self._cast(bias)
        return self.cast

    def _cast(self, tensor: Any) -> Any:
        """As autocast has it; None stays None."""
        return tensor if tensor is None or tensor.dtype is self.dtype else tensor.to(self.dtype)

    def _finished(self, activation: str | None, residual: Tensor | None, stage: int) -> Tensor | Computed:
        gamma, beta, mean, var, *options = self.norm
        added = residual if residual is None or self.residual_inner is None else self.residual_inner
        needs_gradients, begun = self.needs_gradients(stage), self.begun
        if type(begun) is not tuple:
            y = begun.chain.finish(begun, added, gamma, beta, activation)
            if y is not None:
                return self._prepared(begun, residual, activation, y) if needs_gradients else self._plain(y)
            begun = self.begun = begun.arrays()
        if not needs_gradients:
            input, weight, _ = self._values()
            return self._plain(
                ops.conv_bn_finish_values(begun, input, weight, gamma, beta, mean, var, added, options[2], activation)
            )
        residual = None if residual is None else handing.view_of(residual)
        options += (*self.plan.geometry, activation)
        return self._applied(residual, (mean, var, None, *begun), options)

    def _prepared(self, begun: Any, residual: Tensor | None, activation: str | None, y: Tensor) -> Tensor | Computed:
        """y, which has been computed, with its backward."""
        residual = None if residual is None else handing.view_of(residual)
        if self.input.dtype is self.dtype:
            input, hands_on = handing.taken(self, self.input)
            x = input if self.inner is None else begun.x
        else:
            x, hands_on = begun.x, False
            input = x if self.inner is None else self._cast(self.input)
        operands = (input, self.weight, self.bias, *self.norm[:2], residual)
        return self._noted(hands_on, ops.apply_prepared(hands_on, *operands, (begun, x, activation, y)))

    def _plain(self, y: Tensor) -> Tensor | Computed:
        return self._given(y, None) if self.plan.contiguous else y

    def check_convolution(self) -> None:
        if self.versions != versions_of_three(self.input, self.weight, self.bias):
            raise self._changed("its input, weight or bias was")

    def _changed(self, what: str) -> RuntimeError:
        self.entry.stop(f"{what} changed in place before its result was used")
        return RuntimeError(
            f"genesis.torch.fuse: convolution '{self.entry.name}': {what} changed in place before its result was used; "
            "from the next call on it is computed at once. genesis.torch.unfuse(model) gives the plain model."
        )


class Computed:
    """What a chain of contiguous tensors gave: contiguous to whoever looks, channels-last to the next chain.

    It takes the place of a Link, at stage 3.
    """

    __slots__ = ("dtype", "entry", "inner", "modes", "plan", "seen", "taken", "value")

    def __init__(self, link: Link, inner: Tensor, value: Tensor | None) -> None:
        """inner: the values; value: the contiguous tensor, which is made at once where it is a node of a graph."""
        self.entry, self.seen, self.plan, self.dtype, self.modes = (
            link.entry, link.seen, link.plan, link.dtype, link.modes
        )  # fmt: skip
        self.inner, self.value = inner, value
        self.taken = False  # the value is somebody's

    def needs_gradients(self, stage: int) -> bool:
        return self.value is not None and self.value.requires_grad

    def compute(self, stage: int) -> Tensor:
        if self.value is not None:
            return self.value
        with _then(self.modes):
            return _ordered(self.inner, self.plan)

    def take(self) -> tuple[Tensor, Tensor | None]:
        """A tensor for the next chain, and its values if they are not its own."""
        if self.value is None:
            return self.inner, None
        self.taken = True
        return self.value, self.inner


def _ordered(y: Tensor, plan: Plan) -> Tensor:
    """A copy in the order of memory that PyTorch's layers give."""
    return y.clone(memory_format=torch.contiguous_format if plan.contiguous else torch.channels_last)


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


def versions_of_three(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    """versions_of(), in less time."""
    try:
        return input._version, weight._version, 0 if bias is None else bias._version
    except RuntimeError:
        return versions_of(input, weight, bias)


def _then(then: Modes) -> ExitStack:
    """The modes of an earlier moment, without what has begun to watch since."""
    stack = ExitStack()
    grad, inference, saving = then
    if torch.is_inference_mode_enabled() is not inference:
        stack.enter_context(torch.inference_mode(inference))
    if torch.is_grad_enabled() is not grad:
        stack.enter_context(torch.set_grad_enabled(grad))
    if _any_autocast():
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
    if not nothing_watches():
        stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
    if modes().saving is not saving:
        stack.enter_context(without_newer_hooks(saving))
    return stack
