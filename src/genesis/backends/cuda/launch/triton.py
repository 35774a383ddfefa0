"""How a launcher calls a kernel; and how to add one.

A kernel is a @triton.jit function in ops/<family>/kernels.py; its launcher, a function of the contract, in launch.py
beside it:

1. Write the kernel: outputs first, pointers end in `_ptr`, constexprs in capitals, each 16-bit load followed at once
   by `.to(tl.float32)` (operands of tl.dot excepted). Helpers are @triton.jit functions too. Mathematics beyond tl:
   `from triton.language.extra.cuda import libdevice`. What arrives: an array as the pointer to its first element; a
   float as float32 (float64 if any array of the call is float64); an int as int32 where it fits, else int64; None as
   a constant; a tuple of ints as a tuple; a parameter annotated tl.float64 or tl.int64 as that. Pointers and ints
   divisible by 16 are compiled as such, and an int of value 1 becomes a constant, as in Triton, unless the kernel says
   @triton.jit(do_not_specialize=["name"]).
   Small kernels take a parameter PDL and call _follow(PDL) first, to come up while the one before runs: see overlap.py.
2. Launch it on the current stream, arrays standing for the address of their first element:

       out = array.empty(shape, x.dtype, x.device_index)
       launch(_name_kernel, (num_blocks,), out, x, n, BLOCK=1024, num_warps=4)

   An empty grid launches nothing. Constexprs come by name, all else by position.
3. List in SPECIMENS, at the end of the kernel file, one Specimen per dtype or shape class worth compiling: the tests
   compile each to a cubin for sm_80 and sm_90, without a GPU.
4. Test it in tests/backends/cuda/ops/test_<family>.py with the fixture `cuda`: the same test runs on the simulated
   device, and on a GPU with -m gpu. The simulated device runs one program after the other, so keep grids small there;
   it fails with the kernel's name when a load or store leaves the arrays, and its fresh memory reads as NaN.

Most ops are launched again and again with arrays of the same layouts: they are written on layouts (planned.py), and
keep what prepare_raw() gives, which packs only addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import Kind, LoadedKernel, RawLaunch, Signature, Value
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction, KernelParam

Key: TypeAlias = "tuple[object, int, tuple[ArgumentKind, ...], tuple[tuple[str, object], ...]]"
Argument: TypeAlias = "DeviceArray | Value | tuple[int, ...]"  # of a kernel
# How an argument is compiled: its type, and what is known of its value.
ArgumentKind: TypeAlias = "str | tuple[ArgumentKind, ...] | None"

TRITON_NAMES = {
    dtypes.float64: "fp64",
    dtypes.float32: "fp32",
    dtypes.float16: "fp16",
    dtypes.bfloat16: "bf16",
    dtypes.int64: "i64",
    dtypes.int32: "i32",
    dtypes.int16: "i16",
    dtypes.int8: "i8",
    dtypes.uint8: "u8",
    dtypes.bool_: "i1",
}
_POINTER = {dtype: f"*{name}" for dtype, name in TRITON_NAMES.items()}
_ALIGNED = {dtype: f"*{name}/16" for dtype, name in TRITON_NAMES.items()}
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid")
_loaded: dict[Key, LoadedKernel] = {}
driver.forget_on_switch(_loaded.clear)
_locks: dict[Key, threading.Lock] = {}
_lock = threading.Lock()  # of _locks


class Specimen(NamedTuple):
    """One call of a kernel to compile without a device: args as for launch(), arrays given by their dtypes."""

    kernel: JITFunction
    args: tuple[dtypes.DType | Value | tuple[Value, ...], ...]
    constants: Mapping[str, object]  # constexprs and options

    def signature(self) -> Signature:
        kinds = tuple(_specimen_kind(arg) for arg in self.args)
        return _signature(self.kernel, kinds, self.constants)


def launch(kernel: JITFunction, grid: tuple[int, ...], *args: Argument, **constants: object) -> None:
    """Run a kernel on the current stream of the device of its first array.

    Args:
        grid: 1 to 3 numbers of programs (the second and third at most 65535).
        args: DeviceArray | int | float | None | tuple of ints, for each parameter that is no tl.constexpr.
        constants: the tl.constexpr parameters, and num_warps, num_stages, maxnreg, launch_pdl.
    """
    if 0 in grid:
        return
    x, y, z, *_ = (*grid, 1, 1)
    kinds: list[ArgumentKind] = []
    values: list[Value] = []
    device = -1
    every: tuple[Any, ...] = args  # a test of the exact type is the quickest, and narrows no union
    for arg in every:
        if isinstance(arg, DeviceArray):
            pointer = arg.data_pointer
            kinds.append(_POINTER[arg.dtype] if pointer & 15 else _ALIGNED[arg.dtype])
            values.append(pointer)
            if device < 0:
                device = arg.storage.device_index
        elif type(arg) is tuple:
            kinds.append(tuple([number_kind(element) for element in arg]))
            values.extend(arg)
        else:
            kinds.append(number_kind(arg))
            values.append(arg)
    loaded = load(kernel, device, tuple(kinds), constants)
    loaded.launch((x, y, z), streams.current_handle(device), values)


def prepare_raw(
    kernel: JITFunction, device: int, grid: tuple[int, ...], leading: Sequence[Layout | float | None],
    *rest: Value | tuple[int, ...], **constants: object,
) -> RawLaunch:  # fmt: skip
    """run(stream, *values): launch(kernel, grid, *values, *rest, **constants) with as many values as are leading.

    Each call gives them anew: addresses of arrays of these layouts, numbers for floats, and anything for None.
    """
    if 0 in grid:
        return lambda stream, *values: None
    kinds: list[ArgumentKind] = [_layout_kind(arg) if isinstance(arg, Layout) else number_kind(arg) for arg in leading]
    tail: list[Value] = []
    for arg in rest:
        kinds.append(tuple([number_kind(each) for each in arg]) if isinstance(arg, tuple) else number_kind(arg))
        tail.extend(arg if isinstance(arg, tuple) else (arg,))
    x, y, z, *_ = (*grid, 1, 1)
    return load(kernel, device, tuple(kinds), constants).prepare((x, y, z), len(leading), tail)


def number_kind(value: int | float | None) -> str | None:
    """How a number is compiled: its type, and what is known of its value."""
    if value is None:
        return None
    if isinstance(value, float):
        return "f"
    if value == 1:
        return "1"
    wide = "i32" if -0x80000000 <= value <= 0x7FFFFFFF else "i64"
    return wide if value & 15 else wide + "/16"


def array_kind(x: DeviceArray) -> str:
    """How an array is compiled: a pointer to its dtype, and whether the address is divisible by 16."""
    return _layout_kind(x.layout)


def _layout_kind(layout: Layout) -> str:
    return (_ALIGNED if layout.aligned else _POINTER)[layout.dtype]


def load(
    kernel: JITFunction, device: int, kinds: tuple[ArgumentKind, ...], constants: Mapping[str, object]
) -> LoadedKernel:
    """The kernel compiled for arguments of these kinds, on this device; compiled on first use."""
    key = (kernel.fn, device, kinds, tuple(constants.items()))  # Triton hashes its own functions slowly
    return _loaded.get(key) or _load(key, kernel, device, kinds, constants)


def _load(
    key: Key, kernel: JITFunction, device: int, kinds: tuple[ArgumentKind, ...], constants: Mapping[str, object]
) -> LoadedKernel:
    """Threads compile different kernels side by side, and wait for each other's."""
    with _lock:
        one_compiles = _locks.setdefault(key, threading.Lock())
    with one_compiles:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = driver.get().load_kernel(device, kernel, _signature(kernel, kinds, constants))
    return found


def _signature(kernel: JITFunction, kinds: Sequence[ArgumentKind], given: Mapping[str, object]) -> Signature:
    options = {"num_warps": 4, **{name: value for name, value in given.items() if name in _OPTIONS}}
    constexprs = {name: value for name, value in given.items() if name not in _OPTIONS}
    if "PDL" in kernel.arg_names:  # which the driver switches on: see overlap.py
        constexprs["PDL"] = False
    number = "fp64" if any(isinstance(kind, str) and kind.startswith("*fp64") for kind in kinds) else "fp32"
    names = [param.name for param in kernel.params if not param.is_constexpr]
    capitals = [param.name for param in kernel.params if param.is_constexpr]
    if len(names) != len(kinds) or set(capitals) != set(constexprs):
        raise TypeError(
            f"{kernel.__name__}: takes {', '.join(names)} by position and {', '.join(capitals)} by name, "
            f"got {len(kinds)} by position and {', '.join(constexprs)} by name"
        )
    constants: list[tuple[tuple[int, ...], object]] = []
    divisible: list[tuple[int, ...]] = []

    def compiled(kind: ArgumentKind, path: tuple[int, ...], param: KernelParam) -> Kind:
        specialize = not param.do_not_specialize
        if isinstance(kind, tuple):
            return tuple(compiled(inner, (*path, i), param) for i, inner in enumerate(kind))
        if kind is None or (kind == "1" and specialize):
            constants.append((path, None if kind is None else 1))
            return "constexpr"
        if kind == "f":
            return param.annotation_type or number
        if kind == "1":
            return param.annotation_type or "i32"
        name, _, sixteen = kind.partition("/")
        if sixteen and (specialize or name.startswith("*")):
            divisible.append(path)
        return name if name.startswith("*") else param.annotation_type or name

    types: list[Kind] = []
    given_kinds = iter(kinds)
    for i, param in enumerate(kernel.params):
        if param.is_constexpr:
            constants.append(((i,), constexprs[param.name]))
            types.append("constexpr")
        else:
            types.append(compiled(next(given_kinds), (i,), param))
    return Signature(tuple(types), tuple(constants), tuple(divisible), tuple(options.items()))


def _specimen_kind(arg: dtypes.DType | Value | tuple[Value, ...]) -> ArgumentKind:
    if isinstance(arg, dtypes.DType):
        return _ALIGNED[arg]
    return tuple(_specimen_kind(inner) for inner in arg) if isinstance(arg, tuple) else number_kind(arg)
