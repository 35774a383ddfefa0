"""Adding up what several programs found for one result."""

from __future__ import annotations

from collections.abc import Callable

from genesis import dtypes
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.kernels import epilogue
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.dtypes import DType
from genesis.shapes import numel

# Of a program: loads enough in flight, and programs enough for a large GPU, with few results as with many. A second
# round of loads would wait for the first one.
_AT_A_TIME, _OF_WARP = 2048, 1024
_MOST_SPLITS, _LEAST_ELEMENTS = 512, 16
_GENERAL = (16, 128)  # splits


def finisher(
    problem: ConvProblem, splits: int, sums: DType = dtypes.float32, general: bool = False, fold: int = 1
) -> Callable[[int, int, int, int, int], None]:
    """run(stream, out, sums, bias, residual): out = act(sum of the splits' sums + bias + residual).

    Args:
        sums: the splits' dtype.
        general: compiled once for all sizes.
        fold: a split's sums are the blocks on the diagonal of a matrix with so many times the rows and columns.
    """
    p = problem
    elements = numel(p.result_shape)
    splits *= fold
    at_a_time = _GENERAL[splits > 4 * _GENERAL[0]] if general else min(power_of_2(splits), _MOST_SPLITS)
    block = max(_AT_A_TIME // at_a_time, _LEAST_ELEMENTS)
    bias = Pointer(p.dtype) if p.bias else None
    residual = Pointer(p.dtype) if p.residual else None
    ready = bind(
        epilogue._finish_splits_kernel, p.device, (-(-elements // block),), Pointer(p.dtype), Pointer(sums), bias,
        residual, splits, elements, p.result_shape[1], RELU=p.activation == "relu", SPLITS=at_a_time, FOLD=fold,
        BLOCK=block, num_warps=at_a_time * block // _OF_WARP, general=general,
    )  # fmt: skip

    def run(stream: int, out: int, sums: int, bias: int, residual: int) -> None:
        ready(stream, out, sums, *([bias] if p.bias else []), *([residual] if p.residual else []))

    return run
