"""ConvBNReLU: convolution, batch norm, ReLU (and a residual sum before it) as one layer and one op."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Self

from genesis import activations
from genesis import functional as F
from genesis.autograd.modes import state
from genesis.creation import DeviceLike
from genesis.dtypes import DType
from genesis.functional.fused import PackedConv
from genesis.functional.fused_synchronized import conv_bn_relu_synchronized
from genesis.ndarray import NDArray
from genesis.nn.module import Module
from genesis.nn.modules.activation import (
    ELU,
    GELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Tanh,
)
from genesis.nn.modules.batchnorm import BatchNorm2d
from genesis.nn.modules.conv import Conv2d, Size
from genesis.precision import get_float32_precision
from genesis.records import ConvSettings, NormOptions, NormState, record
from genesis.shapes import Shape
from genesis.tensor import Tensor

__all__ = ["ConvBNReLU", "FusedConv"]

# Weight and bias of the convolution; weight, bias, running mean and running variance of the norm.
_Operands = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor]
_Entry = tuple[list[NDArray | None], list[object], PackedConv]  # the arrays and settings that a weight was packed from


class ConvBNReLU(Module):
    """Convolution, batch norm and activation as one op: y = activation(batch_norm(conv(x)) + residual).

    Its parts and its state_dict are those of Sequential(Conv2d, BatchNorm2d, ReLU) or of another activation:
    "0.weight", "1.weight", … load both ways. In training, and wherever gradients are needed, it runs F.conv_bn_relu. In
    eval mode without gradients the norm is folded into the weight, which is packed once and reused until a parameter
    changes; it is not folded while NumPy or another library shares memory of a parameter, and may write into it
    unnoticed.

    Args:
        in_channels, out_channels, kernel_size, stride, dilation, groups, bias: see Conv2d.
        padding: by default dilation · (kernel_size − 1) // 2, which keeps the size of the image at stride 1 for odd
            kernels.
        eps, momentum, affine, track_running_stats: see BatchNorm2d.
        activation: a name of `genesis.activations.NUMBERS`, such as "relu", "silu" or "leaky_relu(0.1)"; or None for
            the output of the norm (plus residual).
        device, dtype: of parameters and buffers.
    Shape: (N, C, H, W) → (N, K, P, Q), see Conv2d; residual has the output's shape.
    Raises: ValueError: it is no activation; see Conv2d for others.

    Example:
        >>> layer = nn.ConvBNReLU(3, 8, 3)
        >>> layer(genesis.ones(2, 3, 16, 16)).shape, list(layer.state_dict())[:2]
        ((2, 8, 16, 16), ['0.weight', '1.weight'])
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1,
        padding: Size | str | None = None, dilation: Size = 1, groups: int = 1, bias: bool = False, eps: float = 1e-5,
        momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        activation: str | None = "relu", device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        activation = activations.checked("ConvBNReLU", activation)
        padding = _centred(kernel_size, dilation) if padding is None else padding
        conv = Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, groups=groups,
            bias=bias, device=device, dtype=dtype,
        )  # fmt: skip
        norm = BatchNorm2d(
            out_channels, eps=eps, momentum=momentum, affine=affine, track_running_stats=track_running_stats,
            device=device, dtype=dtype,
        )  # fmt: skip
        for name, part in enumerate((conv, norm) if activation is None else (conv, norm, _layer(activation))):
            self.add_module(str(name), part)
        self.activation = activation
        self._fused = FusedConv()

    @property
    def conv(self) -> Conv2d:
        """The convolution, part "0".

        Example:
            >>> nn.ConvBNReLU(3, 8, 3).conv.padding
            (1, 1)
        """
        return self._modules["0"]  # type: ignore[return-value]

    @property
    def norm(self) -> BatchNorm2d:
        """The batch norm, part "1".

        Example:
            >>> nn.ConvBNReLU(3, 8, 3).norm.num_features
            8
        """
        return self._modules["1"]  # type: ignore[return-value]

    def train(self, mode: bool = True) -> Self:
        self._fused.clear()
        return super().train(mode)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run on input, (N, C, H, W); residual, of the output's shape, is added before the activation."""
        return self._fused(self.conv, self.norm, input, residual, self.activation)


class FusedConv:
    """Run a convolution and its batch norm as one op, for a module that has the two as parts under any names.

    It caches the folded and packed weights, one per input shape, each with the arrays that it was made from.

    Example:
        >>> conv, norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        >>> fused = nn.FusedConv()
        >>> fused(conv, norm, genesis.ones(1, 3, 5, 5)).shape
        (1, 8, 3, 3)
        >>> fused.clear()  # a cache of packed weights, as after .eval()
    """

    max_shapes = 8  # weights that are kept; the oldest goes first

    def __init__(self) -> None:
        self._entries: dict[tuple[Shape, str], _Entry] = {}

    def __call__(
        self, conv: Conv2d, norm: BatchNorm2d, input: Tensor, residual: Tensor | None = None,
        activation: str | None = "relu",
    ) -> Tensor:  # fmt: skip
        """Compute activation(norm(conv(input)) + residual)."""
        (weight, bias), (gamma, beta) = _parameters(conv), _parameters(norm)
        assert weight is not None, "a convolution has a weight"
        if state.folding and not norm.training and state.autocast is None:
            mean, var = norm.running_mean, norm.running_var
            if mean is not None and var is not None:
                operands = (weight, bias, gamma, beta, mean, var)
                if not _needs_gradients(input, residual, *operands):
                    packed = self._get_packed(conv, norm.eps, operands, input.array.shape)
                    if packed is not None:
                        return F.conv_prepacked(input, packed, residual, activation)
        if norm.is_synchronized and input.array.shape[0] == 0:  # statistics of the other ranks alone
            y = norm(conv(input))
            return y if residual is None else y + residual
        mean, var, training, momentum, num_batches = norm.begin_batch()
        norm_state = record(NormState, (gamma, beta, mean, var, num_batches))
        options = record(NormOptions, (training, momentum, norm.eps))
        settings = record(ConvSettings, (conv.stride, conv.padding, conv.dilation, conv.groups))
        if norm.is_synchronized:
            if num_batches is not None:
                num_batches.array.add_into(1)
            exchange = norm._exchange()
            return conv_bn_relu_synchronized(
                (input, weight, bias, residual), norm_state, options, settings, activation, exchange
            )
        return F.conv_bn_relu(input, weight, bias, norm_state, options, settings, residual, activation)

    def clear(self) -> None:
        """Forget the packed weights."""
        self._entries.clear()

    def _get_packed(self, conv: Conv2d, eps: float, operands: _Operands, input_shape: Shape) -> PackedConv | None:
        """The weight for this shape; None if it could change unnoticed."""
        arrays = [None if tensor is None else tensor.array for tensor in operands]
        key = input_shape, get_float32_precision()
        made_of: list[object] = [0 if array is None else array.changes.version for array in arrays]
        made_of += (eps, conv.stride, conv.padding, conv.dilation, conv.groups, get_float32_precision())
        entry = self._entries.get(key)
        # The very arrays, and as often changed in place as then: ids alone could have been given to new arrays.
        if entry is not None and entry[1] == made_of and all(map(operator.is_, entry[0], arrays)):
            return entry[2]
        if None in made_of:
            self.clear()
            return None
        packed = self._fitting(arrays, made_of)
        if packed is None:
            weight, bias = F.fold_batch_norm(*operands, eps)
            packed = F.conv_prepack(weight, bias, input_shape, conv.stride, conv.padding, conv.dilation, conv.groups)
        self._entries.pop(key, None)
        if len(self._entries) >= self.max_shapes:
            self._entries.pop(next(iter(self._entries)))
        self._entries[key] = arrays, made_of, packed
        return packed

    def _fitting(self, arrays: list[NDArray | None], made_of: list[object]) -> PackedConv | None:
        """The weight that was packed for another shape, if the backend packs alike for all."""
        for known, known_made_of, packed in self._entries.values():
            if packed.fits_all_shapes and known_made_of == made_of and all(map(operator.is_, known, arrays)):
                return packed
        return None

    def __reduce__(self) -> tuple[type[FusedConv], tuple[()]]:
        return FusedConv, ()  # copies and pickles fold anew


_LAYERS: dict[str, Callable[[], Module]] = {
    "relu": ReLU, "relu6": ReLU6, "silu": SiLU, "mish": Mish, "gelu": GELU, "gelu_tanh": lambda: GELU("tanh"),
    "hardswish": Hardswish, "hardsigmoid": Hardsigmoid, "sigmoid": Sigmoid, "tanh": Tanh,
}  # fmt: skip
_NUMBERED_LAYERS: dict[str, Callable[[float], Module]] = {"leaky_relu": LeakyReLU, "elu": ELU}


def _layer(activation: str) -> Module:
    """The layer that applies an activation."""
    name, number = activations.parse(activation)
    return _LAYERS[name]() if number is None else _NUMBERED_LAYERS[name](number)


def _parameters(layer: Conv2d | BatchNorm2d) -> tuple[Tensor | None, Tensor | None]:
    """layer.weight and layer.bias, from the registry: an attribute costs a call of Module.__getattr__."""
    try:
        own = layer._parameters
        return own["weight"], own["bias"]
    except KeyError:  # something else is there under the name
        return layer.weight, layer.bias


def _needs_gradients(*tensors: Tensor | None) -> bool:
    return state.recording and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _centred(kernel_size: Size, dilation: Size) -> Size:
    """The padding that keeps the size of the image at stride 1, for odd kernels."""
    if isinstance(kernel_size, int) and isinstance(dilation, int):
        return dilation * (kernel_size - 1) // 2
    kernel = (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size
    steps: Sequence[int] = (dilation,) * 2 if isinstance(dilation, int) else dilation
    return tuple(step * (size - 1) // 2 for size, step in zip(kernel, steps, strict=True))
