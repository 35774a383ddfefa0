"""Kernels that take one structure by value, of up to 4 KiB: a table of addresses that is another one at each launch.

A captured graph keeps the table with the launch. In device memory it would have to be copied there before each replay.
"""

from __future__ import annotations

import ctypes
import functools

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.launching import Block, Configuration, Launcher, attribute
from genesis.backends.cuda.driver.overlap import overlaps


class TableKernel:
    """A function of a cubin. From compute capability 9.0 on it comes up while the kernel before it runs, and has to
    call follow() of overlap.cuh before it reads."""

    def __init__(self, device: int, name: str, cubin: bytes) -> None:
        here = driver.gpu()
        self._launcher = Launcher(here, device, here.load_binary(name, cubin, 0, device)[1], name)
        does_overlap = overlaps(here.properties(device).compute_capability)
        self._attributes = [attribute("PROGRAMMATIC_STREAM_SERIALIZATION", 1)] if does_overlap else []

    @classmethod
    @functools.cache
    def of(cls, device: int, name: str, cubin: bytes) -> TableKernel:
        """The same one at each call: a module stays on the device for good."""
        return cls(device, name, cubin)

    def launch(self, table: bytes, grid: int, threads: int, stream: int) -> None:
        block = Block(Configuration((grid, 1, 1), (threads, 1, 1), 0, self._attributes), [0], len(table))
        block.change_stream(stream)
        ctypes.memmove(block.arguments, table, len(table))
        self._launcher.launch(block, stream, ())
