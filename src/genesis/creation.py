"""Functions that make tensors: from values, from other libraries, filled and counted ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis import dtypes
from genesis.dtypes import DType, HostArray, Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.ndarray import Device, NDArray, default_device
from genesis.ndarray import set_default_device as place_by_default
from genesis.pinning import placed
from genesis.shapes import Shape, channels_last_strides
from genesis.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

DeviceLike = Device | str | None

_FROM_NUMPY = {np.dtype(name): dtype for name, dtype in dtypes.OF_NUMPY.items()}


# --- from values ------------------------------------------------------------------------------------------------------


@placed
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
        device: that of `genesis.get_default_device`, at first the CPU, if None.
        requires_grad: whether gradients accumulate in it.
    Returns: the shape of data.
    Raises: ShapeError: sequences of different lengths. DTypeError: no numbers. OverflowError: dtype does not hold a
        value.

    Example:
        >>> genesis.tensor([[1, 2], [3, 4]]).shape
        (2, 2)
    """
    if isinstance(data, Tensor):
        array = data.array.to(dtype or data.dtype)
        array = array.clone() if array is data.array else array
        return Tensor(array.to_device(device_of(device) if device is not None else data.device), requires_grad)
    values, kind = _host_values("tensor", data)
    if dtype is not None and values.size and not isinstance(data, np.ndarray | np.generic):
        _require_held(values, dtype)
    array = NDArray.from_numpy(values, _FROM_NUMPY[values.dtype]).to(dtype or kind)
    return Tensor(array.to_device(device_of(device)), requires_grad)


def as_tensor(data: npt.ArrayLike | Sequence[object], dtype: DType | None = None, device: DeviceLike = None) -> Tensor:
    """Convert to a tensor; memory is shared with a tensor or NumPy array of that dtype and device.

    Args:
        data: a number, nested sequences of numbers, a NumPy array or a tensor.
        dtype, device: as in `genesis.tensor`.
    Returns: the shape of data; data itself if nothing changes.

    Example:
        >>> import numpy
        >>> values = numpy.zeros(2)
        >>> genesis.as_tensor(values).fill_(3).dtype, values.tolist()
        (genesis.float64, [3.0, 3.0])
    """
    if isinstance(data, Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    if isinstance(data, np.ndarray) and data.dtype in _FROM_NUMPY:
        return from_numpy(data).to(device=device_of(device), dtype=dtype or _FROM_NUMPY[data.dtype])
    return tensor(data, dtype=dtype, device=device)


def from_numpy(ndarray: HostArray) -> Tensor:
    """Share the memory of a NumPy array; read-only memory is copied.

    Args:
        ndarray: any shape, positive strides or not; a dtype that Genesis has.
    Returns: the shape and dtype of ndarray.
    Raises: DTypeError: no NumPy array, or a dtype that Genesis lacks.

    Example:
        >>> import numpy
        >>> values = numpy.arange(3)
        >>> genesis.from_numpy(values).add_(1).tolist(), values.tolist()
        ([1, 2, 3], [1, 2, 3])
    """
    if not isinstance(ndarray, np.ndarray):
        raise DTypeError(describe("from_numpy", "ndarray", "a numpy.ndarray", type(ndarray).__name__))
    dtype = _FROM_NUMPY.get(ndarray.dtype)
    if dtype is None:
        raise DTypeError(describe("from_numpy", "ndarray", f"one of {sorted(map(str, _FROM_NUMPY))}", ndarray.dtype))
    array = NDArray.from_numpy(ndarray, dtype)
    if ndarray.flags.writeable:
        array.changes.export()
    return Tensor(array)


def _host_values(op: str, data: npt.ArrayLike | Sequence[object]) -> tuple[HostArray, DType]:
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
        if values.dtype == np.complex128:
            return values, dtypes.get_default_dtype().to_complex()
        if values.dtype.kind == "u":  # Python integers beyond int64
            raise OverflowError(describe(op, "data", "integers that fit int64", int(values.max())))
    if values.dtype not in _FROM_NUMPY:
        raise DTypeError(describe(op, "data", "numbers, or sequences of them", f"values of dtype {values.dtype}"))
    return values, _FROM_NUMPY[values.dtype]


def _require_held(values: HostArray, dtype: DType) -> None:
    """Python numbers that an integer dtype cannot hold are refused; arrays and tensors are cast."""
    if values.dtype.kind == "c" and not dtype.is_complex:
        raise DTypeError(describe("tensor", "data", f"real numbers, as dtype is {dtype}", "complex ones"))
    if dtype.category == dtypes.INTEGER and values.dtype != np.bool_:
        for extreme in (values.min(), values.max()):
            dtypes.number("tensor", "data", extreme.item(), dtype)


def _without_tensors(data: object) -> Any:  # nested lists, with the values of tensors in their places
    if isinstance(data, Tensor):
        return data.tolist()
    return [_without_tensors(item) for item in data] if isinstance(data, list | tuple) else data


def is_tensor(obj: object) -> bool:
    """Whether obj is a tensor.

    Args:
        obj: anything.

    Example:
        >>> genesis.is_tensor(genesis.ones(1)), genesis.is_tensor([1.0])
        (True, False)
    """
    return isinstance(obj, Tensor)


# --- filled -----------------------------------------------------------------------------------------------------------


@placed
def empty(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False, memory_format: str = "contiguous",
) -> Tensor:  # fmt: skip
    """An uninitialised tensor.

    Args:
        sizes: one by one or as a sequence.
        size: the same as a sequence, by keyword.
        dtype: the default float dtype if None.
        device: that of `genesis.get_default_device`, at first the CPU, if None.
        requires_grad: whether gradients accumulate in it.
        memory_format: "contiguous" (row-major) or "channels_last" (NHWC, 4 dimensions).
    Returns: a tensor of that shape.
    Raises: DTypeError: a size is no int. ShapeError: a negative size, or channels_last of another rank.

    Example:
        >>> genesis.empty(2, 3, 4, 5, memory_format="channels_last").stride()
        (60, 1, 15, 3)
    """
    shape = shape_of("empty", sizes, size)
    channels_last = memory_format == "channels_last"
    if channels_last and len(shape) != 4:
        raise ShapeError(describe("empty", "size", "4 dimensions for channels_last", shape))
    strides = channels_last_strides(shape) if channels_last else None
    return Tensor(NDArray.empty(shape, dtype_of(dtype), device_of(device), strides), requires_grad)


@placed
def zeros(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of zeros.

    Args:
        sizes, size, dtype, device, requires_grad: as in `genesis.empty`.
    Returns: a tensor of that shape.
    Raises: DTypeError: a size is no int. ShapeError: a negative size.

    Example:
        >>> genesis.zeros(2, 3).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return Tensor(NDArray.full(shape_of("zeros", sizes, size), 0, dtype_of(dtype), device_of(device)), requires_grad)


@placed
def ones(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of ones. See `genesis.zeros`.

    Example:
        >>> genesis.ones(2, dtype=genesis.int64).tolist()
        [1, 1]
    """
    return Tensor(NDArray.full(shape_of("ones", sizes, size), 1, dtype_of(dtype), device_of(device)), requires_grad)


@placed
def full(
    size: Sequence[int], fill_value: Number, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of fill_value.

    Args:
        size: a sequence of sizes.
        fill_value: a number that dtype holds.
        dtype: by default that of fill_value: bool, int64 or the default float dtype.
        device, requires_grad: as in `genesis.empty`.
    Returns: a tensor of that shape.
    Raises: DTypeError: a size is no int. ShapeError: a negative size.

    Example:
        >>> genesis.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
    """
    fill_value = _number("full", "fill_value", fill_value)
    dtype = dtype or dtypes.of_scalar(fill_value)
    fill_value = dtypes.number("full", "fill_value", fill_value, dtype)
    return Tensor(NDArray.full(shape_of("full", (size,)), fill_value, dtype, device_of(device)), requires_grad)


@placed
def eye(
    n: int, m: int | None = None, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """The n × m matrix with ones on its diagonal.

    Args:
        n: rows.
        m: columns; n if None.
        dtype, device, requires_grad: as in `genesis.empty`.
    Returns: (n, m).
    Raises: ShapeError: a negative size.

    Example:
        >>> genesis.eye(2, 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    shape = shape_of("eye", (n, n if m is None else m))
    array = NDArray.full(shape, 0, dtype_of(dtype), device_of(device))
    array.diagonal(0, 1).copy_into(1)
    return Tensor(array, requires_grad)


# --- counted ----------------------------------------------------------------------------------------------------------


@placed
def arange(
    start: Number | None = None, end: Number | None = None, step: Number = 1, *, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """start, start + step, … as long as end is not reached; arange(n) counts from 0 to n − 1.

    Args:
        start: the first value, by default 0; alone, it is end.
        end: not included.
        step: not 0, towards end.
        dtype: int64 for integers, the default float dtype if one of the numbers is a float.
        device, requires_grad: as in `genesis.empty`.
    Returns: (⌈(end − start) / step⌉,).
    Raises: ValueError: step is 0 or leads away from end; a number is not finite. DTypeError: dtype is bool.

    Example:
        >>> genesis.arange(3).tolist(), genesis.arange(1, 2, 0.5).tolist()
        ([0, 1, 2], [1.0, 1.5])
    """
    if end is None:
        if start is None:
            raise TypeError(describe("arange", "end", "a number", None))
        start, end = 0, start
    start = 0 if start is None else start
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
    return Tensor(NDArray.arange(start, step, length, dtype, device_of(device)), requires_grad)


@placed
def linspace(
    start: Number,
    end: Number,
    steps: int,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """steps evenly spaced values from start to end, both included.

    Args:
        start, end: numbers or 0-d tensors.
        steps: how many, at least 0.
        dtype, device, requires_grad: as in `genesis.empty`.
    Returns: (steps,).
    Raises: DTypeError: steps is no int. ValueError: steps < 0. ShapeError: start or end has dimensions.

    Example:
        >>> genesis.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if not hasattr(steps, "__index__"):
        raise DTypeError(describe("linspace", "steps", "an int", type(steps).__name__))
    if steps < 0:
        raise ValueError(describe("linspace", "steps", "at least 0", steps))
    start, end = float(_number("linspace", "start", start)), float(_number("linspace", "end", end))
    index, step = np.arange(steps, dtype=np.float64), (end - start) / max(steps - 1, 1)
    values = np.where(index < steps / 2, start + step * index, end - step * (steps - 1 - index))  # both ends exact
    return Tensor(
        NDArray.from_numpy(values, dtypes.float64).to(dtype_of(dtype)).to_device(device_of(device)), requires_grad
    )


# --- arguments --------------------------------------------------------------------------------------------------------


def device_of(device: DeviceLike) -> Device:
    return default_device() if device is None else Device(device)


def get_default_device() -> Device:
    """The device on which this thread makes tensors, unless another one is named. See `genesis.set_default_device`."""
    return default_device()


def set_default_device(device: DeviceLike) -> None:
    """Choose the device on which this thread makes tensors, unless another one is named.

    `with genesis.device("cuda"):` does so for a block. What has memory of its own, as an array of NumPy's in
    from_numpy, stays where it is.

    Args:
        device: a device; None for the CPU.

    Example:
        >>> genesis.set_default_device("cpu")
        >>> genesis.zeros(1).device, genesis.get_default_device()
        (device(type='cpu'), device(type='cpu'))
    """
    place_by_default(None if device is None else Device(device))


def dtype_of(dtype: DType | None) -> DType:
    return dtypes.get_default_dtype() if dtype is None else dtype


def shape_of(op: str, given: Sequence[int | Sequence[int]], size: Sequence[int] | None = None) -> Shape:
    """Sizes given one by one, as one sequence, or as one by keyword."""
    if size is not None:
        if given:
            raise DTypeError(describe(op, "size", "sizes by position or by keyword", "both"))
        given = (size,)
    sizes: object = given[0] if len(given) == 1 and not hasattr(given[0], "__index__") else given
    if isinstance(sizes, tuple):  # of Python's own ints, as nearly always
        for length in sizes:
            if type(length) is not int or length < 0:
                break
        else:
            return sizes
    return _checked(op, sizes)


def _checked(op: str, sizes: Any) -> Shape:
    """A shape of anything that counts as ints."""
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
