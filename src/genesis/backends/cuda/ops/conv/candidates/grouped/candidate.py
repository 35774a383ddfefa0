"""Convolution in groups of 2 to 128 channels, forward and both gradients: several groups in one matrix product."""

from __future__ import annotations

import math

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import PLAIN, Candidate, Family, Launch, Parts, admissible
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.ops.conv.candidates.grouped import shape as shapes
from genesis.backends.cuda.ops.conv.candidates.grouped.kernels import gather, weight_grad
from genesis.backends.cuda.ops.conv.candidates.grouped.shape import Shape, channels
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import Axis, launch_axes
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

_SPLIT_LIMIT = 64 << 20  # bytes of partial sums
_MOST_PIXELS = 16384  # of one chain of sums: they drift where a tensor core adds them, and round where it does not
_LEAST_STEPS = 4  # of a split


class GroupedFamily(Family[ConvProblem]):
    prefix = "grouped"
    per_turn = 2
    finds_statistics = True

    def variants(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        return [each for each in map(Grouped, shapes.shapes(problem)) if admissible(each, problem)]


class Grouped(Candidate[ConvProblem]):
    """One shape of the kernels."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.arithmetic = shape, shape.arithmetic
        self.name = f"{GroupedFamily.prefix}/{shape}"

    def supports(self, problem: ConvProblem) -> bool:
        return shapes.supports(problem)

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return PLAIN | {"statistics"} if problem.direction == FORWARD else PLAIN

    def parts(self, problem: ConvProblem) -> Parts:
        num_pixels = numel(problem.result_shape) // problem.result_shape[1]
        return Parts(-(-num_pixels // self.shape.block_m), self.shape.block_m)

    def workspace(self, problem: ConvProblem) -> int:
        if problem.statistics:
            return self.parts(problem).num_bytes(problem.result_shape[1])
        if problem.direction == WEIGHT_GRAD:
            return _splits(problem, self.shape)[0] * numel(problem.weight_shape) * 4
        return 0

    def prepare(self, problem: ConvProblem) -> Launch:
        if problem.direction == WEIGHT_GRAD:
            return _prepare_weight_grad(problem, self.shape)
        launches = [
            _prepare_gather(problem, self.shape, axes, is_beside=index > 0)
            for index, axes in enumerate(launch_axes(problem))
        ]
        if len(launches) == 1:
            return launches[0]

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            for each in launches:
                each(stream, out, first, second, bias, residual, workspace)

        return run


# --- forward and input gradient ---------------------------------------------------------------------------------------
def _prepare_gather(problem: ConvProblem, shape: Shape, axes: tuple[Axis, Axis], is_beside: bool) -> Launch:
    """is_beside: the launch before computes other positions of the same result."""
    p, (row, column), operand = problem, axes, Pointer(problem.dtype, problem.alignment)
    inputs, outputs = channels(p)
    num_pixels = p.result_shape[0] * row.out_size * column.out_size
    geometry = (
        (row.out_size, column.out_size), p.result_shape[2:], (row.out_first, column.out_first),
        (row.out_step, column.out_step), p.first_shape[2:], (row.taps, column.taps), p.weight_shape[2:],
        (row.tap_first, column.tap_first), (row.tap_step, column.tap_step), (row.step, column.step),
        (row.start, column.start), (row.spread, column.spread),
    )  # fmt: skip
    grid = (-(-num_pixels // shape.block_m) * -(-p.groups // shape.pack),)
    ready = bind(
        gather._grouped_conv_kernel, p.device, grid, *[operand] * 5, Pointer(dtypes.float32), int(is_beside),
        num_pixels, p.groups, *geometry, IN=inputs, OUT=outputs, PACK=shape.pack, WHOLE=p.groups % shape.pack == 0,
        TRANSPOSED=p.direction == INPUT_GRAD, BIAS=p.bias, RESIDUAL=p.residual, RELU=p.activation == "relu",
        STATISTICS=p.statistics, PRECISION=shape.precision, WIDE=_is_wide(p), BLOCK_M=shape.block_m,
        BLOCK_N=shape.block_n, BLOCK_K=shape.block_k, num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    return ready  # the addresses of a Launch, in its order


# --- weight gradient --------------------------------------------------------------------------------------------------
def _prepare_weight_grad(problem: ConvProblem, shape: Shape) -> Launch:
    p, operand = problem, Pointer(problem.dtype, problem.alignment)
    inputs, outputs = channels(p)
    splits, pixels_per_split = _splits(p, shape)
    ready = bind(
        weight_grad._grouped_weight_grad_kernel, p.device, (splits * _num_tiles(p, shape),), Pointer(dtypes.float32),
        operand, operand, p.num_terms, pixels_per_split, p.groups, p.output_shape[2:], p.input_shape[2:],
        p.weight_shape[2:], p.stride, p.padding, p.dilation, IN=inputs, OUT=outputs, PACK=shape.pack,
        WHOLE=p.groups % shape.pack == 0, TAPS=shape.taps, WIDTH=shape.width, PRECISION=shape.precision,
        WIDE=_is_wide(p), BLOCK_M=shape.block_m, BLOCK_N=shape.block_n, BLOCK_K=shape.block_k,
        num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    finish = finisher(p, splits)

    def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
        ready(stream, workspace, grad, x)
        finish(stream, out, workspace, 0, 0)

    return run


def _num_tiles(problem: ConvProblem, shape: Shape) -> int:
    """The programs of a weight's gradient, without splits."""
    return -(-problem.groups // shape.pack) * -(-math.prod(problem.weight_shape[2:]) // shape.taps)


def _splits(problem: ConvProblem, shape: Shape) -> tuple[int, int]:
    """Over how many programs the pixels of a tile are shared out, and how many each gets.

    They keep the multiprocessors busy four times over, in bounded memory. How many there are depends on the device's
    size, their order does not: the same device gives the same bits.
    """
    p, step = problem, shape.block_k
    wanted = -(-4 * driver.get().properties(p.device).multiprocessor_count // _num_tiles(p, shape))
    steps = -(-p.num_terms // step)
    most = max(1, min(steps // _LEAST_STEPS, _SPLIT_LIMIT // (numel(p.weight_shape) * 4)))
    splits = max(min(wanted, most), -(-p.num_terms // _MOST_PIXELS))
    steps_per_split = -(-steps // splits)
    return -(-steps // steps_per_split), steps_per_split * step


def _is_wide(problem: ConvProblem) -> bool:
    """Do offsets need 64 bits?"""
    p = problem
    return any(numel(shape) >= 2**31 for shape in (p.first_shape, p.second_shape, p.result_shape))
