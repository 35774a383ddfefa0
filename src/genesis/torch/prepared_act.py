"""Convolutions and activations that are called again with tensors like those of before: see prepared.py."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from genesis.backends import active
from genesis.backends.cuda.ops.conv.prepared import unchanged
from genesis.backends.cuda.ops.conv_act import launch
from genesis.backends.cuda.ops.conv_act.prepared import Backward, Forward, supports
from genesis.backends.cuda.ops.storage.rows import is_channels_last
from genesis.records import ConvGeometry
from genesis.torch.handles import Device, device_of
from genesis.torch.prepared import bytes_maker
from genesis.torch.signatures import Gradients
from genesis.torch.tensor_guards import guard
from genesis.torch.unprepared import Unprepared


def prepare(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry, activation: str | None,
    keeps: str | None, has_residual: bool,
) -> Activated | Unprepared:  # fmt: skip
    device = device_of(x)
    layouts = [None if each is None else device.handle(each).layout for each in (x, weight, bias)]
    x_layout, weight_layout, bias_layout = layouts
    assert x_layout is not None
    assert weight_layout is not None
    if not supports(x_layout, weight_layout, bias_layout, geometry):
        return Unprepared(0.0, unchanged())
    return Activated(device, Forward(x_layout, weight_layout, bias_layout, geometry, activation, keeps, has_residual))


def _is_plain() -> bool:
    """No tool stands in front of the backend."""
    return active["cuda"].conv_act is launch.conv_act


class Activated:
    """A convolution, what is added and its activation, prepared."""

    def __init__(self, device: Device, launches: Forward) -> None:
        self._device, self._launches, self._run = device, launches, launches.run
        self._stream, self._watched, self._x_strides = device.current_stream, device.watched, launches.x.strides
        self._make_y, self._keeps_input = device.maker(launches.y), launches.keeps_input
        self._y_strides = launches.y.strides
        self._make_values = None if launches.values is None else device.maker(launches.values)
        self._make_scratch = bytes_maker(device, launches.scratch) if launches.scratch else None
        self._backwards: dict[tuple[object, ...], _Backward] = {}
        self.is_current = launches.is_current

    def run(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """The result, what the backward wants of it, and the weight's values; None where it goes another way."""
        x_at, weight_at, bias_at = x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()
        residual_at = 0
        if residual is not None:
            residual_at = residual.data_ptr()
            if residual.stride() != self._y_strides:
                return None
        if (x_at | weight_at | bias_at | residual_at) & 15 or x.stride() != self._x_strides or not _is_plain():
            return None
        y = self._make_y()
        y_at = kept_at = y.data_ptr()
        kept, values, scratch_at, values_at = y, weight, 0, 0
        if self._keeps_input:
            kept = self._make_y()
            kept_at = kept.data_ptr()
        if self._make_scratch is not None:
            scratch = self._make_scratch()
            scratch_at = scratch.data_ptr()
        if self._make_values is not None:
            values = self._make_values()
            values_at = values.data_ptr()
        if self._watched:
            self._device.watch(x, weight, bias, residual)
        operands = (x_at, weight_at, bias_at, residual_at)
        self._run(self._stream(), y_at, kept_at, scratch_at, values_at, operands)
        return y, kept, values

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], needs: tuple[bool, ...], addend: Tensor | None
    ) -> Gradients | None:
        """Gradients of input, weight, bias, residual; saved: input, weight, and what was kept, if anything was.

        None: see run().
        """
        key = (grad.stride(), needs, addend is not None)
        found = self._backwards.get(key)
        if found is None or not found.is_current():
            layout = self._device.handle(grad).layout
            if not (is_channels_last(layout) and layout.aligned) or not self._are_those_of_forward(saved):
                return None
            launches = Backward(self._launches, layout, needs, addend is not None)
            found = self._backwards[key] = _Backward(self._device, launches, saved)
        return found.run(self._stream(), grad, saved, addend) if _is_plain() else None

    def _are_those_of_forward(self, saved: tuple[Tensor, ...]) -> bool:
        """Are these tensors laid out as those that were saved? Hooks of saved tensors may give others."""
        of, handle = self._launches, self._device.handle
        return [handle(each).layout for each in saved] == [of.x, of.values or of.weight, of.y][: len(saved)]


class _Backward:
    """A backward prepared for gradients of one layout, and for the operands that need one."""

    def __init__(self, device: Device, launches: Backward, saved: tuple[Tensor, ...]) -> None:
        self._device, self._run, self.is_current = device, launches.run, launches.is_current
        self._makers: list[Callable[[], Tensor] | None] = [
            None if layout is None else device.maker(layout) for layout in launches.layouts
        ]
        self._make_scratch, self._same = bytes_maker(device, launches.scratch), guard(*saved)
        self._addend_strides = None if launches.layouts[0] is None else launches.layouts[0].strides

    def run(self, stream: int, grad: Tensor, saved: tuple[Tensor, ...], addend: Tensor | None) -> Gradients | None:
        if not self._same(*saved):
            return None
        addresses = [each.data_ptr() for each in saved]
        if len(saved) == 2:
            addresses.append(0)
        x_at, weight_at, kept_at = addresses
        grad_at, addend_at = grad.data_ptr(), 0
        if addend is not None:
            addend_at = addend.data_ptr()
            if addend.stride() != self._addend_strides or addend.dtype is not saved[0].dtype:
                return None
        if (x_at | weight_at | kept_at | grad_at | addend_at) & 15:
            return None
        grads = [None if make is None else make() for make in self._makers]
        out = [0 if each is None else each.data_ptr() for each in grads]
        scratch = self._make_scratch()
        if self._device.watched:
            self._device.watch(grad, addend, *saved)
        self._run(stream, out, scratch.data_ptr(), grad_at, addresses, addend_at)
        return tuple(grads)
