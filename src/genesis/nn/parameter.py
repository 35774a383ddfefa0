"""Parameter and Buffer: the tensors that a module registers when they are assigned to an attribute."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import sharing
from genesis.creation import DeviceLike, empty
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.tensor import Tensor


class Parameter(Tensor, result_class=Tensor):
    """A tensor that a module registers when it is assigned to an attribute; it requires grad unless told otherwise.

    Args:
        data: any shape and floating dtype; memory is shared. None makes an empty parameter.
        requires_grad: whether gradients are computed for it.
    Raises: DTypeError: data is not a Tensor, or not floating while requires_grad is set.

    Example:
        >>> nn.Parameter(genesis.zeros(2))
        Parameter containing:
        tensor([0., 0.], requires_grad=True)
    """

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        data = empty(0) if data is None else data
        if not isinstance(data, Tensor):
            raise DTypeError(describe("Parameter", "data", "a Tensor", type(data).__name__))
        super().__init__(data.array, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor, result_class=Tensor):
    """A tensor that a module registers as a buffer when it is assigned to an attribute.

    Args:
        data: any shape and dtype; memory is shared. None makes an empty buffer.
        persistent: whether it is part of the state_dict.
    Raises: DTypeError: data is not a Tensor.

    Example:
        >>> layer = nn.Module()
        >>> layer.mean = nn.Buffer(genesis.zeros(2))
        >>> [name for name, _ in layer.named_buffers()]
        ['mean']
    """

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        data = empty(0) if data is None else data
        if not isinstance(data, Tensor):
            raise DTypeError(describe("Buffer", "data", "a Tensor", type(data).__name__))
        super().__init__(data.array)
        self.persistent = persistent


class UninitializedParameter(Parameter, result_class=Tensor):
    """A parameter of a lazy layer before the first input: it has a device and a dtype, and no shape yet.

    Args:
        requires_grad: whether gradients will be computed for it.
        device, dtype: that it will have.

    Example:
        >>> parameter = nn.UninitializedParameter()
        >>> parameter.materialize((2, 3))
        >>> parameter.shape, type(parameter).__name__
        ((2, 3), 'Parameter')
    """

    def __init__(self, requires_grad: bool = True, device: DeviceLike = None, dtype: DType | None = None) -> None:
        super().__init__(empty(0, device=device, dtype=dtype), requires_grad)

    def materialize(self, shape: Sequence[int], device: DeviceLike = None, dtype: DType | None = None) -> None:
        """Become a Parameter of a shape; its values are arbitrary.

        Args:
            shape: any.
            device, dtype: by default those that it has.
        """
        self.data = empty(tuple(shape), device=device or self.device, dtype=dtype or self.dtype)
        self.__class__ = Parameter  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<UninitializedParameter>"


class UninitializedBuffer(Buffer, result_class=Tensor):
    """A buffer of a lazy layer before the first input. See `nn.UninitializedParameter`."""

    def __init__(
        self, requires_grad: bool = False, device: DeviceLike = None, dtype: DType | None = None,
        *, persistent: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(empty(0, device=device, dtype=dtype), persistent=persistent)

    def materialize(self, shape: Sequence[int], device: DeviceLike = None, dtype: DType | None = None) -> None:
        """Become a Buffer of a shape. See `nn.UninitializedParameter`."""
        self.data = empty(tuple(shape), device=device or self.device, dtype=dtype or self.dtype)
        self.__class__ = Buffer  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<UninitializedBuffer>"


def is_lazy(param: object) -> bool:
    """Whether a parameter or buffer has no shape yet.

    Args:
        param: anything.

    Example:
        >>> nn.parameter.is_lazy(nn.LazyLinear(2).weight)
        True
    """
    return isinstance(param, UninitializedParameter | UninitializedBuffer)


for _kind in (Parameter, Buffer):
    sharing.register(_kind)
