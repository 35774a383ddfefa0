"""Tuning with compilers that compile: for sm_90, in other processes, beside measurements on the simulated device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triton import knobs

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver.compile_processes import Processes, Threads
from genesis.backends.cuda.driver.deferred import Request, Ticket
from genesis.backends.cuda.driver.simulated import SimulatedDriver
from genesis.backends.cuda.driver.triton_driver import compile_kernel
from genesis.backends.cuda.engine import builders, rounds
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.engine.builders import Builders
from genesis.backends.cuda.launch import triton as launch
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.settings import override

PROBLEM = ConvProblem("forward", (1, 16, 3, 3), (16, 16, 1, 1), dtype=dtypes.float16)


@pytest.fixture
def compiled_here(simulated: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels that this process compiles; what it runs is interpreted, but first compiled as on a GPU."""
    found: list[str] = []
    load = SimulatedDriver.load_kernel

    def load_compiled(self: SimulatedDriver, device: int, kernel: Any, signature: Any) -> Any:
        compile_kernel(kernel, signature, 90)
        return load(self, device, kernel, signature)

    monkeypatch.setattr(SimulatedDriver, "load_kernel", load_compiled)
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "triton"))
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda **told: None if told["cache_hit"] else found.append(told["src"].name)
    )
    monkeypatch.setattr(families, "FAMILIES", (ImplicitGemmFamily(),))
    monkeypatch.setattr(rounds, "_WORTH_PROCESSES", 0)
    with override(cache_dir=tmp_path, compilers=2):
        plans.forget()
        launch._loaded.clear()
        yield found
        plans.forget()
    launch._loaded.clear()


def tuned(seconds: float) -> plans.Session:
    """As a network is, but for its first call, whose kernels this process compiles."""
    session = plans.Session(seconds, gathers=True)
    plans.begin(session)
    session.met[PROBLEM] = CONV.plan(PROBLEM)
    plans.share_out(session)
    return session


def test_kernels_of_candidates_and_of_checks_are_compiled_elsewhere(compiled_here: list[str], tmp_path: Path) -> None:
    session = tuned(100)
    (outcome,) = session.outcomes
    assert outcome.complete
    assert compiled_here == [], "this process has only measured"
    assert session.num_compiled >= 5, "a candidate, its reference, operands, differences and sums"
    assert session.compile_seconds > 0
    shared = builders.compilers()
    assert isinstance(shared, Processes)
    assert shared._server is not None
    plans.end(session)
    assert shared._server is None, "the compilers end with the session"
    num_files = len(list(tmp_path.rglob("*.cubin")))
    launch._loaded.clear()  # as in another process
    with override(cache_dir=tmp_path / "no plans"):
        again = tuned(100)
        plans.end(again)
    assert len(again.outcomes) == 1
    assert (compiled_here, again.num_compiled) == ([], 0), "all of it is on the disk"
    assert len(list(tmp_path.rglob("*.cubin"))) == num_files


def test_the_steps_of_a_check_are_asked_for_at_once(compiled_here: list[str]) -> None:
    """Otherwise each waits for the compiler of the one before: seconds in which nothing can be believed."""
    asked: list[Request] = []

    class Noting(Threads):
        def submit(self, request: Request) -> Ticket:
            asked.append(request)
            return Ticket(request)  # never done

    Builders(Noting(1)).rehearse(CONV.rehearsals(PROBLEM))
    names = [request.subject.__name__ for request in asked]
    assert len(names) == len({request.key for request in asked}) >= 5
    assert compiled_here == []
    plans.forget()


def test_a_budget_that_ends_while_compilers_work(compiled_here: list[str]) -> None:
    began = time.monotonic()
    session = tuned(0.5)
    assert time.monotonic() - began < 0.5 + 3.0, "on a machine that others use too"
    assert (session.outcomes, compiled_here) == ([], [])
    plans.end(session)


def test_without_processes_threads_compile(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with override(compilers=0):
        assert isinstance(builders.compilers(), Threads)
    with override(compilers=3):
        shared = builders.compilers()
        assert (type(shared), shared.number) == (Processes, 3)
        shared.is_broken = True
        assert isinstance(builders.compilers(), Threads)
    monkeypatch.setattr(builders.os, "sched_getaffinity", lambda process: set(range(64)))
    assert builders.number() == builders._MOST
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert builders.number() == 8, "ranks of one machine share its cores"
