"""The simulated device keeps CUDA's rules of capture, also where nobody checks before."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import pytest

from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.simulated import SimulatedDriver

Run = Callable[[SimulatedDriver, int], object]


@pytest.fixture
def driver() -> SimulatedDriver:
    return SimulatedDriver(num_devices=2)


def bytes_of(pointer: int, num_bytes: int) -> list[int]:
    return list((ctypes.c_uint8 * num_bytes).from_address(pointer))


def test_copies_and_fills_are_noted_and_replayed(driver: SimulatedDriver) -> None:
    stream = driver.create_stream(0, 0)
    first, second = (driver.allocate(0, 4, 0) for _ in range(2))
    driver.fill_bytes(0, first, 1, 4, stream)
    driver.fill_bytes(0, second, 2, 4, stream)
    driver.begin_capture(0, stream, "global")
    assert driver.is_capturing(0, stream)
    driver.copy(0, second, first, 4, stream)
    driver.fill_bytes(0, first, 7, 2, stream)
    captured = driver.end_capture(0, stream)
    assert (captured.num_nodes, bytes_of(first, 4), bytes_of(second, 4)) == (2, [1] * 4, [2] * 4)
    executable = captured.instantiate()
    executable.launch(0)
    assert (bytes_of(first, 4), bytes_of(second, 4)) == ([7, 7, 1, 1], [1] * 4)
    executable.launch(0)
    assert bytes_of(second, 4) == [7, 7, 1, 1]


def event_on(driver: SimulatedDriver, stream: int) -> object:
    event = driver.create_event(0, False)
    driver.record_event(0, event, stream)
    return event


def pageable_copy(driver: SimulatedDriver, stream: int) -> None:
    host = np.ones(4, np.uint8)
    driver.copy(0, driver.allocate(0, 4, 0), host.ctypes.data, 4, stream)


BREAKS: dict[str, Run] = {
    "wait for a stream": lambda driver, stream: driver.synchronize_stream(0, stream),
    "wait for a device": lambda driver, stream: driver.synchronize(0),
    "query an event": lambda driver, stream: driver.event_done(0, event_on(driver, stream)),
    "wait for an event": lambda driver, stream: driver.synchronize_event(0, event_on(driver, stream)),
    "query an event ": lambda driver, stream: driver.event_done(0, event_on(driver, 0)),
    "wait for an event ": lambda driver, stream: driver.wait_event(0, stream, event_on(driver, 0)),
}


@pytest.mark.parametrize("doing", BREAKS)
def test_what_breaks_a_capture(driver: SimulatedDriver, doing: str) -> None:
    stream = driver.create_stream(0, 0)
    driver.begin_capture(0, stream, "global")
    with pytest.raises(KernelError, match=doing.strip()):
        BREAKS[doing](driver, stream)
    with pytest.raises(KernelError, match=f"INVALIDATED by {doing.strip()}"):
        driver.end_capture(0, stream)
    assert not driver.is_capturing(0, stream)
    driver.synchronize(0)


REFUSES: dict[str, Run] = {
    "would belong to the graph": lambda driver, stream: driver.allocate(0, 4, stream),
    "pageable memory": pageable_copy,
    "on stream 0x0": lambda driver, stream: driver.begin_capture(0, 0, "global"),
    "STREAM_CAPTURE_UNSUPPORTED": lambda driver, stream: driver.begin_capture(0, stream, "global"),
    "none began on": lambda driver, stream: driver.end_capture(0, driver.create_stream(0, 0)),
}


@pytest.mark.parametrize("message", REFUSES)
def test_what_is_refused(driver: SimulatedDriver, message: str) -> None:
    stream = driver.create_stream(0, 0)
    driver.begin_capture(0, stream, "global")
    with pytest.raises(KernelError, match=message):
        REFUSES[message](driver, stream)
    assert driver.end_capture(0, stream).num_nodes == 0


@pytest.mark.parametrize(("mode", "other_thread", "is_allowed"), [
    ("global", True, False), ("global", False, False), ("thread_local", True, True), ("thread_local", False, False),
    ("relaxed", True, True), ("relaxed", False, True),
])  # fmt: skip
def test_modes(driver: SimulatedDriver, mode: str, other_thread: bool, is_allowed: bool) -> None:
    stream = driver.create_stream(0, 0)
    before = event_on(driver, 0)
    errors: list[KernelError] = []

    def ask() -> None:
        try:
            driver.event_done(0, before)
        except KernelError as error:
            errors.append(error)

    driver.begin_capture(0, stream, mode)  # type: ignore[arg-type]
    with driver.unrestricted():
        driver.event_done(0, before)
    if other_thread:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    else:
        ask()
    assert bool(errors) != is_allowed


@pytest.mark.parametrize("joined", [False, True])
def test_streams_that_take_part_are_waited_for(driver: SimulatedDriver, joined: bool) -> None:
    first, second = (driver.create_stream(device, 0) for device in (0, 1))
    memory = driver.allocate(0, 4, 0)
    driver.begin_capture(0, first, "global")
    driver.wait_event(1, second, event_on(driver, first))
    assert driver.is_capturing(1, second)
    driver.fill_bytes(1, memory, 3, 4, second)
    with pytest.raises(KernelError, match="wait for a device"):
        driver.synchronize(1)
    driver.captures.of(first).fault = ""  # type: ignore[union-attr]
    if joined:
        driver.wait_event(0, first, event_on(driver, second))
        assert driver.end_capture(0, first).num_nodes == 1
    else:
        with pytest.raises(KernelError, match="UNJOINED"):
            driver.end_capture(0, first)
    assert not driver.is_capturing(1, second)


def test_the_thread_that_began_ends_it(driver: SimulatedDriver) -> None:
    stream = driver.create_stream(0, 0)
    thread = threading.Thread(target=driver.begin_capture, args=(0, stream, "thread_local"))
    thread.start()
    thread.join()
    with pytest.raises(KernelError, match="WRONG_THREAD"):
        driver.end_capture(0, stream)
