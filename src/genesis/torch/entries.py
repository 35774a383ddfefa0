"""The attribute `forward` that fuse() sets on convolutions, norms, activations and poolings, and on the model."""

from __future__ import annotations

import copy
import inspect
import weakref
from types import CodeType
from typing import Protocol, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from genesis.frames import in_room_beside
from genesis.torch import averaging, bridge, choosing, pooling, reordered_layers
from genesis.torch import pending_metadata as pending_metadata  # registers functions
from genesis.torch import pending_pooling as pending_pooling
from genesis.torch import pending_scales as pending_scales
from genesis.torch import slicing as slicing
from genesis.torch.activations import of_layer
from genesis.torch.autograd_functions import inside_model, modes_to_defer, place
from genesis.torch.bridge import call
from genesis.torch.choosing import Choice
from genesis.torch.computed import Computed
from genesis.torch.deferring import has_hooks, link_again
from genesis.torch.entry import FORWARD, Entry
from genesis.torch.folds import Folds
from genesis.torch.links import Link, need_gradients
from genesis.torch.modes import is_plain, no_python_mode_intercepts, nothing_intercepts, versions_of_three
from genesis.torch.norm_entries import NormEntry
from genesis.torch.pending import (
    NOT_HERE,
    Pending,
    activate,
    computed,
    materialize,
    materialized,
    pending,
)  # fmt: skip
from genesis.torch.reasons import UNPLANNED, nothing_follows
from genesis.torch.reordering import reordered
from genesis.torch.sequences import is_sequential, run
from genesis.torch.setting_aside import ASIDE, Layers
from genesis.torch.shapes import only_contiguous
from genesis.torch.shapes import plan as plan_of
from genesis.torch.tensor_guards import GuardedConv, Settings

SCRIPT = "__prepare_scriptable__"  # an attribute beside FORWARD
_PLAIN_FORWARD = (nn.Conv2d.forward, nn.Conv2d._conv_forward)
TRAINED_BY_PYTORCH = "on the CPU training is left to PyTorch"
BY_PYTORCH = "on the CPU a scale, sum or activation without a norm is left to PyTorch"
SEVERAL_USES = "its result is used in several places"
PATIENCE = 3  # calls in a row whose result went elsewhere, until a convolution is no longer deferred
_NESTED = 400  # words of PyTorch's frames around a layer's
_SIZES = 16  # of its input that a convolution remembers, as of heads that several feature maps share


class Forward(Protocol):
    """A model's forward: a method, or a function that is an attribute of the model."""

    __code__: CodeType

    def __call__(self, *args: object, **kwargs: object) -> object: ...


class ConvEntry(Entry[nn.Conv2d]):
    """The forward of a Conv2d: it defers the convolution wherever the fused op can compute it."""

    def begin(self) -> None:
        self.active = True
        self.left_on_cpu = False  # no longer active for that reason alone
        self.trained_by_pytorch = False
        self.next = ""  # what followed its batch norm the last time: an activation, "add", "value"
        self.passes_through: bool | None = None  # whether later uses of its input take the view; None: not known
        self.unfused = 0  # calls in a row whose result no batch norm took
        self.unfused_in_inference = 0  # the same under inference_mode, where only a norm runs with it
        self.left_in_inference = False  # to PyTorch, under inference_mode
        self.is_shared = False  # its result was activated, and used once more
        self.kinds: tuple[str, ...] = ()  # of the layers fused with it
        self.norm = 0  # the id of its norm's parameter
        self.taker = ""  # the function of other code that took what was computed
        self.reason = ""
        self.guarded: GuardedConv | None = None  # of the last call
        self.seen: dict[tuple[object, ...], GuardedConv] = {}  # of others, by the input's shape and order of memory
        self.folds = Folds()  # for inference on the CPU

    def __call__(self, input: Tensor) -> Tensor:
        if is_compiling():
            layer = self.original()
            return type(layer).forward(layer, input)
        conv = self.owner()
        if place.left:
            return type(conv).forward(conv, input)
        state = conv.__dict__
        if type(conv) is not nn.Conv2d or "weight" in state or "bias" in state or "_conv_forward" in state:
            kind = type(conv)
            if (kind.forward, kind._conv_forward) != _PLAIN_FORWARD or "_conv_forward" in state:
                return kind.forward(conv, input)
            weight, bias = conv.weight, conv.bias  # for example of a parametrization
        else:
            parameters = state["_parameters"]
            weight, bias = parameters["weight"], parameters["bias"]
        if self.active:
            again = link_again(self, state, input, weight, bias)
            if again is not None:
                return pending(again, 0)
            given: Tensor | Computed = input
            if type(input) is Pending:
                if type(input.link) is Computed and input.value is None:
                    given = computed(input)
                else:
                    input.link.entry.taker = "conv2d"
                    given = materialize(input)
            settings = (conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
            link = self.link(conv, given, weight, bias, settings)
            if link is not None:
                return pending(link, 0)
        if type(input) is Pending:
            if input.stage and conv.padding_mode == "zeros":
                y = reordered_layers.convolve(
                    input, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups
                )
                if y is not NOT_HERE:
                    return y
            input = materialized(input)
        if not self.active and self.left_on_cpu and isinstance(input, Tensor) and input.is_cuda:
            self.begin()  # from the next call on
        return type(conv)._conv_forward(conv, input, weight, bias)

    def link(
        self, conv: nn.Conv2d, input: Tensor | Computed, weight: Tensor, bias: Tensor | None, settings: Settings,
        at_once: bool = False,
    ) -> Link | None:  # fmt: skip
        """The deferred convolution; None if it is to be computed now. at_once: no other code runs before its norm."""
        if not isinstance(input, (Tensor, Computed)):
            return None  # PyTorch's convolution says what is wrong with it
        if torch.is_grad_enabled() and not bridge.trains(weight) and need_gradients(input, weight, bias):
            self.trained_by_pytorch = True
            self.folds.forget()
            return None
        if not at_once and isinstance(input, Tensor) and input.is_inference() and bridge.keeps_folds(input):
            self.left_in_inference = True  # the norm cannot be folded, and one by one PyTorch's layers are faster
            return None
        strides, inner, source = None, None, None
        if type(input) is Computed:
            strides, source = input.plan.strides, input.source
            input, inner = input.take()
        operands = (input, weight) if bias is None else (input, weight, bias)
        known = self.guarded
        is_known = known is not None and known.fits(operands, strides, settings)
        modes = modes_to_defer()
        if modes is None or not (no_python_mode_intercepts() if is_known else nothing_intercepts()):
            return None
        if has_hooks(conv.__dict__):
            self.reason = self.reason or "it has hooks"
            return None
        if not is_known:
            key = (input.shape, strides, len(operands))
            known = self.seen.get(key)
            if known is None or not known.fits(operands, strides, settings):
                known = self._guard(operands, strides, settings)
                if known is None:
                    return None
                if len(self.seen) >= _SIZES:
                    self.seen.clear()
                self.seen[key] = known
            self.guarded = known
        assert known is not None
        has_version = not input.is_inference()
        if not has_version and (modes[:2] != (False, True) or self.unfused_in_inference >= PATIENCE):
            return None
        link = Link(self, known, input, weight, bias, modes, versions_of_three(input, weight, bias), inner)
        if source is not None:
            link.source = source
        if not (has_version or at_once):
            dtype = known.dtype
            operands = (input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
            link.output = call("conv_forward", *operands, known.plan.geometry)
        return link

    def _guard(
        self, operands: tuple[Tensor, ...], given_strides: tuple[int, ...] | None, settings: Settings
    ) -> GuardedConv | None:
        """Plan the convolution of these operands; None if the op does not take them."""
        input, weight, bias = operands if len(operands) == 3 else (*operands, None)
        if type(input) is not Tensor or not is_plain(weight) or not (bias is None or is_plain(bias)):
            return None
        stride, padding, dilation, groups, padding_mode = settings
        dtype = _compute_dtype(input, weight, bias)
        if dtype is None or padding_mode != "zeros":
            return None
        strides = None if only_contiguous(dtype, input.is_cuda) else given_strides or input.stride()
        how = plan_of(input.shape, weight.shape, stride, padding, dilation, groups, strides, weight.stride())
        if how is None:
            self.reason = self.reason or UNPLANNED
            return None
        known = GuardedConv(operands, given_strides, settings, how, dtype)
        known.trains = bridge.trains(weight) or not need_gradients(input, weight, bias)
        return known

    # --- how its results were used ----------------------------------------------------------------------------------
    def fused(self, stage: int, activation: str, has_norm: bool) -> None:
        self.unfused = 0
        if stage == 0:
            self.kinds = (activation,)
        elif stage == 1:
            self.next, self.kinds = activation, ("norm", activation)
        elif has_norm:
            self.next, self.kinds = "add", ("norm", "add", activation)
        else:
            self.kinds = ("add", activation)

    def note_materialized(self, stage: int, has_no_norm: bool, waits_for_order: bool) -> None:
        """Other code used the value. waits_for_order: in channels-last the convolution would run with its bias."""
        if stage == 0:
            self.unfused += 1
            if self.is_shared:
                self.reason, self.kinds = SEVERAL_USES, ()
            self.reason = self.reason or nothing_follows(self.taker, waits_for_order)
            self.active = self.unfused < PATIENCE
            return
        self.unfused = 0
        if stage == 1:
            self.next, self.kinds = "value", ("norm",)
        else:
            self.kinds = ("add",) if has_no_norm else ("norm", "add")

    def leave_on_cpu(self) -> None:
        """An activation or a sum follows, with which nothing is won there."""
        self.left_on_cpu, self.reason = True, BY_PYTORCH

    def stop(self, reason: str) -> None:
        self.active, self.left_on_cpu, self.reason = False, False, reason


class ActivationEntry(Entry[nn.Module]):
    """The forward of an activation: a fast path for a Pending."""

    def begin(self) -> None:
        pass

    def __call__(self, input: Tensor) -> Tensor:
        if is_compiling():
            layer = self.original()
            return type(layer).forward(layer, input)
        layer = self.owner()
        if type(input) is Pending:
            found = of_layer(layer)
            if found is not None:
                extend = reordered_layers.activate if type(input.link) is Computed else activate
                y = extend(input, *found)
                if y is not NOT_HERE:
                    return y
        result: Tensor = type(layer).forward(layer, input)
        return result


class PoolEntry(Entry[nn.MaxPool2d]):
    """The forward of a MaxPool2d: Genesis' kernel on CUDA; on the CPU a chain's result is pooled as it is."""

    def begin(self) -> None:
        self.calls = 0

    def __call__(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        compiling = is_compiling()
        layer = self.original() if compiling else self.owner()
        if type(input) is Pending:
            if input.stage < 3:
                input.link.entry.taker = "max_pool2d"
            inner = None if layer.return_indices or input.value is not None else input.link.values()
            if inner is not None and not compiling and nothing_intercepts():
                y: Tensor = type(layer).forward(layer, inner)  # a fraction of the time that contiguous images take
                return reordered(input.link, y)  # type: ignore[arg-type]  # which alone has values
            input = materialize(input)
        if compiling or not pooling.takes(input) or not nothing_intercepts():
            return type(layer).forward(layer, input)
        self.calls += 1
        how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices)
        return pooling.max_pool2d(input, *how)


class AveragePoolEntry(Entry[nn.AvgPool2d]):
    """The forward of an AvgPool2d: an op with a right gradient where that of PyTorch's forgets the padding."""

    may_be_set_aside = False

    def begin(self) -> None:
        pass

    def __call__(self, input: Tensor) -> Tensor:
        if is_compiling():
            original = self.original()
            return type(original).forward(original, input)
        layer = self.owner()
        if type(input) is Pending and input.is_cuda and layer.padding not in (0, (0, 0)):
            if input.stage < 3:
                input.link.entry.taker = "avg_pool2d"
            input = materialize(input)
        if averaging.is_forgotten(input, layer.padding) and nothing_intercepts():
            how = (layer.kernel_size, layer.stride, layer.padding, 1, layer.ceil_mode)
            windows = pooling.windows_of(input, *how)
            if windows is not None:
                kernel_size, stride, padding, _, ceil_mode = windows
                rest = (ceil_mode, layer.count_include_pad, layer.divisor_override)
                y: Tensor = torch.ops.genesis.avg_pool2d(input, kernel_size, stride, padding, *rest)
                return y
        return type(layer).forward(layer, input)


class SequentialEntry(Entry[nn.Sequential]):
    """The forward of a Sequential: it runs chains among its layers without a deferred tensor for each."""

    def begin(self) -> None:
        pass

    def __call__(self, input: Tensor) -> Tensor:
        if is_compiling():
            layers = self.original()
            return type(layers).forward(layers, input)
        layers = self.owner()
        return type(layers).forward(layers, input) if place.left else run(layers, input, _CHAIN)


_CHAIN = (ConvEntry, NormEntry, ActivationEntry)


class Scriptable:
    """The plain model with the same parameters and buffers, which torch.jit.script compiles."""

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)

    def __call__(self) -> nn.Module:
        model = self.model()
        assert model is not None
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        return strip(copy.deepcopy(model, shared))

    def __deepcopy__(self, memo: dict[int, nn.Module]) -> Scriptable:
        model = self.model()
        return Scriptable(memo.get(id(model), model))

    def __reduce__(self) -> tuple[object, ...]:
        return Scriptable, (self.model(),)


def strip(model: nn.Module) -> nn.Module:
    """Remove all attributes that fuse() set, except for the report."""
    for module in model.modules():
        state = module.__dict__
        forward = state.get(FORWARD)
        state.pop(ASIDE, None)
        if isinstance(forward, Entry):
            del state[FORWARD]
            if isinstance(forward, ModelEntry) and forward.inner is not None:
                state[FORWARD] = forward.inner
        if isinstance(state.get(SCRIPT), Scriptable):
            del state[SCRIPT]
    return model


class ModelEntry(Entry[nn.Module]):
    """The forward of the model that was fused: it computes whatever in its output is pending."""

    inner: Forward | None = None  # a forward that was the model's own attribute
    may_be_set_aside = False

    def begin(self) -> None:
        self.choice, self.layers = Choice(), Layers()

    @property
    def _original(self) -> Forward:
        model = self.original()
        return type(model).forward.__get__(model) if self.inner is None else self.inner

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._original)

    @property
    def __code__(self) -> CodeType:  # which torch.export reads
        return self._original.__code__

    def __call__(self, *args: object, **kwargs: object) -> object:
        if is_compiling():
            model = self.original()
            return type(model).forward(model, *args, **kwargs) if self.inner is None else self.inner(*args, **kwargs)
        model = self.owner()
        times = self.choice.times(model, (*args, *kwargs.values()) if kwargs else args)
        if times is None or times.is_plain is False:
            self.layers.prepare(model, place.left)
            return in_room_beside(_NESTED, self._run, model, args, kwargs)
        is_plain, counts = times.begin_call()
        self.layers.prepare(model, is_plain)
        with choosing.timed(times, is_plain, counts):
            return in_room_beside(_NESTED, self._run, model, args, kwargs)

    def _run(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with inside_model():
            if self.inner is not None:
                output = self.inner(*args, **kwargs)
            elif is_sequential(type(model)) and len(args) == 1 and not kwargs and not place.left:
                output = run(model, args[0], _CHAIN)
            else:
                output = type(model).forward(model, *args, **kwargs)
            return output if type(output) is Tensor else materialized(output)

    def __deepcopy__(self, memo: dict[int, nn.Module]) -> Self:
        entry = super().__deepcopy__(memo)
        entry.inner = copy.deepcopy(self.inner, memo)
        return entry

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"inner": self.inner}) if self.inner is not None else super().__reduce__()


def _compute_dtype(input: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype | None:
    """The dtype of the convolution; None if PyTorch would refuse its operands, or they are no floating numbers."""
    on_cuda = input.is_cuda
    if not (on_cuda or input.is_cpu) or weight.get_device() != input.get_device() or weight.is_meta:
        return None
    dtype = input.dtype
    if torch.is_autocast_enabled("cuda" if on_cuda else "cpu"):
        if torch.float64 in (weight.dtype, dtype) or not dtype.is_floating_point or not weight.is_floating_point():
            return None
        return torch.get_autocast_dtype("cuda" if on_cuda else "cpu")
    if weight.dtype is not dtype or not dtype.is_floating_point or dtype.itemsize < 2:
        return None
    return dtype if bias is None or (bias.dtype is dtype and bias.get_device() == input.get_device()) else None
