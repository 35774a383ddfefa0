"""Matrix products of NVIDIA's cuBLASLt, through ctypes; where the library is not installed, products() gives none.

cuBLASLt thinks in columns: our row-major out = x @ y is its column-major outᵀ = yᵀ @ xᵀ; its A is our y, its B our x.
Source: the cuBLAS documentation, "Using the cuBLASLt API" (names and numbers of the enumerations are cublasLt.h's).
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.interface import KernelError
from genesis.dtypes import DType

_WORKSPACE_LIMIT = 32 << 20

_DATA_TYPE = {dtypes.float32: 0, dtypes.float64: 1, dtypes.float16: 2, dtypes.bfloat16: 14}
_COMPUTE_64F = 70
_COMPUTE_32F = {"highest": 68, "high": 77, "medium": 75}  # float32; through TF32; through bfloat16
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 4, 7, 8
_EPILOGUE_NONE, _EPILOGUE_RELU, _EPILOGUE_BIAS = 1, 2, 4
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6
_PREF_WORKSPACE, _PREF_REDUCTION, _PREF_ALIGNMENT = 1, 3, (5, 6, 7, 8)  # of A, B, C, D
_REDUCE_IN_COMPUTE_TYPE = 2  # by a kernel of its own: in one order, and partial sums are never rounded to 16 bits
_ADDRESSES = struct.Struct("6P")  # of C, D, B, A, the workspace and the stream
# What tells an algorithm from others: cublasLtMatmulAlgoConfigAttributes_t, and what it is called in a product's name.
_CONFIGURATION: dict[str, tuple[int, type[ctypes._SimpleCData[int]]]] = {
    "algorithm": (0, ctypes.c_int32), "tile": (1, ctypes.c_uint32), "stages": (6, ctypes.c_uint32),
    "cluster": (8, ctypes.c_uint16), "inner": (7, ctypes.c_uint16), "swizzle": (4, ctypes.c_uint32),
    "option": (5, ctypes.c_uint32), "splits": (2, ctypes.c_int32), "reduction": (3, ctypes.c_uint32),
}  # fmt: skip


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


class Gemm(NamedTuple):
    """out = relu(x @ y + bias + residual), of num_matrices at once: all that decides how it is computed.

    x is (rows, terms), y is (terms, columns), bias is (columns,); out and residual are dense and row-major.
    """

    device: int
    dtype: DType
    rows: int
    columns: int
    terms: int
    x_strides: tuple[int, int]
    y_strides: tuple[int, int]
    num_matrices: int = 1
    x_batch_stride: int = 0
    y_batch_stride: int = 0
    has_bias: bool = False
    has_residual: bool = False
    relu: bool = False
    alignment: int = 16  # of all addresses, in bytes
    precision: str = "highest"  # of float32: "highest" | "high" | "medium"
    has_sums: bool = False  # out is float32, whatever the dtype of x and y

    @property
    def epilogue(self) -> int:
        chosen = _EPILOGUE_RELU * self.relu + _EPILOGUE_BIAS * self.has_bias
        return chosen or _EPILOGUE_NONE


class _Operation:
    """Shared by the algorithms for one problem. One launch at a time: the bias is an attribute of the descriptor."""

    def __init__(
        self, library: ctypes.CDLL, context: ctypes.c_void_p, descriptor: ctypes.c_void_p, *layouts: ctypes.c_void_p
    ) -> None:
        """layouts: of A, B and D."""
        self.library, self.context, self.descriptor, self.layouts = library, context, descriptor, layouts
        self.lock = threading.Lock()
        self.bias = 0  # the address that is set
        self._address = ctypes.c_uint64()
        size = ctypes.c_size_t(ctypes.sizeof(self._address))
        self._arguments = descriptor, _DESC_BIAS_POINTER, ctypes.byref(self._address), size

    def __del__(self) -> None:
        self.library.cublasLtMatmulDescDestroy(self.descriptor)
        for layout in self.layouts:
            self.library.cublasLtMatrixLayoutDestroy(layout)

    def set_bias(self, address: int) -> None:
        self._address.value = address
        _check(self.library.cublasLtMatmulDescSetAttribute(*self._arguments), "cublasLtMatmulDescSetAttribute")
        self.bias = address


class Product:
    """One algorithm for one problem; workspace is the bytes that it wants. The same operands give the same bits."""

    def __init__(self, gemm: Gemm, operation: _Operation, found: _Heuristic) -> None:
        self.workspace = int(found.workspace)
        self.gemm, self._operation, self._algorithm = gemm, operation, found.algorithm

    @property
    def name(self) -> str:
        """The algorithm's settings, those that are not 0: "algorithm 66 tile 418 stages 36 cluster 3 splits 1"."""
        get = self._operation.library.cublasLtMatmulAlgoConfigGetAttribute
        words = []
        for word, (attribute, kind) in _CONFIGURATION.items():
            value = kind()
            status = get(ctypes.byref(self._algorithm), attribute, ctypes.byref(value), ctypes.sizeof(value), None)
            if status == 0 and value.value:  # an older library lacks the last attributes
                words.append(f"{word} {value.value}")
        return " ".join(words)

    def runner(self) -> Callable[[int, int, int, int, int, int, int], None]:
        """run(stream, out, x, y, bias, residual, workspace): addresses; 0 for operands that the problem has not."""
        here = driver.gpu()
        gemm, operation = self.gemm, self._operation
        device, lock, note, activate = gemm.device, operation.lock, here.recorder(gemm.device), here.activate
        table = ctypes.create_string_buffer(_ADDRESSES.size)  # of the next launch
        pack, of_each = _ADDRESSES.pack_into, range(0, _ADDRESSES.size, ctypes.sizeof(ctypes.c_void_p))
        c, d, b, a, room, queue = [ctypes.c_void_p.from_buffer(table, offset) for offset in of_each]
        number = ctypes.c_double if gemm.dtype is dtypes.float64 else ctypes.c_float
        one, share = number(1), number(1 if gemm.has_residual else 0)  # D = epilogue(1 · A B + share · C)
        of_a, of_b, of_d = operation.layouts
        matmul, arguments = operation.library.cublasLtMatmul, (
            operation.context, operation.descriptor, ctypes.byref(one), a, of_a, b, of_b, ctypes.byref(share), c,
            of_d, d, of_d, ctypes.byref(self._algorithm), room, ctypes.c_size_t(self.workspace), queue,
        )  # fmt: skip

        def run(stream: int, out: int, x: int, y: int, bias: int, residual: int, workspace: int) -> None:
            activate(device)
            with lock:
                if bias and bias != operation.bias:
                    operation.set_bias(bias)
                pack(table, 0, residual or out, out, x, y, workspace, stream)
                status = matmul(*arguments)
            if status:
                _check(status, "cublasLtMatmul")
            note("cublasLtMatmul")
            if here.watch_launches:
                here.launched(device, "cublasLtMatmul", (1, 1, 1), stream, (out, x, y, bias, residual, workspace))

        return run


def is_available() -> bool:
    """Is it a real device, and the library there?"""
    return driver.get().name == "cuda" and _library() is not None


@functools.cache
def installed() -> str:
    """The installed version, if possible without loading it: "nvidia-cublas 13.1.0.3"; "" where cuBLASLt is missing."""
    for package in ("nvidia-cublas", "nvidia-cublas-cu12"):
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    library = _library()
    return "" if library is None else f"cuBLAS {library.cublasLtGetVersion()}"


def warm_up(device: int) -> None:
    """Load the library and make its context, which takes a while, before anybody waits for it."""
    if is_available():
        _context(device)


def products(gemm: Gemm, most: int) -> list[Product]:
    """Up to so many of cuBLASLt's suggestions, best first; none where it has nothing for such layouts."""
    x = leading_dimension(gemm.rows, gemm.terms, gemm.x_strides)
    y = leading_dimension(gemm.terms, gemm.columns, gemm.y_strides)
    if gemm.dtype not in _DATA_TYPE or x is None or y is None or not is_available():
        return []
    library, context = _library(), _context(gemm.device)
    assert library is not None
    data_type = _DATA_TYPE[gemm.dtype]
    compute = _COMPUTE_64F if gemm.dtype is dtypes.float64 else _COMPUTE_32F[gemm.precision]
    scale_type = _DATA_TYPE[dtypes.float64 if gemm.dtype is dtypes.float64 else dtypes.float32]

    descriptor = ctypes.c_void_p()
    _check(library.cublasLtMatmulDescCreate(ctypes.byref(descriptor), compute, scale_type), "cublasLtMatmulDescCreate")
    attribute = library.cublasLtMatmulDescSetAttribute
    _set(attribute, descriptor, _DESC_TRANSA, ctypes.c_int32(y[1]))
    _set(attribute, descriptor, _DESC_TRANSB, ctypes.c_int32(x[1]))
    _set(attribute, descriptor, _DESC_EPILOGUE, ctypes.c_int32(gemm.epilogue))
    if gemm.has_bias:
        # The heuristic looks at the address's alignment only; each run sets its own.
        _set(attribute, descriptor, _DESC_BIAS_POINTER, ctypes.c_uint64(gemm.alignment))

    def layout(height: int, width: int, leading: int, batch_stride: int, kind: int = data_type) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        status = library.cublasLtMatrixLayoutCreate(ctypes.byref(made), kind, height, width, leading)
        _check(status, "cublasLtMatrixLayoutCreate")
        _set(library.cublasLtMatrixLayoutSetAttribute, made, _LAYOUT_BATCH_COUNT, ctypes.c_int32(gemm.num_matrices))
        _set(library.cublasLtMatrixLayoutSetAttribute, made, _LAYOUT_BATCH_STRIDE, ctypes.c_int64(batch_stride))
        return made

    rows, columns, terms = gemm.rows, gemm.columns, gemm.terms
    a = layout(*((terms, columns) if y[1] else (columns, terms)), y[0], gemm.y_batch_stride)
    b = layout(*((rows, terms) if x[1] else (terms, rows)), x[0], gemm.x_batch_stride)
    out_type = _DATA_TYPE[dtypes.float32] if gemm.has_sums else data_type
    d = layout(columns, rows, columns, rows * columns, out_type)
    operation = _Operation(library, context, descriptor, a, b, d)

    preference = ctypes.c_void_p()
    _check(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cublasLtMatmulPreferenceCreate")
    prefer = library.cublasLtMatmulPreferenceSetAttribute
    _set(prefer, preference, _PREF_WORKSPACE, ctypes.c_uint64(_WORKSPACE_LIMIT))
    _set(prefer, preference, _PREF_REDUCTION, ctypes.c_uint32(_REDUCE_IN_COMPUTE_TYPE))
    for which in _PREF_ALIGNMENT:
        _set(prefer, preference, which, ctypes.c_uint32(gemm.alignment))
    found = (_Heuristic * most)()
    count = ctypes.c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        context, descriptor, a, b, d, d, preference, most, found, ctypes.byref(count)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    if status != 0:  # no algorithm for this problem
        return []
    return [Product(gemm, operation, found[i]) for i in range(count.value) if found[i].state == 0]


@functools.cache
def _library() -> ctypes.CDLL | None:
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
    library.cublasLtMatmulAlgoConfigGetAttribute.argtypes = [pointer, number, pointer, ctypes.c_size_t, pointer]
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return library


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    here = driver.gpu()
    here.activate(device)
    library, context = _library(), ctypes.c_void_p()
    assert library is not None
    _check(library.cublasLtCreate(ctypes.byref(context)), "cublasLtCreate")
    return context


def _set(
    function: ctypes._NamedFuncPointer, target: ctypes.c_void_p, attribute: int, value: ctypes._SimpleCData[int]
) -> None:
    status = function(target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))
    _check(status, f"{function.__name__} {attribute}")


def _check(status: int, doing: str) -> None:
    if status != 0:
        raise KernelError(f"{doing}: cuBLAS status {status}")
