"""Adding up what several programs found for one result."""

from __future__ import annotations

from collections.abc import Callable

from genesis import dtypes
from genesis.backends.cuda.conv.binding import Pointer, bind
from genesis.backends.cuda.conv.problem import ConvProblem
from genesis.backends.cuda.kernels import conv_epilogue
from genesis.shapes import numel

_BLOCK = 1024  # elements per program


def finisher(problem: ConvProblem, splits: int) -> Callable[[int, int, int, int, int], None]:
    """run(stream, out, sums, bias, residual): out = act(sum of the splits' sums + bias + residual)."""
    p = problem
    elements = numel(p.result_shape)
    bias = Pointer(p.dtype) if p.bias else None
    residual = Pointer(p.dtype) if p.residual else None
    ready = bind(
        conv_epilogue._finish_splits_kernel, p.device, (-(-elements // _BLOCK),), Pointer(p.dtype),
        Pointer(dtypes.float32), bias, residual, splits, elements, p.result_shape[1], RELU=p.activation == "relu",
        BLOCK=_BLOCK,
    )  # fmt: skip

    def run(stream: int, out: int, sums: int, bias: int, residual: int) -> None:
        ready(stream, out, sums, *([bias] if p.bias else []), *([residual] if p.residual else []))

    return run
