"""Attention's forward pass by cuDNN, where that is installed, right, and faster than our kernel.

Each problem is decided once, on random numbers: what cuDNN suggests for it is compared with our kernel's result, then
both are timed. Source: NVIDIA's cuDNN documentation, "Attention" (operands, masks, statistics).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.cuda import array, driver, elementwise, random, reduction, storage, streams, tuning
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.backends.cuda.pointwise import collapse, reach
from genesis.dtypes import DType
from genesis.errors import OutOfMemoryError
from genesis.shapes import Shape, contiguous_strides

Run = Callable[[DeviceArray, DeviceArray, DeviceArray, DeviceArray, DeviceArray], None]  # y, logsumexp, q, k, v

_LEAST_OPERATIONS = 2**33  # some 20 µs of a large GPU: for less, building a plan does not pay
_MOST_PROBLEMS = 64  # that are looked at: a program whose lengths keep changing must not build plans all the time
_NUM_TRIED = 2  # of cuDNN's plans
# How far a row of the result may be from our kernel's, relatively: both round probabilities and result.
_ROW_BOUND = {dtypes.float16: 2.0**-9, dtypes.bfloat16: 2.0**-6}
_LOGSUMEXP_BOUND = 2.0**-12  # absolute: as a factor of all probabilities of a row, below what 16 bits show


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


_decided: dict[Problem, Run | None] = {}  # None: our kernel
_calls: dict[tuple[Any, ...], Run | None] = {}  # the same, by all that Problem is made from
driver.forget_on_switch(_decided.clear)
driver.forget_on_switch(_calls.clear)


def faster(
    ours: Callable[..., None], query: DeviceArray, key: DeviceArray, value: DeviceArray, is_causal: bool, scale: float
) -> Run | None:
    """cuDNN's way where that is better than ours(y, logsumexp, query, key, value, None, is_causal, scale)."""
    if query.dtype.itemsize != 2:
        return None
    call = query.layout, key.layout, value.layout, is_causal, scale
    if call not in _calls:
        problem = describe(query, key, value, is_causal, scale)
        if problem is not None and problem not in _decided and len(_decided) < _MOST_PROBLEMS:
            bound = lambda *arrays: ours(*arrays, None, is_causal, scale)  # noqa: E731
            _decided[problem] = decide(bound, problem, query, key, value)
        _calls[call] = None if problem is None else _decided.get(problem)
    return _calls[call]


def describe(query: DeviceArray, key: DeviceArray, value: DeviceArray, is_causal: bool, scale: float) -> Problem | None:
    """None where cuDNN is missing, has no way to say it, or is not worth asking."""
    if not cudnn.is_available() or not all(_is_aligned(x) for x in (query, key, value)):
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
    return problem if problem.num_operations >= _LEAST_OPERATIONS else None


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


def decide(ours: Run, problem: Problem, query: DeviceArray, key: DeviceArray, value: DeviceArray) -> Run | None:
    """The fastest of cuDNN's ways whose result is right; None: ours is faster, or there was no memory to find out."""
    try:
        drawn = [_drawn(x, seed) for seed, x in enumerate((query, key, value))]
        trial, expected = (*_results(query, value), *drawn), _results(query, value)
        ours(*expected, *drawn)
        right = [run for run in ways(problem) if _gives(run, trial, expected)]
        choice: list[Run | None] = [None, *right]
        timed = [lambda run=run or ours: run(*trial) for run in choice]
        return choice[tuning.fastest(timed, problem.device)]
    except OutOfMemoryError:
        return None


def _results(query: DeviceArray, value: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """y and logsumexp, not yet written."""
    lead, device = query.shape[:-1], query.device_index
    return array.empty((*lead, value.shape[-1]), query.dtype, device), array.empty(lead, dtypes.float32, device)


def _drawn(x: DeviceArray, seed: int) -> DeviceArray:
    """Normal numbers in the same layout."""
    numbers = random.randn((reach(x.shape, x.strides) + 1,), seed, x.dtype, x.device_index)
    return numbers.view(x.shape, x.strides, 0)


def _gives(run: Run, trial: tuple[DeviceArray, ...], expected: tuple[DeviceArray, ...]) -> bool:
    """Does run(*trial), on results and operands, give these results?"""
    here, device = driver.get(), trial[0].device_index
    for out in trial[:2]:  # what is not written is NaN
        here.fill_bytes(device, out.data_pointer, 0xFF, out.storage.nbytes, streams.current_handle(device))
    try:
        run(*trial)
    except KernelError:
        return False
    y, wanted = (storage.cast(x, dtypes.float32) for x in (trial[0], expected[0]))
    error, size = (_row_squares(x) for x in (elementwise.sub(y, wanted), wanted))
    relative = _largest(elementwise.div(error, size)) ** 0.5
    absolute = _largest(elementwise.abs(elementwise.sub(trial[1], expected[1])))
    return relative <= _ROW_BOUND[trial[0].dtype] and absolute <= _LOGSUMEXP_BOUND  # False for NaN


def _row_squares(x: DeviceArray) -> DeviceArray:
    return reduction.sum(elementwise.mul(x, x), (len(x.shape) - 1,), False)


def _largest(x: DeviceArray) -> float:
    return float(storage.to_cpu(reduction.amax(x, tuple(range(len(x.shape))), False)))


def ways(problem: Problem) -> list[Run]:
    """What cuDNN suggests, the best first; none where it has nothing for the problem."""
    found: list[Run] = []
    try:
        _, names = _planned(problem)
    except KernelError:
        return found
    for name in list(dict.fromkeys(names))[:_NUM_TRIED]:  # the lists that they are from overlap
        try:
            graph, again = _planned(problem)  # a graph of its own: each runs the plan that was built last
            index = again.index(name)
            graph.build(index)
        except KernelError:  # it was deselected, or is not for these sizes
            continue
        found.append(_way(problem, graph, index))
    return found


def _way(problem: Problem, graph: cudnn.Graph, index: int) -> Run:
    device, num_bytes, execute = problem.device, graph.workspace(index), graph.runner(index)

    def run(y: DeviceArray, logsumexp: DeviceArray, query: DeviceArray, key: DeviceArray, value: DeviceArray) -> None:
        workspace = array.empty((num_bytes,), dtypes.uint8, device) if num_bytes else None
        execute(
            streams.current_handle(device), 0 if workspace is None else workspace.data_pointer,
            query.data_pointer, key.data_pointer, value.data_pointer, y.data_pointer, logsumexp.data_pointer,
        )  # fmt: skip

    return run


def _planned(problem: Problem) -> tuple[cudnn.Graph, list[str]]:
    """The graph of a problem, and the names of its plans. Raises: KernelError: there are none."""
    p = problem
    graph = cudnn.Graph(p.device, p.dtype)
    query, key, value = (graph.operand(*x) for x in (p.query, p.key, p.value))
    masked = {"diagonal_band_right_bound": 0} if p.is_causal else {}  # counted from the upper left corner
    y, logsumexp = graph.ops.sdpa(q=query, k=key, v=value, attn_scale=p.scale, generate_stats=True, **masked)
    (batch, heads, num_queries, _), value_size = p.query[0], p.value[0][-1]
    shape = (batch, heads, num_queries, value_size)
    graph.result(y, shape, contiguous_strides(shape))
    shape = (batch, heads, num_queries, 1)
    graph.result(logsumexp, shape, contiguous_strides(shape), dtypes.float32)
    return graph, graph.plan_names(tensor_cores=True, deterministic=True)
