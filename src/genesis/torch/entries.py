"""What fuse() puts on convolutions and poolings: an attribute of the layer, which its own forward calls."""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module

from genesis.torch import guards
from genesis.torch.bridge import call
from genesis.torch.links import Computed, Link, versions_of_three
from genesis.torch.pending import (
    NOT_HERE,
    Pending,
    batch_norm,
    inside_model,
    may_be_put_off,
    pending,
    relu,
    settle,
    settled,
)  # fmt: skip
from genesis.torch.pooling import max_pool2d, takes
from genesis.torch.seen import SeenConvolution
from genesis.torch.shapes import only_contiguous, plan

FORWARD, SCRIPT = "forward", "__prepare_scriptable__"  # the attributes
_PLAIN_FORWARD = (nn.Conv2d.forward, nn.Conv2d._conv_forward)
_SHADOWS = frozenset(("weight", "bias", "_conv_forward"))  # attributes in front of a convolution's own
_PATIENCE = 3  # calls in a row whose result went elsewhere, until a convolution is no longer deferred
_GLOBAL_HOOKS = (
    torch_module._global_backward_pre_hooks, torch_module._global_backward_hooks, torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
)  # fmt: skip


class _Entry:
    """Of a layer, which it doesn't keep alive. Copies and pickles of the layer have their own."""

    layer: weakref.ref[Any]

    def __init__(self, layer: nn.Module, name: str) -> None:
        self.layer, self.name = weakref.ref(layer), name
        self.begin()

    def owner(self) -> Any:
        """The layer that is called: a shallow copy (a replica of DataParallel) has the attributes of the original."""
        caller = sys._getframe(2).f_locals.get("self")  # of Module.__call__, or of the layer's forward
        layer = self.layer()
        if caller is layer or not isinstance(caller, nn.Module) or caller.__dict__.get(FORWARD) is not self:
            return layer
        return caller

    def begin(self) -> None:
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> _Entry:
        layer = self.layer()
        return type(self)(memo.get(id(layer), layer), self.name)

    def __reduce__(self) -> Any:
        return type(self), (self.layer(), self.name)


class ConvEntry(_Entry):
    """In place of Conv2d.forward: the result is put off where everything is as the fused op wants it."""

    def begin(self) -> None:
        self.active = True
        self.next = ""  # what followed its batch norm the last time: "relu", "add", "value"
        self.hands_on: bool | None = None  # its input to later uses: None, not known; False, nobody took it
        self.unfused = 0  # calls in a row
        self.calls = 0  # that were deferred
        self.kinds: tuple[str, ...] = ()  # of what was fused with it
        self.norm = 0  # the id of its norm's parameter
        self.reason = ""
        self.seen: SeenConvolution | None = None

    def __call__(self, input: Tensor) -> Any:
        if is_compiling():
            layer: Any = self.layer()
            return type(layer).forward(layer, input)
        conv = self.owner()
        state = conv.__dict__
        if type(conv) is not nn.Conv2d or not state.keys().isdisjoint(_SHADOWS):
            kind = type(conv)
            if (kind.forward, kind._conv_forward) != _PLAIN_FORWARD or "_conv_forward" in state:
                return kind.forward(conv, input)
            weight, bias = conv.weight, conv.bias  # of a parametrization, say
        else:
            parameters = state["_parameters"]
            weight, bias = parameters["weight"], parameters["bias"]
        link = None
        if self.active:
            given: Any = input
            if type(input) is Pending:
                given = input.link if input.stage == 3 and input.value is None else settle(input)
            link = self._link(conv, given, weight, bias)
        if link is None:
            return type(conv)._conv_forward(conv, settled(input), weight, bias)
        return pending(link, 0)

    def _link(self, conv: Any, input: Any, weight: Tensor, bias: Tensor | None) -> Link | None:
        strides, inner = None, None
        if type(input) is Computed:
            strides = input.plan.strides
            input, inner = input.take()
        operands = (input, weight) if bias is None else (input, weight, bias)
        settings = (conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
        known = self.seen
        is_known = known is not None and known.fits(operands, strides, settings)
        if not (guards.nothing_else_watches() if is_known else guards.nothing_watches()) or not may_be_put_off():
            return None
        if conv._forward_hooks or conv._backward_hooks or conv._backward_pre_hooks or any(_GLOBAL_HOOKS):
            self.reason = self.reason or "it has hooks"
            return None
        if not is_known:
            known = self._see(operands, strides, settings)
            if known is None:
                return None
            self.seen = known
        assert known is not None
        modes = guards.modes()
        link = Link(self, known, input, weight, bias, modes, versions_of_three(input, weight, bias), inner)
        self.calls += 1
        if input.is_inference():  # it has no counter of changes
            if modes[:2] != (False, True):
                return None
            dtype = known.dtype
            operands = (input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
            link.output = call("conv_forward", *operands, *known.plan.geometry)
        return link

    def _see(self, operands: tuple[Any, ...], given_strides: Any, settings: Any) -> SeenConvolution | None:
        """What the op makes of these operands; None if it does not take them."""
        input, weight, bias = operands if len(operands) == 3 else (*operands, None)
        if type(input) is not Tensor or not guards.is_plain(weight) or not (bias is None or guards.is_plain(bias)):
            return None
        *geometry, padding_mode = settings
        dtype = _compute_dtype(input, weight, bias)
        if dtype is None or padding_mode != "zeros":
            return None
        strides = None if only_contiguous(dtype, input.is_cuda) else given_strides or input.stride()
        how = plan(input.shape, weight.shape, *geometry, strides, weight.stride())
        return None if how is None else SeenConvolution(operands, given_strides, settings, how, dtype)

    # --- what became of its results ---------------------------------------------------------------------------------
    def fused(self, stage: int) -> None:
        self.unfused = 0
        if stage == 1:
            self.next, self.kinds = "relu", ("norm", "relu")
        else:
            self.next, self.kinds = "add", ("norm", "add", "relu")

    def settled(self, stage: int) -> None:
        """Somebody wanted the value."""
        if stage == 0:
            self.unfused += 1
            self.reason = self.reason or "no batch norm follows"
            self.active = self.unfused < _PATIENCE
            return
        self.unfused = 0
        if stage == 1:
            self.next, self.kinds = "value", ("norm",)
        else:
            self.kinds = ("norm", "add")

    def stop(self, reason: str) -> None:
        self.active, self.reason = False, reason


class NormEntry(_Entry):
    """In place of BatchNorm2d.forward: what it does with a Pending, by the short way, and counting by the op."""

    def begin(self) -> None:
        pass

    def __call__(self, input: Tensor) -> Any:
        if is_compiling():
            norm: Any = self.layer()
            return type(norm).forward(norm, input)
        norm = self.owner()
        if type(input) is Pending and type(norm) is nn.BatchNorm2d:
            training, momentum, buffers = norm.training, norm.momentum, norm._buffers
            tracks = norm.track_running_stats
            count = buffers.get("num_batches_tracked") if training and tracks else None
            if momentum is not None and len(buffers) == 3 and (count is None or type(count) is Tensor):
                parameters = norm._parameters
                if "weight" in parameters and "bias" in parameters:
                    mean, var = buffers["running_mean"], buffers["running_var"]
                    if training and not tracks:
                        mean = var = None
                    y = batch_norm(
                        input, parameters["weight"], parameters["bias"], mean, var, training or mean is None,
                        momentum, norm.eps, count,
                    )  # fmt: skip
                    if y is not NOT_HERE:
                        return y
        return type(norm).forward(norm, input)


class ReLUEntry(_Entry):
    """In place of ReLU.forward: of a Pending, by the short way."""

    def begin(self) -> None:
        pass

    def __call__(self, input: Tensor) -> Any:
        if is_compiling():
            layer: Any = self.layer()
            return type(layer).forward(layer, input)
        layer = self.owner()
        if type(input) is Pending and type(layer) is nn.ReLU:
            y = relu(input, layer.inplace is True)
            if y is not NOT_HERE:
                return y
        return type(layer).forward(layer, input)


class PoolEntry(_Entry):
    """In place of MaxPool2d.forward: Genesis' kernel on CUDA."""

    def begin(self) -> None:
        self.calls = 0

    def __call__(self, input: Tensor) -> Any:
        compiling = is_compiling()
        layer: Any = self.layer() if compiling else self.owner()
        if type(input) is Pending:
            input = settle(input)
        if compiling or not takes(input) or not guards.nothing_watches():
            return type(layer).forward(layer, input)
        self.calls += 1
        how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices)
        return max_pool2d(input, *how)


class Scriptable:
    """What torch.jit.script asks for: the plain model, with the same parameters and buffers."""

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)

    def __call__(self) -> nn.Module:
        model = self.model()
        assert model is not None
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        return strip(copy.deepcopy(model, shared))

    def __deepcopy__(self, memo: dict[int, Any]) -> Scriptable:
        model = self.model()
        return Scriptable(memo.get(id(model), model))

    def __reduce__(self) -> Any:
        return Scriptable, (self.model(),)


def strip(model: nn.Module) -> nn.Module:
    """Without anything of fuse's, but for the report."""
    for module in model.modules():
        state = module.__dict__
        forward = state.get(FORWARD)
        if isinstance(forward, _Entry):
            del state[FORWARD]
            if isinstance(forward, ModelEntry) and forward.inner is not None:
                state[FORWARD] = forward.inner
        if isinstance(state.get(SCRIPT), Scriptable):
            del state[SCRIPT]
    return model


class ModelEntry(_Entry):
    """In place of the forward of the model that was fused: what leaves it is computed."""

    inner: Any = None  # a forward that was the model's own attribute

    def begin(self) -> None:
        pass

    @property
    def _original(self) -> Any:
        model: Any = self.layer()
        return type(model).forward.__get__(model) if self.inner is None else self.inner

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._original)

    @property
    def __code__(self) -> Any:  # which torch.export asks for
        return self._original.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            model: Any = self.layer()
            return type(model).forward(model, *args, **kwargs) if self.inner is None else self.inner(*args, **kwargs)
        model = self.owner()
        with inside_model():
            output = type(model).forward(model, *args, **kwargs) if self.inner is None else self.inner(*args, **kwargs)
            return output if type(output) is Tensor else settled(output)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        entry: Any = super().__deepcopy__(memo)
        entry.inner = copy.deepcopy(self.inner, memo)
        return entry

    def __reduce__(self) -> Any:
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
