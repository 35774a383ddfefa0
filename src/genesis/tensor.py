"""Tensor: what users hold. Properties read the array; most methods, one line into functional, are in methods.py and
in_place.py."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from genesis import autograd, dtypes, sharing
from genesis import functional as F
from genesis.adapted import converted
from genesis.autograd import Variable
from genesis.autograd.modes import unrecordable
from genesis.dtypes import DType, Number
from genesis.errors import DTypeError, GraphError, ShapeError, describe
from genesis.functional.keywords import also
from genesis.interop import HANDS_OUT_MEMORY, to_torch
from genesis.ndarray import Device, NDArray
from genesis.new_tensors import NewTensors
from genesis.pickling import Clones, Memory
from genesis.printing import text_of
from genesis.shapes import Shape
from genesis.tensor_types import array_of, as_type

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import CapsuleType

OPERANDS: tuple[type, ...] = (Variable, int, float, complex, np.generic)  # what == and != compare with


class Stream(Protocol):
    """A stream of work on a GPU: genesis.cuda.Stream, or another library's that has its handle."""

    @property
    def cuda_stream(self) -> int: ...


class Tensor(NewTensors):
    """An n-dimensional array with a place in the graph of gradients.

    Functions make one: `genesis.tensor`, `genesis.zeros`, … Methods that F has too are described there.

    Args:
        data: sizes, or one sequence, array or tensor, whose values become the default float dtype.
        requires_grad: whether gradients accumulate in it.
        device: where it lies; the CPU by default.
    Raises: DTypeError: data is neither.

    Example:
        >>> x = genesis.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
        >>> x.shape, x.ndim, x.dim(), x.numel(), x.size(-1)
        ((2, 3), 2, 2, 6, 3)
        >>> x.dtype, x.itemsize, x.element_size(), x.is_floating_point()
        (genesis.float32, 4, 4, True)
        >>> x.device, x.is_cuda, x.is_pinned(), x.is_cpu, x.get_device()
        (device(type='cpu'), False, False, True, -1)
        >>> x.nelement(), x.ndimension(), x.nbytes, x.is_complex(), x.is_signed(), x.is_inference()
        (6, 2, 24, False, True, False)
        >>> x.layout, x.is_conj(), x.is_neg(), x.is_same_size(x.T), genesis.tensor(2).is_nonzero()
        ('strided', False, False, False, True)
        >>> x.T.shape, x.mT.stride(), x.T.is_contiguous(), x[1].storage_offset()
        ((3, 2), (1, 3), False, 3)
        >>> z = genesis.tensor([[1 + 2j, 3j]])
        >>> z.real.tolist(), z.imag.tolist(), z.H.shape, z.mH[1].tolist()
        ([[1.0, 0.0]], [[2.0, 3.0]], (2, 1), [-3j])
        >>> y = (x * x).sum()
        >>> y.backward()
        >>> x.grad.tolist(), x.is_leaf, y.is_leaf, y.grad_fn
        ([[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]], True, False, <SumBackward>)
        >>> x.data.data_ptr() == x.data_ptr(), x.data.requires_grad
        (True, False)
    """

    def __init__(
        self, *data: object, requires_grad: bool = False, device: Device | str | None = None
    ) -> None:  # fmt: skip
        """Make, as PyTorch's Tensor does, an uninitialised tensor of some sizes, or the values of a sequence.

        Example:
            >>> genesis.Tensor(2, 3).shape, genesis.Tensor([1, 2])
            ((2, 3), tensor([1., 2.]))
        """
        if data and isinstance(data[0], NDArray):  # from within, as Variable's
            super().__init__(data[0], bool(data[1]) if len(data) > 1 else requires_grad)
        else:
            super().__init__(array_of("Tensor", data, dtypes.get_default_dtype(), device), requires_grad)

    # --- seen in another way ------------------------------------------------------------------------------------------

    @property
    def T(self) -> Tensor:  # noqa: N802  (PyTorch's name)
        """The transpose of a matrix, a view.

        Raises: ShapeError: self is no matrix.
        """
        if self.ndim != 2:
            raise ShapeError(describe("T", "self", "2 dimensions; use .mT or .permute()", self.ndim))
        return F.t(self)

    @property
    def mT(self) -> Tensor:  # noqa: N802  (PyTorch's name)
        """Each matrix transposed, a view: the last two dimensions swapped.

        Raises: ShapeError: fewer than 2 dimensions.
        """
        if self.ndim < 2:
            raise ShapeError(describe("mT", "self", "at least 2 dimensions", self.ndim))
        return F.transpose(self, -2, -1)

    @property
    def H(self) -> Tensor:  # noqa: N802  (PyTorch's name)
        """The conjugate transpose of a matrix.

        Raises: ShapeError: self is no matrix.
        """
        return F.conj(self.T)

    @property
    def mH(self) -> Tensor:  # noqa: N802  (PyTorch's name)
        """Each matrix conjugated and transposed.

        Raises: ShapeError: fewer than 2 dimensions.
        """
        return F.conj(self.mT)

    @property
    def real(self) -> Tensor:
        """The real part, a view; self if it is real. Assigning writes it. See `F.real`."""
        return F.real(self)

    @real.setter
    def real(self, value: Tensor | Number) -> None:
        F.real(self)[...] = value

    @property
    def imag(self) -> Tensor:
        """The imaginary part, a view. Assigning writes it. See `F.imag`."""
        return F.imag(self)

    @imag.setter
    def imag(self, value: Tensor | Number) -> None:
        F.imag(self)[...] = value

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph; assigning a tensor takes over its memory."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        self.array = value.array

    def new(self, *data: npt.ArrayLike, device: Device | str | None = None) -> Tensor:
        """A tensor of sizes or values, as genesis.Tensor(…) makes one, like self. See `genesis.Tensor.new_empty`."""
        return self._like(array_of("new", data, self.dtype, device or self.device))

    type = as_type
    share_memory_ = sharing.share_memory_
    is_shared = sharing.is_shared

    # --- gradients ----------------------------------------------------------------------------------------------------

    backward = autograd.backward

    # --- to Python and to other places --------------------------------------------------------------------------------

    def item(self) -> Number:
        """The value of a tensor of one element.

        Returns: a bool, an int or a float; a complex number of a complex dtype.
        Raises: ValueError: there are more elements, or none.

        Example:
            >>> genesis.tensor([2.5]).item()
            2.5
        """
        return self.array.item()

    def tolist(self) -> list[Any]:
        """The values as nested lists.

        Returns: lists of Python numbers; of a 0-d tensor the number itself.

        Example:
            >>> genesis.tensor([[1, 2], [3, 4]]).tolist()
            [[1, 2], [3, 4]]
        """
        values: list[Any] = self.array.tolist()
        return values

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a NumPy array on the same memory.

        Args:
            force: detach, and copy to the host, where needed.
        Returns: an array of the same shape, strides and dtype.
        Raises: TypeError: self requires grad, is not on the CPU, or is bfloat16, which NumPy lacks.

        Example:
            >>> x = genesis.zeros(2)
            >>> x.numpy()[0] = 5
            >>> x.tolist()
            [5.0, 0.0]
        """
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
        other: Tensor | None = None,
    ) -> Tensor:
        """Move or cast: to(dtype), to(device), to(device, dtype), to(other). The same tensor if nothing changes.

        non_blocking: while a tensor in pinned memory travels to a CUDA device, the host goes on; leave that memory
            unchanged until the copy is done. Copies to the CPU always wait.

        Args:
            args: a dtype, a device, a tensor that has both; then non_blocking and copy.
            device: where the result lies.
            dtype: of its elements.
            non_blocking: the host continues while pinned memory is copied to a CUDA device; leave that memory unchanged
                until the copy is done. Copies to the CPU always wait.
            copy: copy in any case.
            memory_format: "contiguous", "channels_last" (4 dimensions) or "preserve".
            other: a tensor that has the device and dtype.
        Returns: the shape of self.
        Raises: DTypeError: another argument. DeviceError: there is no such device.
        Grad: self, cast and moved back.

        Example:
            >>> genesis.tensor([1.7, -1.7]).to(genesis.int64).tolist()
            [1, -1]
        """
        flags = []
        for arg in args if other is None else (*args, other):
            if isinstance(arg, DType):
                dtype = arg
            elif isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, str | Device):
                device = arg
            elif isinstance(arg, bool):
                flags.append(arg)
            elif arg is not None:
                raise DTypeError(describe("to", "args", "a dtype, a device or a tensor", arg.__class__.__name__))
        result = self if dtype is None else converted(self, dtype)
        non_blocking, copy = [*flags, *(non_blocking, copy)[len(flags) :]]
        result = result if device is None else F.to_device(result, Device(device), non_blocking)
        result = F.clone(result) if copy and result is self else result
        return result if memory_format in (None, "preserve") else F.contiguous(result, memory_format)

    def cpu(self, memory_format: str | None = None) -> Tensor:
        """Move to the CPU. See `genesis.Tensor.to`."""
        return self.to("cpu", memory_format=memory_format)

    def cuda(
        self, device: int | str | Device | None = None, non_blocking: bool = False, memory_format: str | None = None
    ) -> Tensor:  # fmt: skip
        """Move to a CUDA device.

        Args:
            device: an index, "cuda:1" or a genesis.device; the current device by default.
            non_blocking, memory_format: as in `genesis.Tensor.to`.
        Returns: the shape and dtype of self.
        Raises: DeviceError: there is no such device.

        Example:
            >>> from genesis.settings import override
            >>> with override(cuda="simulated"):
            ...     genesis.ones(2).cuda().device
            device(type='cuda', index=0)
        """
        target = Device("cuda", device) if isinstance(device, int) or device is None else Device(device)
        return self.to(target, non_blocking=non_blocking, memory_format=memory_format)

    def is_pinned(self) -> bool:
        """Whether the memory is page-locked, whoever allocated it."""
        return self.array.is_pinned()

    @also(s="stream")
    def record_stream(self, stream: Stream) -> None:
        """Tell the allocator that another stream uses this memory: once freed, it waits for that use before reuse.

        Args:
            stream: a genesis.cuda.Stream, or another library's.

        Example:
            >>> from genesis.settings import override
            >>> with override(cuda="simulated"):
            ...     x, side = genesis.ones(2, device="cuda"), genesis.cuda.Stream()
            ...     with genesis.cuda.stream(side):
            ...         y = x * 2
            ...     x.record_stream(side)  # x may be freed now
            ...     side.synchronize()
            ...     y.tolist()
            [2.0, 2.0]
        """
        self.array.record_stream(stream.cuda_stream)

    def type_as(self, other: Tensor) -> Tensor:
        """Cast to the dtype of another tensor.

        Args:
            other: any shape; its dtype is taken.
        Returns: the shape of self, dtype of other.

        Example:
            >>> genesis.tensor([1.7]).type_as(genesis.tensor(0)).tolist()
            [1]
        """
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

    def __contains__(self, element: Tensor | Number) -> bool:
        if not isinstance(element, Tensor | bool | int | float | complex):
            raise TypeError(describe("in", "element", "a tensor or a number", type(element).__name__))
        return bool((self == element).any().item())

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

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.dtype.is_differentiable or self.numel() != 1:
            raise DTypeError(describe("index", "self", "one integer", f"{self.dtype} of shape {self.shape}"))
        return int(self.item())

    def __format__(self, spec: str) -> str:
        if self.ndim == 0:
            return format(self.item(), spec)
        try:
            return format(str(self), spec)
        except ValueError:
            raise TypeError(describe("format", "self", f"one number, for {spec!r}", f"shape {self.shape}")) from None

    def __repr__(self) -> str:
        return text_of(self)

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
        """The attributes that users have set on this tensor."""
        own = ("array", "grad")
        return {name: value for name, value in vars(self).items() if name not in own and not name.startswith("_")}


def _restored(
    kind: type[Tensor], memory: Memory, shape: Shape, strides: Shape, offset: int, requires_grad: bool
) -> Tensor:  # fmt: skip
    tensor = kind.__new__(kind)
    Variable.__init__(tensor, memory.row.view(shape, strides, memory.row.offset + offset), requires_grad)
    return tensor


Variable._result_class = Tensor._result_class = Tensor
sharing.register(Tensor)
