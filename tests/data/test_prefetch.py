"""prefetch: batches one ahead, copied from pinned memory on a stream of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import genesis
from genesis.backends.cuda import driver
from genesis.data import DataLoader, TensorDataset, prefetch

pytestmark = pytest.mark.usefixtures("cuda")


def batches(count: int) -> list[Any]:
    return [{"x": genesis.full((4, 8), float(index)), "name": str(index)} for index in range(count)]


def test_on_the_cpu_batches_pass_as_they_are() -> None:
    given = [{"x": genesis.ones(1)}, [genesis.zeros(2)]]
    passed = list(prefetch(given, "cpu"))
    assert all(one is other for one, other in zip(passed, given, strict=True))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_one_batch_is_copied_ahead(count: int) -> None:
    events: list[str] = []

    def loader() -> Iterator[Any]:
        for batch in batches(count):
            events.append(f"load {batch['name']}")
            yield batch

    for batch in prefetch(loader(), "cuda"):
        events.append(f"use {batch['name']}")
        assert batch["x"].device == genesis.device("cuda")
        assert (batch["x"] * 2).sum().item() == 64 * int(batch["name"])
    expected = {0: [], 1: ["load 0", "use 0"], 3: ["load 0", "load 1", "use 0", "load 2", "use 1", "use 2"]}
    assert events == expected[count]


def test_copies_come_from_pinned_memory_on_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    active = driver.get()
    copy = active.copy

    def noted(device: int, target: int, source: int, num_bytes: int, stream: int) -> None:
        copies.append((active.is_pinned(source), stream))
        copy(device, target, source, num_bytes, stream)

    monkeypatch.setattr(active, "copy", noted)
    given = batches(3)
    given[1]["x"] = given[1]["x"].pin_memory()
    first = next(prefetch(given, "cuda"))
    assert len(copies) == 2
    assert {pinned for pinned, _ in copies} == {True}
    ((_, stream),) = set(copies)
    assert stream != 0
    storage = first["x"].array.handle.storage
    assert storage.stream == stream, "the memory is the side stream's"
    assert storage.block.others == (0,), "and the stream that uses it is noted"


def test_what_is_on_the_device_stays() -> None:
    x = genesis.ones(3, device="cuda")
    assert next(prefetch([[x]], "cuda"))[0] is x


def test_a_loader_feeds_it() -> None:
    loader = DataLoader(TensorDataset(genesis.arange(10.0)), batch_size=4)
    assert [batch.tolist() for (batch,) in prefetch(loader, "cuda")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["auto"], indirect=True)
def test_many_batches_arrive_whole() -> None:
    count, size = 200, 1 << 20
    loader = (genesis.full((size,), float(index)) for index in range(count))
    for index, batch in enumerate(prefetch(loader, "cuda")):
        assert (batch == index).all().item(), f"batch {index}"
