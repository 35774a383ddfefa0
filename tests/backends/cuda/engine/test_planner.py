"""From a problem to its plan: guess, store, limits, memory, threads."""

from __future__ import annotations

import dataclasses
import gc
import math
import shutil
import threading
import weakref
from pathlib import Path

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.deferred import NotCompiledYet, Request, Ticket, deferring, require
from genesis.backends.cuda.engine import guesses, platform
from genesis.backends.cuda.engine import plan as plan_module
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.engine.candidate import Launch
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.runtime import memory
from genesis.backends.engine.store import Entry, Store
from genesis.cuda.plans import import_plans
from genesis.errors import OutOfMemoryError
from genesis.records import ConvGeometry
from genesis.settings import override
from tests.backends.cuda.engine.fake_candidates import PROBLEM, Fake, FakeFamily, arrays, chosen, run

_FAMILIES = families.FAMILIES


def test_the_first_that_builds_is_the_guess(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("broken", builds=False), Fake("good"), Fake("later")]
    assert chosen() == ("fake/good", plans.HEURISTIC)


def test_nothing_that_builds(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.candidates = [Fake("broken", builds=False)]
    monkeypatch.setattr(families, "FAMILIES", (fakes,))
    with pytest.raises(KernelError, match="no kernel can be built"):
        plans.plan(CONV, PROBLEM)


def again() -> str:
    """The choice of another process."""
    guesses.write()
    guesses._known.clear()
    platform._stores.clear()
    plans.forget()
    return chosen()[0]


def test_a_librarys_guess_is_asked_for_once(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Fake("first", ready_made=True)
    fakes.candidates = [first, Fake("second", ready_made=True)]
    assert chosen() == ("fake/first", plans.HEURISTIC)
    fakes.candidates.reverse()
    assert again() == "fake/first"
    asked: list[ConvProblem] = []
    with monkeypatch.context() as patch:
        patch.setattr(FakeFamily, "variants", lambda self, problem: asked.append(problem) or fakes.candidates)
        patch.setattr(FakeFamily, "named", lambda self, problem, name: first)
        assert (again(), asked) == ("fake/first", [])
    platform.store(0).put(PROBLEM.key, Entry("fake/second", 1.0, 0.0, 0))  # measured
    assert again() == "fake/second"


def test_what_another_process_has_guessed_meanwhile_is_found(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("first", ready_made=True), Fake("second", ready_made=True)]
    assert chosen()[0] == "fake/first"
    guesses.write()
    platform.guesses(0).put(PROBLEM.key, Entry("fake/second", math.inf, 0.0, 0, complete=False))
    assert chosen()[0] == "fake/first"
    plans.forget_guesses()
    assert chosen()[0] == "fake/second"


def test_a_guess_that_is_no_longer_to_be_had(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("gone", ready_made=True)]
    assert chosen()[0] == "fake/gone"
    fakes.candidates = [Fake("gone", ready_made=True, builds=False), Fake("new", ready_made=True)]
    plan_module._used.clear()
    assert again() == "fake/new"
    fakes.candidates.reverse()
    assert again() == "fake/new"


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_guesses_that_are_not_remembered(fakes: FakeFamily, slow: bool, ahead: bool) -> None:
    """Our own kernels', which cost nothing; and where a better one is built in the background."""
    fakes.candidates = [*([Fake("better", slow=True)] if slow else []), Fake("quick", ready_made=slow), Fake("other")]
    if ahead:
        plans.build_guess(CONV.plan(PROBLEM))
    else:
        chosen()
        plans.settle()
    fakes.candidates = [Fake("other")]
    assert again() == "fake/other"


def test_guesses_of_a_folder_that_has_gone_are_dropped(fakes: FakeFamily, tmp_path: Path) -> None:
    fakes.candidates = [Fake("first", ready_made=True)]
    chosen()
    shutil.rmtree(tmp_path)
    guesses.write()
    assert not tmp_path.exists()


def test_without_a_folder_nothing_is_remembered_and_one_warning_says_why(fakes: FakeFamily, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fakes.candidates = [Fake("first", ready_made=True)]
    with override(cache_dir=tmp_path / "file" / "folder"):
        with pytest.warns(UserWarning, match="cannot be kept") as said:
            assert chosen()[0] == "fake/first"
        fakes.candidates = [Fake("second", ready_made=True)]
        plans.forget()
        assert chosen()[0] == "fake/second"  # without another warning, which would be an error
    assert len(said) == 1


def test_a_guess_counts_for_the_sources_that_made_it(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    path = platform.guesses(0).path
    monkeypatch.setattr(platform, "_sources", lambda: "genesis of tomorrow")
    assert platform.guesses(0).path not in (path, platform.store(0).path)


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


@pytest.mark.parametrize(
    "name",
    [
        "absent/1", "fake/absent", "with_statistics_pass/cudnn/eng1", "apart/apart/apart/x",
        "with_residual_pass/with_residual_pass/x", "added/added/x", "sub_pixel_dgrad/sub_pixel_dgrad/x",
        "cudnn/eng", "cudnn/eng99999999999999999999_k1=1", "cudnn/engx_ky=z", "cublaslt/algorithm 1", "wgmma/x",
    ],
)  # fmt: skip
def test_a_stored_name_that_nothing_has(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fakes.candidates = [Fake("guess")]
    monkeypatch.setattr(families, "FAMILIES", (fakes, *_FAMILIES))
    platform.store(0).put(PROBLEM.key, Entry(name, 0.0, 0.0, 0))
    assert chosen() == ("fake/guess", plans.HEURISTIC)


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
    ready, candidate = plans.plan(CONV, PROBLEM).ready, weakref.ref(fakes.candidates.pop())
    plans.forget()
    gc.collect()
    assert candidate() is not None
    fakes.candidates = [Fake("quick", builds=False)]  # of that name there is one that is built
    assert plans.plan(CONV, PROBLEM).ready is ready


def test_the_workspace_limit(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("large", workspace=3 << 20), Fake("small", workspace=1 << 20)]
    assert chosen()[0] == "fake/large"
    with override(workspace=2):
        assert chosen()[0] == "fake/small"
    with override(workspace=0):
        assert chosen()[0].startswith("implicit_gemm/")


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


@pytest.mark.parametrize("stored", [False, True])
def test_while_a_graph_is_captured_nothing_is_timed_nor_built_slowly(
    fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    fakes.candidates = [Fake("slow", slow=True), Fake("quick"), Fake("other")]
    if stored:
        platform.store(0).put(PROBLEM.key, Entry("fake/slow", 1.0, 0.0, 0))
    begun = threading.active_count()
    with monkeypatch.context() as patch, override(tune=60.0):
        patch.setattr(driver.get(), "is_capturing", lambda device, stream: True)
        patch.setattr(CONV, "bench", lambda problem: pytest.fail("timed"))
        plan = plans.plan(CONV, PROBLEM)
        assert plan.candidate is not None
        assert (plan.candidate.name, plan.origin) == ("fake/quick", plans.HEURISTIC)
        assert not plans.may_keep(plan)
    assert (plans.all_plans(), threading.active_count()) == ([], begun)
    with override(tune=60.0):
        assert chosen()[1] == (plans.STORED if stored else plans.TUNED)  # the next call decides
        assert plans.may_keep(plans.plan(CONV, PROBLEM))


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
        plans.plan(CONV, PROBLEM)
    assert capsys.readouterr().err == f"genesis: {PROBLEM}: fake/guess (heuristic)\n"


def test_operands_that_must_be_copied_are_planned_once(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ConvProblem] = []
    plan = plans.plan
    monkeypatch.setattr(plans, "plan", lambda operation, problem: (asked.append(problem), plan(operation, problem))[1])
    x = simulated.full((1, 3, 5, 5), 1.0, dtypes.float32)
    weight = simulated.full((2, 3, 3, 3), 1.0, dtypes.float32)  # both NCHW
    plans.forget()
    for _ in range(3):
        y = simulated.conv_forward(x, weight, None, ConvGeometry((1, 1), (0, 0), (1, 1), 1))
    assert len(asked) == 1
    assert (simulated.to_cpu(y) == 27).all()


def test_a_guess_is_built_ahead(fakes: FakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that plan() chooses, and none after it."""
    prepared: list[str] = []
    prepare = Fake.prepare

    def watched(self: Fake, problem: ConvProblem) -> Launch:
        prepared.append(self.name)
        return prepare(self, problem)

    fakes.candidates = [
        Fake("slow", slow=True), Fake("large", workspace=1 << 40), Fake("refused", builds=False), Fake("good"),
        Fake("late"),
    ]  # fmt: skip
    monkeypatch.setattr(Fake, "prepare", watched)
    plan = CONV.plan(PROBLEM)
    plans.build_guess(plan)
    assert prepared == ["fake/refused", "fake/good"]
    assert plan.candidate is not None
    assert (plan.candidate.name, plan.origin) == ("fake/good", plans.HEURISTIC)
    fakes.candidates = fakes.candidates[1:]
    assert chosen() == ("fake/good", plans.HEURISTIC)


def test_a_librarys_guess_that_is_built_ahead_is_remembered(fakes: FakeFamily) -> None:
    fakes.candidates = [Fake("first", ready_made=True), Fake("second", ready_made=True)]
    plans.build_guess(CONV.plan(PROBLEM))
    fakes.candidates.reverse()
    assert again() == "fake/first"


class Compilers:
    """They compile when they are told to."""

    def __init__(self) -> None:
        self.asked: list[Ticket] = []

    def submit(self, request: Request) -> Ticket:
        self.asked.append(Ticket(request))
        return self.asked[-1]


def test_a_rehearsal_asks_for_all_kernels_at_once(
    fakes: FakeFamily, simulated: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For what is launched after a guess too, whose result has its layout and is not computed until it is compiled."""
    fakes.candidates = [Fake("library", ready_made=True), Fake("guess")]
    fakes.candidates.reverse()
    prepare = Fake.prepare

    def lacking(self: Fake, problem: ConvProblem) -> Launch:
        if self.name == "fake/guess":
            require(Request.of(self.name, str, self.name))
        return prepare(self, problem)

    monkeypatch.setattr(Fake, "prepare", lacking)
    compilers, tickets = Compilers(), {}
    session = plans.Session(60.0, gathers=True, rehearses=True)
    operands = arrays(simulated)
    plans.begin(session)
    try:
        with deferring(compilers, tickets):
            y = run(simulated, *operands)
            (plan,) = plans.all_plans()
            assert (plan.candidate.name, plan.origin) == ("fake/guess", plans.HEURISTIC)
            assert [ticket.request.name for ticket in compilers.asked] == ["str"]
            with pytest.raises(NotCompiledYet):
                plans.build_guess(plan)
            for ticket in compilers.asked:
                ticket.done = True
            plans.build_guess(plan)
            computed = run(simulated, *operands)
    finally:
        plans.end(session)
    assert list(session.met) == [PROBLEM]
    assert y.shape == computed.shape
    plans.forget_guesses()
    assert plans.all_plans() == []
    assert (simulated.to_cpu(computed) == simulated.to_cpu(run(simulated, *operands))).all()
