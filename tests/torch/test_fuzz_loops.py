"""A share of the fuzzer of training loops, and that it finds what is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from genesis.torch import replaying
from tests.torch import fuzz_loops


def test_random_loops() -> None:
    counts: Counter[str] = Counter()
    for number in (137, 126):
        assert not fuzz_loops.case(number, "cpu", counts)
    assert counts["forward"] > counts["steps"] / 3, fuzz_loops.summary(counts)


@pytest.mark.gpu
@pytest.mark.parametrize("number", [137, 126])
def test_random_loops_on_a_gpu(number: int) -> None:
    counts: Counter[str] = Counter()
    assert not fuzz_loops.case(number, "cuda", counts)
    assert counts["forward"] > counts["steps"] / 4, fuzz_loops.summary(counts)


def test_gradients_of_the_step_before_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: Any, node: Any, is_backward: bool) -> None:
        if not is_backward:
            run(self, node, is_backward)

    run = replaying.Plan._run
    monkeypatch.setattr(replaying.Plan, "_run", stale)
    assert "gradient of" in fuzz_loops.case(137, "cpu", Counter())


def test_outputs_in_the_graphs_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_copies(self: Any, args: Any) -> Any:
        one, _ = run(self, args)
        return one, tuple(x.detach() for x in self._results(self.facts.forward.cached_tensor_outputs))

    run = replaying.Plan.replay_forward
    monkeypatch.setattr(replaying.Plan, "replay_forward", without_copies)
    assert "something is alive" in fuzz_loops.case(137, "cpu", Counter())
