"""How many launches small problems take: each costs a GPU as much as they do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import genesis
from genesis import functional as F
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver.simulated import SimulatedKernel


@pytest.fixture
def launched(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels, as they are launched."""
    names: list[str] = []
    launch = SimulatedKernel.launch

    def noted(kernel: SimulatedKernel, *args: object) -> None:
        names.append(kernel.name)
        launch(kernel, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedKernel, "launch", noted)
    return names


@pytest.mark.parametrize(
    ("shape", "run", "number"),
    [
        ((128, 512), lambda x: x.sum(0), 1),
        ((200, 96), lambda x: x.mean(0), 1),
        ((4096, 64), lambda x: x.sum(0), 2),
        ((128, 10), lambda x: F.cross_entropy(x, genesis.zeros(len(x), dtype=genesis.int64, device="cuda")), 1),
        ((4096, 10), lambda x: F.cross_entropy(x, genesis.zeros(len(x), dtype=genesis.int64, device="cuda")), 2),
    ],
    ids=["sum", "mean", "sum of many rows", "cross entropy", "cross entropy of many rows"],
)
def test_few_rows_take_one(
    shape: tuple[int, int], run: Callable[[genesis.Tensor], genesis.Tensor], number: int, launched: list[str]
) -> None:
    x = genesis.ones(shape, device="cuda")
    launched.clear()
    run(x)
    assert sum("reduce" in name or "entropy" in name or "finish" in name for name in launched) == number, launched
