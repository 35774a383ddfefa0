"""Runs Triton kernels on host memory, with Triton's own interpreter and five things that it lacks.

- A kernel is decorated by plain @triton.jit, so the same object can be compiled to a cubin in the same process.
- bfloat16: conversions round to nearest even, dot works, and arithmetic on bits raises instead of being wrong.
- libdevice functions, computed by NumPy.
- A load or store outside of all arrays raises and names the kernel.
- So does an argument that is not what the kernel would be compiled for: 1, or divisible by 16.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import statistics
import threading
import types
from collections.abc import Callable, Sequence
from numbers import Number
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.language.extra import libdevice as generic_libdevice
from triton.language.extra.cuda import libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, TensorHandle
from triton.runtime.jit import JITFunction

from genesis.backends.cuda.driver.interface import KernelError, Kind, Path, Signature, Value, kernel_name
from genesis.dtypes import HostArray

NumpyFunction: TypeAlias = Callable[..., Any]  # of arrays
Operand: TypeAlias = tl.tensor | Number

_lock = threading.RLock()  # the interpreter keeps the running program's index in a global
_rewritten: dict[FunctionType, FunctionType] = {}


def run(
    kernel: JITFunction, signature: Signature, grid: Sequence[int], values: Sequence[Value], regions: Regions
) -> None:
    """Run every program of the grid, one after the other."""
    with _lock, np.errstate(all="ignore"), _language:
        builder = interpreter.interpreter_builder
        builder.regions, builder.kernel_name = regions, kernel_name(kernel, signature)
        arguments = _arguments(kernel, signature, values)
        function = _rewrite(kernel.fn)
        builder.set_grid_dim(*grid)
        for x in range(grid[0]):
            for y in range(grid[1]):
                for z in range(grid[2]):
                    builder.set_grid_idx(x, y, z)
                    function(**arguments)


def float_to_bfloat16(values: HostArray) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even."""
    single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)


def bfloat16_to_float(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (np.ascontiguousarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


class Regions:
    """The address ranges that kernels may touch."""

    def __init__(self, ranges: dict[int, int]) -> None:
        starts = np.fromiter(ranges, np.uint64, len(ranges))
        ends = starts + np.fromiter(ranges.values(), np.uint64, len(ranges))
        order = starts.argsort()
        self._starts = starts[order]
        self._ends = np.maximum.accumulate(ends[order])  # ranges can lie in one another

    def contain(self, addresses: npt.NDArray[np.uint64], num_bytes: int) -> bool:
        at = np.searchsorted(self._starts, addresses, side="right") - 1
        if not len(self._starts) or (at < 0).any():
            return addresses.size == 0
        return bool((addresses + np.uint64(num_bytes) <= self._ends[at]).all())


def _arguments(kernel: JITFunction, signature: Signature, values: Sequence[Value]) -> dict[str, object]:
    constants, divisible = dict(signature.constants), frozenset(signature.divisible_by_16)
    rest = iter(values)

    def refuse(path: Path, what: str, value: Value) -> None:
        name = ".".join(map(str, (kernel.arg_names[path[0]], *path[1:])))
        raise KernelError(f"{kernel_name(kernel, signature)}: {name} is compiled as {what}, and given as {value}")

    def convert(kind: Kind, path: Path) -> object:
        if isinstance(kind, tuple):
            return tl.tuple([convert(inner, (*path, i)) for i, inner in enumerate(kind)])
        if kernel.params[path[0]].is_constexpr:
            return constants[path]
        value = next(rest)
        if kind == "constexpr":
            if constants[path] is not None and value != constants[path]:
                refuse(path, f"{constants[path]}", value)
            return constants[path]
        if path in divisible and (value is None or value % 16):
            refuse(path, "divisible by 16", value)
        element = tl.str_to_ty(kind, None)
        data = np.array([value], np.uint64 if kind.startswith("*") else interpreter._get_np_dtype(element))
        return tl.tensor(TensorHandle(data, element), element)

    named = zip(kernel.arg_names, signature.types, strict=True)
    return {name: convert(kind, (i,)) for i, (name, kind) in enumerate(named)}


def _rewrite(function: FunctionType) -> FunctionType:
    if function not in _rewritten:
        _rewritten[function] = interpreter.FunctionRewriter(function).rewrite_ast()
    return _rewritten[function]


def _call_interpreted(function: JITFunction, *args: object, **kwargs: object) -> object:
    """Call a @triton.jit function from an interpreted kernel."""
    return _rewrite(function.fn)(*args, **kwargs)


_block_types: dict[tuple[object, ...], dict[str, object]] = {}  # by element and shape: the attributes
_sizes: dict[str, tuple[int, Sequence[int]]] = {}  # by type: the number of elements, the shape
_init_new_block_type, _init_new_tensor = tl.block_type.__init__, tl.tensor.__init__


def _init_block_type(block: tl.block_type, element: tl.dtype, shape: Sequence[int]) -> None:
    """Triton's own, once per element and shape: an operation on tensors makes several types."""
    key = (element.name, *shape)
    found = _block_types.get(key)
    if found is None:
        _init_new_block_type(block, element, shape)
        _block_types[key] = vars(block).copy()
    else:
        vars(block).update(found)
        block.element_ty = element  # names don't say a pointer's address space


def _init_tensor(tensor: tl.tensor, handle: TensorHandle, dtype: tl.dtype) -> None:
    """Triton's own, except that tensors of one type share the constants that say their sizes."""
    sizes = _sizes.get(dtype.name)
    if sizes is None:
        _init_new_tensor(tensor, handle, dtype)
        _sizes[dtype.name] = tensor.numel, tensor.shape
    else:
        tensor.handle, tensor.type, tensor.dtype = handle, dtype, dtype.scalar
        tensor.numel, tensor.shape = sizes


_PLAIN = frozenset({tl.tensor, tl.dtype, tl.block_type, tl.pointer_type, int, float, bool, str, type(None)})
_unwrap_any = tl.core._unwrap_if_constexpr


def _unwrap(value: object) -> object:
    """Triton's own looks for lists and tuples first."""
    return value if type(value) in _PLAIN else _unwrap_any(value)


def _arithmetic(compute: Callable[..., tl.tensor]) -> tuple[NumpyFunction, NumpyFunction]:
    """An operator of tensors and its reflected one: Triton's own look for constants twice, in two functions."""
    return lambda x, y: compute(x, _unwrap(y), True), lambda x, y: compute(_unwrap(y), x, True)


def _interpret(
    owner: object, name: str, member: FunctionType, _: InterpreterBuilder, scope: interpreter._LangPatchScope
) -> None:
    """Have a function of the language compute by NumPy: as Triton's own, which makes three calls for one."""
    function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*args: object, **options: object) -> object:
        options["_semantic"] = semantic
        return function(*args, **options)

    scope.set_attr(owner, name, call)


class _Language:
    """The attributes of triton.language with which it computes by NumPy, to put in place and to take away again."""

    def __init__(self) -> None:
        visible = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        scope = interpreter._patch_lang(visible)
        for module in (libdevice, generic_libdevice):
            interpreter._patch_builtin(module, interpreter.interpreter_builder, scope)
        scope.set_attr(JITFunction, "__call__", _call_interpreted)
        scope.set_attr(tl.tensor, "__init__", _init_tensor)
        scope.set_attr(tl.block_type, "__init__", _init_block_type)
        scope.set_attr(tl.core, "_unwrap_if_constexpr", _unwrap)
        for name in ("add", "sub", "mul"):
            operator, reflected = _arithmetic(getattr(interpreter.interpreter_semantic, name))
            scope.set_attr(tl.tensor, f"__{name}__", operator)
            scope.set_attr(tl.tensor, f"__r{name}__", reflected)
        scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.item()))  # NumPy 2.4, Triton 3.6
        originals: dict[tuple[int, str], tuple[object, str, object]] = {}
        for owner, name, original in scope._changes:
            originals.setdefault((id(owner), name), (owner, name, original))
        changes = [(*entry, inspect.getattr_static(entry[0], entry[1])) for entry in originals.values()]
        scope.restore()
        # Most are in modules, whose dictionaries take all of them at once: this is done twice for each launch.
        self._modules: dict[str, tuple[dict[str, object], dict[str, object], dict[str, object]]] = {}
        self._changes = []
        for owner, name, original, interpreted in changes:
            if isinstance(owner, types.ModuleType) and original is not interpreter._MISSING:
                _, before, during = self._modules.setdefault(owner.__name__, (vars(owner), {}, {}))
                before[name], during[name] = original, interpreted
            else:
                self._changes.append((owner, name, original, interpreted))

    def __enter__(self) -> None:
        for attributes, _, during in self._modules.values():
            attributes.update(during)
        for owner, name, _, interpreted in self._changes:
            setattr(owner, name, interpreted)

    def __exit__(self, *exception: object) -> None:
        for attributes, before, _ in self._modules.values():
            attributes.update(before)
        for owner, name, original, _ in self._changes:
            if original is interpreter._MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _lgamma(x: float) -> float:
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


def _erfinv(x: float) -> float:
    if not -1 < x < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    return statistics.NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)


_LIBDEVICE: dict[str, NumpyFunction] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "lgamma": np.vectorize(_lgamma, otypes=[np.float64]),
    "erfinv": np.vectorize(_erfinv, otypes=[np.float64]),
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rint": np.rint,
    "nearbyint": np.rint,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "pow": np.float_power,
    "fast_exp": np.exp,
    "fast_fdivide": np.divide,
    "fast_log": np.log,
    "fast_tanh": np.tanh,
    "fast_pow": np.float_power,
    "fma": lambda x, y, z: x * y + z,
    "powi": np.float_power,
    "fdiv_rn": np.divide,
    "ddiv_rn": np.divide,
    "fmul_rn": np.multiply,
    "dmul_rn": np.multiply,
    "frcp_rn": np.reciprocal,
    "drcp_rn": np.reciprocal,
    "fsqrt_rn": np.sqrt,
    "dsqrt_rn": np.sqrt,
}


_numpy_dtypes: dict[str, np.dtype[np.generic[object]]] = {}
_find_numpy_dtype = interpreter._get_np_dtype


def _numpy_dtype(dtype: tl.dtype) -> np.dtype[np.generic[object]]:
    """Triton's own answer, asked for once per type: it fills its table anew each time."""
    scalar = dtype.scalar
    found = _numpy_dtypes.get(scalar.name)
    if found is None:
        found = _numpy_dtypes[scalar.name] = _find_numpy_dtype(scalar)
    return found


def _libdevice_function(symbol: str) -> NumpyFunction:
    """The NumPy function of __nv_<name> (float64) or __nv_<name>f (float32)."""
    name = symbol.removeprefix("__nv_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("d")):
        function = _LIBDEVICE.get(candidate) or getattr(np, candidate, None)
        if callable(function):
            return function
    raise NotImplementedError(f"the simulated device has no {symbol}; give it a NumPy function in interpreter.py")


class _Builder(InterpreterBuilder):
    """Triton's builder of NumPy results, corrected."""

    options: InterpreterOptions
    regions: Regions
    kernel_name: str

    def __init__(self) -> None:
        super().__init__()
        precisions = (*self.options.allowed_dot_input_precisions, "bf16x6")  # all are float32 here
        # sanitize_overflow computes each sum of integers a second time, for an assertion that only debug=True makes.
        self.options = dataclasses.replace(
            self.options, allowed_dot_input_precisions=precisions, sanitize_overflow=self.options.debug
        )

    def _check(self, what: str, pointers: TensorHandle, mask: npt.NDArray[np.bool_]) -> None:
        num_bytes = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        addresses, used = np.broadcast_arrays(pointers.data, mask)
        if not self.regions.contain(addresses[used], num_bytes):
            raise KernelError(f"{self.kernel_name}: {what} outside of every array, in program {self.grid_idx}")

    def create_masked_load(
        self, ptrs: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *rest: object, **options: object
    ) -> TensorHandle:
        self._check("load", ptrs, mask.data)
        return super().create_masked_load(ptrs, mask, other, *rest, **options)

    def create_masked_store(
        self, ptrs: TensorHandle, value: TensorHandle, mask: TensorHandle, *rest: object, **options: object
    ) -> object:
        self._check("store", ptrs, mask.data)
        return super().create_masked_store(ptrs, value, mask, *rest, **options)

    def create_atomic_rmw(
        self, op: object, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, *rest: object
    ) -> TensorHandle:
        self._check("atomic", ptr, mask.data)
        return super().create_atomic_rmw(op, ptr, val, mask, *rest)

    def cast_impl(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        source, target = src.dtype.scalar, dst_type.scalar
        if tl.bfloat16 not in (source, target) or source == target:
            return super().cast_impl(src, dst_type)
        data = bfloat16_to_float(src.data) if source == tl.bfloat16 else src.data.astype(np.float32)
        if target == tl.bfloat16:
            return TensorHandle(float_to_bfloat16(data), target)
        return TensorHandle(data.astype(interpreter._get_np_dtype(target)), target)

    def create_fp_to_fp(self, src: TensorHandle, dst_type: tl.dtype, rounding_mode: object) -> TensorHandle:
        if {src.dtype.scalar, dst_type.scalar} <= {tl.bfloat16, tl.float16, tl.float32, tl.float64}:
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def _refuse_bfloat16(self, *operands: TensorHandle) -> None:
        for operand in operands:
            if operand.dtype.scalar.name == "bf16":
                advice = "convert to float32 right after the load"
                raise KernelError(f"{self.kernel_name}: arithmetic on bfloat16; {advice}")

    def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: NumpyFunction) -> TensorHandle:
        self._refuse_bfloat16(lhs, rhs)
        return super().binary_op(lhs, rhs, op)

    def unary_op(self, arg: TensorHandle, op: NumpyFunction) -> TensorHandle:
        self._refuse_bfloat16(arg)
        return super().unary_op(arg, op)

    def create_fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        self._refuse_bfloat16(x, y, z)
        return super().create_fma(x, y, z)

    # maxnum and minnum give the number where the other operand is NaN.
    create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)  # noqa: E731
    create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)  # noqa: E731

    def create_splat(self, result_type: tl.dtype, arg: TensorHandle) -> TensorHandle:
        if arg.data.dtype == np.bool_:  # a comparison's result still bears the type of what was compared
            arg = TensorHandle(arg.data, tl.int1)
        return super().create_splat(result_type, arg)

    def create_dot(self, a: TensorHandle, b: TensorHandle, d: TensorHandle, *rest: object) -> TensorHandle:
        if a.dtype.scalar == tl.bfloat16:
            a, b = self.cast_impl(a, tl.float32), self.cast_impl(b, tl.float32)
        return super().create_dot(a, b, d, *rest)

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, args: list[TensorHandle], result_type: tl.dtype, is_pure: bool
    ) -> TensorHandle:
        result = _libdevice_function(symbol)(*(arg.data for arg in args))
        dtype = interpreter._get_np_dtype(result_type.scalar)
        return TensorHandle(np.asarray(result).astype(dtype), result_type.scalar)


_constants: dict[tuple[object, ...], tl.tensor] = {}  # numbers as operands, by the type of the other one
_MOST_CONSTANTS, _LARGEST_CONSTANT = 4096, 4096  # operands; elements
_alike: set[tuple[str, str]] = set()  # two types of one shape
_broadcasts: dict[tuple[str, str], tuple[tl.dtype, ...]] = {}  # by two types: those that broadcasting gives them


class _Semantic(TritonSemantic):
    def binary_op_type_checking_impl(
        self, lhs: Operand, rhs: Operand, allow_lhs_ptr: bool = False, allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True, div_or_mod: bool = False,
    ) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
        """Triton's own, without its questions to operands of one type, and to numbers that it converted before."""
        flags = allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        if not isinstance(lhs, tl.tensor):
            return super().binary_op_type_checking_impl(lhs, rhs, *flags)
        scalar = lhs.type.scalar
        if isinstance(rhs, tl.tensor):
            other = rhs.type.scalar
            is_offset = allow_lhs_ptr and scalar.is_ptr() and other.is_int()
            if is_offset or (scalar is other and not div_or_mod and not scalar.is_ptr()):
                return self._of_one_shape(lhs, rhs)
            return super().binary_op_type_checking_impl(lhs, rhs, *flags)
        key = lhs.type.name, type(rhs), rhs, arithmetic_check, div_or_mod
        constant = _constants.get(key)
        if constant is not None:
            return lhs, constant
        left, right = super().binary_op_type_checking_impl(lhs, rhs, *flags)
        if left is lhs and not scalar.is_ptr() and right.handle.data.size <= _LARGEST_CONSTANT:
            if len(_constants) >= _MOST_CONSTANTS:
                _constants.clear()
            _constants[key] = right
        return left, right

    def broadcast_impl_value(self, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
        """Triton's own, but types of equal shapes, the most frequent case, are known from the first time."""
        types = lhs.type.name, rhs.type.name
        left, right = (lhs, rhs) if types in _alike else super().broadcast_impl_value(lhs, rhs)
        if left is lhs and right is rhs:
            _alike.add(types)
        return left, right

    def _of_one_shape(self, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
        """Both, for one operation, with the types that broadcasting gives them: NumPy broadcasts the data by itself."""
        key = lhs.type.name, rhs.type.name
        types = _broadcasts.get(key)
        if types is None:
            types = _broadcasts[key] = tuple(each.type for each in self.broadcast_impl_value(lhs, rhs))
        left, right = types
        lhs = lhs if left.name == key[0] else tl.tensor(lhs.handle, left)
        return lhs, rhs if right.name == key[1] else tl.tensor(rhs.handle, right)


assert "_semantic" in inspect.signature(libdevice.tanh).parameters
interpreter._get_np_dtype = _numpy_dtype
interpreter._patch_attr = _interpret
interpreter.interpreter_builder = _Builder()
interpreter.interpreter_semantic = _Semantic(interpreter.interpreter_builder)
_language = _Language()
