"""Adding up what several programs found for one result."""

from __future__ import annotations

from collections.abc import Callable

from genesis import dtypes
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.kernels import epilogue
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.shapes import numel

_MOST_SPLITS, _MOST_READ = 64, 4096  # at a time, by a program
_LEAST_ELEMENTS, _MOST_ELEMENTS = 64, 1024  # of the result, per program
_PROGRAMS = 512  # keep a large GPU busy


def finisher(problem: ConvProblem, splits: int) -> Callable[[int, int, int, int, int], None]:
    """run(stream, out, sums, bias, residual): out = act(sum of the splits' sums + bias + residual)."""
    p = problem
    elements = numel(p.result_shape)
    at_a_time = min(power_of_2(splits), _MOST_SPLITS)
    block = min(_MOST_READ // at_a_time, _MOST_ELEMENTS, max(power_of_2(elements // _PROGRAMS), _LEAST_ELEMENTS))
    bias = Pointer(p.dtype) if p.bias else None
    residual = Pointer(p.dtype) if p.residual else None
    ready = bind(
        epilogue._finish_splits_kernel, p.device, (-(-elements // block),), Pointer(p.dtype),
        Pointer(dtypes.float32), bias, residual, splits, elements, p.result_shape[1], RELU=p.activation == "relu",
        SPLITS=at_a_time, BLOCK=block,
    )  # fmt: skip

    def run(stream: int, out: int, sums: int, bias: int, residual: int) -> None:
        ready(stream, out, sums, *([bias] if p.bias else []), *([residual] if p.residual else []))

    return run
