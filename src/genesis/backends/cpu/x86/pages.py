"""Memory in large pages for what kernels stream through: packed weights, and scratch memory.

The processor keeps the addresses of some thousand pages at hand. In pages of 4 KiB these are fewer bytes than a
network's weights have, and each further page costs a walk through tables in memory, through two sets of them in a
virtual machine. Linux gives pages of 2 MiB to memory that asks for them by MADV_HUGEPAGE; where it has none, the memory
is an ordinary one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import threading
import weakref

import torch
from torch import Tensor

PAGE = 2 << 20
_CHUNK = 16 << 20  # of memory that weights share; pages that none has reached take no memory
_MOST_SHARED = 4 << 20  # larger weights have pages of their own
_MOST_SCRATCH = 256 << 20  # that a thread keeps for its next call
_LINE = 64  # bytes


class _Chunk(mmap.mmap):
    """Private memory with a place where the next weight goes; tensors in it keep it alive."""

    start: int
    used: int
    room: int


def _chunk(num_bytes: int) -> _Chunk:
    size = -(-num_bytes // PAGE) * PAGE
    try:
        made = _Chunk(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"cannot allocate {size + PAGE} bytes for a convolution") from None
    made.start = -ctypes.addressof(ctypes.c_char.from_buffer(made)) % PAGE
    made.used, made.room = 0, size
    with contextlib.suppress(OSError, AttributeError):  # of systems without large pages
        made.madvise(mmap.MADV_HUGEPAGE, made.start, size)
    return made


def _shared(num_bytes: int) -> _Chunk:
    """Memory for a weight and those that follow it; for it alone where addresses are scarce, as under `ulimit -v`."""
    try:
        return _chunk(_CHUNK)
    except MemoryError:
        return _chunk(num_bytes)


_lock = threading.Lock()
_last: weakref.ref[_Chunk] | None = None  # that has room left, if its tensors are still alive


def kept(weight: Tensor) -> Tensor:
    """A float32 weight, flat and copied into large pages, which weights made after each other share."""
    global _last
    num_bytes = whole_lines(4 * weight.numel())
    with _lock:
        if num_bytes > _MOST_SHARED:
            chunk = _chunk(num_bytes)
        else:
            last = None if _last is None else _last()
            chunk = last if last is not None and last.used + num_bytes <= last.room else _shared(num_bytes)
            _last = weakref.ref(chunk)
        found = _floats(chunk, weight.numel())
        chunk.used += num_bytes
    return found.copy_(weight.reshape(-1))


def _floats(chunk: _Chunk, count: int) -> Tensor:
    if not count:
        return torch.empty(0, dtype=torch.float32, device="cpu")
    return torch.frombuffer(chunk, dtype=torch.float32, count=count, offset=chunk.start + chunk.used)


def whole_lines(num_bytes: int) -> int:
    """num_bytes rounded up to lines of the cache."""
    return -(-num_bytes // _LINE) * _LINE


class _Scratch(threading.local):
    memory: Tensor | None = None


_scratch = _Scratch()


def scratch(num_bytes: int) -> Tensor:
    """At least so many bytes for a call of the calling thread, as float32 numbers of any value.

    The thread's next call gets the same memory. A page is first touched, and so placed, by the thread of the kernel
    that works on it.
    """
    memory = _scratch.memory
    if memory is None or memory.numel() * 4 < num_bytes:
        chunk = _chunk(max(num_bytes, 1))
        memory = _floats(chunk, chunk.room // 4)
        if num_bytes <= _MOST_SCRATCH:
            _scratch.memory = memory
    return memory
