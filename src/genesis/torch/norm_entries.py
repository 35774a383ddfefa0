"""The attribute `forward` that fuse() sets on batch norms, after convolutions and elsewhere.

A norm of a tensor that is no convolution's result, as before the activation of a dense block, is deferred too: its
statistics are computed when it is called, and one pass normalizes, adds and activates. In channels-last, on CUDA. In
inference on the CPU it runs by kept factors (norm_factors.py).
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F

from genesis.records import ConvGeometry, NormState, record
from genesis.torch import bridge, reordered_layers, reordering
from genesis.torch.activations import of_layer
from genesis.torch.autograd_functions import modes_to_defer, place
from genesis.torch.deferring import has_hooks, norm_of
from genesis.torch.entry import Entry
from genesis.torch.folds import Folds
from genesis.torch.inference import infer_norm
from genesis.torch.links import Link
from genesis.torch.modes import nothing_intercepts, versions_of_three
from genesis.torch.norm_factors import ACTIVATIONS, NormFactors
from genesis.torch.operands import operand, plain
from genesis.torch.pending import HANDLERS, NOT_HERE, Pending, batch_norm, materialized, pending
from genesis.torch.shapes import Plan, is_normalized
from genesis.torch.tensor_guards import GuardedConv, Settings, autocast_dtype

_SETTINGS: Settings = ((1, 1), (0, 0), (1, 1), 1, "zeros")
_PATIENCE = 3  # calls in a row with nothing after the norm, until it is left to PyTorch


@final
class BareNorm:
    """A norm without a convolution, in the place of the convolution's entry."""

    passes_through: bool | None = False  # its backward has no pass that could add another gradient for nothing
    is_shared = False
    norm = 0
    active, reason, taker = True, "", ""
    next = "add"  # nothing is computed in advance
    kinds: tuple[str, ...] = ()
    unfused = unfused_in_inference = 0
    guarded: GuardedConv | None = None
    folds = Folds()  # of a weight: it has none

    def __init__(self, name: str) -> None:
        self.name = name
        self.factors = NormFactors()
        self.follows: str | None = None  # in inference on the CPU: the activation of its last result
        self.in_vain = 0  # times that it was computed, and something else came

    def inferred(self, x: object, norm: nn.BatchNorm2d, activation: str | None) -> Tensor | None:
        """activation(norm(x)) in inference on the CPU; None: there is no kernel for it."""
        if type(x) is not Pending or not x.stage or norm.training:
            return self.factors.run(x, norm, activation)
        return reordered_layers.normalize(self, x, norm, activation)

    def pending(self, x: object) -> Pending | None:
        """x as if a convolution had been deferred; None if its norm is left to PyTorch."""
        if type(x) is Pending and x.stage:  # a sum or an activation, which is computed now in any case
            operand = reordering.values_of(x)
            if operand is not None and not bridge.activates(operand[1]):
                return None  # where F.batch_norm takes the values as they are
            x = materialized(x)
        if not isinstance(x, Tensor) or type(x) is not Tensor or not bridge.activates(x):
            return None
        known, modes = self.guarded, modes_to_defer()
        if modes is None or not nothing_intercepts() or x.is_inference():
            return None
        if modes[0] and not bridge.trains(x):
            return None
        if known is None or not known.fits((x,), None, _SETTINGS):
            plan = _plan(x)
            if plan is None or autocast_dtype(x) not in (None, x.dtype):
                return None
            known = self.guarded = GuardedConv((x,), None, _SETTINGS, plan, x.dtype)
        return pending(Link(self, known, x, None, None, modes, versions_of_three(x, None, None)), 0)

    def fused(self, stage: int, activation: str, has_norm: bool) -> None:
        self.unfused = 0
        self.kinds = ("norm", "add", activation) if stage == 2 else ("norm", activation)

    def note_materialized(self, stage: int, has_no_norm: bool, waits_for_order: bool) -> None:
        if stage == 2:
            self.unfused, self.kinds = 0, ("norm", "add")
            return
        self.unfused += 1
        self.kinds, self.active = (), self.unfused < _PATIENCE

    def stop(self, reason: str) -> None:
        self.active, self.reason, self.kinds = False, reason, ()

    def leave_on_cpu(self) -> None:
        """It is never there."""


def _plan(x: Tensor) -> Plan | None:
    """None if the op does not take x: the kernels' order of memory is channels-last."""
    if not is_normalized(x):
        return None
    shape, strides = x.shape, x.stride()
    num_rows = shape[0] * shape[2] * shape[3]
    return Plan(ConvGeometry(*_SETTINGS[:4]), shape, torch.Size(shape[1:2]), num_rows, strides, False, False, False)  # type: ignore[arg-type]


class NormEntry(Entry[nn.BatchNorm2d]):
    """The forward of a BatchNorm2d: a fast path for a Pending, on which the op counts the batch."""

    def begin(self) -> None:
        self.bare = BareNorm(self.name)

    def __call__(self, input: Tensor) -> Tensor:
        if is_compiling():
            norm = self.original()
            return type(norm).forward(norm, input)
        norm = self.owner()
        if place.left:
            return type(norm).forward(norm, input)
        if type(input) is Pending and not input.stage and type(norm) is nn.BatchNorm2d:
            if not norm.training and (inferred := infer_norm(input, norm)) is not None:
                return inferred
            found = norm_of(norm)
            if found is not None and norm.momentum is not None:
                y = batch_norm(input, *found, norm.momentum, norm.eps)
                if y is not NOT_HERE:
                    return y
        if type(norm) is nn.BatchNorm2d and (inferred := self.bare.inferred(input, norm, None)) is not None:
            return inferred
        if self.bare.active and type(norm) is nn.BatchNorm2d and (p := self.bare.pending(input)) is not None:
            found = norm_of(norm)
            if found is not None and norm.momentum is not None:
                y = batch_norm(p, *found, norm.momentum, norm.eps)
                if y is not NOT_HERE:
                    return y
        return type(norm).forward(norm, input)


class FrozenNormEntry(Entry[nn.Module]):
    """The forward of torchvision's FrozenBatchNorm2d: of a Pending, batch norm with its buffers as the statistics."""

    NAMES = frozenset(("torchvision.ops.misc.FrozenBatchNorm2d",))

    def begin(self) -> None:
        pass

    def __call__(self, input: Tensor) -> Tensor:
        norm = self.original() if is_compiling() else self.owner()
        if type(input) is Pending:
            buffers = norm._buffers
            tensors = [buffers.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
            if all(each is not None for each in tensors):
                y: Tensor | object = batch_norm(input, record(NormState, (*tensors, None)), False, 0.0, norm.eps)
                if y is not NOT_HERE:
                    assert isinstance(y, Tensor)
                    return y
        result: Tensor = type(norm).forward(norm, input)
        return result


class NormCallEntry(Entry[nn.BatchNorm2d]):
    """The forward of a BatchNorm2d's subclass that has one of its own: it defers the F.batch_norm that this calls.

    Of timm's BatchNormAct2d in eval mode it calls the parts: its own forward takes the host longer than all layers of a
    small chain.
    """

    ACTIVATING = frozenset(("timm.layers.norm_act.BatchNormAct2d",))  # batch norm, then drop, then act

    def begin(self) -> None:
        self.bare = BareNorm(self.name)
        kind = type(self.original())
        self._activates = f"{kind.__module__}.{kind.__qualname__}" in self.ACTIVATING

    def __call__(self, input: Tensor, *args: object, **kwargs: object) -> Tensor:
        is_left = is_compiling() or place.left
        norm = self.original() if is_compiling() else self.owner()
        if self._activates and not norm.training and not is_left:
            inferred = infer_norm(input, norm) if type(input) is Pending else None
            if inferred is not None:
                activated: Tensor = norm.act(norm.drop(inferred))
                return activated
            activation = _activation_of(norm)
            inferred = None if activation is None else self.bare.inferred(input, norm, activation)
            if inferred is not None:
                return inferred
        forward = type(norm).forward
        p = None if is_left or not self.bare.active else self.bare.pending(input)
        if p is None:
            left: Tensor = forward(norm, input, *args, **kwargs)
            return left

        given = materialized(input)

        def defer(x: Tensor, *args: object, **kwargs: object) -> object:
            if x is not given or p.stage:
                return NOT_HERE
            return HANDLERS[F.batch_norm](p, *args, **kwargs)

        result: Tensor = plain(forward(norm, operand(given, {F.batch_norm: defer}), *args, **kwargs))
        return result


def _activation_of(norm: nn.Module) -> str | None:
    """The activation that is all that follows in a BatchNormAct2d; None: it has another one, or somebody watches it."""
    act, drop = norm.act, norm.drop
    found = None if type(drop) is not nn.Identity or has_hooks(drop.__dict__) else of_layer(act)
    return found[0] if found is not None and found[0] in ACTIVATIONS and not has_hooks(act.__dict__) else None
