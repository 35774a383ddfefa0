"""Shared by the Hopper kernels in CUDA C++: compiling, and the limits of tensor maps."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, TF32
from genesis.backends.cuda.nvrtc import structure
from genesis.backends.cuda.nvrtc.structure import Structure
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import Axis
from genesis.backends.cuda.ops.conv.problem import ConvProblem

_HEADERS = Path(__file__).parent
_LEAST_TERMS = 64


class View(NamedTuple):
    """How the pixels of an image lie in memory, where they are not dense."""

    num_channels: int  # those beyond are zeros
    strides: tuple[int, int, int]  # (N, H, W) in elements


def is_available(device: int) -> bool:
    """Is it a Hopper GPU, and NVRTC there?"""
    here = driver.get()
    return here.name == "cuda" and here.properties(device).compute_capability == 90 and _has_compiler()


def processors(problem: ConvProblem) -> int:
    """Multiprocessors of the problem's device: each runs one program of these kernels at a time."""
    return driver.get().properties(problem.device).multiprocessor_count


def arithmetic(problem: ConvProblem) -> str:
    """Arithmetic of these kernels: below full precision they round to float16, which has as many bits as TF32."""
    return TF32 if problem.is_rounded else FULL


def is_accurate(problem: ConvProblem, num_terms: int) -> bool:
    """Are sums of so many products as accurate as those of float32 multiply-adds, where that is asked for?

    Three products of float16 parts leave out the last bit or two of each term; the roundings of float32 sums come to
    more than that from about 50 terms on.
    """
    return num_terms >= _LEAST_TERMS or not problem.is_exact


@functools.cache
def _has_compiler() -> bool:
    return importlib.util.find_spec("cuda.bindings.nvrtc") is not None


@functools.cache
def cubin(kernel: str, source: Path, macros: tuple[tuple[str, str | int], ...]) -> bytes:
    """A source with this kernel, compiled with these macros; from the cache on disk where it is there."""
    from genesis.backends.cuda.nvrtc.program import Program

    options = tuple(f"-D{macro}={value}" for macro, value in macros)
    program = Program(kernel, source.read_text(), source.name, source.parent, options, (_HEADERS,))
    return program.compiled("sm_90a", (kernel,)).cubin


@functools.cache
def geometry(source: Path) -> Structure:
    """struct Geometry of a source."""
    return structure.read("Geometry", source.read_text())


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
