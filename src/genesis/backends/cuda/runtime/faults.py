"""Indices out of range and other values to refuse: the device finds them, the host raises IndexError or ValueError.

A kernel that meets one leaves the element alone and writes op, index and size into a few words of page-locked memory.
Waiting for the device after every such op would cost more than the op, so the words are looked at when the host reads
an array, when it synchronizes, and at each later indexing op. The simulated device has done its work by then, so there
the op itself raises.
"""

from __future__ import annotations

import threading

import numpy as np

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.current import current_handle
from genesis.backends.cuda.runtime import capturing, memory
from genesis.backends.cuda.runtime.array import DeviceArray, OwnedStorage
from genesis.dtypes import HostArray

_OPS = ("", "index_select", "index_add", "gather", "scatter", "scatter_add", "index", "index_put", "one_hot")
_CODES = {name: code for code, name in enumerate(_OPS)}
_messages: dict[str, int] = {}  # of values that are no indices: codes below zero

_reports: dict[int, tuple[HostArray, DeviceArray]] = {}  # the words of a device, as the host and as kernels see them
_lock = threading.Lock()
driver.forget_on_switch(_reports.clear)


def report(device: int) -> DeviceArray:
    """The array in which the kernels of a device write what they found: the op's code, the index, the size."""
    found = _reports.get(device)
    if found is None:
        with _lock:
            if device not in _reports:
                words = memory.pinned_empty((3,), np.int64)
                words[:] = 0
                storage = OwnedStorage(words.ctypes.data, words.nbytes, device, 0, words)
                _reports[device] = words, DeviceArray(storage, (3,), (1,), 0, dtypes.int64)
            found = _reports[device]
    return found[1]


def code_of(what: str) -> int:
    """The number by which kernels tell of an index of this op, or of a value that is refused with this message."""
    if what in _CODES:
        return _CODES[what]
    with _lock:
        return _messages.setdefault(what, -1 - len(_messages))


def check(device: int) -> None:
    """Raise what kernels that are done have found. Raises: IndexError, ValueError."""
    found = _reports.get(device)
    if found is not None and found[0][0]:
        stream = current_handle(device)
        if stream not in capturing.underway:  # what it was given since, as by an op of two kernels, reports the same
            driver.get().synchronize_stream(device, stream)
        code, index, size = (int(word) for word in found[0])
        found[0][:] = 0
        if code < 0:
            raise ValueError(f"{list(_messages)[-1 - code]} (cuda:{device})")
        raise IndexError(f"{_OPS[code]}: index {index} is out of range for a dimension of size {size} (cuda:{device})")
