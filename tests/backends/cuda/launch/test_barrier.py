"""A launch behind all that came before it."""

from __future__ import annotations

import pytest

from genesis.backends.backend import Backend
from genesis.backends.cuda.driver.triton_driver import compile_kernel, overlapping
from genesis.backends.cuda.launch import barrier, overlap
from genesis.backends.cuda.launch.triton import Specimen
from genesis.settings import override


def test_the_barrier_waits_and_lets_nothing_begin_early() -> None:
    signature = overlapping(overlap._barrier_kernel, Specimen(overlap._barrier_kernel, (), {}).signature(), 90)
    text = compile_kernel(overlap._barrier_kernel, signature, 90).asm["ptx"]
    assert "griddepcontrol.wait" in text
    assert "griddepcontrol.launch_dependents" not in text


@pytest.mark.parametrize("can_overlap", [True, False])
def test_it_stands_ahead_where_kernels_may_overlap(
    can_overlap: bool, simulated: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[object] = []
    monkeypatch.setattr(barrier, "can_overlap", lambda capability: can_overlap)
    monkeypatch.setattr(barrier, "prepare_raw", lambda *_, **__: lambda stream: launched.append(("barrier", stream)))
    with override(overlap=False):
        barrier.behind_all(lambda stream, *addresses: launched.append((stream, *addresses)), 0)(5, 1, 2)
    assert launched == [*([("barrier", 5)] if can_overlap else []), (5, 1, 2)]
