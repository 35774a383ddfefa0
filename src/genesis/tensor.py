"""Tensor: what users hold. Each method is one line into functional; properties read the array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis import autograd, dtypes, shapes
from genesis import functional as F
from genesis.autograd import Variable
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.ndarray import Device, NDArray
from genesis.shapes import Shape

if TYPE_CHECKING:
    import torch


class Tensor(Variable):
    """An n-dimensional array with a place in the graph of gradients.

    Example:
        >>> x = genesis.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
    """

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self.array.shape

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    @property
    def device(self) -> Device:
        return self.array.device

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        self.array = value.array

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[shapes.normalize_dim("size", dim, self.ndim)]

    def stride(self, dim: int | None = None) -> Any:
        strides = self.array.strides
        return strides if dim is None else strides[shapes.normalize_dim("stride", dim, self.ndim)]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self.array.numel

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        return self.array.data_pointer

    def storage_offset(self) -> int:
        return self.array.offset

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_contiguous(self, memory_format: str = "contiguous") -> bool:
        return self.array.contiguous(memory_format == "channels_last") is self.array

    # --- gradients -------------------------------------------------------------------------------------------------

    backward = autograd.backward

    # --- to Python and to other places -------------------------------------------------------------------------------

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number."""
        return self.array.item()

    def tolist(self) -> Any:
        return self.array.tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a numpy array on the same memory; force detaches and copies to the host where needed."""
        if force:
            return self.array.numpy()
        if self.requires_grad:
            raise DTypeError("numpy: argument 'self': expected a tensor outside the graph; use .detach().numpy()")
        if self.device.type != "cpu":
            raise DTypeError(
                f"numpy: argument 'self': expected a tensor on the CPU, got one on {self.device}; use .cpu()"
            )
        return self.array.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def to_torch(self) -> torch.Tensor:
        """A PyTorch tensor on the same memory, outside the graph."""
        import torch

        return torch.from_dlpack(self.detach())

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("__dlpack__: the tensor requires grad; export .detach()")
        return self.array.handle.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.handle.__dlpack_device__()

    def to(
        self, *args: Any, device: Any = None, dtype: DType | None = None, non_blocking: bool = False, copy: bool = False,
        memory_format: str | None = None,
    ) -> Any:  # fmt: skip
        """In another dtype, on another device, or as another tensor: to(dtype), to(device), to(device, dtype), to(other)."""
        for arg in args:
            if isinstance(arg, DType):
                dtype = arg
            elif isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, str | Device):
                device = arg
            elif isinstance(arg, bool):
                non_blocking = arg
            elif arg is not None:
                raise DTypeError(describe("to", "args", "a dtype, a device or a tensor", type(arg).__name__))
        result = self if dtype is None else F.cast(self, dtype)
        result = result if device is None else F.to_device(result, Device(device))
        result = F.clone(result) if copy and result is self else result
        return result if memory_format is None else F.contiguous(result, memory_format)

    def cpu(self) -> Any:
        return self.to("cpu")

    def cuda(self, device: int | str | Device | None = None) -> Any:
        return self.to(Device("cuda", device) if isinstance(device, int) or device is None else Device(device))

    def type_as(self, other: Tensor) -> Any:
        return self.to(other.dtype)

    def double(self) -> Any:
        return self.to(dtypes.float64)

    def float(self) -> Any:
        return self.to(dtypes.float32)

    def half(self) -> Any:
        return self.to(dtypes.float16)

    def bfloat16(self) -> Any:
        return self.to(dtypes.bfloat16)

    def long(self) -> Any:
        return self.to(dtypes.int64)

    def int(self) -> Any:
        return self.to(dtypes.int32)

    def bool(self) -> Any:
        return self.to(dtypes.bool_)

    clone = F.clone
    contiguous = F.contiguous

    # --- element-wise --------------------------------------------------------------------------------------------------

    add = F.add
    sub = F.sub
    mul = F.mul
    div = F.div
    floor_divide = F.floor_divide
    remainder = F.remainder
    pow = F.pow
    neg = F.neg
    abs = F.abs
    exp = F.exp
    expm1 = F.expm1
    log = F.log
    log1p = F.log1p
    sqrt = F.sqrt
    rsqrt = F.rsqrt
    square = F.square
    reciprocal = F.reciprocal
    sign = F.sign
    sin = F.sin
    cos = F.cos
    tanh = F.tanh
    sigmoid = F.sigmoid
    erf = F.erf
    floor = F.floor
    ceil = F.ceil
    round = F.round
    clamp = F.clamp
    clip = F.clamp
    maximum = F.maximum
    minimum = F.minimum
    relu = F.relu
    softmax = F.softmax
    log_softmax = F.log_softmax
    eq = F.eq
    ne = F.ne
    lt = F.lt
    le = F.le
    gt = F.gt
    ge = F.ge
    isnan = F.isnan
    isinf = F.isinf
    isfinite = F.isfinite
    logical_and = F.logical_and
    logical_or = F.logical_or
    logical_not = F.logical_not
    bitwise_and = F.bitwise_and
    bitwise_or = F.bitwise_or
    bitwise_xor = F.bitwise_xor
    bitwise_not = F.bitwise_not

    def where(self, condition: Tensor, other: Any) -> Any:
        return F.where(condition, self, other)

    # --- in place ------------------------------------------------------------------------------------------------------

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        """Take source's values, broadcast and cast."""
        return self._change(_copied, source)

    def fill_(self, value: Any) -> Any:
        return self._change(_copied, value)

    def zero_(self) -> Any:
        return self._change(_copied, 0)

    def add_(self, other: Any, *, alpha: Any = 1) -> Any:
        return self._change(F.add, other, alpha=alpha)

    def sub_(self, other: Any, *, alpha: Any = 1) -> Any:
        return self._change(F.sub, other, alpha=alpha)

    def mul_(self, other: Any) -> Any:
        return self._change(F.mul, other)

    def div_(self, other: Any) -> Any:
        return self._change(F.div, other)

    def neg_(self) -> Any:
        return self._change(F.neg)

    def pow_(self, exponent: Any) -> Any:
        return self._change(F.pow, exponent)

    def sqrt_(self) -> Any:
        return self._change(F.sqrt)

    def exp_(self) -> Any:
        return self._change(F.exp)

    def relu_(self) -> Any:
        return self._change(F.relu)

    def clamp_(self, min: Any = None, max: Any = None) -> Any:
        return self._change(F.clamp, min, max)

    # --- operators -----------------------------------------------------------------------------------------------------

    __add__ = F.add
    __sub__ = F.sub
    __mul__ = F.mul
    __truediv__ = F.div
    __floordiv__ = F.floor_divide
    __mod__ = F.remainder
    __pow__ = F.pow
    __neg__ = F.neg
    __abs__ = F.abs
    __invert__ = F.bitwise_not
    __and__ = __rand__ = F.bitwise_and
    __or__ = __ror__ = F.bitwise_or
    __xor__ = __rxor__ = F.bitwise_xor
    __radd__ = F.add
    __rmul__ = F.mul
    __lt__ = F.lt
    __le__ = F.le
    __gt__ = F.gt
    __ge__ = F.ge
    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return F.eq(self, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return F.ne(self, other) if _is_operand(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return F.sub(other, self)

    def __rtruediv__(self, other: Any) -> Any:
        return F.div(other, self)

    def __rfloordiv__(self, other: Any) -> Any:
        return F.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Any:
        return F.remainder(other, self)

    def __rpow__(self, other: Any) -> Any:
        return F.pow(other, self)

    # --- Python's protocols --------------------------------------------------------------------------------------------

    __array_priority__ = 1000  # numpy leaves `array + tensor` to us

    def __len__(self) -> Any:
        return len(self.array)

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __bool__(self) -> Any:
        if self.numel() != 1:
            raise ValueError(
                f"bool: argument 'self': expected one element, got shape {self.shape}; use .any() or .all()"
            )
        return bool(self.item())

    def __float__(self) -> Any:
        return float(self.item())

    def __int__(self) -> Any:
        return int(self.item())

    def __index__(self) -> Any:
        if self.dtype.is_floating_point or self.numel() != 1:
            raise DTypeError(describe("index", "self", "one integer", f"{self.dtype} of shape {self.shape}"))
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 and spec else format(str(self), spec)

    def __repr__(self) -> str:
        body = np.array2string(self.array.numpy_values(), precision=4, separator=", ", threshold=1000, prefix="tensor(")
        notes = ""
        if self.dtype not in (dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_):
            notes += f", dtype={self.dtype}"
        if self.device.type != "cpu":
            notes += f", device='{self.device}'"
        if self.grad_fn is not None:
            notes += f", grad_fn={self.grad_fn!r}"
        elif self.requires_grad:
            notes += ", requires_grad=True"
        return f"tensor({body}{notes})"

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        if not self.is_leaf:
            raise autograd.GraphError("deepcopy: only leaves can be copied; use .detach().clone()")
        copied = type(self).__new__(type(self))
        Variable.__init__(copied, self.array.clone(), self.requires_grad)
        memo[id(self)] = copied
        copied.grad = None if self.grad is None else self._like(self.grad.array.clone())
        return copied

    def __reduce__(self) -> Any:
        if self.requires_grad and not self.is_leaf:
            raise autograd.GraphError("pickle: only leaves can be pickled; use .detach()")
        return _restored, (type(self), self.array.bits(), self.dtype, str(self.device), self.requires_grad)


def _is_operand(value: object) -> bool:
    return isinstance(value, Tensor | int | float | np.generic)


def _copied(target: Tensor, source: Any) -> Any:
    """source, broadcast and cast to target's shape and dtype: what copy_ writes."""
    if not isinstance(source, Variable):
        return target._like(target.array.full_like(source))
    return F.expand(F.cast(F.to_device(source, target.device), target.dtype), target.shape)


def _restored(kind: type, bits: np.ndarray, dtype: DType, device: str, requires_grad: bool) -> Any:
    tensor = kind.__new__(kind)
    Variable.__init__(tensor, NDArray.from_numpy(bits, dtype).to_device(Device(device)), requires_grad)
    return tensor


Tensor._result_class = Tensor
