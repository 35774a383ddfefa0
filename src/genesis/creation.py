"""Functions that make tensors: from values, from other libraries, filled, counted and random ones."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np

from genesis import dtypes
from genesis.autograd.modes import unrecordable
from genesis.dtypes import DType, Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.ndarray import CPU, Device, NDArray, random
from genesis.shapes import Shape, channels_last_strides
from genesis.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

DeviceLike = Device | str | None


class Options(TypedDict):
    """What the functions that make a tensor like another hand on."""

    dtype: DType
    device: Device | str
    requires_grad: bool


_FROM_NUMPY = {np.dtype(dtype.name): dtype for dtype in dtypes.ALL if dtype is not dtypes.bfloat16}


# --- from values ------------------------------------------------------------------------------------------------------


def tensor(
    data: npt.ArrayLike | Sequence[object],
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A new tensor with a copy of data.

    Args:
        data: a number, nested sequences of numbers, a numpy array or a tensor.
        dtype: by default that of an array or tensor; for Python numbers bool, int64 or the default float dtype.
        device: "cpu" by default.

    Example:
        >>> genesis.tensor([[1, 2], [3, 4]]).shape
        (2, 2)
    """
    if isinstance(data, Tensor):
        array = data.array.to(dtype or data.dtype)
        array = array.clone() if array is data.array else array
        return Tensor(array.to_device(_device(device) if device is not None else data.device), requires_grad)
    values, kind = _host_values("tensor", data)
    if dtype is not None and values.size and not isinstance(data, np.ndarray | np.generic):
        _require_held(values, dtype)
    array = NDArray.from_numpy(values, _FROM_NUMPY[values.dtype]).to(dtype or kind)
    return Tensor(array.to_device(_device(device)), requires_grad)


def as_tensor(data: npt.ArrayLike | Sequence[object], dtype: DType | None = None, device: DeviceLike = None) -> Tensor:
    """data as a tensor; memory is shared with a tensor or numpy array of that dtype and device."""
    if isinstance(data, Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    if isinstance(data, np.ndarray) and data.dtype in _FROM_NUMPY:
        return from_numpy(data).to(device=_device(device), dtype=dtype or _FROM_NUMPY[data.dtype])
    return tensor(data, dtype=dtype, device=device)


def from_numpy(ndarray: np.ndarray) -> Tensor:
    """A tensor on the memory of a numpy array (on a copy of it, where that memory is read-only)."""
    if not isinstance(ndarray, np.ndarray):
        raise DTypeError(describe("from_numpy", "ndarray", "a numpy.ndarray", type(ndarray).__name__))
    dtype = _FROM_NUMPY.get(ndarray.dtype)
    if dtype is None:
        raise DTypeError(describe("from_numpy", "ndarray", f"one of {sorted(map(str, _FROM_NUMPY))}", ndarray.dtype))
    array = NDArray.from_numpy(ndarray, dtype)
    if ndarray.flags.writeable:
        array.changes.export()
    return Tensor(array)


def _host_values(op: str, data: npt.ArrayLike | Sequence[object]) -> tuple[np.ndarray, DType]:
    """A fresh numpy array with data's values, and the dtype that a tensor of them has (Python's floats keep all their
    bits here, for whoever asks for float64)."""
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        data = _without_tensors(data)
    try:
        values = np.array(data)
    except ValueError as error:
        raise ShapeError(describe(op, "data", "sequences of equal lengths", str(error))) from None
    if not isinstance(data, np.ndarray | np.generic):
        if values.size == 0 or values.dtype == np.float64:
            return values.astype(np.float64), dtypes.get_default_dtype()
        if values.dtype.kind == "u":  # Python integers beyond int64
            raise OverflowError(describe(op, "data", "integers that fit int64", int(values.max())))
    if values.dtype not in _FROM_NUMPY:
        raise DTypeError(describe(op, "data", "numbers, or sequences of them", f"values of dtype {values.dtype}"))
    return values, _FROM_NUMPY[values.dtype]


def _require_held(values: np.ndarray, dtype: DType) -> None:
    """Python numbers that an integer dtype cannot hold are refused; arrays and tensors are cast."""
    if dtype.category == dtypes.INTEGER and values.dtype != np.bool_:
        for extreme in (values.min(), values.max()):
            dtypes.number("tensor", "data", extreme.item(), dtype)


def _without_tensors(data: object) -> Any:  # nested lists of what is there instead
    if isinstance(data, Tensor):
        return data.tolist()
    return [_without_tensors(item) for item in data] if isinstance(data, list | tuple) else data


def is_tensor(obj: object) -> bool:
    """Whether obj is a tensor."""
    return isinstance(obj, Tensor)


# --- filled -----------------------------------------------------------------------------------------------------------


def empty(
    *size: int | Sequence[int], dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    memory_format: str = "contiguous",
) -> Tensor:  # fmt: skip
    """A tensor whose values are whatever the memory held."""
    shape = _size("empty", size)
    strides = channels_last_strides(shape) if memory_format == "channels_last" else None
    return Tensor(NDArray.empty(shape, _dtype(dtype), _device(device), strides), requires_grad)


def zeros(
    *size: int | Sequence[int], dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of zeros.

    Example:
        >>> genesis.zeros(2, 3).sum().item()
        0.0
    """
    return Tensor(NDArray.full(_size("zeros", size), 0, _dtype(dtype), _device(device)), requires_grad)


def ones(
    *size: int | Sequence[int], dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of ones."""
    return Tensor(NDArray.full(_size("ones", size), 1, _dtype(dtype), _device(device)), requires_grad)


def full(
    size: Sequence[int], fill_value: Number, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of fill_value, in its dtype by default."""
    fill_value = _number("full", "fill_value", fill_value)
    dtype = dtype or dtypes.of_scalar(fill_value)
    fill_value = dtypes.number("full", "fill_value", fill_value, dtype)
    return Tensor(NDArray.full(_size("full", (size,)), fill_value, dtype, _device(device)), requires_grad)


def eye(
    n: int, m: int | None = None, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """The n × m matrix (n × n by default) with ones on its diagonal."""
    shape = _size("eye", (n, n if m is None else m))
    array = NDArray.full(shape, 0, _dtype(dtype), _device(device))
    array.diagonal(0, 1).copy_into(1)
    return Tensor(array, requires_grad)


def empty_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of input's shape whose values are whatever the memory held."""
    return empty(input.shape, **_like(input, dtype, device, requires_grad))


def zeros_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of zeros with input's shape, and its dtype and device unless told otherwise."""
    return zeros(input.shape, **_like(input, dtype, device, requires_grad))


def ones_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of ones with input's shape, and its dtype and device unless told otherwise."""
    return ones(input.shape, **_like(input, dtype, device, requires_grad))


def full_like(
    input: Tensor,
    fill_value: Number,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of fill_value with input's shape, and its dtype and device unless told otherwise."""
    return full(input.shape, fill_value, **_like(input, dtype, device, requires_grad))


def _like(input: Tensor, dtype: DType | None, device: DeviceLike, requires_grad: bool) -> Options:
    return {"dtype": dtype or input.dtype, "device": device or input.device, "requires_grad": requires_grad}


# --- counted ----------------------------------------------------------------------------------------------------------


def arange(
    start: Number, end: Number | None = None, step: Number = 1, *, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """start, start + step, … as long as end is not reached; arange(n) counts from 0 to n − 1.

    Example:
        >>> genesis.arange(1, 2, 0.5).tolist()
        [1.0, 1.5]
    """
    if end is None:
        start, end = 0, start
    if step == 0 or (end - start) / step < 0:
        raise ValueError(describe("arange", "step", f"a step from {start} towards {end}", step))
    if not all(map(math.isfinite, (start, end, step))):
        raise ValueError(describe("arange", "end", "finite numbers", (start, end, step)))
    if dtype is None:
        dtype = dtypes.get_default_dtype() if any(isinstance(n, float) for n in (start, end, step)) else dtypes.int64
    if dtype is dtypes.bool_:
        raise DTypeError(describe("arange", "dtype", "a dtype of numbers", dtype))
    if dtype is dtypes.int64:  # as PyTorch: there, and only there, the fractions go first
        start, end, step = int(start), int(end), int(step)
        if step == 0:
            raise ValueError(describe("arange", "step", "at least one in int64", step))
    length = math.ceil((end - start) / step)
    return Tensor(NDArray.arange(start, step, length, dtype, _device(device)), requires_grad)


def linspace(
    start: Number,
    end: Number,
    steps: int,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """steps evenly spaced values from start to end, both included."""
    if not hasattr(steps, "__index__"):
        raise DTypeError(describe("linspace", "steps", "an int", type(steps).__name__))
    if steps < 0:
        raise ValueError(describe("linspace", "steps", "at least 0", steps))
    start, end = float(_number("linspace", "start", start)), float(_number("linspace", "end", end))
    index, step = np.arange(steps, dtype=np.float64), (end - start) / max(steps - 1, 1)
    values = np.where(index < steps / 2, start + step * index, end - step * (steps - 1 - index))  # both ends exact
    return Tensor(
        NDArray.from_numpy(values, dtypes.float64).to(_dtype(dtype)).to_device(_device(device)), requires_grad
    )


# --- random -----------------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Start the generators of all devices from seed; the CPU then draws the same numbers as PyTorch."""
    if isinstance(seed, float) or not hasattr(seed, "__index__"):
        raise DTypeError(describe("manual_seed", "seed", "an int", repr(seed)))
    unrecordable("sets the state of a random generator")
    random.manual_seed(operator.index(seed))


def get_rng_state(device: DeviceLike = None) -> Tensor:
    """The state of a device's generator, as bytes in a uint8 tensor."""
    return tensor(np.frombuffer(random.get_state(_device(device)), dtype=np.uint8))


def set_rng_state(new_state: Tensor, device: DeviceLike = None) -> None:
    """Put a device's generator into a state that get_rng_state gave."""
    if not isinstance(new_state, Tensor) or new_state.dtype is not dtypes.uint8:
        raise DTypeError(
            describe("set_rng_state", "new_state", "a tensor of uint8", getattr(new_state, "dtype", new_state))
        )
    unrecordable("sets the state of a random generator")
    random.set_state(new_state.numpy().tobytes(), _device(device))


def rand(
    *size: int | Sequence[int], dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Uniform in [0, 1)."""
    return _random("rand", size, dtype, device, requires_grad)


def randn(
    *size: int | Sequence[int], dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Normal with mean 0 and variance 1."""
    return _random("randn", size, dtype, device, requires_grad)


def _random(
    op: str, size: Sequence[int | Sequence[int]], dtype: DType | None, device: DeviceLike, requires_grad: bool
) -> Tensor:
    dtype = _dtype(dtype)
    if not dtype.is_floating_point:
        raise DTypeError(describe(op, "dtype", "a floating dtype", dtype))
    return Tensor(NDArray.random(op, _device(device), _size(op, size), None, dtype), requires_grad)


@overload
def randint(
    high: int, size: Sequence[int], /, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor: ...  # fmt: skip
@overload
def randint(
    low: int, *, size: Sequence[int], dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor: ...  # fmt: skip
@overload
def randint(
    low: int, high: int, size: Sequence[int], *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor: ...  # fmt: skip
def randint(
    low: int, high: int | Sequence[int] | None = None, size: Sequence[int] | None = None, *,
    dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform integers in [low, high), or [0, high) as randint(high, size) or randint(high, size=size)."""
    shape = high if size is None else size
    start, end = (0, low) if high is None or size is None else (low, high)
    if shape is None or isinstance(shape, int):
        raise ShapeError(describe("randint", "size", "a sequence of sizes", shape))
    if isinstance(end, Sequence) or start >= end:
        raise ValueError(describe("randint", "high", f"more than low ({start})", end))
    array = NDArray.random("randint", _device(device), start, end, _size("randint", (shape,)), dtype or dtypes.int64)
    return Tensor(array, requires_grad)


def randperm(n: int, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """The integers 0 … n − 1 in random order."""
    if n < 0:
        raise ValueError(describe("randperm", "n", "at least 0", n))
    return Tensor(NDArray.random("randperm", _device(device), n, dtype or dtypes.int64), requires_grad)


def rand_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Uniform in [0, 1), with input's shape, dtype and device unless told otherwise."""
    return rand(input.shape, **_like(input, dtype, device, requires_grad))


def randn_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Normal with mean 0 and variance 1, with input's shape, dtype and device unless told otherwise."""
    return randn(input.shape, **_like(input, dtype, device, requires_grad))


def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform integers in [low, high), or [0, low) as randint_like(input, high), with input's shape."""
    low, high = (0, low) if high is None else (low, high)
    return randint(low, high, input.shape, **_like(input, dtype, device, requires_grad))


# --- arguments --------------------------------------------------------------------------------------------------------


def _device(device: DeviceLike) -> Device:
    return CPU if device is None else Device(device)


def _dtype(dtype: DType | None) -> DType:
    return dtypes.get_default_dtype() if dtype is None else dtype


def _size(op: str, size: Sequence[int | Sequence[int]]) -> Shape:
    """Sizes given one by one or as one sequence."""
    sizes: Any = size[0] if len(size) == 1 and not hasattr(size[0], "__index__") else size
    try:
        shape = tuple(length.__index__() for length in sizes)
    except (AttributeError, TypeError):
        raise DTypeError(describe(op, "size", "ints", tuple(sizes) if isinstance(sizes, Sequence) else sizes)) from None
    if any(length < 0 for length in shape):
        raise ShapeError(describe(op, "size", "sizes of at least 0", shape))
    return shape


def _number(op: str, argument: str, value: Number | Tensor) -> Number:
    """A Python number, or the value of a 0-d tensor."""
    if isinstance(value, Tensor):
        if value.ndim:
            raise ShapeError(describe(op, argument, "a number or a 0-d tensor", f"shape {value.shape}"))
        return value.item()
    return value
