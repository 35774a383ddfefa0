"""ConvBNReLU for PyTorch, and how a torch Conv2d and BatchNorm2d run as one op."""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from genesis import activations
from genesis.errors import ShapeError, describe
from genesis.records import ConvGeometry, NormOptions, NormState
from genesis.torch import ops
from genesis.torch.activations import apply, new_layer
from genesis.torch.inferring import forget, inferred
from genesis.torch.modes import is_plain, nothing_intercepts
from genesis.torch.shapes import Pair, only_contiguous, suggests_channels_last

_Size = int | Pair
OptionalTensor = TypeVar("OptionalTensor", Tensor, None)


class ConvBNReLU(nn.Module):
    """activation(batch_norm(conv(x)) + residual) as one op, a torch.nn.Module.

    Submodules and state_dict are those of torch.nn.Sequential(Conv2d, BatchNorm2d, ReLU) or of another activation. In
    training, and wherever gradients are needed, it is one op with one backward. In eval mode without gradients the norm
    is folded into the weight: on CUDA at each call, on the CPU again where a parameter is no longer bit for bit what it
    was. So any change takes effect at once, `parameter.data` and NumPy included.

    Args:
        in_channels, out_channels, kernel_size, stride, dilation, groups, bias: of torch.nn.Conv2d.
        padding: by default dilation · (kernel_size − 1) // 2.
        eps, momentum, affine, track_running_stats: of torch.nn.BatchNorm2d.
        activation: a name of genesis.activations.NUMBERS, such as "relu", "silu" or "leaky_relu(0.1)"; or None.
        device, dtype: of the parameters and buffers.
    Raises: ValueError: it is no activation; as torch.nn.Conv2d and BatchNorm2d.

    Example:
        >>> import genesis.torch, torch
        >>> layer = genesis.torch.ConvBNReLU(3, 8, 3)
        >>> layer(torch.ones(2, 3, 16, 16)).shape, list(layer.state_dict())[:2]
        (torch.Size([2, 8, 16, 16]), ['0.weight', '1.weight'])
        >>> layer.conv.weight.shape, layer.norm.eps, layer.train(False).training
        (torch.Size([8, 3, 3, 3]), 1e-05, False)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: _Size, stride: _Size = 1,
        padding: _Size | str | None = None, dilation: _Size = 1, groups: int = 1, bias: bool = False,
        eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        activation: str | None = "relu", device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        activation = activations.checked("ConvBNReLU", activation)
        if padding is None:
            kernel, spread = (x if isinstance(x, tuple) else (x, x) for x in (kernel_size, dilation))
            padding = (spread[0] * (kernel[0] - 1) // 2, spread[1] * (kernel[1] - 1) // 2)
        where = {"device": device, "dtype": dtype}
        conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, **where)
        self.add_module("0", conv)
        self.add_module("1", nn.BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats, **where))
        if activation is not None:
            self.add_module("2", new_layer(activation))
        self.activation = activation

    @property
    def conv(self) -> nn.Conv2d:
        """The convolution, submodule "0"."""
        return self._modules["0"]

    @property
    def norm(self) -> nn.BatchNorm2d:
        """The batch norm, submodule "1"."""
        return self._modules["1"]

    def train(self, mode: bool = True) -> ConvBNReLU:
        """Set training or eval mode, and drop the folded weights.

        Args:
            mode: True for training.
        Returns: self.
        """
        forget(self)
        return super().train(mode)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """input: (N, C, H, W); residual: added before the activation, in the shape of the result."""
        return conv_bn_relu(self.conv, self.norm, input, residual, self.activation)


def conv_bn_relu(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, input: Tensor, residual: Tensor | None = None,
    activation: str | None = "relu",
) -> Tensor:  # fmt: skip
    """activation(norm(conv(input)) + residual) as one op, from the parameters of two PyTorch layers.

    Under autocast the convolution's operands are cast to its dtype. The layers run one after the other where the op
    does not apply: other devices, an input without batch, a residual that needs broadcasting or has another dtype,
    complex numbers, and under modes or transforms of PyTorch.

    Args:
        conv: the convolution, with any stride, padding, dilation, groups and bias.
        norm: the batch norm; in training its running statistics are updated.
        input: (N, C, H, W), dtype of conv's weight, or any floating dtype under autocast.
        residual: the shape and dtype of the result; added before the activation. Or None.
        activation: as in ConvBNReLU.
    Returns: (N, K, P, Q), in the dtype and memory order that the layers give.
    Raises: ValueError: in training, one value per channel; it is no activation; as the layers.

    Example:
        >>> import genesis.torch, torch
        >>> conv, norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        >>> genesis.torch.conv_bn_relu(conv, norm, torch.ones(2, 3, 16, 16)).shape
        torch.Size([2, 8, 14, 14])
    """
    return _run(conv, norm, input, residual, activations.checked("conv_bn_relu", activation))[0]


def _ordered(y: Tensor, weight: Tensor, input: Tensor) -> Tensor:
    """The op's result in the order of memory that PyTorch's layers give: channels-last where an operand is so."""
    if not only_contiguous(y.dtype, y.is_cuda) and (_is_channels_last(input) or _is_channels_last(weight)):
        return y
    return y.contiguous()


def _is_channels_last(x: Tensor) -> bool:
    if torch.compiler.is_compiling():  # strides may be symbols
        return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return suggests_channels_last(x.shape, x.stride())


def conv_bn_relu_and_input(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, input: Tensor, residual: Tensor | None = None,
    activation: str | None = "relu",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """conv_bn_relu(...), and the input for its later uses.

    It is a view of the input if the op's backward can add the gradient of those uses, else the input itself.
    """
    return _run(conv, norm, input, residual, activation, passes_through=True)


def _run(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, input: Tensor, residual: Tensor | None, activation: str | None,
    passes_through: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result, and the input: with passes_through its view, if the op can add the gradient of other uses."""
    given = input
    compiling = torch.compiler.is_compiling()
    weight, bias = _parameters(conv)
    if not compiling and not (is_plain(input) and nothing_intercepts()):
        return _one_by_one(conv, norm, input, residual, activation), given
    dtype = _compute_dtype(weight.dtype, input) if input.is_cuda or input.is_cpu else None
    settings = (
        conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
        conv.padding_mode,
    )  # fmt: skip
    residual_shape = None if residual is None else residual.shape
    plan = (_plan.__wrapped__ if compiling else _plan)(input.shape, residual_shape, settings, norm.num_features)
    promoted = residual is not None and residual.dtype is not dtype
    if dtype is None or plan is None or promoted or _synchronizes(norm) or not _on_one_device(input, weight, residual):
        return _one_by_one(conv, norm, input, residual, activation), given
    geometry = plan.geometry
    input = _cast(input, dtype)
    gamma, beta = _parameters(norm)
    if not norm.training and not compiling and not _needs_gradients(input, residual, weight, bias, gamma, beta):
        running_mean, running_var = norm.running_mean, norm.running_var
        if running_mean is not None and running_var is not None:
            state = NormState(gamma, beta, running_mean, running_var)
            y = inferred(conv).run((input, weight, bias, residual), state, norm.eps, geometry, activation)
            return _ordered(y, weight, given), given
    mean, var, training, momentum, count = _begin_batch(norm, compiling)
    if training and plan.num_rows == 1:
        shape = (1, conv.out_channels, 1, 1)
        raise ShapeError(describe("conv_bn_relu", "input", "more than 1 value per channel in training", shape))
    state, options = NormState(gamma, beta, mean, var, count), NormOptions(training, momentum, norm.eps)
    args = (input, _cast(weight, dtype), _cast(bias, dtype), state, residual, options, geometry, activation)
    if passes_through and input is given and not compiling and _needs_gradients(input):
        y, view = ops.conv_bn_relu_and_input(*args)
        return _ordered(y, weight, given), view
    return _ordered(ops.conv_bn_relu(*args), weight, given), given


# --- operands of the op ---
# Of a convolution: in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode.
_Settings = tuple[int, int, Pair, Pair, Pair | str, Pair, int, str]


def _compute_dtype(weight: torch.dtype, input: Tensor) -> torch.dtype | None:
    """The dtype of the convolution; None if PyTorch would refuse its operands, or they are no floating numbers."""
    dtype = input.dtype
    device_type = "cuda" if input.is_cuda else input.device.type  # PyTorch makes the latter's string each time
    if torch.is_autocast_enabled(device_type):
        if torch.float64 in (weight, dtype) or not dtype.is_floating_point:
            return None
        return torch.get_autocast_dtype(device_type)
    return dtype if dtype is weight and dtype.is_floating_point else None


def _parameters(layer: nn.Conv2d | nn.BatchNorm2d) -> tuple[Tensor, Tensor | None]:
    """layer.weight and layer.bias, without Module.__getattr__, which takes half a microsecond each."""
    try:
        plain = layer._parameters
        return plain["weight"], plain["bias"]
    except KeyError:  # a parametrization has taken one's place
        return layer.weight, layer.bias


def _buffers(norm: nn.BatchNorm2d) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """norm.running_mean, norm.running_var and norm.num_batches_tracked, in the same way."""
    try:
        plain = norm._buffers
        return plain["running_mean"], plain["running_var"], plain["num_batches_tracked"]
    except KeyError:
        return norm.running_mean, norm.running_var, norm.num_batches_tracked


def _cast(x: OptionalTensor, dtype: torch.dtype) -> OptionalTensor:
    """x in dtype; None stays None."""
    return x if x is None or x.dtype is dtype else x.to(dtype)


class _Plan(NamedTuple):
    """The geometry of a convolution that the op takes, and the number of values per channel."""

    geometry: ConvGeometry
    num_rows: int


@functools.lru_cache(maxsize=4096)
def _plan(shape: torch.Size, residual_shape: torch.Size | None, settings: _Settings, num_features: int) -> _Plan | None:
    """None for what the op does not take: "same" with asymmetric padding, another padding mode, a wrong shape."""
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode = settings
    if len(shape) != 4 or shape[1] != in_channels or padding_mode != "zeros" or num_features != out_channels:
        return None
    reach = [dilation[i] * (kernel_size[i] - 1) for i in (0, 1)]
    if padding == "same" and any(r % 2 for r in reach):
        return None
    if isinstance(padding, str):
        padding = (reach[0] // 2, reach[1] // 2) if padding == "same" else (0, 0)
    height, width = ((shape[2 + i] + 2 * padding[i] - reach[i] - 1) // stride[i] + 1 for i in (0, 1))
    if min(height, width, shape[0]) < 1:
        return None
    if residual_shape is not None and tuple(residual_shape) != (shape[0], out_channels, height, width):
        return None
    return _Plan(ConvGeometry(stride, padding, dilation, groups), shape[0] * height * width)


def _on_one_device(input: Tensor, weight: Tensor, residual: Tensor | None) -> bool:
    """Are all operands on one device, and is it one that the op can take?"""
    here = _place(input)
    same = _place(weight) == here and (residual is None or _place(residual) == here)
    return same and (input.is_cuda or input.is_cpu)


def _place(tensor: Tensor) -> tuple[bool, bool, int]:
    """The equivalent of tensor.device, which creates an object at each access, for GPUs and the CPU."""
    return tensor.is_cuda, tensor.is_cpu, tensor.get_device()


def _one_by_one(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, input: Tensor, residual: Tensor | None, activation: str | None
) -> Tensor:
    y = norm(conv(input))
    y = y if residual is None else y + residual
    return apply(y, activation)


def _synchronizes(norm: nn.Module) -> bool:
    """Return whether the norm's statistics are those of all processes, which its own forward finds."""
    return norm.training and isinstance(norm, nn.SyncBatchNorm)


def _begin_batch(
    norm: nn.BatchNorm2d, compiling: bool
) -> tuple[Tensor | None, Tensor | None, bool, float, Tensor | None]:
    """Running mean and variance, training and momentum, as BatchNorm2d.forward computes them; and the count of batches,
    if the op is to increment it."""
    training, momentum = norm.training, norm.momentum
    mean, var, count = _buffers(norm)
    if not (training and norm.track_running_stats):
        count = None
    if count is not None and (compiling or momentum is None):
        count.add_(1)
    if momentum is None:  # the average over all batches
        momentum = 0.0 if count is None else 1.0 / float(count)
        count = None
    if training and not norm.track_running_stats:
        return None, None, True, momentum, None
    return mean, var, training or mean is None, momentum, None if compiling else count


def _needs_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
