"""Kernels in CUDA C++ that take addresses and a structure of numbers: compiling them, and launching them."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.nvrtc import structure
from genesis.backends.cuda.nvrtc.structure import Structure

_FOLDER = Path(__file__).parent
_SOURCES = {
    "depthwise": "depthwise/gather.cu",
    "depthwise_weight_grad": "depthwise/weight_grad.cu",
    "depthwise_toeplitz": "depthwise/toeplitz.cu",
    "flat_gemm_forward": "flat_gemm/forward.cu",
    "flat_gemm_warpgroups": "flat_gemm/warpgroups.cu",
    "flat_gemm_weight_grad": "flat_gemm/weight_grad.cu",
    "patch_forward": "patch/forward.cu",
    "patch_weight_grad": "patch/weight_grad.cu",
    "patch_fma_forward": "patch/fma_forward.cu",
    "patch_fma_weight_grad": "patch/fma_weight_grad.cu",
    "skinny_gemm_forward": "skinny_gemm/forward.cu",
    "skinny_gemm_gradient": "skinny_gemm/gradient.cu",
}
_OF_ONE_ARCHITECTURE = ("flat_gemm_warpgroups",)  # with instructions that no later one has
_OPTIONS = ("-default-device",)  # lambdas run on the device, too
_LEAST_CAPABILITY = 80  # converts float32 to bfloat16
DTYPES = (dtypes.float32, dtypes.float16, dtypes.bfloat16)  # in the order of DTYPE
MOST_SHARED = 48 << 10  # bytes, without asking


def is_available(device: int) -> bool:
    """Is it a GPU that these kernels are for, and NVRTC there?"""
    here = driver.get()
    return (
        here.name == "cuda"
        and here.properties(device).compute_capability >= _LEAST_CAPABILITY
        and importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    )


def source(name: str) -> Path:
    """Path of the source that has this kernel."""
    return _FOLDER / _SOURCES[name]


def options(macros: Mapping[str, int]) -> tuple[str, ...]:
    return (*_OPTIONS, *(f"-D{macro}={value}" for macro, value in macros.items()))


def prepare(
    device: int, name: str, macros: Mapping[str, int], grid: int, threads: int, shared: int, num_addresses: int,
    **geometry: int,
) -> AddressLaunch:  # fmt: skip
    """run(stream, *addresses) launches the kernel, compiled with these macros. geometry: its structure's members."""
    from genesis.backends.cuda.driver.tensor_maps import MapKernel

    arch = architecture(name, driver.get().properties(device).compute_capability)
    kernel = MapKernel(device, name, cubin(name, options(macros), arch), shared)
    return kernel.prepare(grid, threads, [], num_addresses, packed(name, **geometry))


def architecture(name: str, capability: int) -> str:
    """The architecture to compile the kernel for, of a GPU's compute capability: "sm_90", "sm_90a"."""
    return f"sm_{capability}{'a' if name in _OF_ONE_ARCHITECTURE else ''}"


def packed(name: str, **geometry: int) -> bytes:
    """The structure that the kernel takes."""
    return _structure(name).pack(**geometry)


@functools.cache
def _structure(name: str) -> Structure:
    return structure.read("Geometry", source(name).read_text())


@functools.lru_cache(maxsize=1024)
def cubin(name: str, options: tuple[str, ...], arch: str) -> bytes:
    """The compiled kernel; from the cache on disk if it is there."""
    from genesis.backends.cuda.nvrtc.program import Program

    path = source(name)
    return Program(name, path.read_text(), path.name, path.parent, options).compiled(arch, (name,)).cubin
