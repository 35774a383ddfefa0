"""Candidates for the planner, and calls that use them."""

from __future__ import annotations

import threading
import time

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch
from genesis.backends.cuda.ops.conv import launch as conv
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.records import ConvGeometry

PROBLEM = ConvProblem("forward", (1, 4, 5, 5), (3, 4, 1, 1), dtype=dtypes.float32)


class Fake(Candidate):
    """Computes what the plain kernel does, and adds wrong_by; or refuses to be built."""

    def __init__(
        self, name: str, workspace: int = 0, wrong_by: float = 0.0, builds: bool = True, slow: bool = False,
        deterministic: bool = True, arithmetic: str = "full", seconds: float = 0.0, ready_made: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.builds_slowly, self.deterministic = f"fake/{name}", slow, deterministic
        self.arithmetic, self.is_ready_made = arithmetic, ready_made
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
        plain = ImplicitGemmFamily().variants(problem)[0].prepare(problem)

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


def chosen(problem: ConvProblem = PROBLEM) -> tuple[str, str]:
    plan = plans.plan(CONV, problem)
    assert plan.candidate is not None
    return plan.candidate.name, plan.origin


def arrays(cuda: Backend) -> tuple[DeviceArray, DeviceArray]:
    return cuda.randn((1, 4, 5, 5), 1), cuda.randn((3, 4, 1, 1), 2)


def run(cuda: Backend, *operands: DeviceArray) -> DeviceArray:
    result: DeviceArray = conv.conv_forward(*operands, None, ConvGeometry((1, 1), (0, 0), (1, 1), 1))
    return result
