"""Packed weights and scratch memory lie in memory for which large pages were asked."""

from __future__ import annotations

import errno
import gc
import mmap
import threading
from pathlib import Path

import pytest
import torch

from genesis.backends.cpu.x86 import machine, pages
from genesis.backends.cpu.x86.packed import PackedConv
from genesis.records import ConvGeometry

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

PLAIN = ConvGeometry((1, 1), (1, 1), (1, 1), 1)


def flags_at(address: int) -> set[str]:
    """What the kernel knows of the memory there."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            start, end = (int(each, 16) for each in name.split("-"))
            is_there = start <= address < end
        elif is_there and name == "VmFlags:":
            return {*value.split()}
    return set()


def test_weights_and_scratch_ask_for_large_pages() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage/enabled").is_file():
        pytest.skip("a kernel without large pages")
    conv = PackedConv(torch.randn(32, 32, 3, 3), None, PLAIN)
    large = pages.kept(torch.randn(3 << 20))
    for address in (conv._weight.data_ptr(), large.data_ptr(), pages.scratch(1).data_ptr()):
        assert "hg" in flags_at(address)
    assert large.data_ptr() % pages.PAGE == 0


def test_weights_share_pages_and_keep_their_values() -> None:
    weights = [torch.randn(3, n, 5) for n in (1, 7, 0, 100)]
    weights.append(torch.randn(2 << 20))
    kept = [pages.kept(weight) for weight in weights]
    for weight, copy in zip(weights, kept, strict=True):
        assert torch.equal(copy, weight.reshape(-1))
        assert copy.data_ptr() % 64 == 0
        assert copy.untyped_storage().nbytes() == 4 * weight.numel()  # what pickles and deep copies take along
    assert abs(kept[0].data_ptr() - kept[1].data_ptr()) == 64


def test_memory_is_given_back_with_the_last_weight() -> None:
    first = pages.kept(torch.randn(2 << 20))
    address = first.data_ptr()
    assert flags_at(address)
    del first
    gc.collect()
    assert "hg" not in flags_at(address)


def test_a_thread_has_scratch_memory_of_its_own() -> None:
    mine = pages.scratch(1000)
    assert mine.numel() >= 250
    assert pages.scratch(500).data_ptr() == mine.data_ptr()
    places = []
    thread = threading.Thread(target=lambda: places.append(pages.scratch(1000).data_ptr()))
    thread.start()
    thread.join()
    assert places != [mine.data_ptr()]
    assert pages.scratch(mine.numel() * 4 + 1).data_ptr() != mine.data_ptr()


def test_without_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert torch.equal(pages.kept(torch.ones(2 << 20)), torch.ones(2 << 20))


def test_a_small_weight_where_there_is_no_room_for_what_many_share(monkeypatch: pytest.MonkeyPatch) -> None:
    class Limited(pages._Chunk):
        def __new__(cls, fileno: int, length: int, **options: int) -> Limited:
            if length > 2 * pages.PAGE:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return super().__new__(cls, fileno, length, **options)

    monkeypatch.setattr(pages, "_Chunk", Limited)
    monkeypatch.setattr(pages, "_last", None)
    assert torch.equal(pages.kept(torch.ones(1000)), torch.ones(1000))
    with pytest.raises(MemoryError, match="cannot allocate 14680064 bytes for a convolution"):
        pages.kept(torch.ones(3 << 20))


def test_other_errors_of_the_system_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(pages, "_Chunk", refused)
    with pytest.raises(PermissionError, match="not permitted"):
        pages.scratch(2 << 30)
