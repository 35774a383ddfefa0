"""Parameter and Buffer: the tensors that a module registers when they are assigned to an attribute."""

from __future__ import annotations

from genesis.creation import empty
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
