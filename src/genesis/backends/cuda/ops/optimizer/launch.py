"""Optimizer steps and what goes with them: one launch for all arrays of a dtype, in place.

The kernels read addresses from a table in device memory. It is kept for the next step, in which parameters, states and,
thanks to the pool, mostly the gradients lie where they lay; where not, the addresses are written anew.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.launch.triton import TRITON_NAMES, launch
from genesis.backends.cuda.ops.optimizer.kernels import copying
from genesis.backends.cuda.ops.optimizer.kernels import steps as kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import Number
from genesis.backends.cuda.ops.reduction.launch import accumulator
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array, capturing, streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout
from genesis.backends.cuda.runtime.capture import outside
from genesis.dtypes import DType
from genesis.records import AdamOptions, SGDOptions, StepInputs
from genesis.shapes import contiguous_strides, equivalent

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

_BLOCK = 2048
_ELEMENTS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}  # by their bytes, to copy those of any dtype
_CAST_TOGETHER = {dtypes.float32, dtypes.bfloat16, dtypes.float16}
_Pair = tuple[int, int, int]  # the addresses of two arrays, and how many elements each has


# --- steps ------------------------------------------------------------------------------------------------------------
def sgd_step(
    params: Sequence[DeviceArray], grads: Sequence[DeviceArray], buffers: Sequence[DeviceArray] | None,
    options: SGDOptions, first: bool, inputs: StepInputs[DeviceArray] = StepInputs(),
) -> None:  # fmt: skip
    if buffers is not None and first:
        doing = "makes the first step with momentum"
        capturing.refuse(params[0].device_index, doing, "every replay would be a first one; make one step before")
    *numbers, nesterov, maximize = options
    roles = [params, grads] if buffers is None else [params, grads, buffers]
    flags = {"HAS_MOMENTUM": buffers is not None, "NESTEROV": nesterov, "MAXIMIZE": maximize, "FIRST": first}
    for group in _groups(roles, read_only=1):
        group.launch(kernels._sgd_kernel, inputs, tuple(map(float, numbers)), flags)


def adam_step(
    params: Sequence[DeviceArray], grads: Sequence[DeviceArray], exp_avgs: Sequence[DeviceArray],
    exp_avg_sqs: Sequence[DeviceArray], max_exp_avg_sqs: Sequence[DeviceArray] | None, step: int | DeviceArray,
    options: AdamOptions, inputs: StepInputs[DeviceArray] = StepInputs(),
) -> None:  # fmt: skip
    *settings, decoupled, maximize = options
    roles = [params, grads, exp_avgs, exp_avg_sqs, *([] if max_exp_avg_sqs is None else [max_exp_avg_sqs])]
    numbers, corrections, corrected = tuple(map(float, settings)), None, (1.0, 1.0)
    if isinstance(step, DeviceArray):
        corrections = array.empty((2,), dtypes.float64, step.device_index)
        launch(kernels._adam_advance_kernel, (1,), corrections, step, *inputs, *numbers[1:3])
    else:
        if params:
            doing = "makes a step whose number the host counts"
            capturing.refuse(params[0].device_index, doing, "capture the gradients, and step after replay()")
        assert inputs.numbers is None, "a step that the host counts has its numbers there"
        corrected = 1 - options.beta1**step, math.sqrt(1 - options.beta2**step)
    there = inputs.numbers, corrections, inputs.found_inf
    flags = {"DECOUPLED": decoupled, "AMSGRAD": max_exp_avg_sqs is not None, "MAXIMIZE": maximize}
    for group in _groups(roles, read_only=1):
        group.launch(kernels._adam_kernel, there, (*numbers, *corrected), flags)


# --- copies, scaling and norms ----------------------------------------------------------------------------------------
def copy_all_into(targets: Sequence[DeviceArray], sources: Sequence[DeviceArray]) -> None:
    pairs: dict[tuple[DType, DType], list[_Pair]] = {}
    for target, source in zip(targets, sources, strict=True):
        layout = target.layout
        if layout.num_bytes and _is_dense(layout) and (layout is source.layout or _is_alike(target, source)):
            found = target.data_pointer, source.data_pointer, layout.size
            pairs.setdefault((target.dtype, source.dtype), []).append(found)
        else:
            storage.copy_into(target, source)
    for (into, out_of), each in _of_equal_size(pairs).items():
        device = targets[0].device_index
        *addresses, sizes = zip(*each, strict=True)
        table = _table_of(tuple(addresses), sizes, device, streams.current_handle(device))
        aligned = functools.reduce(operator.or_, itertools.chain(*addresses)) % 16 == 0
        flags = {"TARGET": into, "SOURCE": out_of, "ALIGNED": aligned, "NUM_ROLES": 2, "BLOCK": _BLOCK}
        launch(copying._copy_kernel, (table.num_chunks,), table.addresses, table.chunks, len(each), **flags)


def _of_equal_size(pairs: dict[tuple[DType, DType], list[_Pair]]) -> dict[tuple[tl.dtype, tl.dtype], list[_Pair]]:
    """Put together what one launch copies: pairs of one dtype go as elements of their size."""
    together: dict[tuple[tl.dtype, tl.dtype], list[_Pair]] = {}
    for (into, out_of), each in pairs.items():
        if into is out_of:
            kinds = (_ELEMENTS[into.itemsize],) * 2
        else:
            kinds = (tl.str_to_ty(TRITON_NAMES[into], None), tl.str_to_ty(TRITON_NAMES[out_of], None))
        together.setdefault(kinds, []).extend(each)
    return together


def _is_alike(target: DeviceArray, source: DeviceArray) -> bool:
    """Do they lie alike in memory, and can a launch cast the one to the other?"""
    is_known = target.dtype is source.dtype or {target.dtype, source.dtype} <= _CAST_TOGETHER
    return is_known and equivalent(target.shape, target.strides, source.strides)


@functools.lru_cache(maxsize=4096)
def _is_dense(layout: Layout) -> bool:
    return is_dense(layout)


def scale_into(arrays: Sequence[DeviceArray], factor: DeviceArray | Number) -> None:
    pointer = factor if isinstance(factor, DeviceArray) else None
    number = 1.0 if isinstance(factor, DeviceArray) else float(factor)
    for group in _groups([arrays]):
        group.launch(kernels._scale_kernel, (None, pointer), (number,), {})


def unscale_into(arrays: Sequence[DeviceArray], factor: DeviceArray | Number) -> DeviceArray:
    found = storage.full((), False, dtypes.bool_, arrays[0].device_index)
    pointer = factor if isinstance(factor, DeviceArray) else None
    number = 1.0 if isinstance(factor, DeviceArray) else float(factor)
    for group in _groups([arrays]):
        group.launch(kernels._scale_kernel, (found, pointer), (number,), {})
    return found


def update_scale(
    scale: DeviceArray, growth_tracker: DeviceArray, found_inf: DeviceArray, growth_factor: float,
    backoff_factor: float, growth_interval: int,
) -> None:  # fmt: skip
    numbers = (float(growth_factor), float(backoff_factor), growth_interval)
    launch(kernels._update_scale_kernel, (1,), scale, growth_tracker, found_inf, *numbers, LIMIT=math.ldexp(1.0, 128))


def norms(arrays: Sequence[DeviceArray], ord: float) -> DeviceArray:
    kinds = {0.0: "count", 1.0: "absolute", 2.0: "square", math.inf: "maximum", -math.inf: "minimum"}
    kind = kinds.get(float(ord), "power")
    dtype = functools.reduce(dtypes.promote, (x.dtype for x in arrays))
    device = arrays[0].device_index
    out = array.empty((len(arrays),), dtype, device)
    for group in _groups([arrays], read_only=0):
        wide = accumulator(group.dtype)
        partial = array.empty((group.table.num_chunks,), wide, device)
        group.launch(kernels._norm_kernel, (), (float(ord),), {"KIND": kind}, out=partial)
        table = group.table
        args = (
            out,
            partial,
            table.first_chunks,
            capturing.keep(device, _positions(group.positions, device, streams.current_handle(device))),
            float(ord),
        )
        grid = (len(group.positions),)
        launch(kernels._norm_finish_kernel, grid, *args, KIND=kind, COMPUTE=COMPUTE[wide], BLOCK=1024)
    return out


# --- tables of addresses ----------------------------------------------------------------------------------------------
class _Table:
    """A table in device memory: addresses of the arrays of one dtype, and how they are cut into chunks."""

    def __init__(self, num_roles: int, sizes: tuple[int, ...], device: int) -> None:
        num_chunks = [-(-size // _BLOCK) for size in sizes]
        firsts = np.cumsum([0, *num_chunks])
        which = np.repeat(np.arange(len(sizes)), num_chunks)
        blocks = np.arange(firsts[-1]) - firsts[which]
        self.num_chunks = int(firsts[-1])
        self.chunks = _upload(np.stack([which, blocks], 1), device)  # (chunks, 2): number of the array, block in it
        self.first_chunks = _upload(firsts, device)  # (arrays + 1,)
        self._host = np.array([*[[0] * len(sizes)] * num_roles, sizes], np.int64)
        self._known: tuple[tuple[int, ...], ...] = ()
        self.addresses = _upload(self._host, device)  # (roles + 1, arrays): addresses, then sizes

    def tell(self, addresses: tuple[tuple[int, ...], ...], stream: int) -> None:
        """These are the arrays' addresses now, in the order of the stream. Its place in memory stays the same, so that
        a change of addresses changes nobody else's."""
        if addresses != self._known:
            self._host[:-1] = addresses
            target, source = self.addresses, self._host
            driver.get().copy(target.device_index, target.data_pointer, source.ctypes.data, source.nbytes, stream)
            self._known = addresses


@functools.lru_cache(maxsize=64)
def _table(num_roles: int, sizes: tuple[int, ...], device: int, stream: int, thread: int) -> _Table:
    """For use on one stream by one thread: its content is only right until the next launch."""
    return _Table(num_roles, sizes, device)


def _table_of(addresses: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], device: int, stream: int) -> _Table:
    """A table that has these addresses when the next launch on the stream runs."""
    if capturing.here(device) is None:
        table = _table(len(addresses), sizes, device, stream, threading.get_ident())
        table.tell(addresses, stream)
        return table
    with outside(device):  # a graph has a table for itself, and reads it in each replay
        table = _Table(len(addresses), sizes, device)
        table.tell(addresses, streams.current_handle(device))
    return capturing.keep(device, table)


def _upload(values: npt.NDArray[np.int64], device: int) -> DeviceArray:
    return storage.table(values.astype(np.int64), device)


@functools.lru_cache(maxsize=64)
def _positions(positions: tuple[int, ...], device: int, stream: int) -> DeviceArray:
    return _upload(np.array(positions), device)


driver.forget_on_switch(_table.cache_clear)
driver.forget_on_switch(_positions.cache_clear)


class _Group(NamedTuple):
    """The arrays of one dtype."""

    dtype: DType
    positions: tuple[int, ...]
    table: _Table
    num_roles: int
    aligned: bool

    def launch(
        self, kernel: JITFunction, arrays: tuple[DeviceArray | None, ...], numbers: tuple[float, ...],
        flags: Mapping[str, object], out: DeviceArray | None = None,
    ) -> None:  # fmt: skip
        lead = () if out is None else (out,)
        launch(
            kernel,
            (self.table.num_chunks,),
            *lead,
            self.table.addresses,
            self.table.chunks,
            *arrays,
            len(self.positions),
            *numbers,
            **flags,
            DTYPE=tl.str_to_ty(TRITON_NAMES[self.dtype], None),
            COMPUTE=COMPUTE[self.dtype],
            ALIGNED=self.aligned,
            NUM_ROLES=self.num_roles,
            BLOCK=_BLOCK,
        )


def _groups(roles: Sequence[Sequence[DeviceArray]], read_only: int | None = None) -> Iterator[_Group]:
    """The arrays by dtype, while a launch on each is due; the caller's loop body does it.

    A kernel walks the memory of arrays that correspond in one order, so where one lies otherwise than its parameter (or
    that is not dense), a copy takes its place, which is copied back afterwards unless its role is read_only.
    """
    by_dtype: dict[DType, list[int]] = {}
    for i, x in enumerate(roles[0]):
        if not x.dtype.is_floating_point:
            raise NotImplementedError(f"optimizer steps have no cuda implementation for {x.dtype.name}")
        by_dtype.setdefault(x.dtype, []).append(i)
    for dtype, positions in by_dtype.items():
        rows: list[list[DeviceArray]] = [[] for _ in roles]
        copied: list[tuple[DeviceArray, DeviceArray]] = []
        for i in positions:
            main = roles[0][i]
            strides = main.strides if is_dense(main) else contiguous_strides(main.shape)
            for role, (row, arrays) in enumerate(zip(rows, roles, strict=True)):
                x = arrays[i]
                if x.dtype is not dtype:
                    x = storage.cast(x, dtype)
                if not equivalent(x.shape, x.strides, strides):
                    x = storage.copy(x, strides)
                if x is not arrays[i] and role != read_only:
                    copied.append((arrays[i], x))
                row.append(x)
        addresses = tuple(tuple(x.data_pointer for x in row) for row in rows)
        sizes = tuple(x.size for x in rows[0])
        aligned = all(address % 16 == 0 for row in addresses for address in row)
        device = rows[0][0].device_index
        stream = streams.current_handle(device)
        table = _table_of(addresses, sizes, device, stream)
        yield _Group(dtype, tuple(positions), table, len(roles), aligned)
        for original, copy in copied:
            storage.copy_into(original, copy)
