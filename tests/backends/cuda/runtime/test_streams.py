"""Streams and events."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.streams import Event, Stream


def test_current_stream_is_the_default_until_another_is_used(cuda: Backend) -> None:
    assert streams.current() == streams.default()
    with streams.use(Stream()) as outer, streams.use(Stream()) as inner:
        assert outer != inner
        assert streams.current() == inner
    assert streams.current_handle(0) == 0


def test_current_stream_belongs_to_the_thread(cuda: Backend) -> None:
    seen = []
    with streams.use(Stream()):
        thread = threading.Thread(target=lambda: seen.append(streams.current_handle(0)))
        thread.start()
        thread.join()
    assert seen == [0]


def test_streams_are_handed_on(cuda: Backend) -> None:
    first = Stream()
    handle = first.handle
    assert Stream().handle != handle
    del first
    assert Stream().handle == handle


def test_memory_belongs_to_the_stream_it_was_made_on(cuda: Backend) -> None:
    with streams.use(Stream()) as stream:
        x = cuda.full((4,), 2.0, dtypes.float32)
    assert x.storage.stream == stream.handle
    streams.current().wait_stream(stream)
    np.testing.assert_array_equal(cuda.to_cpu(cuda.add(x, 1.0)), [3, 3, 3, 3])


def test_events_take_time(cuda: Backend) -> None:
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record()
    cuda.full((1000,), 1.0, dtypes.float32)
    end.record()
    end.synchronize()
    assert start.query()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 10_000


@pytest.mark.gpu
def test_streams_wait_for_events(gpu: Backend) -> None:
    producer, consumer = Stream(), Stream()
    for i in range(20):
        with streams.use(producer):
            x = gpu.full((1 << 22,), float(i), dtypes.float32)
            for _ in range(5):
                x = gpu.add(x, 1.0)
            ready = producer.record_event()
        with streams.use(consumer):
            consumer.wait_event(ready)
            x.storage.record_stream(consumer.handle)
            y = gpu.mul(x, 2.0)
            assert (gpu.to_cpu(y) == 2 * (i + 5)).all()


@pytest.mark.gpu
def test_threads_with_own_streams(gpu: Backend) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        with streams.use(Stream()):
            for i in range(50):
                x = gpu.full((10_000 + seed,), float(seed), dtypes.float32)
                result = gpu.to_cpu(gpu.mul(gpu.add(x, float(i)), 2.0))
                if not (result == 2 * (seed + i)).all():
                    wrong.append(f"thread {seed}, round {i}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
