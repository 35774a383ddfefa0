"""One problem and the candidate that computes it, ready to launch."""

from __future__ import annotations

import sys
from typing import Generic, NamedTuple

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import AnyCandidate, Candidate, Launch, P, Parts
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.problem import Problem
from genesis.backends.cuda.runtime.array import Layout
from genesis.settings import settings

STORED, TUNED, HEURISTIC = "stored", "tuned", "heuristic"


class Ready(NamedTuple):
    """A candidate built for a problem."""

    candidate: AnyCandidate
    launch: Launch
    workspace: int  # bytes of scratch memory
    moments: tuple[Layout, Parts] | None  # where it leaves the statistics


# What plans have used, for good: a CUDA graph that captured a launch does not keep the kernel's code on the device, and
# with a plan of cuDNN that it compiled, its code would go. Also, a plan that is made anew is ready at once.
_used: dict[tuple[Problem, str], Ready] = {}
driver.forget_on_switch(_used.clear)


class Plan(Generic[P]):
    """Subclasses are called with operands, and launch what is ready."""

    __slots__ = ("candidate", "operation", "origin", "problem", "ready")

    def __init__(self, operation: Operation[P], problem: P) -> None:
        self.operation, self.problem = operation, problem
        self.origin = HEURISTIC
        self.candidate: Candidate[P] | None = None
        self.ready: Ready | None = None

    def use(self, candidate: Candidate[P], origin: str) -> None:
        """Compute with this candidate from now on. Raises: KernelError: it cannot be built."""
        key = self.problem, candidate.name
        ready = _used.get(key)
        if ready is None:
            ready = _used[key] = self._built(candidate)
        self.ready = ready  # one assignment: other threads see all or nothing
        self.candidate, self.origin = candidate, origin
        if settings.debug >= 1:
            print(f"genesis: {self.problem}: {candidate.name} ({origin})", file=sys.stderr)

    def use_nothing(self, candidate: Candidate[P]) -> None:
        """Stand for this candidate, which has no kernel yet: results have its layout, and are not computed."""
        workspace, moments = candidate.workspace(self.problem), self._moments(candidate)
        self.candidate, self.ready = candidate, Ready(candidate, _compute_nothing, workspace, moments)

    def _built(self, candidate: Candidate[P]) -> Ready:
        problem, moments = self.problem, self._moments(candidate)
        return Ready(candidate, candidate.prepare(problem), candidate.workspace(problem), moments)

    def _moments(self, candidate: Candidate[P]) -> tuple[Layout, Parts] | None:
        """Moments of a problem that asks for statistics."""
        return None

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        assert self.ready is not None
        return self.ready.workspace


def _compute_nothing(stream: int, /, *addresses: int) -> None:
    """A launch without a kernel."""
