"""Matrix products for the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis import dtypes
from genesis.backends.cuda.engine import planner, stored
from genesis.backends.cuda.engine.candidate import Family
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.plan import Plan
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.candidate import SkinnyGemmFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import WgmmaFamily
from genesis.backends.cuda.ops.matmul import bench
from genesis.backends.cuda.ops.matmul.as_convolutions import ConvolutionFamily
from genesis.backends.cuda.ops.matmul.bench import MatmulBench
from genesis.backends.cuda.ops.matmul.candidates import CublasltFamily, TiledFamily
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.backends.cuda.runtime.memory import Storage, allocate
from genesis.backends.engine import accuracy
from genesis.errors import OutOfMemoryError

_FEW = 200  # results whose error is not spread: a single one may be off by all of its rounding


class MatmulPlan(Plan[MatmulProblem]):
    __slots__ = ()

    def launch_with_workspace(self, stream: int, out: int, x: int, y: int, bias: int) -> None:
        """Addresses; 0 where there is no bias."""
        _, launch, num_bytes, _ = self.ready  # type: ignore[misc]
        workspace: Storage | None = None
        if num_bytes:
            try:
                workspace = allocate(num_bytes, self.problem.device, stream)
            except OutOfMemoryError:
                planner.use_smaller(self, num_bytes)
                self.launch_with_workspace(stream, out, x, y, bias)
                return
        launch(stream, out, x, y, bias, 0, 0 if workspace is None else workspace.pointer)


class Matmul(Operation[MatmulProblem]):
    def families(self, problem: MatmulProblem) -> Sequence[Family[MatmulProblem]]:
        """Begin with those of few rows, then cuBLASLt: where it has anything, it is the better guess.

        Where all bits of float32 count, Hopper's kernels come before it: on an H200 they take a quarter to half of its
        time (benchmarks/results/bench_linear.md).
        """
        return _EXACT if problem.is_exact else _FAMILIES

    def plan(self, problem: MatmulProblem) -> MatmulPlan:
        return MatmulPlan(self, problem)

    def problem(self, key: str, device: int) -> MatmulProblem:
        return MatmulProblem.from_key(key, device)

    def bench(self, problem: MatmulProblem) -> MatmulBench:
        return MatmulBench(problem)

    def prepare_reference(self, problem: MatmulProblem) -> None:
        bench.prepare_reference(problem)

    def error_bound(self, problem: MatmulProblem) -> float:
        """Bound for sums in the dtype's own multiply-adds; for 16 bits, one rounding; for integers, 0."""
        p = problem
        if not p.dtype.is_floating_point:
            return 0.0
        if p.is_rounded:
            return accuracy.LOWERED[p.precision]
        if p.dtype.itemsize == 2:
            return accuracy.rounding(p.dtype) * (2 if p.num_results < _FEW else 1)
        # The reference is rounded as well where it is float64 too.
        chain = accuracy.chain_bound(p.dtype, p.terms, p.num_results)
        return chain * (math.sqrt(2) if p.dtype is dtypes.float64 else 1)


_SKINNY = ConvolutionFamily(SkinnyGemmFamily(), guessed_from=1 << 15)
_HOPPER = ConvolutionFamily(WgmmaFamily(), guessed_from=1 << 28, tried_from=1 << 24)
_IMPLICIT_GEMM = ConvolutionFamily(ImplicitGemmFamily(), guessed_from=1 << 28, tried_from=1 << 24)
_FAMILIES: tuple[Family[MatmulProblem], ...] = (_SKINNY, CublasltFamily(), TiledFamily())
_EXACT: tuple[Family[MatmulProblem], ...] = (_SKINNY, _HOPPER, CublasltFamily(), TiledFamily(), _IMPLICIT_GEMM)
MATMUL = Matmul()
stored.register(MATMUL)
