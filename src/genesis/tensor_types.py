"""PyTorch's tensor types, which go by dtype and device: FloatTensor, cuda.LongTensor, …, and Tensor.type()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from genesis import dtypes
from genesis.autograd import Variable
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.ndarray import CPU, Device, NDArray

if TYPE_CHECKING:
    from genesis.tensor import Tensor

NAMES = {
    dtypes.float64: "Double", dtypes.float32: "Float", dtypes.float16: "Half", dtypes.bfloat16: "BFloat16",
    dtypes.int64: "Long", dtypes.int32: "Int", dtypes.int16: "Short", dtypes.int8: "Char", dtypes.uint8: "Byte",
    dtypes.bool_: "Bool",
}  # fmt: skip


def array_of(op: str, data: tuple[Any, ...], dtype: DType, device: Device | str | None = None) -> NDArray:
    """The array that PyTorch's old constructors make: uninitialised of sizes or a shape, else with the values of data.

    Raises: DTypeError: data is neither.
    """
    place = CPU if device is None else Device(device)
    if len(data) == 1 and isinstance(data[0], Variable):
        return data[0].array.to(dtype).to_device(place)
    if len(data) == 1 and isinstance(data[0], tuple) and hasattr(data[0], "numel"):
        return NDArray.empty(data[0], dtype, place)
    if all(hasattr(size, "__index__") and not isinstance(size, np.ndarray) for size in data):
        return NDArray.empty(tuple(map(int, data)) or (0,), dtype, place)
    try:
        values = np.array(data[0])
    except ValueError:  # of rows of several lengths
        values = np.array(None)
    if len(data) > 1 or values.dtype.kind not in "biuf":
        raise DTypeError(describe(op, "data", "sizes, or one sequence of numbers", repr(data)[:60]))
    made = NDArray.from_numpy(np.ascontiguousarray(values), dtypes.of_array(op, values))
    return made.to(dtype).to_device(place)


def as_type(self: Tensor, dtype: DType | str | type | None = None, non_blocking: bool = False) -> Tensor | str:
    """Cast to a dtype or tensor type; without one, the name of the tensor type.

    Args:
        dtype: a dtype, a tensor type like genesis.LongTensor, or its name, like "torch.FloatTensor".
        non_blocking: as in `genesis.Tensor.to`.
    Returns: the shape of self, or a str.
    Raises: DTypeError: no such type.

    Example:
        >>> genesis.ones(1).type(), genesis.ones(1).type(genesis.int64).tolist()
        ('genesis.FloatTensor', [1])
        >>> genesis.ones(1).type(genesis.LongTensor).dtype
        genesis.int64
    """
    if dtype is None:
        return f"genesis{'.cuda' * self.is_cuda}.{NAMES[self.dtype]}Tensor"
    if isinstance(dtype, DType):
        return self.to(dtype, non_blocking=non_blocking)
    kind = TYPES.get(dtype.partition(".")[2]) if isinstance(dtype, str) else dtype
    if not isinstance(kind, TensorType):
        raise DTypeError(describe("type", "dtype", "a dtype or the name of a tensor type", repr(dtype)))
    return self.to(kind.dtype).to(kind.place, non_blocking=non_blocking)


class TensorType(type):
    """The class of FloatTensor and the others: calling one gives a Tensor, isinstance asks for dtype and device."""

    dtype: DType
    place: str

    def __call__(cls, *data: object, device: Device | str | None = None) -> Tensor:
        array = array_of(cls.__name__, data, cls.dtype, device or cls.place)
        return Variable._result_class(array)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Variable) and (instance.array.dtype, instance.array.device.type) == (
            cls.dtype, cls.place,
        )  # fmt: skip


def _type_of(dtype: DType, place: str) -> TensorType:
    name = f"{NAMES[dtype]}Tensor"
    about = f"Tensors of {dtype.name} on {place}, called with sizes or values. See `genesis.Tensor`."
    return TensorType(name, (), {"__doc__": about, "dtype": dtype, "place": place, "__module__": "genesis"})


DoubleTensor, FloatTensor = _type_of(dtypes.float64, "cpu"), _type_of(dtypes.float32, "cpu")
HalfTensor, BFloat16Tensor = _type_of(dtypes.float16, "cpu"), _type_of(dtypes.bfloat16, "cpu")
LongTensor, IntTensor = _type_of(dtypes.int64, "cpu"), _type_of(dtypes.int32, "cpu")
ShortTensor, CharTensor = _type_of(dtypes.int16, "cpu"), _type_of(dtypes.int8, "cpu")
ByteTensor, BoolTensor = _type_of(dtypes.uint8, "cpu"), _type_of(dtypes.bool_, "cpu")

CUDA_TYPES = {f"{name}Tensor": _type_of(dtype, "cuda") for dtype, name in NAMES.items()}
TYPES = {f"{name}Tensor": globals()[f"{name}Tensor"] for name in NAMES.values()}
TYPES |= {f"cuda.{name}": kind for name, kind in CUDA_TYPES.items()}
