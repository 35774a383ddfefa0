"""Chains that are called again with tensors like those of before: straight to the launches.

Everything that follows from what the tensors look like was found at an earlier call. What is left are their addresses,
a few new tensors, and the launches. Whoever calls has seen to it that the tensors look the same (tensor_guards.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genesis import dtypes
from genesis.backends import active
from genesis.backends.cuda.ops.conv.prepared import unchanged
from genesis.backends.cuda.ops.conv_bn_relu import launch as conv_bn_relu
from genesis.backends.cuda.ops.conv_bn_relu.prepared import (
    BITS,
    NOTHING,
    VALUES,
    Backward,
    Inference,
    Operands,
    Training,
    WideBackward,
    supports,
    supports_inference,
    training,
)
from genesis.backends.cuda.runtime.array import layout_of
from genesis.records import BegunConvNorm, ConvGeometry, NormState
from genesis.torch.handles import TORCH_TYPES, Device, device_of
from genesis.torch.signatures import Gradients
from genesis.torch.tensor_guards import guard
from genesis.torch.unprepared import Unprepared


def prepare(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], eps: float, geometry: ConvGeometry
) -> Chain | Unprepared:
    device = device_of(x)
    operands = _laid_out(device, x, weight, bias, norm)
    if not supports(operands, geometry):
        return Unprepared(eps, unchanged())
    return Chain(device, training(operands, eps, geometry))


def prepare_inference(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], eps: float, geometry: ConvGeometry,
    has_residual: bool, activation: str | None,
) -> Folded | Unprepared:  # fmt: skip
    device = device_of(x)
    operands = _laid_out(device, x, weight, bias, norm)
    if not supports_inference(operands, geometry):
        return Unprepared(eps, unchanged())
    return Folded(device, Inference(operands, eps, geometry, has_residual, activation), eps)


def _laid_out(device: Device, x: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor]) -> Operands:
    vectors = [None if each is None else device.handle(each).layout for each in (bias, *norm)]
    return Operands(device.handle(x).layout, device.handle(weight).layout, vectors[0], NormState(*vectors[1:]))


def _is_plain() -> bool:
    """No tool stands in front of the backend."""
    return active["cuda"].conv_bn_relu is conv_bn_relu.conv_bn_relu


def bytes_maker(device: Device, number: int) -> Callable[[], Tensor]:
    return device.maker(layout_of((number,), dtypes.uint8, device.index))


class Begun:
    """A convolution's output, and mean and inverse deviation in a block of memory, which may have room for more.

    tells: what it has room for, see Training.tells.
    """

    __slots__ = ("block", "chain", "kept", "stream", "tells", "weight", "x", "y")

    def __init__(
        self, chain: Chain, stream: int, x: Tensor, weight: Tensor, kept: Tensor, block: Tensor, y: Tensor,
        tells: int,
    ) -> None:  # fmt: skip
        """weight: or its values, where the kernels take it in another dtype or order."""
        self.chain, self.stream, self.x, self.weight = chain, stream, x, weight
        self.kept, self.block, self.tells = kept, block, tells
        self.y: Tensor | None = y  # memory for the result, which has served as scratch

    def arrays(self) -> BegunConvNorm[Tensor]:
        """The results in the form of conv_bn_begin."""
        return BegunConvNorm(*self.chain.statistics(self.block), self.kept, None)


class Folded:
    """A convolution, batch norm and what follows in inference, prepared."""

    def __init__(self, device: Device, launches: Inference, eps: float) -> None:
        self._device, self._fold, self._convolve = device, launches.fold, launches.convolve
        self._activate = launches.activate
        self._stream, self._watched = device.current_stream, device.watched
        self._bias_place, self._workspace_place = launches.bias_place, launches.workspace_place
        self._x_strides, self._y_strides = launches.x.strides, launches.y.strides
        self._make_y, self._make_scratch = device.maker(launches.y), bytes_maker(device, launches.scratch)
        self.eps, self.is_current = eps, launches.is_current

    def run(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: tuple[Tensor, Tensor, Tensor, Tensor, object],
        residual: Tensor | None,
    ) -> Tensor | None:  # fmt: skip
        """None where it goes another way. norm: a NormState that lacks nothing."""
        gamma, beta, mean, var, _ = norm
        x_at, weight_at, bias_at = x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()
        gamma_at, beta_at, mean_at, var_at = gamma.data_ptr(), beta.data_ptr(), mean.data_ptr(), var.data_ptr()
        residual_at = 0
        if residual is not None:
            residual_at = residual.data_ptr()
            if residual.stride() != self._y_strides:
                return None
        if (x_at | weight_at | bias_at | gamma_at | beta_at | mean_at | var_at | residual_at) & 15:
            return None
        if x.stride() != self._x_strides or not _is_plain():
            return None
        y, scratch, stream = self._make_y(), self._make_scratch(), self._stream()
        if self._watched:
            self._device.watch(x, weight, bias, gamma, beta, mean, var, residual)
        folded = scratch.data_ptr()
        folded_bias = folded + self._bias_place
        self._fold(stream, folded, folded_bias, weight_at, bias_at, gamma_at, beta_at, mean_at, var_at)
        y_at = y.data_ptr()
        self._convolve(stream, y_at, x_at, folded, folded_bias, residual_at, folded + self._workspace_place)
        if self._activate is not None:
            self._activate(stream, y_at, y_at)
        return y


class Chain:
    """A convolution and batch norm in training, prepared."""

    def __init__(self, device: Device, launches: Training) -> None:
        self._device, self._launches = device, launches
        self._stream, self.eps, self.geometry = device.current_stream, launches.eps, launches.geometry
        self._x_strides, self._y_strides = launches.x.strides, launches.y.strides
        self._make_kept, self._make_y = device.maker(launches.kept), device.maker(launches.y)
        self._make_block = [bytes_maker(device, launches.block_bytes(tells)) for tells in (NOTHING, BITS, VALUES)]
        self._make_values = None if launches.values is None else device.maker(launches.values)
        self._make_scratch = None  # y has room for it
        if launches.scratch > launches.y.num_bytes:
            self._make_scratch = bytes_maker(device, launches.scratch)
        self._backwards: dict[tuple[object, ...], _Backward] = {}
        self.is_current = launches.is_current

    def begin(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], momentum: float,
        has_residual: bool, activation: str | None,
    ) -> Begun | None:  # fmt: skip
        """None where it goes another way; has_residual, activation: what finish() is to be expected with."""
        _, _, mean, var, count = norm
        x_at, weight_at, bias_at = x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()
        mean_at, var_at = (0, 0) if mean is None or var is None else (mean.data_ptr(), var.data_ptr())
        count_at = 0 if count is None else count.data_ptr()
        if (x_at | weight_at | bias_at | mean_at | var_at | count_at) & 15 or x.stride() != self._x_strides:
            return None
        if not _is_plain():
            return None
        stream, make_scratch = self._stream(), self._make_scratch
        tells = self._launches.tells(has_residual, activation)
        kept, block, y = self._make_kept(), self._make_block[tells](), self._make_y()
        scratch = y if make_scratch is None else make_scratch()
        values, values_at = None, 0
        if self._make_values is not None:
            values = self._make_values()
            values_at = values.data_ptr()
        if self._device.watched:
            self._device.watch(x, weight, bias, mean, var, count)
        self._launches.begin(
            stream, kept.data_ptr(), block.data_ptr(), scratch.data_ptr(), values_at, (x_at, weight_at, bias_at),
            (mean_at, var_at, count_at), momentum,
        )  # fmt: skip
        return Begun(self, stream, x, weight if values is None else values, kept, block, y, tells)

    def finish(
        self, begun: Begun, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, activation: str | None
    ) -> Tensor | None:
        """None where it goes another way."""
        gamma_at, beta_at = 0 if gamma is None else gamma.data_ptr(), 0 if beta is None else beta.data_ptr()
        residual_at = 0
        if residual is not None:
            residual_at = residual.data_ptr()
            if residual.stride() != self._y_strides:
                return None
        launches, x_at, weight_at = self._launches, 0, 0
        tells = launches.tells(residual is not None, activation)
        if tells:
            if begun.tells != tells:
                return None
            begun.tells = NOTHING  # its block has room for what is told of one result
        if launches.reads_operands:
            x_at, weight_at = begun.x.data_ptr(), begun.weight.data_ptr()
        if (gamma_at | beta_at | residual_at | x_at | weight_at) & 15:
            return None
        y, begun.y, stream = begun.y, None, self._stream()
        if y is None or stream != begun.stream:
            y = self._make_y()
        if self._device.watched:
            self._device.watch(residual, gamma, beta)
        launches.finish(
            stream, y.data_ptr(), begun.kept.data_ptr(), begun.block.data_ptr(), (x_at, weight_at), residual_at,
            (gamma_at, beta_at), activation,
        )  # fmt: skip
        return y

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], has_residual: bool, activation: str | None,
        needs: tuple[bool, ...], addend: Tensor | None,
    ) -> Gradients | None:  # fmt: skip
        """Gradients of input, weight, bias, gamma, beta, residual; saved: input, weight, gamma, beta, kept, block."""
        key = (grad.stride(), saved[-1].shape, has_residual, activation, needs, addend is not None)
        found = self._backwards.get(key)
        if found is None or not found.is_current():
            grad_layout = self._device.handle(grad).layout
            launches = self._launches.backward(grad_layout, has_residual, activation, needs, addend is not None)
            if launches is None or not self._are_those_of_forward(saved):
                return None
            found = self._backwards[key] = _Backward(self._device, launches, saved)
        return found.run(self._stream(), grad, saved, addend) if _is_plain() else None

    def _are_those_of_forward(self, saved: tuple[Tensor, ...]) -> bool:
        """Are these tensors laid out as those that were saved? Hooks of saved tensors may give others."""
        of, handle = self._launches, self._device.handle
        x, weight, gamma, beta, kept, block = [handle(each).layout for each in saved]
        wanted = of.weight if of.values is None else of.values
        found = (x, weight, kept, gamma, beta, block.strides, block.dtype)
        return found == (of.x, wanted, of.kept, *of.operands.norm[:2], (1,), dtypes.uint8)

    def bias_like(self, kept: Tensor) -> Tensor | None:
        """A tensor as the bias is, where there is one."""
        return None if self._launches.operands.bias is None else kept.new_empty(self._launches.statistic.shape)

    def statistics(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and inverse deviation, as tensors."""
        layout, place = self._launches.statistic, self._launches.inverse_std
        dtype = torch.float64 if layout.dtype.itemsize == 8 else torch.float32
        return block[: layout.num_bytes].view(dtype), block[place : place + layout.num_bytes].view(dtype)

    def passed(self, block: Tensor, has_residual: bool, activation: str | None) -> Tensor | None:
        """Return what the backward is told of the values before the activation, as the backend's op returns it."""
        launches = self._launches
        layout = launches.told(launches.tells(has_residual, activation))
        if layout is None:
            return None
        found = block[launches.passed : launches.passed + layout.num_bytes]
        if layout.dtype is not dtypes.uint8:
            found = found.view(TORCH_TYPES[layout.dtype])
        return found.as_strided(layout.shape, layout.strides)


class _Backward:
    """A backward prepared for gradients of one layout, and for the operands that need one."""

    def __init__(self, device: Device, launches: Backward | WideBackward, saved: tuple[Tensor, ...]) -> None:
        self._device, self._run, self.is_current = device, launches.run, launches.is_current
        self._makers: list[Callable[[], Tensor] | None] = [
            None if layout is None else device.maker(layout) for layout in launches.layouts
        ]
        self._make_scratch = bytes_maker(device, launches.scratch)
        self._same = guard(*saved)
        self._addend_strides = None if launches.layouts[0] is None else launches.layouts[0].strides

    def run(self, stream: int, grad: Tensor, saved: tuple[Tensor, ...], addend: Tensor | None) -> Gradients | None:
        if not self._same(*saved):
            return None
        addresses = [each.data_ptr() for each in saved]
        x, weight, gamma, beta, kept, block = addresses
        grad_at, addend_at = grad.data_ptr(), 0
        if addend is not None:
            addend_at = addend.data_ptr()
            if addend.stride() != self._addend_strides or addend.dtype is not saved[0].dtype:
                return None
        if (x | weight | gamma | beta | kept | block | grad_at | addend_at) & 15:
            return None
        grads: list[Tensor | None] = []
        out: list[int] = []
        for make in self._makers:
            if make is None:
                grads.append(None)
                out.append(0)
            else:
                made = make()
                grads.append(made)
                out.append(made.data_ptr())
        scratch = self._make_scratch()
        if self._device.watched:
            self._device.watch(grad, addend, *saved)
        self._run(stream, out, scratch.data_ptr(), grad_at, addresses, addend_at)
        return tuple(grads)
