"""The machine: its vectors, memory for code, and the threads that PyTorch's operations use too."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import sys
from pathlib import Path

import torch


@functools.cache
def vectors() -> str | None:
    """ "avx512" or "avx2"; None where kernels of ours don't run.

    Like PyTorch, it follows ATEN_CPU_CAPABILITY, and like oneDNN ONEDNN_MAX_CPU_ISA.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 2**32 or _openmp() is None:
        return None
    capability = torch.backends.cpu.get_cpu_capability().lower()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    if not _may_execute():
        return None
    if capability == "avx512" and not limit.startswith(("AVX2", "AVX_", "SSE")) and limit != "AVX":
        return "avx512"
    return "avx2" if capability in ("avx512", "avx2") and not limit.startswith("SSE") and limit != "AVX" else None


class Code:
    """Machine code in memory that can be executed.

    Attributes:
        address: where it begins.
    """

    def __init__(self, code: bytes) -> None:
        self._memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._memory.write(code)
        self._view = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)
        if _libc().mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "memory cannot be made executable")


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _may_execute() -> bool:
    try:
        code = Code(b"\xb8\x2a\x00\x00\x00\xc3")  # mov eax, 42; ret
    except (OSError, ValueError):
        return False
    return bool(ctypes.CFUNCTYPE(ctypes.c_int)(code.address)() == 42)


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """GNU's OpenMP, the copy that PyTorch has loaded."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    paths = {line.split(None, 5)[5].strip() for line in maps.splitlines() if "libgomp" in line}
    if len(paths) != 1:
        return None
    try:
        library = ctypes.CDLL(paths.pop(), mode=os.RTLD_NOLOAD)
        library.GOMP_parallel.restype = None
        return library
    except (OSError, AttributeError):
        return None


def address_of(name: str) -> int:
    """A function of OpenMP."""
    return ctypes.cast(getattr(_openmp(), name), ctypes.c_void_p).value or 0
