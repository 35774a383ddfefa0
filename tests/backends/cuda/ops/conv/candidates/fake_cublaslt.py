# ruff: noqa: N802, N815  (the names are the library's)
"""A cuBLASLt that computes on host memory: descriptors, layouts and products as its documentation defines them.

Matrices lie in memory column by column; D = relu(op(A) op(B) + β C + bias), with an element of the bias for each row.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = {0: np.float32, 2: np.float16}
_TRANSA, _TRANSB, _EPILOGUE, _BIAS = 3, 4, 7, 8
_RELU, _HAS_BIAS = 2, 4
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # of a layout
REDUCTION, WORKSPACE = 3, 1  # attributes of a preference
COMPUTE_FAST_TF32 = 77


class FakeLibrary:
    """The functions of the library that driver/cublaslt.py calls, and what was asked of them."""

    def __init__(self, algorithms: list[dict[int, int]]) -> None:
        """algorithms: what the heuristic suggests, each by its configuration's attributes."""
        self.algorithms = algorithms
        self.workspace = 0  # bytes, of the first algorithm
        self.refuses_layouts = self.has_no_algorithm = False
        self.refused: set[int] = set()  # places in algorithms
        self.alive: dict[int, Any] = {}  # descriptors, layouts and preferences
        self.preferences: list[dict[int, int]] = []
        self.launches: list[tuple[int, int]] = []  # workspace, stream
        self._handles = itertools.count(1)

    def cublasLtCreate(self, context: Any) -> int:
        context._obj.value = 1
        return 0

    def cublasLtMatmulDescCreate(self, made: Any, compute: int, scale: int) -> int:
        return self._make(made, {"compute": compute})

    def cublasLtMatrixLayoutCreate(self, made: Any, kind: int, rows: int, columns: int, leading: int) -> int:
        if self.refuses_layouts:
            return 7
        return self._make(made, {"kind": kind, "rows": rows, "columns": columns, "leading": leading})

    def cublasLtMatmulPreferenceCreate(self, made: Any) -> int:
        return self._make(made, {})

    def cublasLtMatmulDescSetAttribute(self, target: Any, attribute: int, value: Any, size: Any) -> int:
        self.alive[target.value][attribute] = value._obj.value
        return 0

    cublasLtMatrixLayoutSetAttribute = cublasLtMatmulDescSetAttribute
    cublasLtMatmulPreferenceSetAttribute = cublasLtMatmulDescSetAttribute

    def cublasLtMatmulDescDestroy(self, target: Any) -> int:
        del self.alive[target.value]
        return 0

    cublasLtMatrixLayoutDestroy = cublasLtMatmulPreferenceDestroy = cublasLtMatmulDescDestroy

    def cublasLtMatmulAlgoGetHeuristic(
        self, context: Any, descriptor: Any, a: Any, b: Any, c: Any, d: Any, preference: Any, most: int, found: Any,
        count: Any,
    ) -> int:  # fmt: skip
        self.preferences.append(dict(self.alive[preference.value]))
        if self.has_no_algorithm:
            return 15
        for i in range(min(most, len(self.algorithms))):
            found[i].algorithm.data[0] = i
            found[i].state = 15 if i in self.refused else 0
            found[i].workspace = self.workspace if i == 0 else 0
            count._obj.value = i + 1
        return 0

    def cublasLtMatmulAlgoConfigGetAttribute(
        self, algorithm: Any, attribute: int, value: Any, size: int, written: None
    ) -> int:
        settings = self.algorithms[algorithm._obj.data[0]]
        if attribute not in settings:
            return 7
        value._obj.value = settings[attribute]
        return 0

    def cublasLtMatmul(
        self, context: Any, descriptor: Any, alpha: Any, a: Any, a_layout: Any, b: Any, b_layout: Any, beta: Any,
        c: Any, c_layout: Any, d: Any, d_layout: Any, algorithm: Any, workspace: Any, size: Any, stream: Any,
    ) -> int:  # fmt: skip
        wanted = self.alive[descriptor.value]
        for i in range(self.alive[d_layout.value][_BATCH_COUNT]):
            left, right = (self._matrix(*each, i).astype(np.float64) for each in ((a, a_layout), (b, b_layout)))
            out = self._matrix(d, d_layout, i)
            result = (left.T if wanted[_TRANSA] else left) @ (right.T if wanted[_TRANSB] else right) * alpha._obj.value
            if beta._obj.value:
                result += beta._obj.value * self._matrix(c, c_layout, i)
            if wanted[_EPILOGUE] & _HAS_BIAS:
                result += _read(wanted[_BIAS], len(out), out.dtype)[:, None]
            out[...] = np.maximum(result, 0) if wanted[_EPILOGUE] & _RELU else result
        self.launches.append((workspace.value or 0, stream.value or 0))
        return 0

    def _make(self, made: Any, attributes: dict[Any, int]) -> int:
        made._obj.value = next(self._handles)
        self.alive[made._obj.value] = attributes
        return 0

    def _matrix(self, address: Any, layout: Any, number: int) -> NDArray[Any]:
        """The matrix of that number, in place."""
        its = self.alive[layout.value]
        rows, columns, leading = its["rows"], its["columns"], its["leading"]
        dtype = np.dtype(_KINDS[its["kind"]])
        step = dtype.itemsize
        whole = _read(address.value + number * its[_BATCH_STRIDE] * step, leading * (columns - 1) + rows, dtype)
        return np.lib.stride_tricks.as_strided(whole, (rows, columns), (step, leading * step))


def _read(address: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)
