"""conv_act, prepared for operands of certain layouts: on addresses, in memory that the caller takes."""

from __future__ import annotations

from collections.abc import Callable

from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.engine.candidate import Launch
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.ops.activation.fused import activation_pass
from genesis.backends.cuda.ops.conv.prepared import Plans, ordered, prepare_copy, problem_of, rounded
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, WEIGHT_GRAD
from genesis.backends.cuda.ops.conv_act.launches import BackwardLaunches
from genesis.backends.cuda.ops.storage.rows import is_channels_last
from genesis.backends.cuda.runtime.array import Layout, layout_of
from genesis.records import ConvGeometry
from genesis.shapes import channels_last_strides, numel


class Forward:
    """Convolution, sum and activation.

    values: the weight's, where it is of another dtype or order than the kernels take, else None; scratch: bytes.
    """

    def __init__(
        self, x: Layout, weight: Layout, bias: Layout | None, geometry: ConvGeometry,
        activation: str | None, keeps: str | None, has_residual: bool,
    ) -> None:  # fmt: skip
        """Operands such as supports() allows; keeps: as conv_act takes it; the residual lies as y."""
        self.x, self.weight, self.activation, self.keeps_input = x, weight, activation, keeps == "input"
        self.problem = problem_of(x, weight, geometry)
        self.values: Layout | None = None
        self._convert: Callable[[int, int, int], None] | None = None
        if weight.dtype is not x.dtype or not is_channels_last(weight):
            self.values = ordered(weight, x.dtype)
            self._convert = prepare_copy(self.values, weight)
        shape, at_once = self.problem.output_shape, activation in (None, "relu") and not self.keeps_input
        self.y = layout_of(shape, x.dtype, x.device_index, channels_last_strides(shape))
        convolutions = Plans(self.problem)
        self.is_current = convolutions.are_current
        _, self._convolve, self.scratch, _ = convolutions.add(
            bias=bias is not None, residual=has_residual, activation=activation if at_once else None
        )  # fmt: skip
        self._activate = None if at_once or activation is None else activation_pass(self.y, activation)

    def run(
        self, stream: int, y: int, kept: int, scratch: int, values: int, operands: tuple[int, int, int, int]
    ) -> None:
        """Addresses. kept: of the activation's input, which may be y; values: where there are any; operands: x, weight,
        bias, residual, 0 for none."""
        x, weight, bias, residual = operands
        if self._convert is not None:
            self._convert(stream, values, weight)
            weight = values
        self._convolve(stream, kept, x, weight, bias, residual, scratch)
        if self._activate is not None:
            self._activate(stream, y, kept)


class Backward:
    """Gradients of input, weight, bias, residual: their layouts, None for those that nobody wants.

    Without an activation that of the residual is the one that comes in, and none here. scratch: bytes that run() wants.
    """

    def __init__(self, of: Forward, grad: Layout, needs: tuple[bool, ...], has_addend: bool) -> None:
        """grad: in NHWC and aligned."""
        needs_input, needs_weight, needs_bias, needs_residual = needs
        convolutions, activates = Plans(of.problem), of.activation is not None
        self.is_current, self._activates = convolutions.are_current, activates
        self._launch: Callable[[int, int, int, int, int, int], None] | None = None
        self._room, shared = 0, 0  # the place of what is scratch to all launches, and its bytes
        grad_bias, grad_residual = None, None
        if activates or needs_bias:
            launches = BackwardLaunches.of(grad, of.y if activates else None, of.activation, needs_bias)
            self._launch, grad_bias = launches.launch, launches.grad_bias
            shared = 0 if launches.partial is None else launches.partial.num_bytes
            if needs_residual:
                grad_residual = launches.grad_x
            elif launches.grad_x is not None:
                self._room = rounded(launches.grad_x.num_bytes)
        self._input_grad: Launch | None = None
        self._weight_grad: Launch | None = None
        if needs_input:
            _, self._input_grad, num_bytes, _ = convolutions.add(direction=INPUT_GRAD, residual=has_addend)
            shared = max(shared, num_bytes)
        self._convert: Callable[[int, int, int], None] | None = None
        self._values = 0  # the place of the weight's gradient as the kernel gives it
        if needs_weight:
            _, self._weight_grad, num_bytes, _ = convolutions.add(direction=WEIGHT_GRAD)
            if of.values is not None:
                self._values, self._convert = self._room, prepare_copy(of.weight, of.values)
                self._room += rounded(of.values.num_bytes)
            shared = max(shared, num_bytes)
        self.scratch = self._room + shared
        self.layouts = (
            ordered(of.x, of.x.dtype) if needs_input else None, of.weight if needs_weight else None,
            grad_bias, grad_residual,
        )  # fmt: skip

    def run(self, stream: int, out: list[int], scratch: int, grad: int, saved: list[int], addend: int) -> None:
        """Addresses. out: of each gradient, 0 for those that nobody wants; saved: x, weight, kept; addend: 0 for
        none; kept: 0 without an activation."""
        out_input, out_weight, out_bias, out_residual = out
        x, weight, kept = saved
        room = scratch + self._room
        grad_x = (out_residual or scratch) if self._activates else grad
        if self._launch is not None:
            self._launch(stream, grad_x, out_bias, room, grad, kept)
        if self._input_grad is not None:
            self._input_grad(stream, out_input, grad_x, weight, 0, addend, room)
        if self._convert is not None:
            self._weight_grad(stream, scratch + self._values, grad_x, x, 0, 0, room)  # type: ignore[misc]
            self._convert(stream, out_weight, scratch + self._values)
        elif self._weight_grad is not None:
            self._weight_grad(stream, out_weight, grad_x, x, 0, 0, room)


def supports(x: Layout, weight: Layout, bias: Layout | None, geometry: ConvGeometry) -> bool:
    """Do operands lie as the kernels want them?"""
    return (
        x.aligned
        and weight.aligned
        and is_channels_last(x)
        and is_dense(weight)
        and (bias is None or (bias.aligned and bias.strides == (1,)))
        and 0 not in (x.size, weight.size, numel(problem_of(x, weight, geometry).output_shape))
        and not planner.is_gathering()  # which counts calls of plan()
    )
