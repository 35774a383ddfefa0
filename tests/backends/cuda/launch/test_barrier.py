"""A launch behind all that came before it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

import genesis
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, simulated_graphs
from genesis.backends.cuda.driver.triton_driver import compile_kernel, overlapping
from genesis.backends.cuda.launch import barrier, overlap
from genesis.backends.cuda.launch.triton import Specimen, prepare_raw
from genesis.backends.cuda.runtime import capturing
from genesis.settings import override


def test_the_barrier_waits_and_lets_nothing_begin_early() -> None:
    signature = overlapping(overlap._barrier_kernel, Specimen(overlap._barrier_kernel, (), {}).signature(), 90)
    text = compile_kernel(overlap._barrier_kernel, signature, 90).asm["ptx"]
    assert "griddepcontrol.wait" in text
    assert "griddepcontrol.launch_dependents" not in text


PLAIN = """
extern "C" __global__ void write(float* to) { to[threadIdx.x] = 1.0f; }
"""


@pytest.fixture
def barriers(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Of the launches that were run, on a device whose kernels may overlap."""
    launched: list[object] = []
    monkeypatch.setattr(barrier, "can_overlap", lambda capability: True)
    monkeypatch.setattr(barrier, "prepare_raw", lambda *_, **__: lambda stream: launched.append(("barrier", stream)))
    return launched


def _launch(launched: list[object]) -> Callable[..., None]:
    return lambda stream, *addresses: launched.append((stream, *addresses))


@pytest.mark.parametrize("overlaps", [True, False])
def test_it_stands_ahead_of_what_comes_up_early(
    overlaps: bool, barriers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_graphs.Captured, "overlaps", lambda graph: overlaps)
    with override(overlap=False):
        launch = barrier.behind_all(_launch(barriers), 0, 7, 8)
    assert [each[1:] for each in barriers] == [(7, 8), (7, 8)]  # on a stream that was being captured
    barriers.clear()
    launch(5, 1, 2)
    assert barriers == [*([("barrier", 5)] if overlaps else []), (5, 1, 2)]


def test_it_stands_ahead_of_what_cannot_be_captured(barriers: list[object]) -> None:
    def refuse(stream: int, address: int) -> None:
        if not address:
            raise KernelError("this address")
        barriers.append(address)

    barrier.behind_all(refuse, 0, 0)(5, 1)
    assert barriers == [("barrier", 5), 1]
    assert not capturing.underway


@pytest.mark.parametrize("is_ours", [True, False])
def test_nothing_is_captured_while_another_capture_goes_on(
    is_ours: bool, barriers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = genesis.ones(2, device="cuda")
    if not is_ours:  # another library's, on the current stream
        monkeypatch.setattr(type(driver.get()), "is_capturing", lambda self, device, stream: True)
    with genesis.cuda.graph(genesis.cuda.Graph()) if is_ours else nullcontext():
        x + 1
        launch = barrier.behind_all(_launch(barriers), 0, 7)
        assert not barriers
    launch(5, 1)
    assert barriers == [("barrier", 5), (5, 1)]


def test_devices_whose_kernels_do_not_overlap_need_none(simulated: Backend) -> None:
    launch = _launch([])
    assert barrier.behind_all(launch, 0, 7) is launch


@pytest.mark.gpu
@pytest.mark.parametrize("early", [True, False])
def test_a_capture_tells(early: bool, gpu: Backend) -> None:
    if early:
        launch = prepare_raw(overlap._barrier_kernel, 0, (1,), (), num_warps=1)
    else:
        kernel = genesis.cuda.load_inline("plain", PLAIN).write
        memory = genesis.zeros(32, device="cuda")
        launch = lambda stream: kernel(memory, grid=1, block=32, stream=stream)  # noqa: E731
    assert barrier._may_overlap(launch, 0) is early
