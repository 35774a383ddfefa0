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

# Of a program: loads enough in flight, and programs enough for a large GPU, with few results as with many.
_AT_A_TIME, _OF_WARP = 2048, 1024
_LEAST_ELEMENTS = 16
# Splits at a time: all of them, as each round of loads waits for the one before; but no more than a GPU holds at once.
_ALWAYS, _MOST, _MOST_AT_ONCE = 64, 512, 2_500_000
_GENERAL_OF_FEW, _GENERAL_OF_MANY = 16, 128


def finisher(
    problem: ConvProblem, splits: int, sums: DType = dtypes.float32, general: bool = False
) -> Callable[[int, int, int, int, int], None]:
    """run(stream, out, sums, bias, residual): out = act(sum of the splits' sums + bias + residual).

    Args:
        sums: the splits' dtype.
        general: compiled once for all sizes.
    """
    p = problem
    elements = numel(p.result_shape)
    at_a_time = _at_a_time(splits, elements)
    if general:
        at_a_time = _GENERAL_OF_FEW if splits <= _ALWAYS else _GENERAL_OF_MANY
    block = max(_AT_A_TIME // at_a_time, _LEAST_ELEMENTS)
    bias = Pointer(p.dtype) if p.bias else None
    residual = Pointer(p.dtype) if p.residual else None
    ready = bind(
        epilogue._finish_splits_kernel, p.device, (-(-elements // block),), Pointer(p.dtype), Pointer(sums), bias,
        residual, splits, elements, p.result_shape[1], RELU=p.activation == "relu", SPLITS=at_a_time, BLOCK=block,
        num_warps=at_a_time * block // _OF_WARP, general=general,
    )  # fmt: skip

    def run(stream: int, out: int, sums: int, bias: int, residual: int) -> None:
        ready(stream, out, sums, *([bias] if p.bias else []), *([residual] if p.residual else []))

    return run


def _at_a_time(splits: int, elements: int) -> int:
    wanted = min(power_of_2(splits), _MOST)
    while wanted > _ALWAYS and wanted * elements > _MOST_AT_ONCE:
        wanted //= 2
    return wanted
