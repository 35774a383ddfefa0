"""Convolution to a few channels, and its gradients (kernels.py)."""

from __future__ import annotations

import math
from typing import TypedDict

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.engine.candidate import FULL, PLAIN, Candidate, Family, Launch, admissible
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.candidates.small_k import kernels
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import Shape, numel

_MOST_OUTPUTS = 4
_MOST_TAPS = 25  # they are unrolled
_PIXELS = (32, 128)  # per program; of a split's step


class SmallKFamily(Family[ConvProblem]):
    prefix = "small_k"

    def variants(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        candidate = SmallK()
        return [candidate] if admissible(candidate, problem) else []


class SmallK(Candidate[ConvProblem]):
    """The one way to do it."""

    arithmetic = FULL
    name = f"{SmallKFamily.prefix}/{_PIXELS[0]} pixels"

    def supports(self, problem: ConvProblem) -> bool:
        p = problem
        return (
            p.groups == 1
            and p.dtype.is_floating_point
            and p.dtype is not dtypes.float64
            and p.weight_shape[0] <= _MOST_OUTPUTS
            and math.prod(p.weight_shape[2:]) <= _MOST_TAPS
            and max(math.prod(shape[:1] + shape[2:]) for shape in (p.input_shape, p.output_shape)) < 2**30
        )

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return frozenset({"bias"}) if problem.direction == INPUT_GRAD else PLAIN

    def workspace(self, problem: ConvProblem) -> int:
        if problem.direction != WEIGHT_GRAD:
            return 0
        return _splits(problem)[0] * numel(problem.weight_shape) * 4

    def prepare(self, problem: ConvProblem) -> Launch:
        p = problem
        inputs = p.weight_shape[1]
        geometry = (p.output_shape[2:], p.input_shape[2:], p.stride, p.padding, p.dilation)
        block_c = min(power_of_2(inputs), 64)
        blocks: _Blocks = {
            "OUTPUTS": p.weight_shape[0], "TAPS_Y": p.weight_shape[2], "TAPS_X": p.weight_shape[3], "BLOCK_C": block_c,
        }  # fmt: skip
        operand = Pointer(p.dtype, p.alignment)
        bias = operand if p.bias else None
        if p.direction == WEIGHT_GRAD:
            return _weight_grad(p, geometry, blocks)
        num_pixels = p.result_shape[0] * math.prod(p.result_shape[2:])
        programs = -(-num_pixels // _PIXELS[0])
        if p.direction == INPUT_GRAD:
            ready = bind(
                kernels._small_k_input_grad_kernel, p.device, (programs, -(-inputs // block_c)), operand, operand,
                operand, bias, num_pixels, inputs, *geometry, BLOCK_M=_PIXELS[0], **blocks,
            )  # fmt: skip
        else:
            assert p.direction == FORWARD
            ready = bind(
                kernels._small_k_kernel, p.device, (programs,), operand, operand, operand, bias,
                operand if p.residual else None, num_pixels, inputs, *geometry, RELU=p.activation == "relu",
                OUTPUT_BLOCK=power_of_2(p.weight_shape[0]), BLOCK_M=_PIXELS[0], **blocks,
            )  # fmt: skip
        return _with_those_there(ready, p.bias, p.residual)


class _Blocks(TypedDict):
    OUTPUTS: int
    TAPS_Y: int
    TAPS_X: int
    BLOCK_C: int


def _with_those_there(ready: AddressLaunch, has_bias: bool, has_residual: bool) -> Launch:
    def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
        ready(stream, out, first, second, *([bias] if has_bias else []), *([residual] if has_residual else []))

    return run


def _weight_grad(problem: ConvProblem, geometry: tuple[Shape, ...], blocks: _Blocks) -> Launch:
    p = problem
    outputs, inputs, *taps = p.weight_shape
    splits, pixels_per_split = _splits(p)
    operand = Pointer(p.dtype, p.alignment)
    grid = (outputs * math.prod(taps), splits, -(-inputs // blocks["BLOCK_C"]))
    ready = bind(
        kernels._small_k_weight_grad_kernel, p.device, grid, Pointer(dtypes.float32), operand, operand, p.num_terms,
        inputs, *geometry, pixels_per_split, BLOCK_M=_PIXELS[1], **blocks,
    )  # fmt: skip
    finish = finisher(p, splits)

    def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
        ready(stream, workspace, grad, x)
        finish(stream, out, workspace, 0, 0)

    return run


def _splits(problem: ConvProblem) -> tuple[int, int]:
    """(number, pixels of each): what fills the multiprocessors twice, at least a step each."""
    p = problem
    programs = p.weight_shape[0] * math.prod(p.weight_shape[2:]) * -(-p.weight_shape[1] // 64)
    steps = -(-p.num_terms // _PIXELS[1])
    wanted = 2 * driver.get().properties(p.device).multiprocessor_count // programs
    splits = max(1, min(wanted, steps))
    steps_per_split = -(-steps // splits)
    return -(-steps // steps_per_split), steps_per_split * _PIXELS[1]
