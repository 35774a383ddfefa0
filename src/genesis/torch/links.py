"""The computations behind pending tensors: a convolution, its norm and a summand, computed on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from torch import Tensor

from genesis.records import BegunConvNorm, NormOptions, NormState, is_output
from genesis.torch import both_orders, bridge, conv_act, ops, pass_through
from genesis.torch.computed import Computed, ordered
from genesis.torch.modes import Modes, restored, version_of, versions_of, versions_of_norm, versions_of_three
from genesis.torch.tensor_guards import GuardedConv, GuardedNorm
from genesis.torch.unprepared import UNPREPARED

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry
    from genesis.torch.norm_entries import BareNorm
    from genesis.torch.prepared import Begun
    from genesis.torch.prepared_act import Activated
    from genesis.torch.signatures import Array
    from genesis.torch.unprepared import Unprepared

OptionalTensor = TypeVar("OptionalTensor", Tensor, None)
NO_NORM = object()
_all_run_alone = False


@contextmanager
def running_alone() -> Iterator[None]:
    """Inside, convolutions with which nothing is fused run as they do in compiled graphs, for tuning to find them."""
    global _all_run_alone
    before, _all_run_alone = _all_run_alone, True
    try:
        yield
    finally:
        _all_run_alone = before


@final
class Link:
    """The deferred computation of a Pending and its operands: stage 0 is the convolution, 1 its norm, 2 the sum.

    weight: None where a norm takes a tensor that is no convolution's deferred result; that is the input then.
    """

    __slots__ = (
        "before", "begun", "bias", "cast", "dtype", "entry", "eps", "guarded", "inner", "input", "known", "modes",
        "momentum",
        "norm", "norm_versions", "output", "plan", "ready", "ready_for", "residual", "residual_inner",
        "residual_version", "source", "training", "versions", "weight",
    )  # fmt: skip

    training: bool  # the norm's settings, from stage 1 on
    momentum: float
    eps: float

    def __init__(
        self, entry: ConvEntry | BareNorm, guarded: GuardedConv, input: Tensor, weight: Tensor | None,
        bias: Tensor | None, modes: Modes, versions: tuple[int, ...], inner: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.entry, self.guarded, self.plan, self.dtype, self.modes = entry, guarded, guarded.plan, guarded.dtype, modes
        self.input, self.weight, self.bias, self.versions = input, weight, bias, versions
        self.inner = inner  # the input's values in channels-last order, if it has them
        self.source: Tensor | None = None  # the same as a node of the graph
        self.cast: tuple[Tensor, Tensor | None] | None = None  # weight and bias, cast to dtype
        self.output: Tensor | None = None  # of the convolution, where that could not be deferred
        self.norm: Any = None  # the tensors of the norm that follows, NormState; NO_NORM: an activation did
        self.norm_versions: tuple[int, ...] = ()
        self.known: GuardedNorm | None = None  # launches prepared for this norm by earlier calls
        self.begun: Any = None  # convolution and statistics: BegunConvNorm, or prepared.Begun
        self.residual: Tensor | None = None
        self.residual_inner: Tensor | None = None
        self.residual_version = 0
        self.ready: Tensor | Computed | None = None  # with the activation ready_for, computed in advance
        self.ready_for = ""
        self.before: tuple[
            str, ...
        ] = ()  # "mul": weight and bias have a scale of the result; "avg_pool2d": so has input

    def values(self) -> None:
        """Return none: see Computed."""

    def copy(self, stage: int) -> Link:
        """A link that starts at a stage of this one, for another use of the same result."""
        link = Link(
            self.entry, self.guarded, self.input, self.weight, self.bias, self.modes, self.versions, self.inner
        )  # fmt: skip
        link.output, link.cast, link.source, link.before = self.output, self.cast, self.source, self.before
        if stage:
            link.norm, link.training, link.momentum, link.eps = self.norm, self.training, self.momentum, self.eps
            link.norm_versions, link.begun, link.known = self.norm_versions, self.begun, self.known
        return link

    def convolution_needs_gradients(self) -> bool:
        tensors = (self.input, self.weight, self.bias)
        return self.modes[0] and any(each is not None and each.requires_grad for each in tensors)

    def needs_gradients(self, stage: int) -> bool:
        if not self.modes[0]:
            return False
        if self.input.requires_grad or (self.weight is not None and self.weight.requires_grad):
            return True
        tensors = [self.bias]
        if stage and self.norm is not NO_NORM:
            tensors += self.norm[:2]
        if stage == 2:
            tensors.append(self.residual)
        return any(each is not None and each.requires_grad for each in tensors)

    def _options(self) -> NormOptions:
        return NormOptions(self.training, self.momentum, self.eps)

    def note_fused(self, stage: int, activation: str) -> None:
        """An activation ended it."""
        self.entry.fused(stage, activation, self.norm is not NO_NORM)
        if self.before:
            self.entry.kinds = (*self.before, *self.entry.kinds)

    def note_materialized(self, stage: int) -> None:
        """Other code used its value."""
        entry = self.entry
        if self.before:
            self._note_materialized_after(stage)
        elif not stage and self._runs_alone():
            if self.bias is not None:  # else it is for tuning, of which the model's report tells nothing
                entry.unfused, entry.kinds, entry.reason = 0, ("bias",), ""
        elif not stage and self.output is not None:  # under inference_mode, of which other modes learn nothing
            entry.unfused_in_inference += 1
        else:
            waits = not stage and self.plan.contiguous and self.bias is not None and bridge.activates(self.input)
            entry.note_materialized(stage, self.norm is NO_NORM, waits)

    def _note_materialized_after(self, stage: int) -> None:
        """The same, where something runs with it already."""
        entry = self.entry
        if stage:
            entry.note_materialized(stage, self.norm is NO_NORM, False)
        else:
            entry.unfused, entry.kinds = 0, ()
        entry.kinds = (*self.before, *entry.kinds)

    def _runs_alone(self) -> bool:
        """Does a convolution that other code takes run here, for its bias? Not where the result has to be reordered."""
        if self.output is not None or self.plan.contiguous:
            return False
        if self.bias is not None and bridge.activates(self.input):
            return True
        if not _all_run_alone or self.weight is None:
            return False
        return bridge.convolves(self.input, self.weight, self.dtype, self.plan.geometry.groups)

    # --- computing --------------------------------------------------------------------------------------------------
    def compute(self, stage: int) -> Tensor | Computed:
        """Compute a Pending under the modes in which it was created; raises if an operand has changed since."""
        with restored(self.modes):
            if stage > 0:
                y = self.activate(None, False, stage) if self.norm is NO_NORM else self.finish(None, stage)
                return self.in_order(y) if self.plan.fits_both else y
            if self.output is not None:
                return ordered(self.output, self.plan)  # a copy: the norm's output has saved it
            self.check_convolution()
            if self._runs_alone():
                alone = self if self.norm is None else self.copy(0)  # the norm that took it keeps its link
                y = alone.activate(None, False, 0)
                return self.in_order(y, stage=0) if self.plan.fits_both else y
            operands = (self._cast(self.input), self._cast(self.weight), self._cast(self.bias))
            y = torch.conv2d(*operands, *self.plan.geometry)
            return y if y.stride() == self.plan.strides else ordered(y, self.plan)

    def in_order(self, y: Tensor | Computed, activation: str | None = None, stage: int = 1) -> Tensor | Computed:
        """A new result with the strides of PyTorch's layers, where both orders of memory fit; no sum is fused there."""
        if type(y) is Computed:
            return y
        layers = (both_orders.TRAINED_NORM if self.training else both_orders.NORM,) if stage else ()
        return both_orders.as_after(y, self.plan, layers if activation is None else (*layers, activation))

    def finish(self, activation: str | None, stage: int) -> Tensor | Computed:
        """activation(batch_norm(conv) + residual)."""
        self.ready = None
        norm, training = self.norm, self.training
        at_once = self.begun is None and not training and self.output is None and not self.needs_gradients(stage)
        if self.begun is None and not at_once:  # the statistics have moved already
            self.check_convolution()
            self.begin(NormState(norm.gamma, norm.beta, None, None) if training else norm)
        if self.norm_versions != versions_of_norm(norm, training):
            raise self._changed("its batch norm's weight, bias or statistics were")
        residual = self.residual if stage == 2 else None
        if residual is not None and self.residual_version != version_of(residual):
            raise self._changed("the other summand was")
        if at_once:
            self.check_convolution()
            return self.infer(activation, residual)
        unchanged = self.versions == versions_of(self.input, self.weight, self.bias)
        if not unchanged and (self.weight is None or not is_output(self.begun.kept)):  # it has still to be read
            self.check_convolution()
        y = self._finished(activation, residual, stage)
        if not unchanged and self.convolution_needs_gradients():  # as PyTorch itself would say it in the backward
            raises = torch._C._functions.DelayedError(_MODIFIED.format(self.entry.name), 1)
            if type(y) is Computed:
                y.value = raises(y.value)
            else:
                y = raises(y)
        return y

    def activate(self, activation: str | None, inplace: bool, stage: int) -> Tensor | Computed:
        """activation(conv), or of stage 2 activation(conv + residual), of a convolution that no norm follows."""
        self.check_convolution()
        residual = self.residual if stage else None
        if residual is not None and self.residual_version != version_of(residual):
            raise self._changed("the other summand was")
        added = residual if residual is None or self.residual_inner is None else self.residual_inner
        self.norm = NO_NORM if self.norm is None else self.norm  # another use of the convolution may have one
        geometry, weight = self.plan.geometry, self.weight
        if not self.needs_gradients(stage):
            x, bias = self._cast(self.input if self.inner is None else self.inner), self._bias_values()
            found = self._prepared_activation(x, activation, None, stage).run(x, weight, bias, added)
            if found is None:
                return self._plain(conv_act.conv_act_values(*self._values(), added, geometry, activation))
            return self._plain(found[0])
        input, passes_through = pass_through.input_of(self, self._cast(self.input))
        x = input if self.source is None else self._cast(self.source)
        how = conv_act.How(geometry, activation, conv_act.kept_by(activation, inplace))
        prepared = self._prepared_activation(x, activation, how.keeps, stage)
        bias = self._bias_values()
        found = prepared.run(x, weight, bias, added)
        parameters = self._parameters() if found is None else (weight, bias)
        values = conv_act.Values(x, *parameters, added, prepared, found)
        operands = (input, weight, self.bias, None if residual is None else pass_through.view_of(residual))
        return self._result(*conv_act.apply(passes_through, *operands, how, values))

    def _prepared_activation(
        self, x: Tensor, activation: str | None, keeps: str | None, stage: int
    ) -> Activated | Unprepared:
        known, key = self.guarded.activated, (activation, keeps, stage != 0)
        prepared = known.get(key)
        if prepared is None or not prepared.is_current():
            how = (self.plan.geometry, *key)
            prepared = known[key] = bridge.prepare_activation(x, self.weight, self._bias_values(), *how)
        return prepared

    def whole(self, activation: str | None, residual: Tensor | None = None) -> Tensor | Computed:
        """All of it in one call, the running statistics included."""
        norm, training = self.norm, self.training
        if not training and not self.needs_gradients(1):
            return self.infer(activation, residual)
        if training and self._begin_prepared(norm, False, activation):
            return self._finished(activation, None, 1)
        if self.needs_gradients(1):
            return self._applied(None, None, activation)
        if residual is not None and self.residual_inner is not None:
            residual = self.residual_inner
        operands = (*self._values(), norm, residual)
        return self._plain(ops.conv_bn_relu_values(*operands, self._options(), self.plan.geometry, activation))

    def infer(self, activation: str | None, residual: Tensor | None) -> Tensor | Computed:
        """whole() with the running statistics, without gradient; by prepared launches, if there are any."""
        weight, bias, norm, eps = self.weight, self.bias, self.norm, self.eps
        input = self.input if self.inner is None else self.inner
        if input.dtype is not self.dtype:
            input = input.to(self.dtype)
        if residual is not None and self.residual_inner is not None:
            residual = self.residual_inner
        if weight is None:
            begun = BegunConvNorm(None, None, input, None)
            return ops.conv_bn_finish_values(begun, input, None, norm, residual, eps, activation)
        known, y = self.known, None
        if bridge.keeps_folds(input):
            if known is not None:
                operands = (weight, bias, *norm[:4])
                y = self.entry.folds.run(input, operands, eps, self.plan.geometry, residual, activation, known)
        elif known is not None:
            key = (residual is not None, activation)
            folded = known.folded.get(key)
            if folded is None or (folded is not UNPREPARED and (folded.eps != eps or not folded.is_current())):
                how = (eps, self.plan.geometry, *key)
                folded = known.folded[key] = bridge.prepare_inference(input, weight, bias, norm, *how)
            y = folded.run(input, weight, bias, norm, residual)
        if y is None:
            y = ops.conv_bn_relu_inference(input, weight, bias, norm, residual, eps, self.plan.geometry, activation)
        return self._wrapped(y, None) if self.plan.contiguous else y

    def _applied(
        self, residual: Tensor | None, begun: BegunConvNorm[Array] | None, activation: str | None
    ) -> Tensor | Computed:
        """Apply the op that has a backward. begun: the result of begin(), None where nothing has been computed."""
        added = None if residual is None else self.residual_inner  # the stage may be before the sum
        inner = None if self.inner is None else self._as_node(self._cast(self.inner))
        values = (inner, added, *self._parameters())
        input, passes_through = pass_through.input_of(self, self._cast(self.input))
        norm: NormState[Tensor] = self.norm
        how = ops.How(norm, begun, False, self._options(), self.plan.geometry, activation)
        operands = (input, self.weight, self.bias, *norm[:2], residual)
        return self._result(*ops.apply(passes_through, *operands, how, values))

    def _result(self, y: Tensor, view: Tensor | None) -> Tensor | Computed:
        """The result of the op that has a backward, as the next layer takes it; with the input's view registered."""
        if self.plan.contiguous:
            return self._wrapped(y, view)
        if self.plan.output_shape[0] == 1 and y.stride() != self.plan.strides and not self.plan.fits_both:
            y = ordered(y, self.plan)  # views of one image are in no certain order
        return y if view is None else pass_through.register(self.entry, self.input, y, view)

    def _wrapped(self, y: Tensor, view: Tensor | None) -> Computed:
        """Wrap the op's channels-last result, where PyTorch's layers give contiguous tensors."""
        inner, value, source = y, None, None
        if y.requires_grad:
            inner, value, source = y.detach(), ordered(y, self.plan), y
            if view is not None:
                pass_through.register(self.entry, self.input, value, view)
                pass_through.keep(inner, view)  # which outlives the value: the next chain saves it
                pass_through.keep(y, view)
        return Computed(self, inner, value, source)

    def begin(self, norm: NormState[Tensor]) -> None:
        """Compute the convolution and its statistics, which update the running ones of norm."""
        if self.output is not None:
            self.begun = BegunConvNorm(None, None, self.output, None)
        elif self._begin_prepared(norm, True, "relu"):
            return
        else:
            self.begun = ops.conv_bn_begin(*self._values(), norm, self._options(), self.plan.geometry)
        if self.begun.mean is None:  # the current ones: no version counter tells of their changes
            wide, running = torch.promote_types(self.dtype, torch.float32), self.norm
            with torch.no_grad():
                inverse_std = torch.rsqrt(running.running_var.to(wide) + self.eps)
                mean = running.running_mean.to(wide, copy=True)
            self.begun = BegunConvNorm(mean, inverse_std, *self.begun[2:])

    def _begin_prepared(self, norm: NormState[Tensor], has_residual: bool, activation: str | None) -> bool:
        """begin() by prepared launches, for the residual and activation that are expected; False if there are none."""
        known = self.known
        if (
            known is None
            or self.weight is None
            or norm.running_mean is None
            or (norm.num_batches_tracked is not None) is not known.counts
        ):
            return False
        if not self.training:
            return False
        eps = self.eps
        chain = known.chain
        if chain is UNPREPARED:
            return False
        x, weight, bias = (
            self._cast(self.input if self.inner is None else self.inner),
            self.weight,
            self._cast(self.bias),
        )
        if chain is None or chain.eps != eps or not chain.is_current():
            chain = known.chain = bridge.prepare(x, weight, bias, norm, eps, self.plan.geometry)
        begun = chain.begin(x, weight, bias, norm, self.momentum, has_residual, activation)
        if begun is None:
            return False
        self.begun = begun
        return True

    def _values(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The operands where no gradient is needed."""
        return self._cast(self.input if self.inner is None else self.inner), *self._parameters()

    def _parameters(self) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias cast to dtype as autocast would, once; the op computes their gradients itself."""
        weight, bias = self.weight, self.bias
        if weight is None or weight.dtype is self.dtype:
            return weight, bias
        if self.cast is None:
            with torch.no_grad():
                self.cast = weight.to(self.dtype), self._cast(bias)
        return self.cast

    def _bias_values(self) -> Tensor | None:
        bias = self.bias
        if bias is None or bias.dtype is self.dtype:
            return bias
        with torch.no_grad():
            return bias.to(self.dtype)

    def _cast(self, tensor: OptionalTensor) -> OptionalTensor:
        """The tensor in the dtype that autocast prescribes; None stays None."""
        return tensor if tensor is None or tensor.dtype is self.dtype else tensor.to(self.dtype)

    def _finished(self, activation: str | None, residual: Tensor | None, stage: int) -> Tensor | Computed:
        norm = self.norm
        added = residual if residual is None or self.residual_inner is None else self.residual_inner
        needs_gradients, begun = self.needs_gradients(stage), self.begun
        if type(begun) is not BegunConvNorm:
            y = begun.chain.finish(begun, added, *norm[:2], activation)
            if y is not None:
                return self._prepared(begun, residual, activation, y) if needs_gradients else self._plain(y)
            begun = self.begun = begun.arrays()
        if not needs_gradients:
            input, weight, _ = self._values()
            eps = self.eps
            return self._plain(ops.conv_bn_finish_values(begun, input, weight, norm, added, eps, activation))
        return self._applied(None if residual is None else pass_through.view_of(residual), begun, activation)

    def _prepared(self, begun: Begun, residual: Tensor | None, activation: str | None, y: Tensor) -> Tensor | Computed:
        """Attach the backward to y, which has been computed."""
        residual = None if residual is None else pass_through.view_of(residual)
        if self.input.dtype is self.dtype:
            input, passes_through = pass_through.input_of(self, self.input)
            x = input if self.inner is None else self._as_node(begun.x)
        else:
            x, passes_through = begun.x, False
            input = x if self.inner is None else self._cast(self.input)
        norm: NormState[Tensor] = self.norm
        operands = (input, self.weight, self.bias, *norm[:2], residual)
        return self._result(*ops.apply_prepared(passes_through, *operands, (begun, x, activation, y)))

    def _as_node(self, values: Tensor) -> Tensor:
        """The input's values in channels-last order as a node of the graph, if there is one: gradients that come of it
        can be differentiated."""
        return values if self.source is None or self.source.dtype is not values.dtype else self.source

    def _plain(self, y: Tensor) -> Tensor | Computed:
        return self._wrapped(y, None) if self.plan.contiguous else y

    def check_convolution(self) -> None:
        if self.versions != versions_of_three(self.input, self.weight, self.bias):
            raise self._changed("its input, weight or bias was")

    def _changed(self, what: str) -> RuntimeError:
        self.entry.stop(f"{what} changed in place before its result was used")
        return RuntimeError(
            f"genesis.torch.fuse: convolution '{self.entry.name}': {what} changed in place before its result was used; "
            "from the next call on it is computed at once. genesis.torch.unfuse(model) gives the plain model."
        )


def need_gradients(input: Tensor | Computed, weight: Tensor, bias: Tensor | None) -> bool:
    """Does an operand of a convolution require a gradient?"""
    given = input.needs_gradients(3) if type(input) is Computed else input.requires_grad
    return given or weight.requires_grad or (bias is not None and bias.requires_grad)


_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: the input or "
    "weight of convolution '{}'"
)
