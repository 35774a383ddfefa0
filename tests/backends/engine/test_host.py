"""The host's engine: what is measured, believed, stored, and left to the guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from genesis.backends.engine import host
from genesis.settings import override


@dataclass(frozen=True)
class Problem:
    key: str = "problem"
    flops: int = 1000
    candidates: tuple[str, ...] = ("family/guess", "family/fast", "family/wrong")
    platform: str = "a processor"
    error_bound: float = 1e-6


@dataclass
class Bench:
    times: dict[str, float] = field(
        default_factory=lambda: {"family/guess": 2.0, "family/fast": 1.0, "family/wrong": 0.5}
    )
    runs: list[str] = field(default_factory=list)

    def milliseconds(self, name: str) -> float:
        self.runs.append(name)
        return self.times[name]

    def error(self, name: str) -> float:
        return 1e-3 if name == "family/wrong" else 1e-7


def never() -> Bench:
    raise AssertionError("nothing is timed unasked")


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[Path]:
    with override(cache_dir=tmp_path):
        yield tmp_path


def test_nothing_is_timed_and_no_file_made_unasked(store: Path) -> None:
    assert host.chosen(Problem(), never) == "family/guess"
    assert list(store.iterdir()) == []


def test_the_fastest_whose_result_is_right_is_taken_and_remembered() -> None:
    with host.session(10, None, False, True) as session:
        assert host.chosen(Problem(), Bench) == "family/fast"
        assert host.chosen(Problem(), never) == "family/fast"
    (outcome,) = session.outcomes
    assert (outcome.candidate.name, outcome.milliseconds, outcome.complete) == ("family/fast", 1.0, True)
    assert host.chosen(Problem(), never) == "family/fast"
    host.forget()  # as another process
    assert host.chosen(Problem(), never) == "family/fast"
    assert host.describe() == ["problem: family/fast (stored)"]
    assert host.chosen(Problem(platform="another"), never) == "family/guess"


def test_what_is_hardly_faster_than_the_guess_is_left() -> None:
    with host.session(10, None, False, True):
        assert host.chosen(
            Problem(), lambda: Bench({"family/guess": 1.0, "family/fast": 0.98, "family/wrong": 3.0})
        ) == ("family/guess")


def test_a_name_that_is_no_candidate_any_more_is_not_believed() -> None:
    with host.session(10, None, False, True):
        host.chosen(Problem(), Bench)
    host.forget()
    assert host.chosen(Problem(candidates=("family/guess", "family/new")), never) == "family/guess"


def test_a_session_that_gathers_measures_at_its_end() -> None:
    told, before = [], host.epoch()
    small, large = Problem("small", 10), Problem("large", 100)
    benches = {"small": Bench(), "large": Bench()}
    with host.session(10, lambda problem, done, total: told.append((problem.key, done, total)), True, True) as session:
        assert host.epoch() > before
        for problem in (small, large, small):
            assert host.chosen(problem, lambda problem=problem: benches[problem.key]) == "family/guess"
        assert not any(bench.runs for bench in benches.values())
    assert [outcome.problem for outcome in session.outcomes] == [large, small]
    assert session.counts == {small: 2, large: 1}
    assert told[:3] == [("large", 1, 3), ("large", 2, 3), ("large", 3, 3)]
    assert host.chosen(small, never) == "family/fast"
    with host.session(10, None, True, True) as session:
        host.chosen(small, never)
    assert session.met == {}


def test_time_that_is_up_leaves_the_rest_for_the_next_session(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(host.time, "monotonic", lambda: now[0])

    class Slow(Bench):
        def milliseconds(self, name: str) -> float:
            now[0] += 6.0
            return super().milliseconds(name)

    with host.session(10, None, False, True) as session:
        assert host.chosen(Problem(), Slow) == "family/guess"
    (outcome,) = session.outcomes
    assert (outcome.complete, outcome.num_measured) == (False, 1)
    with host.session(10, None, True, False) as session:
        host.chosen(Problem(), never)
    assert session.met == {}, "one that does not resume leaves out what was begun"
    with host.session(10, None, False, True):
        assert host.chosen(Problem(), Bench) == "family/fast"


def test_seconds_of_the_settings_are_spent_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_spent", 0.0)
    with override(tune=5.0):
        assert host.chosen(Problem(), Bench) == "family/fast"
        monkeypatch.setattr(host, "_spent", 5.0)
        assert host.chosen(Problem("another"), never) == "family/guess"
