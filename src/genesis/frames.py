"""Room for Python's frames, so that calls in a loop do not map and unmap memory each time.

CPython keeps a thread's frames in chunks of 16 KiB. A call that finds no room in the last one maps another, which its
return unmaps: two system calls, page faults, and an interrupt for each processor that runs another thread of the
process. How deep the user's own calls are decides where a chunk ends. Where that is within the loop over a network's
ops, each of them pays, and a network may take several times its time (benchmarks/bench_depth.py). So before such a
loop, in_room() looks how much is left. If that is little, it calls by way of a frame that no chunk has room for: the
one that it gets is larger.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")

_ENOUGH = 6 << 10  # bytes: more than the forward of a ResNet takes (tests/test_frames.py)
_WORD = 8  # bytes
_SLOTS = 3100  # of the frame: 24 KiB; CPython then maps 64, as it doubles 16 until 8 KiB would be left
_CHUNK, _PAGE = 16 << 10, 4 << 10
_NUM_WORDS = 64  # of a thread's state, in which the place is looked for


def in_room(function: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Result:
    """function(*args, **kwargs), which makes many calls, so that none of them is at the end of a chunk.

    Example:
        >>> in_room(sorted, [2, 1])
        [1, 2]
    """
    if _thread.limit.value - _thread.top.value < _ENOUGH:
        return _by_large_frame(function, *args, **kwargs)
    return function(*args, **kwargs)


def in_room_beside(num_words: int, function: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Result:
    """in_room() for a loop whose own frames take so many words, as those of generated code with many variables do."""
    if _thread.limit.value - _thread.top.value < _ENOUGH + num_words * _WORD:
        return _by_large_frame(function, *args, **kwargs)
    return function(*args, **kwargs)


def _by_large_frame(function: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Result:
    return function(*args, **kwargs)


_by_large_frame.__code__ = _by_large_frame.__code__.replace(co_stacksize=_SLOTS)


# --- where CPython keeps the place ------------------------------------------------------------------------------------

_IS_KNOWN = sys.implementation.name == "cpython" and sys.maxsize > 1 << 32  # words of 8 bytes


def _state_getter() -> Callable[[], int]:
    """CPython's function that gives the address of the present thread's state."""
    return ctypes.PYFUNCTYPE(ctypes.c_size_t)(("PyThreadState_Get", ctypes.pythonapi))


def _found() -> int | None:
    """Find where a thread's state has the end of the last frame, and then that of its chunk; None: not CPython's.

    Both are behind the address of the chunk; and the first is another one in a deeper call. The main thread's state is
    static memory, with more of it behind, so that a search that finds nothing reads only what is there.
    """
    if not _IS_KNOWN or threading.current_thread() is not threading.main_thread():
        return None
    words = (ctypes.c_size_t * _NUM_WORDS).from_address(_state_getter()())
    for index in range(1, _NUM_WORDS - 1):
        chunk, top, limit = words[index - 1 : index + 2]
        is_chunk = chunk != 0 and chunk % _PAGE == 0 and (limit - chunk) % _CHUNK == 0
        if is_chunk and chunk < top <= limit and words[index] == top != _deeper(words, index):
            return index * _WORD
    return None


def _deeper(words: ctypes.Array[ctypes.c_size_t], index: int) -> int:
    return words[index]


_place = _found()


class _Thread(threading.local):
    """Knows where this thread's last frame ends, and where its chunk does."""

    def __init__(self) -> None:
        if _place is None:  # there is always room
            self.top, self.limit = ctypes.c_size_t(0), ctypes.c_size_t(1 << 40)
            return
        address = _state_getter()() + _place
        self.top, self.limit = ctypes.c_size_t.from_address(address), ctypes.c_size_t.from_address(address + _WORD)


_thread = _Thread()
