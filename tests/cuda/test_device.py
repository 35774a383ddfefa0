"""genesis.cuda: devices, streams, events, memory, generators."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

import genesis
from genesis.errors import DeviceError
from genesis.settings import override

KIB = 1024


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_it_is_loaded_on_first_use_and_speaks_to_no_device_by_then() -> None:
    shown = run(
        "import sys, genesis\n"
        "before = 'genesis.cuda' in sys.modules\n"
        "genesis.cuda.OutOfMemoryError\n"
        "print(before, 'genesis.cuda' in sys.modules, 'triton' in sys.modules, 'cuda.bindings' in sys.modules)"
    )
    assert shown == "False True False False"


# --- devices ----------------------------------------------------------------------------------------------------------


def test_properties(cuda: str) -> None:
    assert genesis.cuda.is_available()
    assert genesis.cuda.device_count() >= 1
    found = genesis.cuda.get_device_properties("cuda:0")
    assert found.name == genesis.cuda.get_device_name() == genesis.cuda.get_device_name(genesis.device("cuda", 0))
    assert (found.major, found.minor) == genesis.cuda.get_device_capability(0) >= (8, 0)
    assert found.total_memory >= 1 << 30
    assert found.multi_processor_count > 0
    assert found.warp_size == 32
    genesis.cuda.synchronize()


def test_without_a_device() -> None:
    with override(cuda="off"):
        assert not genesis.cuda.is_available()
        assert genesis.cuda.device_count() == 0
        assert genesis.cuda.memory_allocated() == genesis.cuda.memory_stats()["num_device_alloc"] == 0
        genesis.cuda.empty_cache()
        genesis.cuda.manual_seed(1)
        genesis.cuda.manual_seed_all(1)
        with pytest.raises(DeviceError, match="switched off"):
            genesis.cuda.get_device_name()


def test_the_current_device_is_what_cuda_means(simulated: None) -> None:
    assert genesis.cuda.current_device() == 0
    with genesis.cuda.device(1):
        assert genesis.device("cuda") is genesis.device("cuda:1")
        assert genesis.zeros(2, device="cuda").device == genesis.zeros(2).cuda().device == genesis.device("cuda", 1)
        assert genesis.device("cpu").index == 0
        seen = []
        thread = threading.Thread(target=lambda: seen.append(genesis.cuda.current_device()))
        thread.start()
        thread.join()
        assert seen == [0], "each thread has its own"
        with genesis.cuda.device(None):
            assert genesis.cuda.current_device() == 1
    assert genesis.device("cuda") is genesis.device("cuda:0")
    genesis.cuda.set_device("cuda:1")
    try:
        assert genesis.cuda.current_stream().device == genesis.device("cuda:1")
    finally:
        genesis.cuda.set_device(0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (99, "expected a device below"),
        (-1, r"argument 'device': expected an index, 'cuda:N' or a genesis\.device, got -1"),
        (True, "got True"),
        ("cpu", r"argument 'device': expected a CUDA device, got cpu"),
        (1.5, "got 1.5"),
    ],
)
def test_a_wrong_device(cuda: str, wrong: object, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        genesis.cuda.set_device(wrong)
    assert genesis.cuda.current_device() == 0


# --- streams and events -----------------------------------------------------------------------------------------------


def test_work_goes_to_the_current_stream(cuda: str) -> None:
    side = genesis.cuda.Stream(priority=-1)
    assert side.cuda_stream != 0
    with genesis.cuda.stream(side) as inside:
        assert inside is genesis.cuda.current_stream() is side
        x = genesis.ones(100, device="cuda") * 2
        done = side.record_event()
    assert genesis.cuda.current_stream() == genesis.cuda.default_stream() != side
    genesis.cuda.current_stream().wait_event(done)
    assert (x + 1).sum().item() == 300
    side.synchronize()
    assert side.query()
    assert done.query()
    with genesis.cuda.stream(None):
        assert genesis.cuda.current_stream() == genesis.cuda.default_stream()


def test_a_stream_of_another_device_makes_it_current(simulated: None) -> None:
    side = genesis.cuda.Stream("cuda:1")
    assert side.device == genesis.device("cuda:1")
    with genesis.cuda.stream(side):
        assert genesis.cuda.current_device() == 1
        assert genesis.cuda.current_stream() is side
    assert genesis.cuda.current_device() == 0


def test_streams_by_their_address(cuda: str) -> None:
    side = genesis.cuda.Stream()
    same = genesis.cuda.ExternalStream(side.cuda_stream)
    assert same == side
    assert hash(same) == hash(side)
    assert f"{side.cuda_stream:#x}" in repr(same)
    same.wait_stream(genesis.cuda.current_stream())


def test_events(cuda: str) -> None:
    start, end = genesis.cuda.Event(enable_timing=True), genesis.cuda.Event(enable_timing=True)
    assert start.query(), "nothing to wait for yet"
    start.synchronize()
    start.wait()
    assert repr(start) == "<genesis.cuda.Event not recorded, timing>"
    with pytest.raises(ValueError, match="argument 'self': expected an event with enable_timing that was recorded"):
        start.elapsed_time(end)
    start.record()
    genesis.ones(1000, device="cuda").sum()
    end.record(genesis.cuda.current_stream())
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000
    untimed = genesis.cuda.Event()
    untimed.record()
    untimed.wait(genesis.cuda.Stream())
    with pytest.raises(ValueError, match="argument 'end_event'"):
        start.elapsed_time(untimed)
    with pytest.raises(ValueError, match="argument 'interprocess': expected False"):
        genesis.cuda.Event(interprocess=True)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_memory_in_use(cuda: str) -> None:
    gc.collect()
    genesis.cuda.empty_cache()
    before = genesis.cuda.memory_allocated()
    x = genesis.empty(256 * KIB, device="cuda")
    assert genesis.cuda.memory_allocated() == before + 1024 * KIB
    genesis.cuda.reset_peak_memory_stats()
    y = genesis.empty(256 * KIB, device="cuda")
    del x, y
    assert genesis.cuda.memory_allocated() == before
    assert genesis.cuda.max_memory_allocated() == before + 2048 * KIB
    assert genesis.cuda.max_memory_reserved() >= genesis.cuda.memory_reserved() >= before + 2048 * KIB
    stats = genesis.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] == before + 2048 * KIB
    assert stats["allocation.all.allocated"] >= stats["num_device_alloc"] > 0
    genesis.cuda.empty_cache()
    assert genesis.cuda.memory_reserved() == stats["reserved_bytes.all.current"] - 2048 * KIB
    free, total = genesis.cuda.mem_get_info("cuda:0")
    assert 0 < free <= total == genesis.cuda.get_device_properties().total_memory


def test_out_of_memory_is_caught_and_training_goes_on_with_less(cuda: str) -> None:
    def step(size: int) -> None:
        x = genesis.ones(size, KIB, device="cuda", requires_grad=True)
        (x * x).sum().backward()
        assert (x.grad == 2).all().item()

    gc.collect()
    genesis.cuda.empty_cache()
    genesis.cuda.set_memory_limit(genesis.cuda.memory_reserved() + 1024 * KIB)
    try:
        with pytest.raises(genesis.cuda.OutOfMemoryError, match=r"asked for 1\.0 MiB.*; the limit is"):
            step(256)
        step(32)
    finally:
        genesis.cuda.set_memory_limit(None)
    step(256)


def test_limits(cuda: str) -> None:
    genesis.cuda.empty_cache()
    reserved = genesis.cuda.memory_reserved()
    total = genesis.cuda.get_device_properties().total_memory
    genesis.cuda.set_per_process_memory_fraction((reserved + 4096) / total)
    try:
        with pytest.raises(genesis.cuda.OutOfMemoryError):
            genesis.empty(2048, device="cuda")
    finally:
        genesis.cuda.set_memory_limit(None)
    with pytest.raises(ValueError, match=r"argument 'fraction': expected a number in \[0, 1\], got 2"):
        genesis.cuda.set_per_process_memory_fraction(2)
    with pytest.raises(ValueError, match="argument 'num_bytes': expected at least 0, or None, got -1"):
        genesis.cuda.set_memory_limit(-1)


# --- generators -------------------------------------------------------------------------------------------------------


def test_seeds_of_one_and_of_all_devices(simulated: None) -> None:
    def draw(index: int) -> list[float]:
        return genesis.rand(4, device=f"cuda:{index}").tolist()

    genesis.cuda.manual_seed_all(3)
    first = [draw(0), draw(1)]
    assert first[0] == first[1]
    genesis.cuda.manual_seed(3)
    assert draw(0) == first[0]
    assert draw(1) != first[1]
    genesis.manual_seed(3)
    assert [draw(0), draw(1)] == first


def test_generator_states(cuda: str) -> None:
    state = genesis.cuda.get_rng_state()
    first = genesis.randn(4, device="cuda").tolist()
    genesis.cuda.set_rng_state(state)
    assert genesis.randn(4, device="cuda").tolist() == first
