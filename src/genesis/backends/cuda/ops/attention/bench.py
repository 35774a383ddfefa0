"""Operands for one attention on the device, and how far a candidate's results on them are from our kernel's."""

from __future__ import annotations

import math

from genesis import dtypes
from genesis.backends.cuda.driver.debug import show_choice
from genesis.backends.cuda.engine.bench import Bench, Built
from genesis.backends.cuda.engine.replays import Operand
from genesis.backends.cuda.launch.strides import reach
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.attention.forward import Flash
from genesis.backends.cuda.ops.attention.kernels.distance import _distance_kernel
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.backends.cuda.ops.random import launch as random
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.shapes import Shape

_BLOCK_ROWS = 32
_LOGSUMEXP_BOUND = 2.0**-12  # absolute: as a factor of all probabilities of a row, below what 16 bits show


class AttentionBench(Bench[AttentionProblem]):
    """Normal numbers in the problem's layouts; and our results once they are asked for."""

    def __init__(self, problem: AttentionProblem) -> None:
        super().__init__(problem)
        p = problem
        self._inputs = [self._drawn(*side, seed) for seed, side in enumerate((p.queries, p.keys, p.values))]
        self._results = self._new_results()
        self._expected: tuple[DeviceArray, DeviceArray] | None = None

    def _drawn(self, shape: Shape, strides: Shape, seed: int) -> DeviceArray:
        return random.randn((reach(shape, strides) + 1,), seed, self.problem.dtype, self.problem.device)

    def _new_results(self) -> tuple[DeviceArray, DeviceArray]:
        """y and logsumexp, not yet written."""
        shape, dtype, device = self.problem.result_shape, self.problem.dtype, self.problem.device
        return array.empty(shape, dtype, device), array.empty(shape[:3], dtypes.float32, device)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(map(Operand, (*self._results, *self._inputs)))

    def error(self, built: Built[AttentionProblem]) -> float:
        """The largest relative distance of a row of y; infinite if logsumexp is further off than rounding."""
        if self._expected is None:
            ours = Flash()
            self.run(Built(ours, ours.prepare(self.problem), 0))
            self._expected, self._results = self._results, self._new_results()
        self.run_anew(built, *self._results)
        (y, logsumexp), (expected, expected_sums) = self._results, self._expected
        num_rows, value_size = logsumexp.size, y.shape[-1]
        num_blocks = -(-num_rows // _BLOCK_ROWS)
        largest = array.empty((2, num_blocks), dtypes.float32, self.problem.device)
        launch(
            _distance_kernel, (num_blocks,), largest, y, expected, logsumexp, expected_sums, num_rows,
            VALUE_SIZE=value_size, BLOCK_M=_BLOCK_ROWS, BLOCK_V=power_of_2(value_size),
        )  # fmt: skip
        squares, absolute = storage.to_cpu(largest).max(axis=1).tolist()
        relative = math.sqrt(squares)
        if math.isfinite(relative) and absolute <= _LOGSUMEXP_BOUND:
            return relative
        show_choice(built.candidate.name, f"is {relative:.1e} from ours, and {absolute:.1e} in logarithms")
        return math.inf
