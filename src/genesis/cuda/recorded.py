"""A recording as a CUDA graph: its inputs lie in static memory, its results are copied out of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence

from genesis import dtypes
from genesis.amp.device_scale import DeviceScale
from genesis.backends.backend import Op
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.runtime import clock
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.runtime.streams import Event
from genesis.cuda.arena import Arena, span
from genesis.cuda.graphs import Graph, apart, graph
from genesis.errors import CaptureError, OutOfMemoryError
from genesis.graphs.failures import CannotReplayError
from genesis.graphs.source import Recording
from genesis.ndarray.capturing import capture_of
from genesis.recording import Call, Kind

Handles = Sequence[DeviceArray]  # of a replay's inputs


@dataclasses.dataclass(slots=True)
class _Stretch:
    """Memory that outputs show.

    Attributes:
        pointer, num_bytes: where it begins, at an address divisible by 16, and its size.
        input: the position of the input whose memory it is; None: the graph's own.
        is_copied: a replay hands out a copy.
    """

    pointer: int
    num_bytes: int
    input: int | None
    is_copied: bool


class Captured:
    """The calls of a recording in a CUDA graph.

    Args:
        inputs: handles like those of each replay.
        num_copied: how many of them, from the first on, are copied into static memory. The graph uses the others where
            they lie, and so must those of each replay.
        num_handed_out: how many outputs, from the first on, a replay gives in memory of their own. The others stay in
            the graph's memory.
        scales: of GradScalers, which the calls read and change.
    Raises: CannotReplayError: the calls cannot be captured, or there is too little memory.
    """

    def __init__(
        self, recording: Recording, inputs: Handles, num_copied: int, arena: Arena, num_handed_out: int,
        scales: Sequence[DeviceScale] = (),
    ) -> None:  # fmt: skip
        self._arena, self._graph, self._device = arena, Graph(), arena.device.index
        self._copy = driver.get().copy  # of the capture: where its memory is
        self._num_replays = 0
        self._marks: tuple[Event, Event] | None = None  # around a replay
        own = {value.memory.number for value in recording.outputs if value.memory.kind is Kind.INTERMEDIATE}
        try:
            copies = [arena.copy_of(handle) for handle in inputs[:num_copied]]
            self._inputs = [copy for copy, _ in copies]
            self._copies = [(copy.data_pointer, num_bytes) for copy, num_bytes in copies]
            calls = [_static(call) for call in recording.calls]
            self._constants = [call.function for call in calls if call.op == "from_cpu"]  # replays read their memory
            calls = [_apart(call, own, self._graph) for call in calls]
            program = Recording(calls, recording.inputs, recording.outputs)
            static = [*self._inputs, *inputs[num_copied:]]
            with graph(self._graph, arena.pool, arena.stream, "thread_local"):
                capture = capture_of(arena.device)
                assert capture is not None
                for scale in scales:
                    scale.attach(capture)
                made: list[DeviceArray] = program.run(static)  # type: ignore[assignment]
            arena.stream.synchronize()  # what was allocated on it may be used on whatever stream
        except Exception as error:  # whatever it is, the calls themselves have run before
            reason = f"cannot be captured into a CUDA graph ({error})"
            raise CannotReplayError(reason, is_final=True) from None
        self._stretches, places = _stretches(recording, made, static, num_handed_out)
        self._handed_out = list(zip(made[:num_handed_out], places, strict=False))
        self.static = made[num_handed_out:]
        self._prepare()

    @property
    def num_bytes(self) -> int:
        """Static memory of inputs and outputs. What lies in between is shared with other recordings."""
        own = sum(stretch.num_bytes for stretch in self._stretches if stretch.input is None)
        return own + sum(num_bytes for _, num_bytes in self._copies)

    def replay(self, inputs: Handles) -> list[DeviceArray]:
        """The outputs that are handed out. Raises: CannotReplayError: nothing has been done."""
        device, copy = self._device, self._copy
        stream = self._arena.follow()
        try:
            fresh = list(map(Layout.new, self._layouts, itertools.repeat(stream)))
        except OutOfMemoryError as error:
            raise CannotReplayError(f"has too little memory beside a CUDA graph ({error})", is_final=True) from None
        for index, (pointer, num_bytes) in enumerate(self._copies):
            copy(device, pointer, inputs[index].data_pointer, num_bytes, stream)
        self._num_replays += 1
        is_timed = self._num_replays & (self._num_replays - 1) == 0  # seldom, as taking the time takes some
        before = clock.time_mark(device) if is_timed else None
        try:
            self._graph.replay()
        except CaptureError as error:
            raise CannotReplayError(str(error), is_stale=True) from None
        if before is not None:
            self._marks = before, clock.time_mark(device)
        for index, (pointer, num_bytes) in enumerate(self._copied_from):
            copy(device, fresh[index].data_pointer, pointer, num_bytes, stream)
        return fresh if self._are_whole else self._shown(inputs, fresh)

    def _shown(self, inputs: Sequence[DeviceArray], fresh: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Outputs that are parts or views of fresh memory, or show inputs."""
        outputs, storages = [], iter(fresh)
        memory = [next(storages).storage if stretch.is_copied else None for stretch in self._stretches]
        for made, (index, offset) in self._handed_out:
            storage, origin = memory[index], self._stretches[index].input
            if storage is not None:
                made = DeviceArray(storage, made.shape, made.strides, offset // made.dtype.itemsize, made.dtype)
            elif origin is not None:
                shown = inputs[origin]
                start = (shown.data_pointer - shown.storage.pointer + offset) // made.dtype.itemsize
                made = DeviceArray(shown.storage, made.shape, made.strides, start, made.dtype)
            outputs.append(made)
        return outputs

    def _prepare(self) -> None:
        """Work out what each replay allocates and copies."""
        copied = [index for index, stretch in enumerate(self._stretches) if stretch.is_copied]
        stretches = [self._stretches[index] for index in copied]
        self._copied_from = [(stretch.pointer, stretch.num_bytes) for stretch in stretches]
        # Mostly each output is a stretch of its own: then it is made as any new array is.
        self._are_whole = [index for _, (index, _) in self._handed_out] == copied and all(
            made.layout.aligned and is_dense(made) for made, _ in self._handed_out
        )
        if self._are_whole:
            self._layouts = [made.layout for made, _ in self._handed_out]
        else:
            self._layouts = [layout_of((each.num_bytes,), dtypes.uint8, self._device) for each in stretches]

    def seconds(self) -> float | None:
        """Give the time of the latest replay that was timed, on the device."""
        return None if self._marks is None else clock.seconds_between(*self._marks)

    def copy_back(self, inputs: Sequence[DeviceArray], first: int) -> None:
        """After a replay: the copied inputs from `first` on, as the graph has changed them."""
        for handle, (pointer, num_bytes) in zip(inputs[first:], self._copies[first:], strict=False):
            self._copy(self._device, handle.data_pointer, pointer, num_bytes, self._arena.follow())


def _stretches(
    recording: Recording, made: Sequence[DeviceArray], inputs: Sequence[DeviceArray], num_handed_out: int
) -> tuple[list[_Stretch], list[tuple[int, int]]]:
    """The memory that the outputs show, and each one's place in it: which stretch, how many bytes from its start."""
    origins = {value.memory.number: index for index, value in enumerate(recording.inputs)}
    numbers = [value.memory.number for value in recording.outputs]
    static = set(numbers[num_handed_out:])
    stretches: dict[int, _Stretch] = {}
    for number in dict.fromkeys(numbers):
        origin = origins.get(number)
        if origin is not None:
            stretches[number] = _Stretch(inputs[origin].data_pointer, 0, origin, is_copied=False)
            continue
        shown = [handle for each, handle in zip(numbers, made, strict=True) if each == number]
        start = min(handle.data_pointer for handle in shown) & ~15
        end = max(handle.data_pointer + span(handle) for handle in shown)
        stretches[number] = _Stretch(start, max(end - start, 0), None, is_copied=number not in static)
    indices = {number: index for index, number in enumerate(stretches)}
    places = [
        (indices[number], handle.data_pointer - stretches[number].pointer)
        for number, handle in zip(numbers, made, strict=True)
    ]
    return list(stretches.values()), places


def _apart(call: Call, numbers: Collection[int], captured: Graph) -> Call:
    """A call that makes outputs, in memory that no other graph writes to."""
    if not any(value.memory.number in numbers for value in call.outputs):
        return call

    function: Op = call.function

    def run(*args: object, **kwargs: object) -> object:
        with apart(captured):
            return function(*args, **kwargs)

    return dataclasses.replace(call, function=run)


def _static(call: Call) -> Call:
    """A call that brings values from the host, which stay the same, as a copy on the device."""
    if call.op != "from_cpu":
        return call
    array = call.function(*call.args, **call.kwargs)
    return dataclasses.replace(call, function=functools.partial(_clone, array), args=(), kwargs={})


def _clone(array: DeviceArray) -> object:
    return copy(array, array.strides)
