"""The pool's bookkeeping: reuse, streams, limits, running out, statistics."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver.simulated import SimulatedDriver
from genesis.backends.cuda.runtime import array, memory, streams
from genesis.backends.cuda.runtime.memory import Block, Pool, size_class
from genesis.errors import DeviceError, OutOfMemoryError
from genesis.settings import override

MIB = 1 << 20


@pytest.fixture
def pool() -> Pool:
    return Pool(SimulatedDriver(num_devices=1, total_memory=4 * MIB), 0)


def free(pool: Pool, block: Block, others: tuple[int, ...] = ()) -> None:
    block.others = others
    (pool.returned_shared if others else pool.returned).append(block)


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 513, 4097, 100_000, MIB + 1, 3 * 10**9])
def test_size_class_wastes_little(num_bytes: int) -> None:
    size = size_class(num_bytes)
    assert num_bytes <= size <= max(512 + num_bytes, num_bytes * 1.125)
    assert size % 512 == 0
    assert size_class(size) == size


def test_freed_memory_is_reused_on_its_stream(pool: Pool) -> None:
    block = pool.allocate(1000, 0)
    free(pool, block)
    assert pool.allocate(900, 7) != block, "another stream must not get it"
    assert pool.allocate(900, 0) == block
    assert pool.statistics().num_driver_allocations == 2


def test_memory_used_on_another_stream_waits_for_it(pool: Pool) -> None:
    done = False
    driver = pool._driver
    driver.event_done = lambda device, event: done  # type: ignore[method-assign]
    block = pool.allocate(1000, 0)
    free(pool, block, others=(7,))
    assert pool.allocate(1000, 0) != block
    done = True
    assert pool.allocate(1000, 0) == block


def test_statistics(pool: Pool) -> None:
    blocks = [pool.allocate(MIB, 0) for _ in range(3)]
    free(pool, blocks[0])
    now = pool.statistics()
    assert (now.allocated, now.reserved, now.cached) == (2 * MIB, 3 * MIB, MIB)
    assert (now.peak_allocated, now.peak_reserved, now.num_allocations) == (3 * MIB, 3 * MIB, 3)
    pool.empty_cache()
    pool.reset_peaks()
    now = pool.statistics()
    assert (now.reserved, now.peak_allocated, now.peak_reserved) == (2 * MIB, 2 * MIB, 2 * MIB)
    assert pool._driver.memory_info(0) == (2 * MIB, 4 * MIB)


def test_statistics_where_an_array_comes_for_one_that_went(pool: Pool) -> None:
    small, large = pool.allocate(1000, 0), pool.allocate(MIB, 0)
    free(pool, large)
    free(pool, small)
    assert pool.allocate(1000, 0) == small, "at once, while the large one waits to be collected"
    now = pool.statistics()
    assert (now.allocated, now.peak_allocated, now.num_allocations) == (1024, MIB + 1024, 3)
    assert pool.allocate(MIB, 0) == large
    now = pool.statistics()
    assert (now.allocated, now.peak_allocated, now.num_driver_allocations) == (MIB + 1024, MIB + 1024, 2)


def test_who_watches_memory_is_told_what_went_and_what_came() -> None:
    driver, notes = SimulatedDriver(num_devices=1, total_memory=4 * MIB), []
    driver.note_use = lambda pointer, num_bytes: notes.append((pointer, num_bytes))  # type: ignore[method-assign,misc]
    pool = Pool(driver, 0)
    block = pool.allocate(1000, 0)
    free(pool, block)
    assert pool.allocate(900, 0) == block
    assert notes == [(block.pointer, 1000), (block.pointer, 0), (block.pointer, 900)]


def test_running_out_gives_back_the_cache_first(pool: Pool) -> None:
    for _ in range(2):
        free(pool, pool.allocate(3 * MIB, 0))
    assert pool.statistics().cached == 3 * MIB
    pool.allocate(2 * MIB, 0)
    assert pool.statistics().cached == 0


def test_out_of_memory_tells_the_figures_and_can_go_on(pool: Pool) -> None:
    held = pool.allocate(3 * MIB, 0)
    message = r"cuda:0: out of memory: asked for 2\.0 MiB, arrays hold 3\.0 MiB, 1\.0 MiB of 4\.0 MiB are free"
    with pytest.raises(OutOfMemoryError, match=message):
        pool.allocate(2 * MIB, 0)
    pool.allocate(MIB, 0)
    free(pool, held)
    pool.allocate(2 * MIB, 0)
    assert pool.statistics().allocated == 3 * MIB


def test_running_out_frees_what_only_cycles_hold(pool: Pool) -> None:
    """Also where what is freed allocates."""

    class Cyclic:
        def __init__(self) -> None:
            self.itself, self.block = self, pool.allocate(3 * MIB, 0)

        def __del__(self) -> None:
            free(pool, pool.allocate(512, 0))
            free(pool, self.block)

    gc.disable()
    try:
        Cyclic()
        pool.allocate(2 * MIB, 0)
    finally:
        gc.enable()
    assert pool.statistics().allocated == 2 * MIB


def test_limit(pool: Pool) -> None:
    pool.limit = MIB
    with pytest.raises(OutOfMemoryError, match=r"the limit is 1\.0 MiB"):
        pool.allocate(MIB + 1, 0)
    free(pool, pool.allocate(MIB // 2, 0))
    pool.allocate(MIB, 0)
    assert pool.statistics().reserved == MIB


def test_arrays_free_their_memory(cuda: Backend) -> None:
    pool = memory.pool(0)
    gc.collect()
    before = pool.statistics().allocated
    x = array.empty((1000,), dtypes.float32)
    view = x.view((10,), (1,), 5)
    assert pool.statistics().allocated == before + 4096
    del x
    assert pool.statistics().allocated == before + 4096, "a view keeps its storage"
    del view
    assert pool.statistics().allocated == before


def test_provoked_out_of_memory_on_the_device(cuda: Backend) -> None:
    total = memory.driver.get().properties(0).total_memory
    with pytest.raises(OutOfMemoryError):
        array.empty((2 * total,), dtypes.uint8)
    assert cuda.to_cpu(cuda.full((3,), 1, dtypes.int32)).tolist() == [1, 1, 1]


def test_unknown_device(cuda: Backend) -> None:
    with pytest.raises(DeviceError, match="expected a device below"):
        array.empty((1,), dtypes.float32, 99)


def test_record_stream_holds_memory_back(simulated: Backend) -> None:
    other = streams.Stream()
    x = array.empty((1000,), dtypes.float32)
    x.storage.record_stream(other.handle)
    x.storage.record_stream(other.handle)
    assert x.storage.block.others == (other.handle,)
    x.storage.record_stream(x.storage.stream)
    assert x.storage.block.others == (other.handle,)


def test_threads_share_the_pool(pool: Pool) -> None:
    def work() -> None:
        for _ in range(200):
            free(pool, pool.allocate(1000, 0))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = pool.statistics()
    assert (now.allocated, now.num_allocations) == (0, 1600)
    assert now.reserved == now.num_driver_allocations * 1024 <= 8 * 1024


def test_fresh_simulated_memory_reads_as_nan(simulated: Backend) -> None:
    for _ in range(2):  # new, and reused
        x = array.empty((100,), dtypes.float32)
        assert np.isnan(simulated.to_cpu(x)).all()
        simulated.copy_into(x, 1.0)
        del x


def test_a_layouts_arrays_lie_on_the_stream_asked_for(simulated: Backend) -> None:
    other = streams.Stream()
    layout = array.layout_of((1000,), dtypes.float32)
    pointers: dict[int, set[int]] = {0: set(), other.handle: set()}
    for handle in (0, other.handle, 0, other.handle, other.handle, 0):
        made = layout.new(handle)
        assert made.storage.stream == handle
        pointers[handle].add(made.data_pointer)
        del made
    assert not pointers[0] & pointers[other.handle]


def test_a_layout_forgets_its_shelf_with_the_driver(simulated: Backend) -> None:
    layout = array.layout_of((11,), dtypes.float32)
    layout.new(0)
    assert layout._shelf is not None
    with override(cuda="off"):
        assert layout._shelf is None
