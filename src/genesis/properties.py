"""The properties of Tensor, and methods that answer as they do: shape, dtype, device, and how memory is laid out."""

from __future__ import annotations

from typing import overload

from genesis import shapes
from genesis.autograd import Variable
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.ndarray import Device
from genesis.shapes import Shape, Size

_MOST_SIZES = 4096
_sizes: dict[Shape, Size] = {}  # made once for each shape: as long as it is looked up, a Size costs next to nothing


def _size_of(shape: Shape) -> Size:
    """The Size of a shape that has none yet."""
    if len(_sizes) >= _MOST_SIZES:
        _sizes.clear()
    return _sizes.setdefault(shape, tuple.__new__(Size, shape))


class Properties(Variable):
    """A part of Tensor: see the module's docstring."""

    # What PyTorch's tensors may be beside: scripts ask before they choose a path.
    is_xpu = is_mps = is_xla = is_ipu = is_hpu = is_mtia = is_maia = is_vulkan = False
    layout = "strided"  # the only one that there is
    is_meta = is_sparse = is_sparse_csr = is_quantized = is_mkldnn = is_nested = False

    @property
    def shape(self) -> Size:
        """Sizes of the dimensions."""
        shape = self.array.shape
        try:
            return _sizes[shape]
        except KeyError:
            return _size_of(shape)

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self.array.dtype

    @property
    def device(self) -> Device:
        """The device that holds the memory."""
        return self.array.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.array.shape)

    @property
    def _version(self) -> int:
        """Number of changes in place so far, of the memory that views and detached tensors share; PyTorch's name."""
        return self.array.changes.count

    def _is_view(self) -> bool:
        """Whether it was taken from another tensor, its _base; PyTorch's name."""
        return self._base is not None

    @property
    def is_cuda(self) -> bool:
        """Whether the memory is a CUDA device's."""
        return self.array.device.type == "cuda"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.array.dtype.itemsize

    @overload
    def size(self, dim: None = None) -> Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> Size | int:
        """All sizes, or that of one dimension.

        Args:
            dim: a dimension; counts from the end if negative.
        Returns: the shape, or an int.
        Raises: IndexError: there is no such dimension.
        """
        return self.shape if dim is None else self.array.shape[shapes.normalize_dim("size", dim, self.ndim)]

    @overload
    def stride(self, dim: None = None) -> Shape: ...
    @overload
    def stride(self, dim: int) -> int: ...
    def stride(self, dim: int | None = None) -> Shape | int:
        """Elements in memory from one index to the next, of all dimensions or of one.

        Args:
            dim: a dimension; counts from the end if negative.
        Returns: a tuple, or an int.
        Raises: IndexError: there is no such dimension.
        """
        strides = self.array.strides
        return strides if dim is None else strides[shapes.normalize_dim("stride", dim, self.ndim)]

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements."""
        return self.array.numel

    nelement = numel

    def ndimension(self) -> int:
        """Number of dimensions."""
        return self.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.itemsize

    @property
    def is_cpu(self) -> bool:
        """Whether the memory is the host's."""
        return self.array.device.type == "cpu"

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.dtype.is_complex

    def is_conj(self) -> bool:
        """False: conjugates are computed at once, never when they are read."""
        return False

    is_neg = is_conj

    @property
    def retains_grad(self) -> bool:
        """Whether this is no leaf, and keeps its gradient in `grad` too. See `genesis.Tensor.retain_grad`."""
        node = self.grad_fn
        kept = None if node is None else node.retained.get(self._output_index)
        return kept is not None and kept() is self

    def is_signed(self) -> bool:
        """Whether the dtype has negative numbers."""
        return self.dtype.name not in ("bool", "uint8")

    def is_inference(self) -> bool:
        """False: what inference_mode computes may be used for gradients later."""
        return False

    def get_device(self) -> int:
        """The number of the CUDA device; −1 on the CPU."""
        return self.device.index if self.is_cuda else -1

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.array.data_pointer

    def storage_offset(self) -> int:
        """Elements before the first one in the memory that views share."""
        return self.array.offset

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float."""
        return self.dtype.is_floating_point

    def is_same_size(self, other: Variable) -> bool:
        """Whether other has the same shape.

        Args:
            other: a tensor.
        """
        return self.array.shape == other.array.shape

    def is_nonzero(self) -> bool:
        """Whether the one element is not 0. See `genesis.is_nonzero`."""
        if self.array.numel != 1:
            raise ShapeError(describe("is_nonzero", "input", "one element", f"shape {self.array.shape}"))
        return bool(self.array.item())

    def is_contiguous(self, memory_format: str = "contiguous") -> bool:
        """Whether the elements are dense in memory, in this order.

        Args:
            memory_format: "contiguous" (row-major) or "channels_last" (NHWC).
        """
        return self.array.contiguous(memory_format == "channels_last") is self.array
