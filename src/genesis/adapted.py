"""Methods of Tensor that take their arguments otherwise than their functions: in another order, or one by one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from genesis import dtypes
from genesis import functional as F
from genesis.autograd import Tensor
from genesis.dtypes import DType, Number
from genesis.errors import DTypeError, ShapeError, describe

# --- what differs from its function in the order of the arguments -----------------------------------------------------


def where(self: Tensor, condition: Tensor, other: Tensor | Number) -> Tensor:
    """self where condition is true, else other.

    Args:
        condition: bool, a shape that broadcasts with self.
        other: a tensor that broadcasts with self, or a number.
    Returns: the common shape, in the promoted dtype.
    Raises: as F.where.

    Example:
        >>> genesis.tensor([1.0, -2.0]).where(genesis.tensor([True, False]), 0.0).tolist()
        [1.0, 0.0]
    """
    return F.where(condition, self, other)


def split(self: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into parts of split_size, or of these sizes, along dim. See `F.split`."""
    return F.split(self, split_size, dim)


def polygamma(self: Tensor, n: int) -> Tensor:
    """The n-th derivative of ψ. See `F.polygamma`."""
    return F.polygamma(n, self)


def rsub(self: Tensor, other: Number) -> Tensor:
    if not isinstance(self, Tensor):  # F.sub takes two numbers
        raise DTypeError(describe("rsub", "self", "a tensor", type(self).__name__))
    return F.sub(other, self)


def rdiv(self: Tensor, other: Number) -> Tensor:
    return F.div(other, self)


def rfloor_divide(self: Tensor, other: Number) -> Tensor:
    return F.floor_divide(other, self)


def rremainder(self: Tensor, other: Number) -> Tensor:
    return F.remainder(other, self)


def rpow(self: Tensor, other: Number) -> Tensor:
    return F.pow(other, self)


def rlshift(self: Tensor, other: Number) -> Tensor:
    return F.bitwise_left_shift(other, self)


def rrshift(self: Tensor, other: Number) -> Tensor:
    return F.bitwise_right_shift(other, self)


def rmatmul(self: Tensor, other: Tensor) -> Tensor:
    return F.matmul(other, self)


# --- sizes and dimensions: one by one, as one sequence, or by keyword -------------------------------------------------


def reshape(self: Tensor, *given: int | Sequence[int], shape: Sequence[int] | None = None) -> Tensor:
    """The same elements in another shape: a view if the strides allow one, else a copy. See `F.reshape`."""
    return F.reshape(self, sizes_of(given if shape is None else (*given, shape)))


def view(
    self: Tensor, *given: int | Sequence[int] | DType, size: Sequence[int] | None = None, dtype: DType | None = None
) -> Tensor:  # fmt: skip
    """The same memory in another shape; an error where only a copy could show it. See `F.view`.

    With a dtype, the bits are read as that. See `F.view_dtype`.
    """
    sizes = sizes_of(given if size is None else (*given, size))  # type: ignore[arg-type]
    if dtype is not None or isinstance(sizes, DType):
        return F.view_dtype(self, dtype or sizes)  # type: ignore[arg-type]
    return F.view(self, sizes)


def permute(self: Tensor, *given: int | Sequence[int], dims: Sequence[int] | None = None) -> Tensor:
    """A view with the dimensions in another order. See `F.permute`."""
    return F.permute(self, sizes_of(given if dims is None else (*given, dims)))


def expand(self: Tensor, *given: int | Sequence[int], size: Sequence[int] | None = None) -> Tensor:
    """A view that repeats dimensions of size 1. See `F.expand`."""
    return F.expand(self, sizes_of(given if size is None else (*given, size)))


def repeat(self: Tensor, *given: int | Sequence[int], repeats: Sequence[int] | None = None) -> Tensor:
    """A copy, repeated along each dimension. See `F.repeat`."""
    return F.repeat(self, sizes_of(given if repeats is None else (*given, repeats)))


def tile(self: Tensor, *given: int | Sequence[int], dims: Sequence[int] | None = None) -> Tensor:
    """A copy, repeated along the last dimensions. See `F.tile`."""
    return F.tile(self, sizes_of(given if dims is None else (*given, dims)))


def flip(self: Tensor, *given: int | Sequence[int], dims: Sequence[int] | None = None) -> Tensor:
    """A copy with dims in reverse order. See `F.flip`."""
    return F.flip(self, sizes_of(given if dims is None else (*given, dims)))


def view_as(self: Tensor, other: Tensor) -> Tensor:
    """The same memory in the shape of other. See `F.view`."""
    return F.view(self, other.array.shape)


def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """The same elements in the shape of other. See `F.reshape`."""
    return F.reshape(self, other.array.shape)


def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """A view that repeats dimensions of size 1 up to the shape of other. See `F.expand`."""
    return F.expand(self, other.array.shape)


def sizes_of(given: Sequence[int | Sequence[int]]) -> Sequence[int]:
    """x.reshape(2, 3) and x.reshape((2, 3)) mean the same."""
    one = given[0] if len(given) == 1 else given
    return given if hasattr(one, "__index__") else one  # type: ignore[return-value]


# --- dtypes -----------------------------------------------------------------------------------------------------------


def to_float64(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to float64. See `genesis.Tensor.to`."""
    return cast(self, dtypes.float64, memory_format)


def to_float32(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to float32. See `genesis.Tensor.to`."""
    return cast(self, dtypes.float32, memory_format)


def to_float16(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to float16. See `genesis.Tensor.to`."""
    return cast(self, dtypes.float16, memory_format)


def to_bfloat16(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to bfloat16. See `genesis.Tensor.to`."""
    return cast(self, dtypes.bfloat16, memory_format)


def to_int64(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to int64; fractions are dropped. See `genesis.Tensor.to`."""
    return cast(self, dtypes.int64, memory_format)


def to_int32(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to int32; fractions are dropped. See `genesis.Tensor.to`."""
    return cast(self, dtypes.int32, memory_format)


def to_int16(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to int16; fractions are dropped. See `genesis.Tensor.to`."""
    return cast(self, dtypes.int16, memory_format)


def to_int8(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to int8; fractions are dropped. See `genesis.Tensor.to`."""
    return cast(self, dtypes.int8, memory_format)


def to_uint8(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to uint8; fractions are dropped. See `genesis.Tensor.to`."""
    return cast(self, dtypes.uint8, memory_format)


def to_complex64(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to complex64. See `genesis.Tensor.to`."""
    return cast(self, dtypes.complex64, memory_format)


def to_complex128(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to complex128. See `genesis.Tensor.to`."""
    return cast(self, dtypes.complex128, memory_format)


def to_bool(self: Tensor, memory_format: str = "preserve") -> Tensor:
    """Cast to bool: whether it is nonzero. See `genesis.Tensor.to`."""
    return cast(self, dtypes.bool_, memory_format)


def converted(tensor: Tensor, dtype: DType) -> Tensor:
    """Convert as PyTorch does: of complex numbers, a real dtype takes the real part, with a warning."""
    if tensor.array.dtype.is_complex and not dtype.is_complex and dtype.name != "bool":
        warnings.warn("Casting complex values to real discards the imaginary part", UserWarning, stacklevel=3)
        tensor = F.real(tensor)
    return F.cast(tensor, dtype)


def cast(tensor: Tensor, dtype: DType, memory_format: str) -> Tensor:
    result = converted(tensor, dtype)
    return result if memory_format == "preserve" else F.contiguous(result, memory_format)


def sum_to_size(self: Tensor, *size: int | Sequence[int]) -> Tensor:
    """The sum over all dimensions that broadcasting size to the shape of self would repeat.

    Args:
        size: a shape that broadcasts to that of self.
    Returns: size, dtype of self.
    Raises: ShapeError: it does not broadcast.

    Example:
        >>> genesis.ones(3, 2).sum_to_size(1, 2).tolist()
        [[3.0, 3.0]]
    """
    wanted, shape = tuple(sizes_of(size)), self.array.shape
    lead = len(shape) - len(wanted)
    if lead < 0 or any(size not in (1, its) for size, its in zip(wanted, shape[lead:], strict=True)):
        raise ShapeError(describe("sum_to_size", "size", f"a shape that broadcasts to {shape}", wanted))
    dims = [dim for dim, its in enumerate(shape) if dim < lead or wanted[dim - lead] != its]
    return F.reshape(F.sum(self, dims), wanted) if dims else self
