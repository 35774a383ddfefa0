"""What the Hopper kernels in CUDA C++ (native/) have in common: compiling, tensor maps' limits, sums of splits."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.conv.binding import Pointer, bind
from genesis.backends.cuda.conv.problem import ConvProblem
from genesis.backends.cuda.conv.triton_direct import Axis
from genesis.backends.cuda.kernels import conv_epilogue
from genesis.shapes import numel

_FOLDER = Path(__file__).parent / "native"
_BLOCK = 1024  # elements per program of the sum of splits


def is_available(device: int) -> bool:
    """Is it a Hopper GPU, and NVRTC there?"""
    here = driver.get()
    return here.name == "cuda" and here.properties(device).compute_capability == 90 and _has_compiler()


@functools.cache
def _has_compiler() -> bool:
    return importlib.util.find_spec("cuda.bindings.nvrtc") is not None


@functools.cache
def cubin(name: str, macros: tuple[tuple[str, str | int], ...]) -> bytes:
    """native/<name>.cu, compiled with these macros; from the cache on disk where it is there."""
    from genesis.backends.cuda.native.program import Program

    path = _FOLDER / f"{name}.cu"
    options = tuple(f"-D{macro}={value}" for macro, value in macros)
    return Program(name, path.read_text(), path.name, _FOLDER, options).compiled("sm_90a", (name,)).cubin


def bounds(axis: Axis, size: int) -> tuple[int, int]:
    """(low, high) of tensor_maps.Pixels: as many positions as results."""
    low = axis.start + min(0, (axis.taps - 1) * axis.spread) if axis.taps else 0
    return low, low + (axis.out_size - 1) * axis.step - (size - 1)


def is_within_reach(axis: Axis, size: int) -> bool:
    """Do the numbers fit into a tensor map?"""
    low, high = bounds(axis, size)
    return (
        min(low, high) >= -128
        and max(low, high) <= 127
        and (axis.taps - 1) * abs(axis.spread) <= 255
        and axis.step <= 8
    )


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
