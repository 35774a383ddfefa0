"""From a problem to its plan: guess, tuning, store, limits, memory, threads."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import conv, memory
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.conv import bench, families, plans, platform, tuner
from genesis.backends.cuda.conv.candidate import Candidate, Family, Launch
from genesis.backends.cuda.conv.problem import ConvProblem
from genesis.backends.cuda.conv.store import Entry, Store
from genesis.backends.cuda.conv.triton_direct import DirectFamily
from genesis.backends.cuda.driver import KernelError
from genesis.cuda.plans import import_plans
from genesis.errors import OutOfMemoryError
from genesis.settings import override

_FAMILIES = families.FAMILIES
PROBLEM = ConvProblem("forward", (1, 4, 5, 5), (3, 4, 1, 1), dtype=dtypes.float32)


class Fake(Candidate):
    """Computes what the plain kernel does, and adds wrong_by; or refuses to be built."""

    def __init__(
        self, name: str, workspace: int = 0, wrong_by: float = 0.0, builds: bool = True, slow: bool = False,
        deterministic: bool = True, arithmetic: str = "full", seconds: float = 0.0,
    ) -> None:  # fmt: skip
        self.name, self.builds_slowly, self.deterministic = f"fake/{name}", slow, deterministic
        self.arithmetic = arithmetic
        self._workspace, self._wrong_by, self._builds, self._seconds = workspace, wrong_by, builds, seconds
        self.may_build = threading.Event()
        self.may_build.set()

    def supports(self, problem: ConvProblem) -> bool:
        return True

    def workspace(self, problem: ConvProblem) -> int:
        return self._workspace

    def prepare(self, problem: ConvProblem) -> Launch:
        assert self.may_build.wait(10)
        if not self._builds:
            raise KernelError("refused")
        plain = DirectFamily().variants(problem)[0].prepare(problem)

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            assert bool(workspace) == bool(self._workspace)
            time.sleep(self._seconds)
            plain(stream, out, first, second if not self._wrong_by else first, bias, residual, workspace)

        return run


class FakeFamily(Family):
    prefix = "fake"

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []

    def variants(self, problem: ConvProblem) -> list[Candidate]:
        return self.candidates if problem.dtype is dtypes.float32 else []


@pytest.fixture
def fakes(simulated: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFamily]:
    family = FakeFamily()
    monkeypatch.setattr(families, "FAMILIES", (family, DirectFamily()))
    with override(cache_dir=tmp_path):
        plans.forget()
        yield family
        plans.forget()
    plans._used.clear()


def chosen(problem: ConvProblem = PROBLEM) -> tuple[str, str]:
    plan = plans.plan(problem)
    assert plan.candidate is not None
    return plan.candidate.name, plan.origin


def test_the_first_that_builds_is_the_guess(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("broken", builds=False), Fake("good"), Fake("later")]
    assert chosen() == ("fake/good", plans.GUESSED)


def test_nothing_that_builds(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.candidates = [Fake("broken", builds=False)]
    monkeypatch.setattr(families, "FAMILIES", (fakes,))
    with pytest.raises(KernelError, match="no kernel can be built"):
        plans.plan(PROBLEM)


def test_gathered_problems_share_the_time(fakes: FakeFamily) -> None:
    """No candidate is measured before all problems are known; then none gets the time of another."""
    fakes.candidates = [Fake(str(i), seconds=0.05) for i in range(40)]
    problems = [PROBLEM, dataclasses.replace(PROBLEM, padding=(2, 2))]
    session = plans.Session(2, gathers=True)  # less than one of them could use
    plans.begin(session)
    assert [plans.plan(problem).origin for problem in problems] == [plans.GUESSED] * 2
    assert not session.outcomes
    plans.share_out(session)
    plans.end(session)
    assert [outcome.problem for outcome in session.outcomes] == problems
    assert not any(outcome.complete for outcome in session.outcomes)


def gathered(problems: list[ConvProblem], seconds: float = 60.0) -> plans.Session:
    session = plans.Session(seconds, gathers=True)
    plans.begin(session)
    for problem in problems:
        plans.plan(problem)
    plans.share_out(session)
    plans.end(session)
    return session


def test_gathering_compiles_nothing_where_something_is_ready_made(fakes: FakeFamily) -> None:
    """The call that finds out what there is to tune must not take longer than tuning."""
    ready_made = Fake("ready-made")
    ready_made.is_ready_made = True
    fakes.candidates = [Fake("the best guess"), ready_made]
    session = plans.Session(60, gathers=True)
    plans.begin(session)
    assert chosen()[0] == "fake/ready-made"
    plans.end(session)
    plans.forget()
    assert chosen()[0] == "fake/the best guess"


def test_gathering_counts_the_calls(fakes: FakeFamily, simulated: Backend) -> None:
    fakes.candidates = [Fake("only")]
    operands = arrays(simulated)
    session = plans.Session(60, gathers=True)
    plans.begin(session)
    for _ in range(3):
        run(simulated, *operands)
    plans.end(session)
    assert session.counts == {PROBLEM: 3}
    assert plans._contest(session.met[PROBLEM], session).cost == pytest.approx(3 * tuner._estimate(PROBLEM))


def test_a_guess_that_wins_a_short_contest_is_stored_too(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", (fakes,))
    fakes.candidates = [Fake("guess"), Fake("slow", seconds=0.3), *[Fake(str(i), seconds=0.3) for i in range(9)]]
    session = gathered([PROBLEM], 0.5)
    (outcome,) = session.outcomes
    assert (outcome.candidate.name, outcome.complete) == ("fake/guess", False)
    entry = platform.store(0).get(PROBLEM.key)
    assert entry is not None
    assert (entry.candidate, entry.complete) == ("fake/guess", False)


def test_what_another_process_tuned_to_the_end_meanwhile_stays(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess"), *[Fake(str(i), seconds=0.3) for i in range(9)]]
    session = plans.Session(0.5, gathers=True)
    plans.begin(session)
    plans.plan(PROBLEM)
    theirs = Entry("fake/3", 9.0, 0.0, 0)
    platform.store(0).put(PROBLEM.key, theirs)
    plans.share_out(session)
    plans.end(session)
    assert platform.store(0).get(PROBLEM.key) == theirs


def test_those_without_time_are_guessed_at_their_next_call(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess")]
    assert gathered([PROBLEM], 1e-9).outcomes == []
    assert plans.all_plans() == []
    assert chosen() == ("fake/guess", plans.GUESSED)


def test_no_problem_is_far_ahead_of_another(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake(str(i)) for i in range(12)]
    problems = [PROBLEM, dataclasses.replace(PROBLEM, padding=(2, 2)), dataclasses.replace(PROBLEM, padding=(3, 3))]
    done = dict.fromkeys(problems, 0)
    ahead: list[int] = []

    def told(problem: ConvProblem, number: int, total: int) -> None:
        done[problem] = number
        ahead.append(max(done.values()) - min(done.values()))

    session = plans.Session(60, told, gathers=True)
    plans.begin(session)
    for problem in problems:
        plans.plan(problem)
    plans.share_out(session)
    plans.end(session)
    assert [outcome.problem for outcome in session.outcomes] == problems
    assert all(outcome.complete and outcome.num_measured == done[outcome.problem] for outcome in session.outcomes)
    assert max(ahead[: 3 * tuner._FIRST_ROUND]) == tuner._FIRST_ROUND
    assert max(ahead) <= 2 * tuner._FIRST_ROUND


def test_slow_ones_are_measured_last_and_only_a_few(fakes: FakeFamily) -> None:
    slow = [Fake(f"slow {i}", slow=True) for i in range(10)]
    fakes.candidates = [*slow, Fake("quick")]
    names = [each.name for each in families.in_turns(PROBLEM)]
    assert names[0] == "fake/quick"
    assert names[-families._MOST_SLOW :] == [each.name for each in slow[: families._MOST_SLOW]]


def test_candidates_are_built_at_once(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner.os, "cpu_count", lambda: 4)
    both = threading.Barrier(2)

    class Waits(Fake):
        def prepare(self, problem: ConvProblem) -> Launch:
            both.wait(10)  # raises where the other one is not being built meanwhile
            return super().prepare(problem)

    fakes.candidates = [Waits("first"), Waits("second")]
    contest, deadline = tuner.Contest(PROBLEM, 0), time.monotonic() + 60
    tuner.build_ahead([contest], 3, deadline)
    assert contest.tasks(3, deadline) == []
    contest.visit(deadline)
    assert contest.is_over
    assert contest.outcome is not None


def test_what_is_in_use_is_measured_first(fakes: FakeFamily) -> None:
    """A short session after a long one must not lose what that one found."""
    fakes.candidates = [Fake("guess", seconds=0.02), Fake("other", seconds=0.02), Fake("best")]
    contest = tuner.Contest(PROBLEM, 0, Fake("best"))
    contest.visit(0.0)
    assert contest.outcome is not None
    assert (contest.outcome.candidate.name, contest.outcome.complete) == ("fake/best", False)
    contest.visit(time.monotonic() + 60)
    assert contest.outcome.num_measured == len(list(families.in_turns(PROBLEM)))


def test_who_wins_when_times_are_close(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come out ahead when they are timed again are believed only if they are right."""
    fakes.candidates = [Fake("lucky once"), Fake("wrong"), Fake("slower"), Fake("broken", builds=False)]
    monkeypatch.setattr(families, "FAMILIES", (fakes,))
    times = {"lucky once": [1.0, 1.3, 1.3], "wrong": [1.05, 1.05, 1.05], "slower": [1.09, 1.2, 1.2]}

    class Scripted:
        def __init__(self, problem: ConvProblem) -> None:
            self.checked: list[str] = []

        def milliseconds(self, built: bench.Built, best: float) -> float:
            return times[built.candidate.name.removeprefix("fake/")].pop(0)

        def error(self, built: bench.Built) -> float:
            return 1.0 if built.candidate.name == "fake/wrong" else 0.0

    monkeypatch.setattr(tuner, "Bench", Scripted)
    contest = tuner.Contest(PROBLEM, 0)
    contest.visit(time.monotonic() + 60)
    assert contest.outcome is not None
    assert (contest.outcome.candidate.name, contest.outcome.milliseconds) == ("fake/slower", 1.2)
    assert contest.is_over


def test_families_take_turns_when_measured(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("first"), Fake("second"), Fake("third")]
    guesses, measured = ([each.name for each in order(PROBLEM)] for order in (families.candidates, families.in_turns))
    assert guesses[:3] == ["fake/first", "fake/second", "fake/third"]
    assert [name.partition("/")[0] for name in measured[:2]] == ["fake", "triton_direct"]
    assert sorted(guesses) == sorted(measured)


@pytest.mark.parametrize(
    ("precision", "deterministic", "expected"),
    [("highest", False, "any order"), ("high", False, "tf32"), ("medium", False, "bf16"), ("highest", True, "plain")],
)
def test_policy(fakes: FakeFamily, precision: str, deterministic: bool, expected: str) -> None:
    fakes.candidates = [
        Fake("bf16", arithmetic="bf16"), Fake("tf32", arithmetic="tf32"), Fake("any order", deterministic=False),
        Fake("plain"),
    ]  # fmt: skip
    problem = dataclasses.replace(PROBLEM, precision=precision, deterministic=deterministic)
    assert chosen(problem)[0] == f"fake/{expected}"


def test_tuning_takes_the_fastest_that_is_right(fakes: FakeFamily) -> None:
    fakes.candidates = [
        Fake("slow", seconds=0.05), Fake("quick", seconds=0.002), Fake("wrong", wrong_by=1.0),
        Fake("broken", builds=False), Fake("large", workspace=2 << 20),
    ]  # fmt: skip
    told: list[tuple[int, int]] = []
    session = plans.Session(60, lambda problem, done, total: told.append((done, total)))
    with override(workspace=1):
        plans.begin(session)
        try:
            name, origin = chosen()
        finally:
            plans.end(session)
    (outcome,) = session.outcomes
    assert origin == plans.TUNED
    assert outcome.candidate.name == name
    assert name not in ("fake/slow", "fake/wrong", "fake/broken", "fake/large")
    assert outcome.error <= tuner.error_bound(PROBLEM)
    assert told == [(i + 1, len(told)) for i in range(len(told))]
    assert outcome.complete


def test_what_was_tuned_is_stored(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("quick")]
    session = plans.Session(60)
    plans.begin(session)
    name, _ = chosen()
    plans.end(session)
    plans.forget()
    fakes.candidates = [Fake("a new best guess"), Fake("quick")]
    assert chosen() == (name, plans.STORED)
    again = plans.Session(60)
    plans.begin(again)
    plans.plan(PROBLEM)
    plans.end(again)
    assert not again.outcomes
    plans.forget()
    fakes.candidates = [Fake("another")]  # what was the best is no longer there
    if name.startswith("fake/"):
        assert chosen() == ("fake/another", plans.GUESSED)


@pytest.mark.parametrize(
    "name",
    [
        "absent/1", "fake/absent", "apart/cudnn/eng1", "apart/apart/apart/x", "added/added/x", "sub_pixel/sub_pixel/x",
        "cudnn/eng", "cudnn/eng99999999999999999999_k1=1", "cudnn/engx_ky=z", "cublaslt/algorithm 1", "wgmma/x",
    ],
)  # fmt: skip
def test_a_stored_name_that_nothing_has(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fakes.candidates = [Fake("guess")]
    monkeypatch.setattr(families, "FAMILIES", (fakes, *_FAMILIES))
    platform.store(0).put(PROBLEM.key, Entry(name, 0.0, 0.0, 0))
    assert chosen() == ("fake/guess", plans.GUESSED)


def test_an_imported_plan_replaces_ours_only_if_there_is_such_a_kernel(fakes: FakeFamily, tmp_path: Path) -> None:
    fakes.candidates = [Fake("ours"), Fake("theirs")]
    theirs, ours, key = Store(tmp_path / "theirs", platform.describe(0)), platform.store(0), PROBLEM.key
    for name, expected in (("absent", "ours"), ("theirs", "theirs")):
        ours.put(key, Entry("fake/ours", 1.0, 0.0, 0))
        theirs.put(key, Entry(f"fake/{name}", 0.5, 0.0, 0))
        theirs.export(tmp_path / "exported")
        import_plans(tmp_path / "exported")
        assert chosen()[0] == f"fake/{expected}"
        plans.forget()


def test_what_was_in_use_stays_built(fakes: FakeFamily) -> None:
    """A CUDA graph may have captured its kernels, whose code would go from the device with a plan of cuDNN's."""
    fakes.candidates = [Fake("quick")]
    ready, candidate = plans.plan(PROBLEM).ready, weakref.ref(fakes.candidates.pop())
    plans.forget()
    gc.collect()
    assert candidate() is not None
    fakes.candidates = [Fake("quick", builds=False)]  # of that name there is one that is built
    assert plans.plan(PROBLEM).ready is ready


def test_without_time_nothing_is_tuned(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess")]
    session = plans.Session(1e-9)
    plans.begin(session)
    assert chosen() == ("fake/guess", plans.GUESSED)
    plans.end(session)
    assert not session.outcomes


def test_a_budget_that_ends_in_between(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("first", seconds=0.05), *[Fake(str(i), seconds=0.05) for i in range(20)]]
    session = plans.Session(0.2)
    plans.begin(session)
    _, origin = chosen()
    plans.end(session)
    assert origin == plans.GUESSED  # a later session goes on
    assert not session.outcomes[0].complete
    entry = platform.store(0).get(PROBLEM.key)
    assert entry is not None
    assert not entry.complete


def test_the_environment_switch_tunes(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess")]
    with override(tune=60.0):
        assert chosen()[1] == plans.TUNED


def test_the_workspace_limit(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("large", workspace=3 << 20), Fake("small", workspace=1 << 20)]
    assert chosen()[0] == "fake/large"
    with override(workspace=2):
        assert chosen()[0] == "fake/small"
    with override(workspace=0):
        assert chosen()[0].startswith("triton_direct/")


def arrays(cuda: Backend) -> tuple[DeviceArray, DeviceArray]:
    return cuda.randn((1, 4, 5, 5), 1), cuda.randn((3, 4, 1, 1), 2)


def run(cuda: Backend, *operands: DeviceArray) -> DeviceArray:
    result: DeviceArray = conv.conv_forward(*operands, None, (1, 1), (0, 0), (1, 1), 1)
    return result


def test_without_memory_a_smaller_workspace_is_taken(fakes: FakeFamily, simulated: Backend) -> None:
    fakes.candidates = [Fake("large", workspace=64 << 20), Fake("middle", workspace=32 << 20), Fake("small")]
    operands = arrays(simulated)
    expected = simulated.to_cpu(run(simulated, *operands))
    assert chosen()[0] == "fake/large"
    pool = memory.pool(0)
    pool.empty_cache()
    pool.limit = pool.statistics().reserved + (1 << 20)
    try:
        result = run(simulated, *operands)
        with pytest.raises(OutOfMemoryError):
            simulated.empty((1 << 20,), (1,), dtypes.float64)
    finally:
        pool.limit = None
    assert (simulated.to_cpu(result) == expected).all()
    assert chosen()[0] == "fake/small"


def test_the_workspace_is_reused(fakes: FakeFamily, simulated: Backend) -> None:
    fakes.candidates = [Fake("large", workspace=1 << 20)]
    operands = arrays(simulated)
    run(simulated, *operands)
    before = memory.pool(0).statistics().num_driver_allocations
    for _ in range(5):
        run(simulated, *operands)
    assert memory.pool(0).statistics().num_driver_allocations == before


def test_a_slow_plan_is_built_in_the_background(fakes: FakeFamily) -> None:
    slow = Fake("slow", slow=True)
    slow.may_build.clear()
    fakes.candidates = [slow, Fake("meanwhile")]
    assert chosen()[0] == "fake/meanwhile"
    slow.may_build.set()
    for thread in threading.enumerate():
        if thread.name == "genesis plan":
            thread.join(10)
    assert chosen()[0] == "fake/slow"
    plans.forget()
    slow.may_build.clear()
    with override(deterministic=True):  # the same bits from the first call on
        slow.may_build.set()
        assert chosen(dataclasses.replace(PROBLEM, deterministic=True))[0] == "fake/slow"


def test_threads_share_one_plan(fakes: FakeFamily, simulated: Backend) -> None:
    fakes.candidates = [Fake("only", workspace=4096)]
    operands = arrays(simulated)
    expected = simulated.to_cpu(run(simulated, *operands))
    plans.forget()
    results: list[bool] = []

    def work() -> None:
        results.extend((simulated.to_cpu(run(simulated, *operands)) == expected).all() for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 12
    assert len([plan for plan in plans.all_plans() if plan.problem == PROBLEM]) == 1


def test_debug_tells_of_each_plan(fakes: FakeFamily, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.candidates = [Fake("guess")]
    with override(debug=1):
        plans.plan(PROBLEM)
    assert capsys.readouterr().err == f"genesis: {PROBLEM}: fake/guess (guessed)\n"


def test_operands_that_must_be_copied_are_planned_once(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ConvProblem] = []
    plan = plans.plan
    monkeypatch.setattr(plans, "plan", lambda problem: (asked.append(problem), plan(problem))[1])
    x = simulated.full((1, 3, 5, 5), 1.0, dtypes.float32)
    weight = simulated.full((2, 3, 3, 3), 1.0, dtypes.float32)  # both NCHW
    plans.forget()
    for _ in range(3):
        y = simulated.conv_forward(x, weight, None, (1, 1), (0, 0), (1, 1), 1)
    assert len(asked) == 1
    assert (simulated.to_cpu(y) == 27).all()
