"""Attention's forward pass by cuDNN, where that is installed, right, and faster than our kernel.

Each problem is decided once, on random numbers: what cuDNN suggests for it is compared with our kernel's result, then
both are timed; the choice is kept on disk beside the tuned convolutions. Where cuDNN fails later on, our kernel
computes that call and all that follow. Source: NVIDIA's cuDNN documentation, "Attention" (operands, masks, statistics).
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.backends.cuda.driver.debug import show_choice
from genesis.backends.cuda.engine import platform
from genesis.backends.cuda.engine import timing as tuning
from genesis.backends.cuda.engine.store import Entry
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.attention.kernels.distance import _distance_kernel
from genesis.backends.cuda.ops.pointwise.launch import collapse, reach
from genesis.backends.cuda.ops.random import launch as random
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.dtypes import DType
from genesis.errors import OutOfMemoryError
from genesis.shapes import Shape, contiguous_strides

Run = Callable[[DeviceArray, DeviceArray, DeviceArray, DeviceArray, DeviceArray], None]  # y, logsumexp, q, k, v

_OURS, _CUDNN = "attention/triton", "attention/cudnn/"  # names of ways; that of a plan follows
_LEAST_OPERATIONS = 2**33  # some 20 µs of a large GPU: for less, building a plan does not pay
_MOST_PROBLEMS = 64  # that are looked at: a program whose lengths keep changing must not build plans all the time
_BLOCK_ROWS = 32
# How far a row of the result may be from our kernel's, relatively: both round probabilities and result.
_ROW_BOUND = {dtypes.float16: 2.0**-9, dtypes.bfloat16: 2.0**-6}
_LOGSUMEXP_BOUND = 2.0**-12  # absolute: as a factor of all probabilities of a row, below what 16 bits show


class Way(NamedTuple):
    """One way to compute a problem."""

    name: str  # in the store
    run: Run
    workspace: int  # bytes


class Problem(NamedTuple):
    """What cuDNN is asked: all shapes and strides have four dimensions, (batch, heads, rows, columns)."""

    device: int
    dtype: DType
    query: tuple[Shape, Shape]
    key: tuple[Shape, Shape]
    value: tuple[Shape, Shape]
    is_causal: bool
    scale: float

    @property
    def num_operations(self) -> int:
        (batch, heads, num_queries, head_size), (_, _, num_keys, value_size) = self.query[0], self.value[0]
        return 2 * batch * heads * num_queries * num_keys * (head_size + value_size) // (2 if self.is_causal else 1)

    @property
    def in_store(self) -> str:
        """Its key there: JSON, the same in every process; the device has a store of its own."""
        return json.dumps({"op": "attention", **self._asdict(), "device": None, "dtype": self.dtype.name})

    def __str__(self) -> str:
        sizes = " ".join(f"{name} {'x'.join(map(str, getattr(self, name)[0]))}" for name in ("query", "key", "value"))
        return f"attention {sizes}{' causal' if self.is_causal else ''}, {self.dtype.name}"


_decided: dict[Problem, Run | None] = {}  # None: our kernel
_calls: dict[tuple[Any, ...], Run | None] = {}  # the same, by all that Problem is made from
_deciding = threading.RLock()
driver.forget_on_switch(_decided.clear)
driver.forget_on_switch(_calls.clear)


def attend(
    ours: Callable[..., None], y: DeviceArray, logsumexp: DeviceArray, query: DeviceArray, key: DeviceArray,
    value: DeviceArray, is_causal: bool, scale: float,
) -> bool:  # fmt: skip
    """Compute y and logsumexp if cuDNN does it better than ours(y, logsumexp, query, key, value, None, causal, scale).

    Returns: False: it does not, and they are still to be computed.
    """
    if query.dtype.itemsize != 2 or not scale > 0:  # one that is negative would make the least score the greatest
        return False
    call = query.layout, key.layout, value.layout, is_causal, scale
    try:
        run = _calls[call]
    except KeyError:
        run = _choose(call, ours, query, key, value, is_causal, scale)
    if run is None:
        return False
    try:
        run(y, logsumexp, query, key, value)
    except (KernelError, OutOfMemoryError) as error:
        _calls[call] = None
        show_choice("attention", f"ours from now on, {error}")
        return False
    return True


def _choose(
    call: tuple[Any, ...], ours: Callable[..., None], query: DeviceArray, key: DeviceArray, value: DeviceArray,
    is_causal: bool, scale: float,
) -> Run | None:  # fmt: skip
    here, device = driver.get(), query.device_index
    if here.is_capturing(device, streams.current_handle(device)):  # neither building nor measuring is allowed there
        return None
    problem = describe(query, key, value, is_causal, scale)
    with _deciding:
        if problem is not None and problem not in _decided and len(_decided) < _MOST_PROBLEMS:
            bound = lambda *arrays: ours(*arrays, None, is_causal, scale)  # noqa: E731
            _decided[problem] = remembered(bound, problem, query, key, value)
    run = _calls[call] = None if problem is None else _decided.get(problem)
    return run


def describe(query: DeviceArray, key: DeviceArray, value: DeviceArray, is_causal: bool, scale: float) -> Problem | None:
    """None where cuDNN is missing, has no way to say it, or is not worth asking."""
    if not all(_is_aligned(x) for x in (query, key, value)):
        return None
    lead, walks = query.shape[:-2], [x.strides[:-2] for x in (query, key, value)]
    if len(lead) > 2:
        lead, (_, *walks) = collapse(lead, [contiguous_strides(lead), *walks])
        if len(lead) > 2:
            return None
    q, k, v = (_whole(x, lead, walk) for x, walk in zip((query, key, value), walks, strict=True))
    if q[0][1] != (lead[-1] if lead else 1) or min(*q[1], *k[1], *v[1]) <= 0:
        return None
    problem = Problem(query.device_index, query.dtype, q, k, v, is_causal, float(scale))
    return problem if problem.num_operations >= _LEAST_OPERATIONS and cudnn.is_available() else None


def _whole(x: DeviceArray, lead: Shape, walk: Shape) -> tuple[Shape, Shape]:
    """Shape and strides in four dimensions; one head where all are the same."""
    missing = 2 - len(lead)
    shape, strides = [*(1,) * missing, *lead, *x.shape[-2:]], [*(0,) * missing, *walk, *x.strides[-2:]]
    if strides[1] == 0:
        shape[1] = 1
    for i in (2, 1, 0):
        if shape[i] == 1:  # then any stride will do, but it is looked at
            strides[i] = shape[i + 1] * strides[i + 1]
    return tuple(shape), tuple(strides)


def _is_aligned(x: DeviceArray) -> bool:
    """Rows without gaps between elements, that begin at multiples of 16 bytes."""
    steps = [stride for size, stride in zip(x.shape[:-1], x.strides[:-1], strict=True) if size > 1]
    aligned = x.data_pointer % 16 == 0 and x.shape[-1] % 8 == 0 and all(step % 8 == 0 for step in steps)
    return aligned and x.size > 0 and x.strides[-1] == 1


def remembered(ours: Run, problem: Problem, query: DeviceArray, key: DeviceArray, value: DeviceArray) -> Run | None:
    """What the store says, or else decide() does; None: ours."""
    store = platform.store(problem.device)
    entry = store.get(problem.in_store)
    if entry is not None:
        if entry.candidate == _OURS:
            return None
        kept = restored(problem, entry.candidate.removeprefix(_CUDNN))
        if kept is not None:
            return kept
    try:
        chosen, run = decide(ours, problem, query, key, value)
    except OutOfMemoryError as error:  # there was no room to find out
        show_choice(str(problem), f"ours, {error}")
        return None
    show_choice(str(problem), f"{chosen.candidate} ({chosen.microseconds:.1f} µs)")
    store.put(problem.in_store, chosen)
    return run


def restored(problem: Problem, name: str) -> Run | None:
    """The way of this name, without asking the heuristics; None: it is no longer to be had."""
    try:
        graph = _graph(problem)
        if graph.plan_named(name):
            return _way(problem, graph, 0, name).run
    except KernelError:
        pass
    return None


def decide(
    ours: Run, problem: Problem, query: DeviceArray, key: DeviceArray, value: DeviceArray
) -> tuple[Entry, Run | None]:
    """cuDNN's way if its result is right and it is faster; None: ours. Raises: OutOfMemoryError."""
    drawn = [_drawn(x, seed) for seed, x in enumerate((query, key, value))]
    trial, expected = (*_results(query, value), *drawn), _results(query, value)
    ours(*expected, *drawn)
    way = suggested(problem)
    error = math.inf if way is None else _error(way, trial, expected)
    by_ours = functools.partial(ours, *trial)
    if way is None or math.isinf(error):
        return Entry(_OURS, tuning.milliseconds([by_ours], problem.device)[0] * 1e3, 0.0, 0), None
    slow, fast = tuning.milliseconds([by_ours, functools.partial(way.run, *trial)], problem.device)
    if fast < slow:
        return Entry(way.name, fast * 1e3, error, way.workspace), way.run
    return Entry(_OURS, slow * 1e3, 0.0, 0), None


def _results(query: DeviceArray, value: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """y and logsumexp, not yet written."""
    lead, device = query.shape[:-1], query.device_index
    return array.empty((*lead, value.shape[-1]), query.dtype, device), array.empty(lead, dtypes.float32, device)


def _drawn(x: DeviceArray, seed: int) -> DeviceArray:
    """Normal numbers in the same layout."""
    numbers = random.randn((reach(x.shape, x.strides) + 1,), seed, x.dtype, x.device_index)
    return numbers.view(x.shape, x.strides, 0)


def _error(way: Way, trial: tuple[DeviceArray, ...], expected: tuple[DeviceArray, ...]) -> float:
    """How far way.run(*trial), on results and operands, is from these results; infinite if it is not just rounding."""
    here, device = driver.get(), trial[0].device_index
    for out in trial[:2]:  # what is not written is NaN
        here.fill_bytes(device, out.data_pointer, 0xFF, out.layout.num_bytes, streams.current_handle(device))
    try:
        way.run(*trial)
    except KernelError as error:
        show_choice(way.name, str(error))
        return math.inf
    num_rows, value_size = trial[1].size, trial[0].shape[-1]
    num_blocks = -(-num_rows // _BLOCK_ROWS)
    largest = array.empty((2, num_blocks), dtypes.float32, device)
    launch(
        _distance_kernel, (num_blocks,), largest, trial[0], expected[0], trial[1], expected[1], num_rows,
        VALUE_SIZE=value_size, BLOCK_M=_BLOCK_ROWS, BLOCK_V=power_of_2(value_size),
    )  # fmt: skip
    squares, absolute = storage.to_cpu(largest).max(axis=1).tolist()
    relative = math.sqrt(squares)
    if relative <= _ROW_BOUND[trial[0].dtype] and absolute <= _LOGSUMEXP_BOUND:
        return relative
    show_choice(way.name, f"is not right: {relative:.1e} from ours, and {absolute:.1e} in logarithms")
    return math.inf


def suggested(problem: Problem) -> Way | None:
    """The first of the ways that cuDNN suggests which can be built; None: it has nothing for the problem.

    Each takes half a second to build, and none but the first has been the fastest yet.
    """
    try:
        graph = _graph(problem)
        names = graph.plan_names(plain=False, deterministic=True)
    except KernelError as error:
        show_choice(str(problem), f"not by cuDNN, {error}")
        return None
    for index, name in enumerate(names):
        try:
            return _way(problem, graph, index, name)
        except KernelError as error:  # it was deselected, or is not for these sizes
            show_choice(_CUDNN + name, str(error))
    return None


def _way(problem: Problem, graph: cudnn.Graph, index: int, name: str) -> Way:
    """Raises: KernelError: the plan cannot be built."""
    graph.build(index)
    device, num_bytes, execute = problem.device, graph.workspace(index), graph.runner(index)

    def run(y: DeviceArray, logsumexp: DeviceArray, query: DeviceArray, key: DeviceArray, value: DeviceArray) -> None:
        workspace = array.empty((num_bytes,), dtypes.uint8, device) if num_bytes else None
        execute(
            streams.current_handle(device), 0 if workspace is None else workspace.data_pointer,
            query.data_pointer, key.data_pointer, value.data_pointer, y.data_pointer, logsumexp.data_pointer,
        )  # fmt: skip

    return Way(_CUDNN + name, run, num_bytes)


def _graph(problem: Problem) -> cudnn.Graph:
    """Raises: KernelError: this cuDNN cannot be asked so."""
    p = problem
    masked = {"diagonal_band_right_bound": 0} if p.is_causal else {}  # counted from the upper left corner
    (batch, heads, num_queries, _), value_size = p.query[0], p.value[0][-1]
    with cudnn.reported():  # also what a frontend says that knows other arguments
        graph = cudnn.Graph(p.device, p.dtype)
        query, key, value = (graph.operand(*x) for x in (p.query, p.key, p.value))
        y, logsumexp = graph.ops.sdpa(q=query, k=key, v=value, attn_scale=p.scale, generate_stats=True, **masked)
        shape = (batch, heads, num_queries, value_size)
        graph.result(y, shape, contiguous_strides(shape))
        shape = (batch, heads, num_queries, 1)
        graph.result(logsumexp, shape, contiguous_strides(shape), dtypes.float32)
    return graph
