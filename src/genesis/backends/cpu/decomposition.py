"""Decompositions of matrices, by LAPACK."""

from __future__ import annotations

import torch
from torch import Tensor


def cholesky(x: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    factor, info = torch.linalg.cholesky_ex(x, upper=upper)
    return factor, info


def eigh(x: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(x, UPLO="U" if upper else "L")
    return values, vectors


def lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    packed, pivots, info = torch.linalg.lu_factor_ex(x)
    return packed, pivots, info


def lu_order(pivots: Tensor, num_rows: int) -> Tensor:
    square = pivots.new_empty((*pivots.shape[:-1], num_rows, pivots.shape[-1]), dtype=torch.float32)
    permutation = torch.lu_unpack(square, pivots, unpack_data=False)[0]
    return permutation.argmax(-2) if num_rows else permutation.new_empty(permutation.shape[:-1], dtype=torch.int64)


def matrix_exp(x: Tensor) -> Tensor:
    return torch.linalg.matrix_exp(x)


def qr(x: Tensor, complete: bool) -> tuple[Tensor, Tensor]:
    q, r = torch.linalg.qr(x, mode="complete" if complete else "reduced")
    return q, r


def svd(x: Tensor, full_matrices: bool) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vh = torch.linalg.svd(x, full_matrices=full_matrices)
    return s, u, vh


def triangular_solve(a: Tensor, b: Tensor, upper: bool, unitriangular: bool) -> Tensor:
    return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unitriangular)
