"""Adding to the input's gradient by a pass over it: what any candidate can be followed by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, admissible
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.ops.conv.kernels import _add_kernel
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.dtypes import DType
from genesis.shapes import numel

_BLOCK = 1024


class AddedFamily(Family):
    """The candidates of a family that has none for the sum, or only such as take long to build."""

    def __init__(self, first: Family) -> None:
        self._first, self.prefix, self.per_turn = first, f"added/{first.prefix}", first.per_turn

    def variants(self, problem: ConvProblem) -> Iterator[Candidate]:
        """None of those that nobody should use unless their result has been checked: the sum hides what they do."""
        if any(admissible(each, problem) and not each.builds_slowly for each in self._first.variants(problem)):
            return iter(())
        alone = without_residual(problem)
        return map(Added, [each for each in self._first.variants(alone) if admissible(each, alone)])

    def named(self, problem: ConvProblem, name: str) -> Candidate | None:
        first = self._first.named(without_residual(problem), name.removeprefix("added/"))
        return None if first is None else Added(first)


class Added(Candidate):
    """One of the candidates for the gradient alone, and the pass."""

    def __init__(self, first: Candidate) -> None:
        self._first, self.name = first, f"added/{first.name}"
        self.arithmetic, self.deterministic = first.arithmetic, first.deterministic
        self.builds_slowly = first.builds_slowly
        self.is_ready_made = first.is_ready_made  # the pass is compiled once for all problems

    def supports(self, problem: ConvProblem) -> bool:
        return problem.residual and self._first.supports(without_residual(problem))

    def workspace(self, problem: ConvProblem) -> int:
        return self._first.workspace(without_residual(problem))

    def prepare(self, problem: ConvProblem) -> Launch:
        compute = self._first.prepare(without_residual(problem))
        add = adder(problem.device, problem.dtype, problem.alignment, numel(problem.result_shape))

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            compute(stream, out, first, second, bias, 0, workspace)
            add(stream, out, residual)

        return run


def adder(device: int, dtype: DType, alignment: int, num_elements: int) -> Callable[[int, int, int], None]:
    """run(stream, out, addend): out += addend, so many elements, one after the other in memory."""
    operand, grid = Pointer(dtype, alignment), (-(-num_elements // _BLOCK),)
    return bind(_add_kernel, device, grid, operand, operand, num_elements, COMPUTE=COMPUTE[dtype], BLOCK=_BLOCK)


def without_residual(problem: ConvProblem) -> ConvProblem:
    return dataclasses.replace(problem, residual=False)
