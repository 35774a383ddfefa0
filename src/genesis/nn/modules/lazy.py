"""Lazy layers: what they take follows from the first input. See UninitializedParameter in nn/parameter.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from genesis.creation import DeviceLike
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn.module import Module
from genesis.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d
from genesis.nn.modules.conv import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from genesis.nn.modules.linear import Linear
from genesis.nn.modules.normalization import InstanceNorm1d, InstanceNorm2d
from genesis.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from genesis.tensor import Tensor

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyConv1d", "LazyConv2d", "LazyConvTranspose1d", "LazyConvTranspose2d",
    "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyLinear",
]  # fmt: skip


class _Lazy(Module):
    """A layer whose first argument is left open; on the first input, it becomes a layer of its class_to_become.

    The parameters stay the same objects, so an optimizer may have been given them.
    """

    cls_to_become: ClassVar[type[Module]]
    size: ClassVar[str]  # the argument and attribute that is left open
    dim: ClassVar[int]  # of the input, counted from its end, which gives it

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.__dict__["_is_open"] = True  # before super().__init__, which resets the parameters
        groups = kwargs.get("groups", 1)
        super().__init__(groups, *args, **kwargs)  # type: ignore[call-arg]
        self._arguments = args, kwargs
        setattr(self, self.size, 0)
        for name, parameter in self._parameters.items():
            if parameter is not None:
                left = UninitializedParameter(parameter.requires_grad, parameter.device, parameter.dtype)
                self._parameters[name] = left
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.ndim:
                self._buffers[name] = UninitializedBuffer(buffer.requires_grad, buffer.device, buffer.dtype)
        self.register_forward_pre_hook(_become, with_kwargs=True)
        self.register_load_state_dict_pre_hook(_take_shapes)

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer has no shape yet.

        Example:
            >>> nn.LazyLinear(2).has_uninitialized_params()
            True
        """
        return any(is_lazy(tensor) for tensor in (*self._parameters.values(), *self._buffers.values()))

    def reset_parameters(self) -> None:
        if "_is_open" not in self.__dict__:
            super().reset_parameters()  # type: ignore[misc]

    def initialize_parameters(self, input: Tensor) -> None:
        """Give the parameters the shapes that follow from an input, and draw them.

        Args:
            input: any shape that forward takes.
        Raises: ShapeError: it has too few dimensions.

        Example:
            >>> layer = nn.LazyLinear(2)
            >>> layer.initialize_parameters(genesis.ones(4, 3))
            >>> layer.weight.shape
            (2, 3)
        """
        if input.ndim < -self.dim:
            raise ShapeError(describe(type(self).__name__, "input", f"at least {-self.dim} dimensions", input.shape))
        size = input.shape[self.dim]
        if self.has_uninitialized_params():
            args, kwargs = self._arguments
            make: Callable[..., Module] = self.cls_to_become
            made = make(size, *args, **kwargs)
            for own, others in ((self._parameters, made._parameters), (self._buffers, made._buffers)):
                for name, tensor in own.items():
                    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                        values = others[name]
                        assert values is not None, "both are made of the same arguments"
                        tensor.materialize(values.shape)
                        tensor.data = values.detach().to(tensor.device, tensor.dtype)  # drawn, and in its memory order
        setattr(self, self.size, size)


def _become(module: _Lazy, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> None:
    module.initialize_parameters(*args, **kwargs)
    hooks = module._forward_pre_hooks
    hooks[:] = [hook for hook in hooks if getattr(hook, "function", None) is not _become]
    for name in ("_is_open", "_arguments"):
        del module.__dict__[name]
    module.__class__ = module.cls_to_become  # type: ignore[assignment]


def _take_shapes(module: Module, state_dict: Mapping[str, object], prefix: str, *others: object) -> None:
    """Before a state is loaded: what has no shape takes that of the state."""
    for registry in (module._parameters, module._buffers):
        for name, tensor in registry.items():
            given = state_dict.get(prefix + name)
            if not isinstance(given, Tensor) or is_lazy(given) or given.shape == (0,):
                continue
            if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                tensor.materialize(given.shape)


class LazyLinear(_Lazy, Linear):
    """`nn.Linear` whose in_features follows from the first input, which makes it one.

    Args:
        args, kwargs: those of `nn.Linear` but the first.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyLinear(2)(genesis.ones(4, 3)).shape
        (4, 2)
    """

    cls_to_become = Linear
    size, dim = "in_features", -1


class LazyConv1d(_Lazy, Conv1d):
    """`nn.Conv1d` whose in_channels follows from the first input, which makes it one.

    Args:
        args, kwargs: those of `nn.Conv1d` but the first.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyConv1d(2, 3)(genesis.ones(4, 3, 5)).shape
        (4, 2, 3)
    """

    cls_to_become = Conv1d
    size, dim = "in_channels", -2


class LazyConv2d(_Lazy, Conv2d):
    """`nn.Conv2d` whose in_channels follows from the first input, which makes it one.

    Args:
        args, kwargs: those of `nn.Conv2d` but the first.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyConv2d(2, 3)(genesis.ones(4, 3, 5, 5)).shape
        (4, 2, 3, 3)
    """

    cls_to_become = Conv2d
    size, dim = "in_channels", -3


class LazyConvTranspose1d(_Lazy, ConvTranspose1d):
    """`nn.ConvTranspose1d` whose in_channels follows from the first input, which makes it one.

    Args:
        args, kwargs: those of `nn.ConvTranspose1d` but the first.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyConvTranspose1d(2, 3)(genesis.ones(4, 3, 5)).shape
        (4, 2, 7)
    """

    cls_to_become = ConvTranspose1d
    size, dim = "in_channels", -2


class LazyConvTranspose2d(_Lazy, ConvTranspose2d):
    """`nn.ConvTranspose2d` whose in_channels follows from the first input, which makes it one.

    Args:
        args, kwargs: those of `nn.ConvTranspose2d` but the first.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyConvTranspose2d(2, 3)(genesis.ones(4, 3, 5, 5)).shape
        (4, 2, 7, 7)
    """

    cls_to_become = ConvTranspose2d
    size, dim = "in_channels", -3


class LazyBatchNorm1d(_Lazy, BatchNorm1d):
    """`nn.BatchNorm1d` whose num_features follows from the first input, which makes it one.

    Args:
        args, kwargs: those of `nn.BatchNorm1d` but the first.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyBatchNorm1d()(genesis.ones(4, 3)).shape
        (4, 3)
    """

    cls_to_become = BatchNorm1d
    size, dim = "num_features", -1

    def initialize_parameters(self, input: Tensor) -> None:
        """Give the parameters their shapes.

        Args:
            input: (N, C) or (N, C, L).

        Example:
            >>> norm = nn.LazyBatchNorm1d()
            >>> norm.initialize_parameters(genesis.ones(4, 3))
            >>> norm.weight.shape
            (3,)
        """
        super().initialize_parameters(input if input.ndim == 2 else input[..., 0])


class LazyBatchNorm2d(_Lazy, BatchNorm2d):
    """`nn.BatchNorm2d` whose num_features follows from the first input, which makes it one.

    Args:
        args, kwargs: those of `nn.BatchNorm2d` but the first.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyBatchNorm2d()(genesis.ones(4, 3, 5, 5)).shape
        (4, 3, 5, 5)
    """

    cls_to_become = BatchNorm2d
    size, dim = "num_features", -3


class _LazyInstanceNorm(_Lazy):
    """With PyTorch's defaults, which are those of batch norms."""

    def __init__(
        self, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype)


class LazyInstanceNorm1d(_LazyInstanceNorm, InstanceNorm1d):
    """`nn.InstanceNorm1d` whose num_features follows from the first input, which makes it one.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype: as in `nn.InstanceNorm1d`, but affine and with
            running statistics by default.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyInstanceNorm1d()(genesis.ones(4, 3, 5)).shape
        (4, 3, 5)
    """

    cls_to_become = InstanceNorm1d
    size, dim = "num_features", -2


class LazyInstanceNorm2d(_LazyInstanceNorm, InstanceNorm2d):
    """`nn.InstanceNorm2d` whose num_features follows from the first input, which makes it one.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype: as in `nn.InstanceNorm2d`, but affine and with
            running statistics by default.
    Raises: ShapeError: the first input has too few dimensions.

    Example:
        >>> nn.LazyInstanceNorm2d()(genesis.ones(4, 3, 5, 5)).shape
        (4, 3, 5, 5)
    """

    cls_to_become = InstanceNorm2d
    size, dim = "num_features", -3
