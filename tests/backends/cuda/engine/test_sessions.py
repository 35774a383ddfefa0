"""Tuning what is met, and what is gathered first."""

from __future__ import annotations

import dataclasses
import io
import logging
import time

import pytest

from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import deferred
from genesis.backends.cuda.driver.compile_processes import Threads
from genesis.backends.cuda.engine import bench, builders, operation, platform, progress, rounds, tuner
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.engine.builders import Builders
from genesis.backends.cuda.ops.conv import accuracy, families
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.engine.store import Entry
from genesis.settings import override
from tests.backends.cuda.engine.fake_candidates import PROBLEM, Fake, FakeFamily, arrays, chosen, run
from tests.backends.cuda.engine.fake_tuner import within


def test_gathered_problems_share_the_time(fakes: FakeFamily) -> None:
    """No candidate is measured before all problems are known; then none gets the time of another."""
    fakes.candidates = [Fake(str(i), seconds=0.05) for i in range(40)]
    problems = [PROBLEM, dataclasses.replace(PROBLEM, padding=(2, 2))]
    session = plans.Session(2, gathers=True)  # less than one of them could use
    plans.begin(session)
    assert [plans.plan(CONV, problem).origin for problem in problems] == [plans.HEURISTIC] * 2
    assert not session.outcomes
    plans.share_out(session)
    plans.end(session)
    assert [outcome.problem for outcome in session.outcomes] == problems
    assert not any(outcome.complete for outcome in session.outcomes)


def gathered(problems: list[ConvProblem], seconds: float = 60.0) -> plans.Session:
    session = plans.Session(seconds, gathers=True)
    plans.begin(session)
    for problem in problems:
        plans.plan(CONV, problem)
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
    session = gathered([PROBLEM], 1.5)
    (outcome,) = session.outcomes
    assert (outcome.candidate.name, outcome.complete) == ("fake/guess", False)
    entry = platform.store(0).get(PROBLEM.key)
    assert entry is not None
    assert (entry.candidate, entry.complete) == ("fake/guess", False)


def test_what_another_process_tuned_to_the_end_meanwhile_stays(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess"), *[Fake(str(i), seconds=0.3) for i in range(9)]]
    session = plans.Session(0.5, gathers=True)
    plans.begin(session)
    plans.plan(CONV, PROBLEM)
    theirs = Entry("fake/3", 9.0, 0.0, 0)
    platform.store(0).put(PROBLEM.key, theirs)
    plans.share_out(session)
    plans.end(session)
    assert platform.store(0).get(PROBLEM.key) == theirs


def test_those_without_time_are_guessed_at_their_next_call(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess")]
    assert gathered([PROBLEM], 1e-9).outcomes == []
    assert plans.all_plans() == []
    assert chosen() == ("fake/guess", plans.HEURISTIC)


def test_no_problem_is_far_ahead_of_another(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal cost, which a busy machine would measure otherwise."""
    monkeypatch.setattr(tuner.Contest, "cost", 1.0)
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
        plans.plan(CONV, problem)
    plans.share_out(session)
    plans.end(session)
    assert [outcome.problem for outcome in session.outcomes] == problems
    assert all(outcome.complete and outcome.num_measured == done[outcome.problem] for outcome in session.outcomes)
    assert max(ahead) <= rounds._AT_A_TIME


def test_slow_ones_are_measured_last_and_only_a_few(fakes: FakeFamily) -> None:
    slow = [Fake(f"slow {i}", slow=True) for i in range(10)]
    fakes.candidates = [*slow, Fake("quick")]
    names = [each.name for each in CONV.in_turns(PROBLEM)]
    assert names[0] == "fake/quick"
    assert names[-operation._MOST_SLOW :] == [each.name for each in slow[: operation._MOST_SLOW]]


def test_what_is_in_use_is_measured_first(fakes: FakeFamily) -> None:
    """A short session after a long one must not lose what that one found."""
    fakes.candidates = [Fake("guess", seconds=0.1), Fake("other", seconds=0.1), Fake("best")]  # on a busy machine too
    contest, unhurried = tuner.Contest(CONV, PROBLEM, 0, Fake("best")), Builders(None)
    for _ in range(3):  # the reference, and the best guess
        if contest.has_job:
            contest.start_next(unhurried)
    contest.visit(within(60), 2, unhurried)
    assert contest.outcome is not None
    assert (contest.outcome.candidate.name, contest.outcome.complete) == ("fake/best", False)
    rounds.share_out([contest], within(60), lambda contest: None)
    assert contest.outcome.num_measured == len(list(CONV.in_turns(PROBLEM)))


def test_an_interrupted_session_keeps_what_it_measured(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess", seconds=0.02), Fake("best"), *[Fake(str(i), seconds=0.02) for i in range(9)]]

    def interrupt(problem: ConvProblem, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    session = plans.Session(60, interrupt, gathers=True)
    plans.begin(session)
    plans.plan(CONV, PROBLEM)
    with pytest.raises(KeyboardInterrupt):
        plans.share_out(session)
    plans.end(session)
    (outcome,) = session.outcomes
    assert (outcome.num_measured, outcome.complete) == (5, False)
    entry = platform.store(0).get(PROBLEM.key)
    assert entry is not None
    assert entry.candidate == outcome.candidate.name
    plans.forget()
    assert chosen()[0] == outcome.candidate.name


def test_a_kernel_that_a_check_lacks_is_waited_for(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench runs kernels too; what it was at is done again when they have been compiled."""
    fakes.candidates = [Fake("guess"), *[Fake(str(i)) for i in range(5)]]
    compilers = Threads(2)
    monkeypatch.setattr(builders, "compilers", lambda: compilers)
    error, made = ConvBench.error, ConvBench.__init__
    asked: list[str] = []

    def lacking(name: str) -> None:
        asked.append(name)
        if deferred.is_deferring():
            deferred.require(deferred.Request.of(name, time.sleep, 0.01))

    def first_compiled(self: ConvBench, built: bench.Built) -> float:
        lacking("difference")
        return error(self, built)

    def prepared(self: ConvBench, problem: ConvProblem) -> None:
        lacking("random")
        made(self, problem)

    monkeypatch.setattr(ConvBench, "error", first_compiled)
    monkeypatch.setattr(ConvBench, "__init__", prepared)
    session = gathered([PROBLEM, dataclasses.replace(PROBLEM, padding=(2, 2))])
    assert all(outcome.complete for outcome in session.outcomes)
    assert len(session.outcomes) == 2
    assert asked[:3] == ["random", "random", "random"]
    assert session.num_compiled == 2
    assert session.compile_seconds >= 0.02
    compilers.close()


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

        def replayed(self, builts: list[bench.Built], milliseconds: float) -> None:
            return None

        def error(self, built: bench.Built) -> float:
            return 1.0 if built.candidate.name == "fake/wrong" else 0.0

    monkeypatch.setattr(CONV, "bench", Scripted)
    contest = tuner.Contest(CONV, PROBLEM, 0)
    rounds.share_out([contest], within(60), lambda contest: None)
    assert contest.outcome is not None
    assert (contest.outcome.candidate.name, contest.outcome.milliseconds) == ("fake/slower", 1.2)
    assert contest.is_over


def test_families_take_turns_when_measured(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("first"), Fake("second"), Fake("third")]
    guesses, measured = ([each.name for each in order(PROBLEM)] for order in (CONV.candidates, CONV.in_turns))
    assert guesses[:3] == ["fake/first", "fake/second", "fake/third"]
    assert [name.partition("/")[0] for name in measured[:2]] == ["fake", "implicit_gemm"]
    assert sorted(guesses) == sorted(measured)


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
    assert outcome.error <= accuracy.error_bound(PROBLEM)
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
    plans.plan(CONV, PROBLEM)
    plans.end(again)
    assert not again.outcomes
    plans.forget()
    fakes.candidates = [Fake("another")]  # what was the best is no longer there
    if name.startswith("fake/"):
        assert chosen() == ("fake/another", plans.HEURISTIC)


def test_without_time_nothing_is_tuned(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess")]
    session = plans.Session(1e-9)
    plans.begin(session)
    assert chosen() == ("fake/guess", plans.HEURISTIC)
    plans.end(session)
    assert not session.outcomes


def test_a_budget_that_ends_in_between(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("first", seconds=0.2), *[Fake(str(i), seconds=0.2) for i in range(20)]]
    session = plans.Session(2.0)
    plans.begin(session)
    _, origin = chosen()
    plans.end(session)
    assert origin == plans.HEURISTIC  # a later session goes on
    assert not session.outcomes[0].complete
    entry = platform.store(0).get(PROBLEM.key)
    assert entry is not None
    assert not entry.complete


def test_the_environment_switch_tunes(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("guess")]
    with override(tune=60.0):
        assert chosen()[1] == plans.TUNED


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("where", ["terminal", "file", "callback"])
def test_progress_is_one_line_of_a_terminal(
    where: str, fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_SHORT", 0.0)
    monkeypatch.setattr(progress, "_EVERY_LINE", 0.0)
    fakes.candidates = [Fake(str(i)) for i in range(12)]
    file = io.StringIO() if where == "file" else Terminal()
    monkeypatch.setattr(progress, "terminal", lambda: file)
    session = plans.Session(60, (lambda *args: None) if where == "callback" else None, gathers=True)
    with caplog.at_level(logging.INFO, "genesis.tuning"):
        plans.begin(session)
        plans.plan(CONV, PROBLEM)
        plans.share_out(session)
        plans.end(session)
    number = session.outcomes[0].num_measured
    assert f"tuning: 1 of 1 problems, {number} candidates measured, 0 kernels compiled" in caplog.text
    *lines, last = file.getvalue().split("\r")
    assert (where == "terminal") == ("genesis: tuning: 0 of 1 problems" in "".join(lines))
    assert last == ""
    assert "\n" not in file.getvalue()


def test_what_has_a_result_is_only_tuned_on_if_asked_to(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("first", seconds=0.2), *[Fake(str(i), seconds=0.2) for i in range(20)]]
    assert not gathered([PROBLEM], 2.0).outcomes[0].complete
    for resumes, expected in ((False, 0), (True, 1)):
        plans.forget()
        session = plans.Session(60, gathers=True, resumes=resumes)
        plans.begin(session)
        plans.plan(CONV, PROBLEM)
        plans.end(session)
        assert len(session.met) == expected


def test_what_builds_slowly_is_not_begun_when_the_time_is_almost_up(
    fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.candidates = [Fake("quick"), Fake("slow", slow=True)]
    monkeypatch.setattr(tuner, "_SLOW", 40.0)
    began = time.monotonic()
    (outcome,) = gathered([PROBLEM], 30).outcomes
    assert time.monotonic() - began < 30, "nothing is left to do"
    assert (outcome.complete, outcome.candidate.builds_slowly) == (False, False)
    plans.forget()
    assert gathered([PROBLEM], 60).outcomes[0].complete


def test_a_second_process_starts_no_compilers(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.candidates = [Fake(str(i)) for i in range(6)]
    problems = [PROBLEM, dataclasses.replace(PROBLEM, padding=(2, 2))]
    assert all(outcome.complete for outcome in gathered(problems).outcomes)
    plans.forget()
    monkeypatch.setattr(builders, "compilers", None)  # calling it would fail
    session = gathered(problems)
    assert (session.outcomes, session.met) == ([], {})
