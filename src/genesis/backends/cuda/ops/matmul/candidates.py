"""The implementations of a matrix product: cuBLASLt's algorithms, and one Triton kernel in several tiles."""

from __future__ import annotations

import itertools

from genesis import dtypes
from genesis.backends.cuda.driver import KernelError, cublaslt
from genesis.backends.cuda.engine.candidate import FULL, TF32, Candidate, Family, Launch
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch import triton as launch
from genesis.backends.cuda.launch.tiles import Tile
from genesis.backends.cuda.ops.matmul.kernels import _matmul_kernel
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE

# By bytes per element, from large to small: as many as two neighbours of the first guess are measured.
TILES = {
    2: (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 4, 4), Tile(64, 64, 64, 4, 4)),
    4: (Tile(64, 64, 32, 4, 3), Tile(32, 64, 32, 4, 3), Tile(32, 32, 64, 4, 3), Tile(16, 64, 64, 4, 3)),
    8: (Tile(64, 64, 16, 4, 3), Tile(32, 32, 32, 4, 3)),
}
_INTEGER_TILES = (Tile(32, 32, 16, 4, 2),)
_GROUP = 8
_NUM_TRIED = 2  # Triton tiles
_NUM_ASKED = 3  # of cuBLASLt's algorithms


class TiledFamily(Family[MatmulProblem]):
    prefix = "tiled"

    def variants(self, problem: MatmulProblem) -> list[Candidate[MatmulProblem]]:
        p = problem
        choice = TILES[p.dtype.itemsize] if p.dtype.is_floating_point else _INTEGER_TILES
        best = tiles.ranked(choice, p.rows, p.columns, p.terms, p.num_matrices, p.dtype, p.device)
        return [Tiled(tile, _arithmetic(p)) for tile in best[:_NUM_TRIED]]


class Tiled(Candidate[MatmulProblem]):
    """The Triton kernel with one tile."""

    def __init__(self, tile: Tile, arithmetic: str = FULL) -> None:
        self.tile, self.arithmetic = tile, arithmetic
        self.name = f"{TiledFamily.prefix}/{tile.block_m}x{tile.block_n}x{tile.block_k} w{tile.num_warps}"

    def supports(self, problem: MatmulProblem) -> bool:
        return True

    def prepare(self, problem: MatmulProblem) -> Launch:
        p, tile = problem, self.tile
        reach = [(p.rows, p.x_strides[0]), (p.terms, max(p.x_strides[1], p.y_strides[0])), (p.columns, p.y_strides[1])]
        wide = sum((size + 256) * abs(stride) for size, stride in [*reach, (p.rows, p.columns)]) >= 2**31
        constants: dict[str, object] = {
            "BATCH_RANK": len(p.batch_shape),
            "COMPUTE": COMPUTE[p.dtype if p.dtype.is_floating_point else dtypes.int64],
            "PRECISION": "ieee" if p.precision == "highest" else "tf32",
            "WIDE": wide,
            "GROUP": _GROUP,
            **tile.constants,
        }
        numbers = (p.rows, p.columns, p.terms)
        tuples = (p.x_strides, p.y_strides, p.batch_shape, p.x_batch_strides, p.y_batch_strides)
        pointer = "*" + launch.TRITON_NAMES[p.dtype]
        given = pointer + "/16" if p.alignment == 16 else pointer
        kinds = (
            pointer + "/16", given, given, given if p.has_bias else None,
            *map(launch.number_kind, numbers), *(tuple(map(launch.number_kind, each)) for each in tuples),
        )  # fmt: skip
        kernel = launch.load(_matmul_kernel, p.device, kinds, constants)
        tail = (*numbers, *itertools.chain(*tuples))
        run = kernel.prepare((p.num_matrices * tile.num_tiles(p.rows, p.columns), 1, 1), 4, tail)
        return lambda stream, out, x, y, bias, _, __: run(stream, out, x, y, bias)


class CublasltFamily(Family[MatmulProblem]):
    prefix = "cublaslt"
    per_turn = _NUM_ASKED  # they need no compiler

    def variants(self, problem: MatmulProblem) -> list[Candidate[MatmulProblem]]:
        p = problem
        if len(p.batch_shape) > 1 or not p.terms or not p.dtype.is_floating_point:
            return []
        gemm = cublaslt.Gemm(
            p.device, p.dtype, p.rows, p.columns, p.terms, (p.x_strides[0], p.x_strides[1]),
            (p.y_strides[0], p.y_strides[1]), p.num_matrices, p.x_batch_strides[0], p.y_batch_strides[0], p.has_bias,
            alignment=p.alignment, precision=p.precision,
        )  # fmt: skip
        try:
            found = cublaslt.products(gemm, _NUM_ASKED)
        except KernelError:  # a layout that it refuses
            return []
        by_name: dict[str, Candidate[MatmulProblem]] = {}
        for product in found:
            by_name.setdefault(product.name, Cublaslt(product, _arithmetic(p)))
        return list(by_name.values())


class Cublaslt(Candidate[MatmulProblem]):
    """One algorithm for one problem."""

    is_ready_made = True

    def __init__(self, product: cublaslt.Product, arithmetic: str) -> None:
        self._product, self.arithmetic = product, arithmetic
        self.name = f"{CublasltFamily.prefix}/{product.name}"

    def supports(self, problem: MatmulProblem) -> bool:
        return True

    def workspace(self, problem: MatmulProblem) -> int:
        return self._product.workspace

    def prepare(self, problem: MatmulProblem) -> Launch:
        return self._product.runner()


def reference(problem: MatmulProblem) -> Candidate[MatmulProblem]:
    """The reference that others are compared with."""
    choice = TILES[problem.dtype.itemsize] if problem.dtype.is_floating_point else _INTEGER_TILES
    return Tiled(choice[-1].fitted(problem.rows, problem.columns, problem.terms))


def _arithmetic(problem: MatmulProblem) -> str:
    return TF32 if problem.is_rounded else FULL
