"""Tensor: what users hold. Properties read the array; most methods, one line into functional, are in methods.py and
in_place.py."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

import numpy as np

from genesis import autograd, dtypes, shapes
from genesis import functional as F
from genesis.autograd import Variable
from genesis.autograd.modes import unrecordable
from genesis.dtypes import DType, Number
from genesis.errors import DTypeError, GraphError, ShapeError, describe
from genesis.in_place import InPlace
from genesis.interop import HANDS_OUT_MEMORY, to_torch
from genesis.methods import sizes_of
from genesis.ndarray import Device, NDArray
from genesis.pickling import Clones, Memory
from genesis.shapes import Shape

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import CapsuleType

OPERANDS: tuple[type, ...] = (Variable, int, float, np.generic)  # what == and != compare with


class Stream(Protocol):
    """A stream of work on a GPU: genesis.cuda.Stream, or another library's that has its handle."""

    @property
    def cuda_stream(self) -> int: ...


class Tensor(InPlace):
    """An n-dimensional array with a place in the graph of gradients.

    Example:
        >>> x = genesis.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
    """

    # --- what it is ---------------------------------------------------------------------------------------------------

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
    def T(self) -> Tensor:  # noqa: N802  (PyTorch's name)
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError(describe("T", "self", "2 dimensions; use .mT or .permute()", self.ndim))
        return F.t(self)

    @property
    def mT(self) -> Tensor:  # noqa: N802  (PyTorch's name)
        """Each matrix transposed: the last two dimensions swapped."""
        if self.ndim < 2:
            raise ShapeError(describe("mT", "self", "at least 2 dimensions", self.ndim))
        return F.transpose(self, -2, -1)

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        self.array = value.array

    @overload
    def size(self, dim: None = None) -> Shape: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> Shape | int:
        return self.shape if dim is None else self.shape[shapes.normalize_dim("size", dim, self.ndim)]

    @overload
    def stride(self, dim: None = None) -> Shape: ...
    @overload
    def stride(self, dim: int) -> int: ...
    def stride(self, dim: int | None = None) -> Shape | int:
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

    def new_empty(
        self, *size: int | Sequence[int], dtype: DType | None = None, device: Device | str | None = None
    ) -> Tensor:
        """A tensor of this shape, with self's dtype and device unless told otherwise; its values are not set."""
        shape = tuple(sizes_of(size))
        return self._like(NDArray.empty(shape, dtype or self.dtype, self.device if device is None else Device(device)))

    def new_zeros(
        self, *size: int | Sequence[int], dtype: DType | None = None, device: Device | str | None = None
    ) -> Tensor:
        """A tensor of zeros of this shape, with self's dtype and device unless told otherwise."""
        return self.new_empty(*size, dtype=dtype, device=device).fill_(0)

    # --- gradients ----------------------------------------------------------------------------------------------------

    backward = autograd.backward

    # --- to Python and to other places --------------------------------------------------------------------------------

    def item(self) -> Number:
        """The value of a tensor of one element as a Python number."""
        return self.array.item()

    def tolist(self) -> list[Any]:
        """The values as nested lists of Python numbers (of a 0-d tensor the number itself, as item() gives it)."""
        values: list[Any] = self.array.tolist()
        return values

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a numpy array on the same memory; force detaches and copies to the host where needed."""
        if force:
            return self.detach().cpu().numpy()
        if self.requires_grad:
            raise DTypeError("numpy: argument 'self': expected a tensor outside the graph; use .detach().numpy()")
        if self.device.type != "cpu":
            raise DTypeError(
                f"numpy: argument 'self': expected a tensor on the CPU, got one on {self.device}; use .cpu()"
            )
        values = self.array.numpy()
        self.array.changes.export(values)  # which every view of it keeps alive
        return values

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    to_torch = to_torch

    def __dlpack__(self, **options: object) -> CapsuleType:
        if self.requires_grad:
            raise BufferError("__dlpack__: the tensor requires grad; export .detach()")
        unrecordable(HANDS_OUT_MEMORY)
        return self.array.export().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.handle.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """How CuPy, Numba and others see a tensor on a GPU; there is none on the CPU."""
        if self.requires_grad:
            raise GraphError("__cuda_array_interface__: the tensor requires grad; show .detach()")
        return self.array.export().__cuda_array_interface__

    def to(
        self,
        *args: DType | Device | str | Tensor | bool | None,
        device: Device | str | None = None,
        dtype: DType | None = None,
        non_blocking: bool = False,
        copy: bool = False,
        memory_format: str | None = None,
    ) -> Tensor:
        """In another dtype or on another device: to(dtype), to(device), to(device, dtype), to(another_tensor).

        non_blocking: while a tensor in pinned memory travels to a CUDA device, the host goes on; leave that memory
            unchanged until the copy is done. Copies to the CPU always wait.
        """
        flags = []
        for arg in args:
            if isinstance(arg, DType):
                dtype = arg
            elif isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, str | Device):
                device = arg
            elif isinstance(arg, bool):
                flags.append(arg)
            elif arg is not None:
                raise DTypeError(describe("to", "args", "a dtype, a device or a tensor", type(arg).__name__))
        result = self if dtype is None else F.cast(self, dtype)
        non_blocking, copy = [*flags, *(non_blocking, copy)[len(flags) :]]
        result = result if device is None else F.to_device(result, Device(device), non_blocking)
        result = F.clone(result) if copy and result is self else result
        return result if memory_format in (None, "preserve") else F.contiguous(result, memory_format)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def cuda(self, device: int | str | Device | None = None, non_blocking: bool = False) -> Tensor:
        """On a CUDA device: this one, or the current one."""
        target = Device("cuda", device) if isinstance(device, int) or device is None else Device(device)
        return self.to(target, non_blocking=non_blocking)

    def is_pinned(self) -> bool:
        """Is it in page-locked memory, whoever allocated that?"""
        return self.array.is_pinned()

    def record_stream(self, stream: Stream) -> None:
        """Another stream (genesis.cuda.Stream) uses this memory too: once freed, it waits for that use before reuse."""
        self.array.record_stream(stream.cuda_stream)

    def type_as(self, other: Tensor) -> Tensor:
        return self.to(other.dtype)

    # --- Python's protocols -------------------------------------------------------------------------------------------

    __array_priority__ = 1000  # numpy leaves `array + tensor` to us
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return F.eq(self, other) if isinstance(other, OPERANDS) else NotImplemented  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return F.ne(self, other) if isinstance(other, OPERANDS) else NotImplemented  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(len(self)):
            yield self[index]

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ValueError(
                f"bool: argument 'self': expected one element, got shape {self.shape}; use .any() or .all()"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.is_floating_point or self.numel() != 1:
            raise DTypeError(describe("index", "self", "one integer", f"{self.dtype} of shape {self.shape}"))
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 and spec else format(str(self), spec)

    def __repr__(self) -> str:
        body = np.array2string(self.array.numpy_values(), precision=4, separator=", ", threshold=1000, prefix="tensor(")
        notes = f", shape={self.shape}" if self.numel() == 0 else ""
        if self.dtype not in (dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_):
            notes += f", dtype={self.dtype}"
        if self.device.type != "cpu":
            notes += f", device='{self.device}'"
        if self.grad_fn is not None:
            notes += f", grad_fn={self.grad_fn!r}"
        elif self.requires_grad:
            notes += ", requires_grad=True"
        return f"tensor({body}{notes})"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        if not self.is_leaf:
            raise GraphError("deepcopy: only leaves can be copied; use .detach().clone()")
        copied = type(self).__new__(type(self))
        Variable.__init__(copied, Clones.of(memo).of_array(self.array), self.requires_grad)
        memo[id(self)] = copied
        copied.grad = None if self.grad is None else self._like(self.grad.array.clone())
        vars(copied).update(copy.deepcopy(self._given_attributes(), memo))
        return copied

    def __reduce__(self) -> tuple[object, ...]:
        if self.requires_grad and not self.is_leaf:
            raise GraphError("pickle: only leaves can be pickled; use .detach()")
        memory = Memory.of(self.array)
        place = memory.place_of(self.array)
        return _restored, (type(self), memory, *place, self.requires_grad), self._given_attributes() or None

    def _given_attributes(self) -> dict[str, object]:
        """What users have hung on this tensor."""
        own = ("array", "grad", "requires_grad")
        return {name: value for name, value in vars(self).items() if name not in own and not name.startswith("_")}


def _restored(
    kind: type[Tensor], memory: Memory, shape: Shape, strides: Shape, offset: int, requires_grad: bool
) -> Tensor:  # fmt: skip
    tensor = kind.__new__(kind)
    Variable.__init__(tensor, memory.row.view(shape, strides, memory.row.offset + offset), requires_grad)
    return tensor


Variable._result_class = Tensor._result_class = Tensor
