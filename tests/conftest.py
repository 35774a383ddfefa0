"""What holds for all tests: those that need a GPU run where there is one; devices; the processes they start."""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Processes that tests start find this checkout too, and what else is on the path, from whatever folder.
_given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
_paths = [Path(__file__).parents[1] / "src", *(path for path in _given if path)]
os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in _paths)

# Inductor would find out by compiling which vectors of the processor the compiler knows: 16 seconds of a process.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def num_gpus() -> int:
    """Asked of the driver itself, so that a fault in Genesis can't hide the GPU tests."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where there is no GPU, leave out tests that need one, unless they are asked for: to skip 7,700, each by itself,
    takes two cores ten seconds."""
    needing = [item for item in items if item.get_closest_marker("gpu") is not None]
    if num_gpus() or config.option.markexpr or len(needing) == len(items):
        return
    config.hook.pytest_deselected(items=needing)
    items[:] = [item for item in items if item.get_closest_marker("gpu") is None]


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker is not None:
        needed = marker.kwargs.get("count", marker.args[0] if marker.args else 1)
        if num_gpus() < needed:
            pytest.skip(f"needs {needed} NVIDIA GPU(s), found {num_gpus()}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end, a million objects: each full collection, of which the tests ask
    for many and Python starts some, would look at them again for half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


_MOST_KEPT = 1 << 30  # bytes
_needed = 0  # of memory, when last collected


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file of tests leaves, imports above all, stays too. But there is a process on each core: none may keep
    what its largest networks took. Those that grew hold themselves in cycles."""
    global _needed
    most = _needed + _MOST_KEPT
    has_grown = _resident() > most
    if has_grown or nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    if has_grown:
        _trim()
        if _resident() > most:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            _trim()
        _needed = _resident()


def _trim() -> None:
    """What is freed stays with the C library, which can be asked for it on Linux."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _resident() -> int:
    """Bytes of memory that this process has; 0 where that is not known."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture(autouse=True, scope="session")
def compilations_are_not_traced() -> Iterator[None]:
    """PyTorch writes each graph that it compiles as text for its log of traces if that has handlers, and pytest gives
    four of its own to each log that is by itself."""
    log = logging.getLogger("torch.__trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "addHandler", lambda handler: None)
        patch.setattr(log, "handlers", [])
        yield


@pytest.fixture(autouse=True, scope="session")
def absent_devices_are_not_seeded() -> Iterator[None]:
    """torch.manual_seed keeps the seed for devices that may come, with the text of the whole stack: 3 ms a call."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def samples_do_not_search_the_stack() -> Iterator[None]:
    """PyTorch's samples look for a unittest.TestCase in the stack, with the source of each frame: 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("common_utils", "opinfo.core"):
            module = sys.modules.get(f"torch.testing._internal.{name}")
            if module is not None:
                patch.setattr(module, "extract_test_fn", lambda: None)
        yield


@pytest.fixture(params=["simulated", pytest.param("auto", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> Iterator[str]:
    """There is a CUDA device: a simulated one, and with -m gpu a real one. Gives the choice that GENESIS_CUDA made."""
    from genesis.settings import override

    with override(cuda=request.param):
        yield request.param


@pytest.fixture(params=["cpu", "simulated", pytest.param("auto", marks=pytest.mark.gpu, id="gpu")])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kind of device in turn, by its name."""
    from genesis.settings import override

    with override(cuda="auto" if request.param == "cpu" else request.param):
        yield "cpu" if request.param == "cpu" else "cuda:0"
