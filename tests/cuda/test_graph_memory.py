"""CUDA graphs: whose memory they use, and which streams, threads and devices take part."""

from __future__ import annotations

import threading

import pytest

import genesis
from genesis import Tensor
from genesis.cuda import CaptureError, Graph, graph
from genesis.settings import override
from tests.cuda.capturing import KIB, SIZE, captured, captured_value, reserved

pytestmark = pytest.mark.usefixtures("cuda")


# --- memory -----------------------------------------------------------------------------------------------------------
def test_nobody_else_gets_a_graphs_memory() -> None:
    x = genesis.ones(1000, device="cuda")
    g, y = captured(lambda: ((x + 1) * 2) - 1)  # with two intermediate results, which are free again
    others = [genesis.full((1000,), 7.0, device="cuda") for _ in range(20)]
    with genesis.cuda.stream(genesis.cuda.Stream()):
        others += [genesis.full((1000,), 7.0, device="cuda") for _ in range(20)]
    genesis.cuda.synchronize()
    g.replay()
    assert y[0].item() == 3
    genesis.cuda.synchronize()
    assert all((other == 7).all().item() for other in others)


def test_memory_that_is_freed_in_a_capture_is_reused_in_it() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()

    def chain() -> Tensor:
        y = x
        for _ in range(10):
            y = y + 1
        return y

    g, y = captured(chain)
    assert reserved() - before <= 2 * 64 * KIB
    g.replay()
    assert y[0].item() == 11


@pytest.mark.parametrize("how", ["reset", "del", "again"])
def test_memory_is_given_back(how: str) -> None:
    x = genesis.ones(SIZE, device="cuda")
    before, allocated = reserved(), genesis.cuda.memory_allocated()
    g, y = captured(lambda: x + 1)
    assert genesis.cuda.memory_allocated() == allocated + 64 * KIB
    assert reserved() == before + 64 * KIB
    if how == "del":
        del y, g
    else:
        del y
        g.reset()
        if how == "again":
            with graph(g):
                y = x * 3
            g.replay()
            assert y[0].item() == 3
            del y
            g.reset()
    assert genesis.cuda.memory_reserved() == before
    assert genesis.cuda.memory_allocated() == allocated


def test_a_result_outlives_its_graph() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()
    g, y = captured(lambda: x + 1)
    g.replay()
    del g
    genesis.full((SIZE,), 9.0, device="cuda")
    assert y[0].item() == 2
    assert reserved() == before + 64 * KIB
    del y
    assert reserved() == before


def test_graphs_share_a_pool() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()
    first, second = Graph(), Graph()
    with graph(first):
        y = (x + 1) * 2
    with graph(second, pool=first.pool()):
        z = (y + 1) * 2
    assert first.pool() == second.pool()
    assert reserved() == before + 3 * 64 * KIB, "the second takes what the first has freed"
    for _ in range(2):
        first.replay()
        second.replay()
        assert (y[0].item(), z[0].item()) == (4, 10)
    del y, first
    second.replay()
    assert z[0].item() == 10
    del z, second
    assert reserved() == before


def test_running_out_of_memory_ends_the_capture() -> None:
    x = genesis.ones(SIZE, device="cuda")
    g = Graph()
    before = reserved()
    genesis.cuda.set_memory_limit(before + 96 * KIB)
    try:
        with pytest.raises(genesis.cuda.OutOfMemoryError, match=r"asked for 64\.0 KiB"):
            captured(lambda: (x + 1) + 1, g)
    finally:
        genesis.cuda.set_memory_limit(None)
    assert not genesis.cuda.is_current_stream_capturing()
    assert reserved() == before
    _, y = captured(lambda: x + 2, g)
    g.replay()
    assert y[0].item() == 3


# --- streams, threads, devices ----------------------------------------------------------------------------------------
def test_streams_take_part_that_wait_for_the_capture() -> None:
    x, side = genesis.ones(64, device="cuda"), genesis.cuda.Stream()
    g = Graph()
    with graph(g):
        main = genesis.cuda.current_stream()
        y = x + 1
        side.wait_stream(main)
        with genesis.cuda.stream(side):
            assert genesis.cuda.is_current_stream_capturing()
            z = y * 3
            del y
        kept = x - 1
        main.wait_stream(side)
        result = z + kept
    del z, kept
    assert side.query()
    others = [genesis.full((64,), 9.0, device="cuda") for _ in range(9)]
    x.fill_(2)
    g.replay()
    assert result.tolist() == [10.0] * 64
    assert all(other[0].item() == 9 for other in others)


def test_a_stream_that_is_not_waited_for() -> None:
    x, side = genesis.ones(8, device="cuda"), genesis.cuda.Stream()

    def fork() -> Tensor:
        side.wait_stream(genesis.cuda.current_stream())
        with genesis.cuda.stream(side):
            return x * 3

    with pytest.raises(CaptureError, match="UNJOINED"):
        captured(fork)
    with genesis.cuda.stream(side):
        assert (x * 3)[0].item() == 3
    assert captured_value(x) == 2


def test_work_on_other_streams_runs() -> None:
    x, other = genesis.ones(8, device="cuda"), genesis.cuda.Stream()
    g = Graph()
    with graph(g, capture_error_mode="relaxed"):
        y = x + 1
        with genesis.cuda.stream(other):
            assert not genesis.cuda.is_current_stream_capturing()
            assert (x * 5)[0].item() == 5
    g.replay()
    assert y[0].item() == 2


def test_a_given_stream() -> None:
    x, side = genesis.ones(8, device="cuda"), genesis.cuda.Stream()
    g = Graph()
    with graph(g, stream=side):
        assert genesis.cuda.current_stream() == side
        y = x + 1
    with genesis.cuda.stream(side):
        g.replay()
        assert y[0].item() == 2


def test_threads_capture_at_the_same_time() -> None:
    barrier, results, errors = threading.Barrier(3), {}, []

    def work(number: int) -> None:
        try:
            x = genesis.full((8,), float(number), device="cuda")
            g = Graph()
            with graph(g, capture_error_mode="thread_local"):
                barrier.wait(30)
                y = x
                for _ in range(20):
                    y = y + 1
                barrier.wait(30)
            g.replay()
            results[number] = y[0].item()
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    barrier.wait(30)
    ours = [genesis.full((8,), 7.0, device="cuda") for _ in range(20)]  # eager work in between
    values = [x.tolist() for x in ours]
    barrier.wait(30)
    for thread in threads:
        thread.join(30)
    assert not errors
    assert results == {0: 20, 1: 21}
    assert values == [[7.0] * 8] * 20


def test_another_thread_cannot_wait_for_the_device() -> None:
    x, errors = genesis.ones(8, device="cuda"), []

    def wait() -> None:
        try:
            genesis.cuda.synchronize()
        except CaptureError as error:
            errors.append(str(error))

    g = Graph()
    with graph(g):
        y = x + 1
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(30)
    assert "synchronize waits for the device" in errors[0]
    g.replay()
    assert y[0].item() == 2


# --- several devices, and what only one of them has -----------------------------------------------------------------
@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestSimulatedDevices:
    def test_a_graph_of_another_device(self) -> None:
        with genesis.cuda.device(1):
            x = genesis.ones(4, device="cuda")
            g, y = captured(lambda: x + genesis.rand(4, device="cuda"))
        first = genesis.cuda.memory_allocated(0)
        genesis.manual_seed(3)
        g.replay()
        genesis.manual_seed(3)
        assert y.tolist() == (x + genesis.rand(4, device="cuda:1")).tolist()
        assert y.device == genesis.device("cuda:1")
        assert genesis.cuda.memory_allocated(0) == first

    def test_a_graph_of_two_devices(self) -> None:
        x, there = genesis.ones(4, device="cuda:0"), genesis.ones(4, device="cuda:1")
        side = genesis.cuda.Stream(device=1)
        before = genesis.cuda.memory_reserved(1)
        g = Graph()
        with graph(g):
            main = genesis.cuda.current_stream()
            y = x + 1
            side.wait_stream(main)
            with genesis.cuda.stream(side):
                z = there * 3
            main.wait_stream(side)
        g.replay()
        assert (y[0].item(), z[0].item()) == (2, 3)
        del z
        g.reset()
        genesis.cuda.empty_cache()
        assert genesis.cuda.memory_reserved(1) <= before

    def test_copies_between_devices_wait_for_the_host(self) -> None:
        x = genesis.ones(4, device="cuda:0")
        with pytest.raises(CaptureError, match="to waits for the device"):
            captured(lambda: x.to("cuda:1"))
        assert captured_value(x) == 2


def test_what_other_streams_used_is_not_asked_for_in_a_capture() -> None:
    """The pool would record events on their streams, which may be captured, and ask for them."""
    x, side = genesis.ones(SIZE, device="cuda"), genesis.cuda.Stream()
    used = genesis.full((SIZE,), 3.0, device="cuda")
    g = Graph()
    with graph(g):
        main = genesis.cuda.current_stream()
        side.wait_stream(main)
        used.record_stream(side)
        with genesis.cuda.stream(side):
            y = x + 1
        del used
        ours = genesis.cuda.default_stream()
        with genesis.cuda.stream(ours):
            others = [genesis.full((SIZE,), 5.0, device="cuda") for _ in range(3)]
        main.wait_stream(side)
    g.replay()
    assert (y[0].item(), others[-1][0].item()) == (2, 5)


def test_a_graph_that_goes_during_another_capture() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()
    old, y = captured(lambda: x + 1)
    g = Graph()
    with graph(g):
        del old, y
        z = x + 2
    g.replay()
    assert z[0].item() == 3
    assert reserved() == before + 64 * KIB, "given back with the next memory that is"


def test_a_thread_that_copies_batches_goes_on_during_a_capture() -> None:
    x, errors = genesis.ones(4, device="cuda"), []

    def copy() -> None:
        try:
            side = genesis.cuda.Stream()
            with genesis.cuda.stream(side):
                for _ in range(3):
                    batch = genesis.ones(4).pin_memory().to("cuda", non_blocking=True)
                    event = side.record_event()
                    event.synchronize()
                    assert event.query()
                    assert batch.sum().item() == 4
        except BaseException as error:
            errors.append(error)

    g = Graph()
    with graph(g):
        y = x + 1
        thread = threading.Thread(target=copy)
        thread.start()
        thread.join(30)
        y = y + 1
    assert errors == []
    g.replay()
    assert y.tolist() == [3.0] * 4


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
def test_a_graph_that_goes_when_another_driver_is_in_force() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()
    g, y = captured(lambda: x + 1)
    with override(cuda="off"):
        del g, y
    assert reserved() == before
