"""Candidates in graphs, turn by turn: what is replayed in which order, and what is left behind when something fails."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.simulated import SimulatedDriver
from genesis.backends.cuda.driver.simulated_graphs import Captured, Executable
from genesis.backends.cuda.engine import replays
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.replays import Contender, Operand, Sets
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.runtime import array, capturing, clock, memory, streams
from genesis.errors import OutOfMemoryError

PROBLEM = ConvProblem("forward", (1, 4, 5, 5), (3, 4, 1, 1), bias=True, dtype=dtypes.float32)
SETS = Sets([(10, 0, 0, 0, 0), (20, 0, 0, 0, 0), (30, 0, 0, 0, 0)], None)
MIB = 1 << 20


class Log:
    """What was done, by whom, on which operands; and whether all that was made has been destroyed."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int, int]] = []
        self.num_events = self.num_graphs = 0

    def contender(self, name: str, workspace: int = 0, before: Callable[[], object] = bool) -> Contender:
        """before: is called before each launch, while a capture notes it too."""

        def launch(stream: int, out: int, *rest: int) -> None:
            before()
            here().captures.submit(stream, functools.partial(self.done.append, (name, out, rest[-1])))

        return Contender(launch, workspace)

    def assert_nothing_is_left(self) -> None:
        assert (self.num_events, self.num_graphs) == (0, 0)
        assert not capturing.underway
        assert not here().captures._by_stream
        assert capturing.lock.acquire(blocking=False)
        capturing.lock.release()
        assert streams.current_handle(0) == 0


def here() -> SimulatedDriver:
    found = driver.get()
    assert isinstance(found, SimulatedDriver)
    return found


@pytest.fixture
def log(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    log = Log()

    def count(owner: type, name: str, attribute: str, step: int) -> None:
        function = getattr(owner, name)

        def counted(*given: Any) -> Any:
            result = function(*given)
            setattr(log, attribute, getattr(log, attribute) + step)
            return result

        monkeypatch.setattr(owner, name, counted)

    count(SimulatedDriver, "create_event", "num_events", 1)
    count(SimulatedDriver, "destroy_event", "num_events", -1)
    count(Captured, "instantiate", "num_graphs", 1)
    count(Executable, "destroy", "num_graphs", -1)
    yield log
    log.assert_nothing_is_left()


def measured(*contenders: Contender, launches: int = 4, sets: Sets = SETS) -> list[float | None]:
    return replays.milliseconds(contenders, sets, launches, 0)


def test_they_take_turns_and_so_do_their_operands(log: Log) -> None:
    times = measured(log.contender("a"), log.contender("b"), launches=7)
    assert all(each is not None and each > 0 for each in times)
    first, replayed = log.done[:2], log.done[2:]
    assert first == [("a", 10, 0), ("b", 10, 0)]
    rounds = [replayed[i : i + 12] for i in range(0, len(replayed), 12)]
    assert len(rounds) >= 1 + 5
    for index, done in enumerate(rounds):
        order = "ab" if index % 2 == 0 else "ba"
        assert done == [(name, out, 0) for name in order for out in (10, 20, 30, 10, 20, 30)]


def test_scratch_memory_is_there_before_and_shared(log: Log) -> None:
    pool = memory.pool(0)
    allocations: list[int] = []

    def count() -> None:
        allocations.append(pool._statistics.num_driver_allocations)

    measured(log.contender("a", 1000, count), log.contender("b", 2000, count), log.contender("c"))
    scratch = {name: {address for who, _, address in log.done if who == name} for name in "abc"}
    assert scratch["a"] == scratch["b"]
    assert 0 not in scratch["a"]
    assert scratch["c"] == {0}
    assert len(set(allocations)) == 1


def raising(error: BaseException, at: int) -> Callable[[], None]:
    """Raises it at a launch, the first of which is no capture's."""
    left = [at]

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error

    return step


def waits() -> None:
    for stream in list(capturing.underway):
        here().synchronize_stream(0, stream)


def waits_without_a_word() -> None:
    with contextlib.suppress(KernelError):
        waits()


REFUSED = {
    "at the first launch": raising(KernelError("refused"), 1),
    "in a capture": raising(KernelError("refused"), 3),
    "no memory": raising(OutOfMemoryError("none"), 3),
    "it waits": waits,
    "its capture breaks": waits_without_a_word,
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_that_cannot_be_captured_costs_its_figure_only(log: Log, name: str) -> None:
    times = measured(log.contender("a"), log.contender("b", before=REFUSED[name]), log.contender("c"))
    assert [each is None for each in times] == [False, True, False]


def test_what_launches_elsewhere_is_no_graph(log: Log) -> None:
    times = measured(Contender(lambda *_: None, 0), log.contender("a"))
    assert [each is None for each in times] == [True, False]


def test_no_memory_for_a_graph(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    instantiate, left = Captured.instantiate, [2]

    def short(self: Captured) -> Executable:
        left[0] -= 1
        if left[0] == 0:
            raise OutOfMemoryError("none")
        return instantiate(self)

    monkeypatch.setattr(Captured, "instantiate", short)
    times = measured(*map(log.contender, "abc"))
    assert [each is None for each in times] == [False, True, False]


def test_a_replay_that_fails(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, left = Executable.launch, [5]

    def failing(self: Executable, stream: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KernelError("refused")
        launch(self, stream)

    monkeypatch.setattr(Executable, "launch", failing)
    times = measured(log.contender("a"), log.contender("b"))
    assert [each is None for each in times] == [True, False]
    assert sum(name == "b" for name, *_ in log.done) == 1 + 8 * 3


@pytest.mark.parametrize("at", [1, 2, 4])
def test_an_interruption_leaves_nothing_behind(log: Log, at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(log.contender("a"), log.contender("b", before=raising(KeyboardInterrupt(), at)))


def test_who_waits_for_the_device_waits_for_the_capture(log: Log) -> None:
    """Neither breaks it nor is refused, which would be news to a thread that captures nothing."""
    errors: list[BaseException] = []
    others: list[threading.Thread] = []

    def synchronize() -> None:
        try:
            clock.synchronize(0)
            memory.pool(0).empty_cache()
        except BaseException as error:
            errors.append(error)

    def disturb() -> None:
        if capturing.underway:
            other = threading.Thread(target=synchronize)
            other.start()
            other.join(0.01)
            assert other.is_alive()
            others.append(other)

    assert None not in measured(log.contender("a", before=disturb))
    for other in others:
        other.join(10)
    assert len(others) == 3
    assert errors == []


@pytest.mark.parametrize(
    ("milliseconds", "expected"), [(0.0, 20), (0.005, 20), (0.05, 20), (0.1, 10), (0.4, 2), (0.6, 1), (2.0, 0)]
)
def test_launches(milliseconds: float, expected: int) -> None:
    assert replays.num_launches(milliseconds) == expected


@pytest.mark.parametrize(
    ("megabytes", "launches", "free", "expected"),
    [
        (1, 20, 1000, 16), (10, 20, 1000, 15), (20, 20, 1000, 8), (49, 20, 1000, 4), (200, 5, 1000, 1),
        (10, 4, 1000, 4), (10, 20, 95, 10), (10, 20, 90, 10), (10, 20, 89, 0), (10, 20, 0, 0), (200, 5, 0, 1),
        (49, 20, 49, 0), (49, 20, 98, 3), (0, 20, 1, 16),
    ],
)  # fmt: skip
def test_sets_fill_the_cache_three_times_if_there_is_memory(
    megabytes: int, launches: int, free: int, expected: int
) -> None:
    size = megabytes * MIB
    assert replays.num_sets(size, size, 50 * MIB, launches, free * MIB) == expected


def test_memory_of_the_sets_is_bounded() -> None:
    """A launch of a strided convolution touches little of its operands."""
    assert replays.num_sets(300 * MIB, 50 * MIB, 50 * MIB, 20, 10000 * MIB) == 2
    assert replays.num_sets(600 * MIB, 50 * MIB, 50 * MIB, 20, 10000 * MIB) == 0


def test_copies_hold_the_same_values(simulated: Backend) -> None:
    x = simulated.randn((3, 5), 1)
    operands = [Operand(x), Operand(x, 8), Operand(None), Operand(x), Operand(None)]
    sets = replays.copies(operands, 60, 3, 0)
    assert sets is not None
    assert len(sets.addresses) == 3
    assert sets.memory is not None
    copied_to = [address for each in sets.addresses[1:] for address in each if address]
    assert len(set(copied_to)) == 6
    for out, second, third, fourth, fifth in sets.addresses:
        assert (third, fifth) == (0, 0)
        for address, start in ((out, 0), (second, 8), (fourth, 0)):
            assert (address - start) % 256 == 0
            copied = array.empty((3, 5), dtypes.float32, 0)
            here().copy(0, copied.data_pointer, address - start, 60, 0)
            assert (simulated.to_cpu(copied) == simulated.to_cpu(x)).all()


def test_little_memory_is_not_rounded_up(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [Operand(simulated.randn((1 << 18,), 1)), *[Operand(None)] * 4]
    monkeypatch.setattr(SimulatedDriver, "memory_info", lambda *_: (9 * MIB, 8 << 30))
    asked: list[int] = []
    allocate = memory.allocate
    monkeypatch.setattr(memory, "allocate", lambda size, *rest: (asked.append(size), allocate(size, *rest))[1])
    assert replays.copies(operands, MIB, 20, 0) is not None
    monkeypatch.undo()
    assert asked == [2 * MIB]


@pytest.mark.parametrize("limited", ["device", "pool"])
def test_no_memory_for_copies(simulated: Backend, monkeypatch: pytest.MonkeyPatch, limited: str) -> None:
    x = simulated.randn((1 << 18,), 1)
    operands = [Operand(x), *[Operand(None)] * 4]
    assert replays.copies(operands, MIB, 20, 0) is not None
    pool = memory.pool(0)
    if limited == "device":
        monkeypatch.setattr(SimulatedDriver, "memory_info", lambda *_: (MIB // 2, 8 << 30))
    else:
        monkeypatch.setattr(pool, "limit", pool.statistics().reserved)
    before = pool.statistics()
    assert replays.copies(operands, MIB, 20, 0) is None
    assert pool.statistics().cached == before.cached, "nothing was given back for it"


class TestBench:
    """ConvBench, on a simulated device that passes for one whose time counts."""

    @pytest.fixture
    def bench(self, log: Log) -> ConvBench:
        bench = ConvBench(PROBLEM)
        bench._flushed = array.empty((1,), dtypes.uint8, 0)
        return bench

    @pytest.fixture
    def built(self, log: Log) -> Built[ConvProblem]:
        candidate = families.reference(PROBLEM)
        return Built(candidate, candidate.prepare(PROBLEM), candidate.workspace(PROBLEM))

    def test_a_convolution(self, bench: ConvBench, built: Built[ConvProblem]) -> None:
        times = bench.replayed([built, built], 0.4)
        assert times is not None
        assert None not in times

    def test_long_ones_are_not_replayed(self, bench: ConvBench, built: Built[ConvProblem]) -> None:
        assert bench.replayed([built, built], 0.6) is None

    def test_nor_those_whose_time_means_nothing(self, log: Log, built: Built[ConvProblem]) -> None:
        assert ConvBench(PROBLEM).replayed([built, built], 0.4) is None

    def test_without_memory(self, bench: ConvBench, built: Built[ConvProblem], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SimulatedDriver, "memory_info", lambda *_: (0, 8 << 30))
        assert bench.replayed([built, built], 0.4) is None

    def test_a_capture_that_is_underway_goes_on(self, bench: ConvBench, built: Built[ConvProblem]) -> None:
        side = streams.Stream(0)
        here().begin_capture(0, side.handle, "global")
        with streams.use(side):
            assert bench.replayed([built, built], 0.4) is None
        assert here().end_capture(0, side.handle).num_nodes == 0
