"""conv_bn_relu, prepared for operands of certain layouts: on addresses, in memory that the caller takes.

For callers to whom a look-up of plans and an object for each array cost more than the launches: genesis.torch. All that
calls in a row share is found once; is_current() says whether it still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.engine.candidate import Launch
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.ops.activation import fused as activations
from genesis.backends.cuda.ops.conv.prepared import Plans, ordered, prepare_copy, problem_of, rounded
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, WEIGHT_GRAD
from genesis.backends.cuda.ops.conv_bn_folded.launch import FoldLaunch
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1 as wide_conv_bn_relu
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_backward
from genesis.backends.cuda.ops.conv_bn_relu.launches import (
    BackwardLaunches,
    FinishLaunch,
    StatisticsLaunches,
    passed_layout,
)  # fmt: skip
from genesis.backends.cuda.ops.storage.rows import is_channels_last, statistics_dtype
from genesis.backends.cuda.runtime.array import Layout, layout_of
from genesis.records import ConvGeometry, NormState, SavedConvNorm
from genesis.shapes import channels_last_strides, numel

Two = tuple[int, int]  # addresses
Three = tuple[int, int, int]
NOTHING, BITS, VALUES = range(3)  # what the backward is told: see passed_layout()


class Operands(NamedTuple):
    """Layouts of what a convolution and batch norm take; None for what is missing."""

    x: Layout
    weight: Layout
    bias: Layout | None
    norm: NormState[Layout]

    def have_dense_vectors(self) -> bool:
        """Do bias and the norm's tensors lie as the kernels want them?"""
        return all(each is None or (each.aligned and each.strides in ((), (1,))) for each in (self.bias, *self.norm))


class Training:
    """Convolution, statistics, and the pass that normalizes, adds and activates.

    values: the weight's, where it is of another dtype or order than the kernels take, else None; kept: the
    convolution's output; block: bytes of mean and inverse deviation, and then of what the backward must be told of the
    values before the activation; scratch: bytes that begin() wants, which y may lend.
    """

    kept: Layout
    scratch: int
    is_current: Callable[[], bool]
    reads_operands = False  # finish() does, once more

    def __init__(self, operands: Operands, eps: float, geometry: ConvGeometry) -> None:
        """operands, geometry: such as supports() allows."""
        self.operands, self.eps, self.geometry = operands, eps, geometry
        x, weight = self.x, self.weight = operands[:2]
        self.problem = problem_of(x, weight, geometry)
        self.values: Layout | None = None
        self._convert: Callable[[int, int, int], None] | None = None
        if weight.dtype is not x.dtype or not is_channels_last(weight):
            self.values = ordered(weight, x.dtype)
            self._convert = prepare_copy(self.values, weight)
        shape = self.problem.output_shape
        self.y = layout_of(shape, x.dtype, x.device_index, channels_last_strides(shape))
        self.statistic = layout_of(shape[1:2], statistics_dtype(x.dtype), x.device_index)
        self.inverse_std = rounded(self.statistic.num_bytes)  # its place in the block
        self.passed = 2 * self.inverse_std
        self._finishes: dict[tuple[bool, str | None], FinishLaunch] = {}
        self._prepare_begin()

    def _prepare_begin(self) -> None:
        found, (_, _, bias, norm) = Plans(self.problem), self.operands
        self.is_current, self.kept = found.are_current, self.y
        _, self._convolve, workspace, moments = found.add(bias=bias is not None, statistics=True)
        launches = StatisticsLaunches.of(self.kept, moments, norm, self.eps)
        self._sum_up, self._join = launches.sum_up, launches.join
        self.scratch = max(workspace, launches.partial.num_bytes if moments is None else 0)

    def tells(self, has_residual: bool, activation: str | None) -> int:
        """Return what the backward is to be told of the values before the activation: NOTHING, BITS or VALUES?"""
        if activation is None or not has_residual:
            return NOTHING
        return BITS if activation == "relu" else VALUES

    def told(self, tells: int) -> Layout | None:
        """The layout of what the backward is told."""
        return passed_layout(self.y, (None, "relu", "silu")[tells])  # of others than ReLU it is the same

    def block_bytes(self, tells: int) -> int:
        told = self.told(tells)
        return self.passed + (0 if told is None else told.num_bytes)

    def begin(
        self, stream: int, kept: int, block: int, scratch: int, values: int, operands: Three, running: Three,
        momentum: float,
    ) -> None:  # fmt: skip
        """Addresses. values: where there are any; operands: x, weight, bias; running: mean, variance, count."""
        (x, weight, bias), (mean, var, count) = operands, running
        if self._convert is not None:
            self._convert(stream, values, weight)
            weight = values
        self._convolve(stream, kept, x, weight, bias, 0, scratch)
        if self._sum_up is not None:
            self._sum_up(stream, scratch, kept)
        self._join(stream, block, block + self.inverse_std, mean, var, count, scratch, momentum)

    def finish(
        self, stream: int, y: int, kept: int, block: int, operands: Two, residual: int, affine: Two,
        activation: str | None,
    ) -> None:  # fmt: skip
        """Addresses. operands: x, weight, where this reads them; residual: 0 for none; affine: gamma, beta. The block
        has room for what the backward is told."""
        gamma, beta = affine
        found = self._finishes.get((residual != 0, activation))
        if found is None:
            norm = NormState(*self.operands.norm[:2], None, None)
            found = FinishLaunch.of(self.kept, norm, self.y if residual else None, self.eps, activation)
            self._finishes[residual != 0, activation] = found
        found.normalize(
            stream, y, 0 if found.passed is None else block + self.passed, kept, residual, block,
            block + self.inverse_std, 0, 0, gamma, beta,
        )  # fmt: skip

    def backward(
        self, grad: Layout, has_residual: bool, activation: str | None, needs: tuple[bool, ...], has_addend: bool
    ) -> Backward | WideBackward | None:
        """None where a gradient lies otherwise than y does."""
        if not (is_channels_last(grad) and grad.aligned):
            return None
        return self._backward(grad, self.tells(has_residual, activation), activation, needs, has_addend)

    def _backward(
        self, grad: Layout, tells: int, activation: str | None, needs: tuple[bool, ...], has_addend: bool
    ) -> Backward | WideBackward:
        return Backward(self, grad, tells, activation, needs, has_addend)

    def saved(self, weight: Layout, tells: int) -> SavedConvNorm[Layout]:
        """The operands of the backward, with the weight as the kernels take it."""
        x, _, bias, norm = self.operands
        statistics = (self.statistic, self.statistic)
        return SavedConvNorm(x, weight, bias, norm.gamma, norm.beta, *statistics, self.kept, self.told(tells))


class WideTraining(Training):
    """Training by the 1×1 expansion, which never writes the convolution's output: kept holds state instead."""

    reads_operands = True

    def _prepare_begin(self) -> None:
        self.is_current, (_, _, bias, norm) = Plans(self.problem).are_current, self.operands
        self.matrix = layout_of(self.weight.shape[:2], self.x.dtype, self.x.device_index)
        partial, gram, self.kept, _, self._find = wide_conv_bn_relu.StatisticsLaunches.of(
            self.x, self.matrix, bias, norm, self.eps
        )
        self._gram = rounded(partial.num_bytes)  # its place in scratch
        self._wide_finishes: dict[tuple[bool, str | None], wide_conv_bn_relu.FinishLaunch] = {}
        self.scratch = self._gram + gram.num_bytes

    def tells(self, has_residual: bool, activation: str | None) -> int:
        if not wide_conv_bn_relu.writes_passed(self.weight.shape[0], activation, has_residual):
            return NOTHING
        return BITS if activation == "relu" else VALUES

    def begin(
        self, stream: int, kept: int, block: int, scratch: int, values: int, operands: Three, running: Three,
        momentum: float,
    ) -> None:  # fmt: skip
        if self._convert is not None:
            x, weight, bias = operands
            self._convert(stream, values, weight)
            operands = (x, values, bias)
        found = (block, block + self.inverse_std, kept)
        self._find(stream, found, running, (scratch, scratch + self._gram), operands, momentum)

    def finish(
        self, stream: int, y: int, kept: int, block: int, operands: Two, residual: int, affine: Two,
        activation: str | None,
    ) -> None:  # fmt: skip
        gamma, beta = affine
        found = self._wide_finishes.get((residual != 0, activation))
        if found is None:
            vectors, added = self.operands.norm[:2], self.y if residual else None
            found = wide_conv_bn_relu.FinishLaunch.of(self.x, self.matrix, *vectors, added, activation)
            self._wide_finishes[residual != 0, activation] = found
        passed = 0 if found.passed is None else block + self.passed
        x, weight = operands
        found.normalize(stream, y, passed, x, weight, residual, kept, block + self.inverse_std, gamma, beta)

    def _backward(
        self, grad: Layout, tells: int, activation: str | None, needs: tuple[bool, ...], has_addend: bool
    ) -> WideBackward:
        return WideBackward(self, grad, tells, activation, needs, has_addend)


class Backward:
    """Gradients of input, weight, bias, gamma, beta, residual: their layouts, None for those that nobody wants.

    scratch: bytes that run() wants.
    """

    def __init__(
        self, of: Training, grad: Layout, tells: int, activation: str | None, needs: tuple[bool, ...],
        has_addend: bool,
    ) -> None:  # fmt: skip
        needs_input, needs_weight, *_ = needs
        x, weight = of.x, of.weight
        launches = BackwardLaunches.of(grad, of.saved(weight, tells), True, activation, needs)
        self._launch, (grad_x, *others) = launches.launch, launches.gradients
        convolutions = Plans(of.problem)
        self.is_current = convolutions.are_current
        self._room = 0 if grad_x is None else rounded(grad_x.num_bytes)  # the place of what is scratch to all launches
        shared = launches.scratch.num_bytes
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
                self._values, self._convert = self._room, prepare_copy(weight, of.values)
                self._room += rounded(of.values.num_bytes)
            shared = max(shared, num_bytes)
        self.scratch = self._room + shared
        self._inverse_std, self._passed = of.inverse_std, of.passed if tells else None
        self.layouts = (
            ordered(x, x.dtype) if needs_input else None, weight if needs_weight else None, *others,
        )  # fmt: skip

    def run(self, stream: int, out: list[int], scratch: int, grad: int, saved: list[int], addend: int) -> None:
        """Addresses. out: of each gradient, 0 for those that nobody wants; saved: x, weight, gamma, beta, kept, block;
        addend: 0 for none."""
        out_input, out_weight, *others = out
        x, weight, gamma, beta, kept, block = saved
        room = scratch + self._room
        passed = 0 if self._passed is None else block + self._passed
        vectors = (block, block + self._inverse_std, gamma, beta)
        self._launch(stream, scratch, others, room, grad, passed, kept, vectors)
        if self._input_grad is not None:
            self._input_grad(stream, out_input, scratch, weight, 0, addend, room)
        if self._convert is not None:
            self._weight_grad(stream, scratch + self._values, scratch, x, 0, 0, room)  # type: ignore[misc]
            self._convert(stream, out_weight, scratch + self._values)
        elif self._weight_grad is not None:
            self._weight_grad(stream, out_weight, scratch, x, 0, 0, room)


class WideBackward:
    """Backward of the 1×1 expansion."""

    def __init__(
        self, of: WideTraining, grad: Layout, tells: int, activation: str | None, needs: tuple[bool, ...],
        has_addend: bool,
    ) -> None:  # fmt: skip
        x, weight = of.x, of.weight
        addend = ordered(x, x.dtype) if has_addend and needs[0] else None
        launches = expand_1x1_backward.BackwardLaunches.of(grad, of.saved(of.matrix, tells), activation, addend, needs)
        self._launch, self.is_current = launches.launch, Plans(of.problem).are_current
        grad_input, _, *others = launches.gradients
        self.layouts = (grad_input, weight if needs[1] else None, *others)
        place, self._places = 0, list[int]()
        for layout in launches.scratch:
            self._places.append(place)
            place += 0 if layout is None else rounded(layout.num_bytes)
        self._convert: Callable[[int, int, int], None] | None = None
        self._values = place  # the place of the weight's gradient as the kernel gives it
        if needs[1] and of.values is not None:
            self._convert = prepare_copy(weight, of.values)
            place += rounded(of.values.num_bytes)
        self.scratch = place
        self._inverse_std, self._passed = of.inverse_std, of.passed if tells else None

    def run(self, stream: int, out: list[int], scratch: int, grad: int, saved: list[int], addend: int) -> None:
        out_input, out_weight, *others = out
        x, weight, gamma, beta, kept, block = saved
        passed = 0 if self._passed is None else block + self._passed
        values = out_weight if self._convert is None else scratch + self._values
        self._launch(
            stream, (out_input, values, *others), tuple([scratch + place for place in self._places]), grad,
            (x, weight, gamma, beta, block + self._inverse_std, kept, passed), addend,
        )  # fmt: skip
        if self._convert is not None:
            self._convert(stream, out_weight, values)


class Inference:
    """The norm folded into the weight, and the convolution with all that follows.

    scratch: bytes for the folded weight, and at their places the folded bias and the convolution's workspace.
    fold: stream, folded weight and bias, weight, bias, gamma, beta, mean, variance.
    convolve: stream, y, x, weight, bias, residual, workspace.
    activate: stream, y, y; None where the convolution does that itself.
    """

    def __init__(
        self, operands: Operands, eps: float, geometry: ConvGeometry, has_residual: bool, activation: str | None
    ) -> None:
        """operands, geometry: such as supports_inference() allows."""
        x, weight, bias, (gamma, beta, mean, var, _) = operands
        assert mean is not None
        assert var is not None
        found = FoldLaunch.of(x.dtype, weight, bias, gamma, beta, mean, var, eps)
        self.bias_place, self.fold = found.bias_place, found.fold
        problem = problem_of(x, weight, geometry)
        convolutions = Plans(problem)
        self.is_current = convolutions.are_current
        _, self.convolve, workspace, _ = convolutions.add(
            bias=True, residual=has_residual, activation="relu" if activation == "relu" else None
        )  # fmt: skip
        self.workspace_place = rounded(self.bias_place + found.bias.num_bytes)
        self.scratch = self.workspace_place + workspace
        shape = problem.output_shape
        self.x, self.y = x, layout_of(shape, x.dtype, x.device_index, channels_last_strides(shape))
        self.activate = None if activation in (None, "relu") else activations.activation_pass(self.y, activation)


def supports_inference(operands: Operands, geometry: ConvGeometry) -> bool:
    x, weight, *_ = operands
    return (
        x.aligned
        and weight.aligned
        and is_channels_last(x)
        and operands.have_dense_vectors()
        and 0 not in (x.size, weight.size, numel(problem_of(x, weight, geometry).output_shape))
        and not planner.is_gathering()  # which counts calls of plan()
    )


def training(operands: Operands, eps: float, geometry: ConvGeometry) -> Training:
    """operands, geometry: such as supports() allows."""
    x, weight = operands.x, operands.weight
    is_wide = wide_conv_bn_relu.supports(x.dtype, x.shape, weight.shape, geometry)
    return (WideTraining if is_wide else Training)(operands, eps, geometry)


def supports(operands: Operands, geometry: ConvGeometry) -> bool:
    """Do operands lie as the kernels want them?"""
    return is_dense(operands.weight) and supports_inference(operands, geometry)
