"""What the fuzzer calls of decompositions: matrices of distinct eigenvalues, with pivots far from each other."""

from __future__ import annotations

from typing import Any

import torch

from tests.conformance.fuzz_draw import Draw, drawn_by


def _matrix(d: Draw, rows: int, columns: int) -> Any:
    """Diagonally dominant: the pivots are those of the diagonal, and no sign hangs on rounding."""
    dtype, batch = d.choice((torch.float32, torch.float64)), d.shape(high=2)
    batch = batch if torch.Size(batch).numel() < 30 else (2,)
    x = d.tensor((*batch, rows, columns), dtype)
    diagonal = torch.zeros(rows, columns, dtype=dtype)
    diagonal.diagonal().copy_(4 * max(rows, columns) + torch.arange(min(rows, columns), dtype=dtype))
    return x.clamp(-2, 2) + diagonal


def _square(d: Draw) -> Any:
    size = d.integer(0, 9)
    return _matrix(d, size, size)


@drawn_by("cholesky eigh")
def of_symmetric(name: str, d: Draw) -> Any:
    x = _square(d)
    return (x + x.mT) / 2, d.chance()


@drawn_by("lu")
def lu(name: str, d: Draw) -> Any:
    return (_matrix(d, d.integer(1, 9), d.integer(1, 9)),)


@drawn_by("matrix_exp")
def matrix_exp(name: str, d: Draw) -> Any:
    return (_square(d) / 20,)


@drawn_by("lu_order")
def lu_order(name: str, d: Draw) -> Any:
    rows, columns = d.integer(1, 9), d.integer(1, 9)
    return torch.linalg.lu_factor(torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(rows)))[1], rows


@drawn_by("qr svd")
def of_any_shape(name: str, d: Draw) -> Any:
    return _matrix(d, d.integer(1, 9), d.integer(1, 9)), d.chance()


@drawn_by("triangular_solve")
def triangular_solve(name: str, d: Draw) -> Any:
    a = _square(d)
    return a, d.tensor((a.shape[-1], d.integer(0, 5)), a.dtype), d.chance(), d.chance(0.2)
