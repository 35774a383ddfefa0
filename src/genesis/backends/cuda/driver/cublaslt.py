"""Matrix products of NVIDIA's cuBLASLt, through ctypes; where the library is not installed, products() gives none.

cuBLASLt thinks in columns: our row-major out = x @ y is its column-major outᵀ = yᵀ @ xᵀ; its A is our y, its B our x.
Source: the cuBLAS documentation, "Using the cuBLASLt API" (names and numbers of the enumerations are cublasLt.h's).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from genesis import dtypes
from genesis.backends.cuda import driver, streams
from genesis.backends.cuda.driver.interface import KernelError
from genesis.dtypes import DType

_WORKSPACE_LIMIT = 32 << 20
_NUM_ASKED = 3

_DATA_TYPE = {dtypes.float32: 0, dtypes.float64: 1, dtypes.float16: 2, dtypes.bfloat16: 14}
_COMPUTE_64F = 70
_COMPUTE_32F = {"highest": 68, "high": 77, "medium": 75}  # float32; through TF32; through bfloat16
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 4, 7, 8
_EPILOGUE_BIAS = 4
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6
_PREF_WORKSPACE, _PREF_REDUCTION, _PREF_ALIGNMENT = 1, 3, (5, 6, 7, 8)  # of A, B, C, D
_REDUCE_IN_COMPUTE_TYPE = 2  # partial sums are never rounded to 16 bits


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


def leading_dimension(rows: int, columns: int, strides: tuple[int, int]) -> tuple[int, bool] | None:
    """(leading dimension, is it transposed) of a row-major or column-major matrix; None where it is neither.

    >>> leading_dimension(4, 3, (5, 1)), leading_dimension(4, 3, (1, 4)), leading_dimension(4, 3, (6, 2))
    ((5, False), (4, True), None)
    """
    row, column = strides
    if column == 1 or columns == 1:
        leading = row if rows > 1 else columns
        if leading >= columns:
            return leading, False
    if row == 1 or rows == 1:
        leading = column if columns > 1 else rows
        if leading >= rows:
            return leading, True
    return None


class _Operation:
    """What the algorithms for one problem share. One launch at a time: the bias is an attribute of the descriptor."""

    def __init__(self, *handles: Any) -> None:
        """handles: the library, its context, the descriptor, the layouts of A, B and D."""
        self.handles, self.matmul = handles, handles[0].cublasLtMatmul
        self.lock = threading.Lock()
        self.bias = 0  # the address that is set

    def set_bias(self, address: int) -> None:
        library, _, descriptor, *_ = self.handles
        _set(library.cublasLtMatmulDescSetAttribute, descriptor, _DESC_BIAS_POINTER, ctypes.c_uint64(address))
        self.bias = address


class Product:
    """One algorithm for one problem; workspace is the bytes that run() wants."""

    def __init__(self, device: int, dtype: DType, operation: _Operation, found: _Heuristic) -> None:
        self.workspace = int(found.workspace)
        self._device, self._operation = device, operation
        number = ctypes.c_double if dtype is dtypes.float64 else ctypes.c_float
        one, zero = number(1), number(0)
        self._addresses = out, x, y, workspace, stream = [ctypes.c_void_p() for _ in range(5)]  # of the next launch
        _, context, descriptor, a, b, d = operation.handles
        self._arguments = (
            context, descriptor, ctypes.byref(one), y, a, x, b, ctypes.byref(zero), out, d, out, d,
            ctypes.byref(found.algorithm), workspace, ctypes.c_size_t(self.workspace), stream,
        )  # fmt: skip
        here: Any = driver.get()
        self._driver, self._note = here, here.recorder(device)

    def run(self, out: int, x: int, y: int, bias: int, workspace: int) -> None:
        """Addresses; on the current stream."""
        self._driver.activate(self._device)
        operation, stream = self._operation, streams.current_handle(self._device)
        with operation.lock:
            if bias and bias != operation.bias:
                operation.set_bias(bias)
            addresses = self._addresses
            addresses[0].value, addresses[1].value, addresses[2].value = out, x, y
            addresses[3].value, addresses[4].value = workspace, stream
            status = operation.matmul(*self._arguments)
        _check(status, "cublasLtMatmul")
        self._note("cublasLtMatmul")
        if self._driver.watch_launches:
            values = (out, x, y, bias, workspace)
            self._driver.launched(self._device, "cublasLtMatmul", (1, 1, 1), stream, values)


def products(
    device: int, dtype: DType, rows: int, columns: int, terms: int, x_strides: tuple[int, ...],
    y_strides: tuple[int, ...], num_matrices: int, x_batch_stride: int, y_batch_stride: int, has_bias: bool,
    alignment: int, precision: str = "highest",
) -> list[Product]:  # fmt: skip
    """What cuBLASLt suggests for (num_matrices, rows, terms) @ (num_matrices, terms, columns), the best first."""
    library = _library()
    x = leading_dimension(rows, terms, (x_strides[0], x_strides[1]))
    y = leading_dimension(terms, columns, (y_strides[0], y_strides[1]))
    if library is None or dtype not in _DATA_TYPE or x is None or y is None:
        return []
    context = _context(device)
    data_type = _DATA_TYPE[dtype]
    compute = _COMPUTE_64F if dtype is dtypes.float64 else _COMPUTE_32F[precision]
    scale_type = _DATA_TYPE[dtypes.float64 if dtype is dtypes.float64 else dtypes.float32]

    descriptor = ctypes.c_void_p()
    _check(library.cublasLtMatmulDescCreate(ctypes.byref(descriptor), compute, scale_type), "cublasLtMatmulDescCreate")
    attribute = library.cublasLtMatmulDescSetAttribute
    _set(attribute, descriptor, _DESC_TRANSA, ctypes.c_int32(y[1]))
    _set(attribute, descriptor, _DESC_TRANSB, ctypes.c_int32(x[1]))
    if has_bias:
        _set(attribute, descriptor, _DESC_EPILOGUE, ctypes.c_int32(_EPILOGUE_BIAS))
        # The heuristic looks at the address's alignment only; each run sets its own.
        _set(attribute, descriptor, _DESC_BIAS_POINTER, ctypes.c_uint64(alignment))

    def layout(height: int, width: int, leading: int, batch_stride: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        status = library.cublasLtMatrixLayoutCreate(ctypes.byref(made), data_type, height, width, leading)
        _check(status, "cublasLtMatrixLayoutCreate")
        _set(library.cublasLtMatrixLayoutSetAttribute, made, _LAYOUT_BATCH_COUNT, ctypes.c_int32(num_matrices))
        _set(library.cublasLtMatrixLayoutSetAttribute, made, _LAYOUT_BATCH_STRIDE, ctypes.c_int64(batch_stride))
        return made

    a = layout(*((terms, columns) if y[1] else (columns, terms)), y[0], y_batch_stride)
    b = layout(*((rows, terms) if x[1] else (terms, rows)), x[0], x_batch_stride)
    d = layout(columns, rows, columns, rows * columns)

    preference = ctypes.c_void_p()
    _check(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cublasLtMatmulPreferenceCreate")
    prefer = library.cublasLtMatmulPreferenceSetAttribute
    _set(prefer, preference, _PREF_WORKSPACE, ctypes.c_uint64(_WORKSPACE_LIMIT))
    _set(prefer, preference, _PREF_REDUCTION, ctypes.c_uint32(_REDUCE_IN_COMPUTE_TYPE))
    for which in _PREF_ALIGNMENT:
        _set(prefer, preference, which, ctypes.c_uint32(alignment))
    found = (_Heuristic * _NUM_ASKED)()
    count = ctypes.c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        context, descriptor, a, b, d, d, preference, _NUM_ASKED, found, ctypes.byref(count)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    if status != 0:  # no algorithm for this problem
        return []
    operation = _Operation(library, context, descriptor, a, b, d)
    return [Product(device, dtype, operation, found[i]) for i in range(count.value) if found[i].state == 0]


@functools.cache
def _library() -> Any:
    """libcublasLt, that comes with PyTorch's CUDA build, nvidia-cublas or the CUDA toolkit; None without it."""
    from cuda import pathfinder

    try:
        loaded = pathfinder.load_nvidia_dynamic_lib("cublasLt")
    except (pathfinder.DynamicLibNotFoundError, RuntimeError):
        return None
    library = ctypes.CDLL(loaded.abs_path)
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
    library.cublasLtMatrixLayoutCreate.argtypes = [pointer, number, wide, wide, ctypes.c_int64]
    library.cublasLtMatmulAlgoGetHeuristic.argtypes = [pointer] * 7 + [number, pointer, pointer]
    return library


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    here: Any = driver.get()
    here.activate(device)
    context = ctypes.c_void_p()
    _check(_library().cublasLtCreate(ctypes.byref(context)), "cublasLtCreate")
    return context


def _set(function: Any, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
    status = function(target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))
    _check(status, f"{function.__name__} {attribute}")


def _check(status: int, doing: str) -> None:
    if status != 0:
        raise KernelError(f"{doing}: cuBLAS status {status}")
