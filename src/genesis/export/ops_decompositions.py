"""Translations: elimination and substitution, step by step, as ONNX has of linear algebra only determinants.

Each step works on whole matrices behind a mask, so that batches may be dynamic; the matrices' own sizes may not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genesis import dtypes
from genesis.export.graph import Emitter, Operand
from genesis.export.registry import translates
from genesis.export.sizes import Dim

if TYPE_CHECKING:
    import onnx_ir as ir

_LARGEST = 64  # rows; a step is about fifteen nodes


class _Matrices:
    """Masks and parts of matrices of fixed size, for one step after the other.

    Attributes:
        num_rows, num_columns: of each matrix.
        rows, columns: (num_rows, 1) and (num_columns,), the numbers of each.
    """

    def __init__(self, e: Emitter, num_rows: Dim, num_columns: Dim) -> None:
        self.num_rows = e.fixed(num_rows, "a number of rows")
        self.num_columns = e.fixed(num_columns, "a number of columns")
        if max(self.num_rows, self.num_columns) > _LARGEST:
            raise e.refuse(f"matrices of more than {_LARGEST} rows or columns would need too many nodes in ONNX")
        self._e = e
        self.rows, self.columns = np.arange(self.num_rows)[:, None], np.arange(self.num_columns)

    def where(self, mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], x: ir.Value, y: ir.Value) -> ir.Value:
        return self._e.op("Where", self._e.array(mask), x, y)

    def row(self, x: ir.Value | Operand, number: int) -> ir.Value:
        """(…, 1, columns)."""
        return self._e.op("Gather", x, self._e.ints([number]), axis=-2)

    def column(self, x: ir.Value | Operand, number: int) -> ir.Value:
        """(…, rows, 1)."""
        return self._e.op("Gather", x, self._e.ints([number]), axis=-1)

    def entry(self, x: ir.Value | Operand, number: int) -> ir.Value:
        """(…, 1, 1), of the diagonal."""
        return self.column(self.row(x, number), number)


def _failed(e: Emitter, info: ir.Value | None, step: int, is_failure: ir.Value) -> ir.Value:
    """LAPACK's info: the first step that failed, from 1; (…, 1, 1)."""
    number, zero = e.number(step + 1, dtypes.int32), e.number(0, dtypes.int32)
    if info is None:
        return e.op("Where", is_failure, number, zero)
    return e.op("Where", e.op("And", is_failure, e.op("Equal", info, zero)), number, info)


def _info(e: Emitter, x: Operand, info: ir.Value | None) -> ir.Value:
    if info is None:
        return e.op("Expand", e.number(0, dtypes.int32), e.sizes(x.shape[:-2]))
    return e.op("Squeeze", info, e.ints([-2, -1]))


def _exchanged(e: Emitter, x: ir.Value, places: ir.Value, one: int, other: ir.Value, axis: int) -> ir.Value:
    """Exchange what stands at one number and at another along an axis; no arithmetic, so that ∞ stays in its row."""
    dtype_zero = e.op("CastLike", e.number(0, dtypes.int64), x)
    is_other = e.op("Equal", places, other)
    first = e.op("Gather", x, e.ints([one]), axis=axis)
    second = e.op("ReduceSum", e.op("Where", is_other, x, dtype_zero), e.ints([axis]), keepdims=1)
    moved = e.op("Where", is_other, first, x)
    return e.op("Where", e.op("Equal", places, e.number(one, dtypes.int64)), second, moved)


@translates("LU", "lu")
def lu(e: Emitter, x: Operand) -> tuple[ir.Value, ir.Value, ir.Value]:
    m = _Matrices(e, *x.shape[-2:])
    table, zero, one = x.value, e.number(0, x.dtype), e.number(1, x.dtype)
    places = e.array(m.rows)
    pivots: list[ir.Value] = []
    info = None
    for step in range(min(m.num_rows, m.num_columns)):
        candidates = e.op("Abs", m.column(table, step))
        candidates = m.where(m.rows >= step, candidates, e.number(-1, x.dtype))
        pivot = e.op("ArgMax", candidates, axis=-2, keepdims=1)  # (…, 1, 1)
        pivots.append(e.op("Squeeze", pivot, e.ints([-1])))
        table = _exchanged(e, table, places, step, pivot, -2)
        head = m.entry(table, step)
        is_zero = e.op("Equal", head, zero)
        info = _failed(e, info, step, is_zero)
        factor = e.op("Div", m.column(table, step), e.op("Where", is_zero, one, head))
        reduced = e.op("Sub", table, e.op("Mul", factor, m.row(table, step)))
        below, right = m.rows > step, m.columns > step
        table = m.where(below & right, reduced, m.where(below & (m.columns == step), factor, table))
    if not pivots:
        return table, e.op("Expand", e.number(0, dtypes.int32), e.sizes(e.results[1].shape)), _info(e, x, info)
    numbers = e.op("Add", e.op("Concat", *pivots, axis=-1), e.number(1, dtypes.int64))
    return table, e.convert(numbers, dtypes.int32), _info(e, x, info)


@translates("lu_order")
def lu_order(e: Emitter, pivots: Operand, num_rows: Dim) -> ir.Value:
    places = e.array(np.arange(e.fixed(num_rows, "a number of rows")))
    order = e.op("Expand", places, e.sizes(e.shape))
    numbers = e.op("Sub", e.cast(pivots, dtypes.int64), e.number(1, dtypes.int64))
    for step in range(e.fixed(pivots.shape[-1], "a number of pivots")):
        other = e.op("Gather", numbers, e.ints([step]), axis=-1)
        order = _exchanged(e, order, places, step, other, -1)
    return order


@translates("triangular_solve")
def triangular_solve(e: Emitter, a: Operand, b: Operand, upper: bool, unitriangular: bool) -> ir.Value:
    m = _Matrices(e, *a.shape[-2:])
    x = e.op("Expand", b, e.sizes(e.shape))
    for step in reversed(range(m.num_rows)) if upper else range(m.num_rows):
        found = m.row(x, step)
        if not unitriangular:
            found = e.op("Div", found, m.entry(a, step))
        rest = e.op("Sub", x, e.op("Mul", m.column(a, step), found))
        is_left = m.rows < step if upper else m.rows > step
        x = m.where(is_left, rest, m.where(m.rows == step, found, x))
    return x


@translates("Cholesky", "cholesky")
def cholesky(e: Emitter, x: Operand, upper: bool) -> tuple[ir.Value, ir.Value]:
    m = _Matrices(e, *x.shape[-2:])
    turned = [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]
    table = e.op("Transpose", x, perm=turned) if upper else x.value
    zero, columns, info = e.number(0, x.dtype), [], None
    for step in range(m.num_rows):
        head = m.entry(table, step)
        info = _failed(e, info, step, e.op("Not", e.op("Greater", head, zero)))
        column = e.op("Div", m.column(table, step), e.op("Sqrt", head))
        columns.append(m.where(m.rows >= step, column, zero))
        reduced = e.op("Sub", table, e.op("Mul", column, e.op("Transpose", column, perm=turned)))
        table = m.where((m.rows > step) & (m.columns > step), reduced, table)
    factor = e.op("Concat", *columns, axis=-1) if columns else table
    return e.op("Transpose", factor, perm=turned) if upper else factor, _info(e, x, info)


@translates("Det")
def det(e: Emitter, x: Operand) -> ir.Value:
    if x.dtype is dtypes.float32:  # ONNX Runtime has no other
        return e.op("Det", x)
    packed, pivots, _ = lu(e, x)
    size = e.fixed(x.shape[-1])
    diagonal = e.op("Where", e.array(np.eye(size, dtype=bool)), packed, e.number(1, x.dtype))
    product = e.op("ReduceProd", diagonal, e.ints([-2, -1]), keepdims=0)
    moved = e.op("Equal", pivots, e.array(np.arange(1, size + 1, dtype=np.int32)))
    signs = e.op("Where", moved, e.number(1, x.dtype), e.number(-1, x.dtype))
    return e.op("Mul", product, e.op("ReduceProd", signs, e.ints([-1]), keepdims=0))
