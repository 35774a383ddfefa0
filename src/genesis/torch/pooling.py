"""max_pool2d as an op of PyTorch: with gradients, on its streams and memory, and opaque to torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from genesis.records import Windows
from genesis.torch.bridge import call
from genesis.torch.opaque import define, laid_out

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_Pair = tuple[int, int]


def max_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """torch.nn.functional.max_pool2d, by Genesis' kernels where input is on CUDA and has floating numbers.

    The same values, NaN and the first of equals included. For the gradient (which cannot be differentiated again) a
    byte per result is kept, and not the input; sums of windows that overlap are taken in float32 at least, always in
    one order. Whatever else there is PyTorch does: other devices and dtypes, return_indices, arguments that it refuses.

    Args: those of torch.nn.functional.max_pool2d.
    Returns: (N, C, P, Q) or (C, P, Q), in the dtype and memory order of input; with return_indices a pair.

    Example:
        >>> import genesis.torch, torch
        >>> genesis.torch.max_pool2d(torch.arange(4.0).reshape(1, 1, 2, 2), 2).item()
        3.0
    """
    windows = None
    if not return_indices and _takes(input):
        windows = _windows(input, kernel_size, stride, padding, dilation, ceil_mode)
    if windows is None:
        return nn.functional.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    needs_gradient = torch.is_grad_enabled() and input.requires_grad
    if torch.compiler.is_compiling():
        return torch.ops.genesis.max_pool2d(input, *windows, needs_gradient)[0]
    return _MaxPool2d.apply(input, windows) if needs_gradient else call("max_pool2d", input, windows, None)[0]


def _takes(input: Tensor) -> bool:
    return type(input) is Tensor and has_kernels(input)  # what else there is has its own idea of PyTorch's functions


def takes(input: Tensor) -> bool:
    return _takes(input)


def has_kernels(input: Tensor) -> bool:
    """Whether max pooling of such a tensor runs by Genesis' kernels."""
    return input.is_cuda and input.dtype in _DTYPES and input.dim() in (3, 4) and input.numel() > 0


def _windows(
    input: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Windows | None:
    """As the backends take them. None: they don't."""
    stride = kernel_size if stride is None or stride == () or stride == [] else stride
    pairs = kernel, stride, padding, dilation = [_pair(value) for value in (kernel_size, stride, padding, dilation)]
    if None in pairs:
        return None
    for size, k, s, p, d in zip(input.shape[-2:], kernel, stride, padding, dilation, strict=True):
        if min(k, s, d) < 1 or not 0 <= 2 * p <= k or size + 2 * p < d * (k - 1) + 1:
            return None
    return Windows(kernel, stride, padding, dilation, bool(ceil_mode))


def _pair(value: Any) -> Any:
    """Of one or two integers; None for anything else."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(values) not in (1, 2) or not all(isinstance(each, int) for each in values):
        return None
    return values * 2 if len(values) == 1 else values


class _MaxPool2d(torch.autograd.Function):
    """Called eagerly: straight to the backend."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, windows: Windows) -> Tensor:
        y, places = call("max_pool2d", input, windows, "places")
        _begin(ctx, input, places, windows)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return None, None
        return call("max_pool2d_backward", grad, ctx.input_shape, *ctx.saved_tensors, ctx.windows), None


class _TracedMaxPool2d(torch.autograd.Function):
    """Under a compiler, and where torch.ops.genesis.max_pool2d is called: the places are an output too."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        *windows, with_places = args
        with torch._C._AutoDispatchBelowAutograd():
            y, places = torch.ops.genesis.max_pool2d(input, *windows, with_places or ctx.needs_input_grad[0])
        _begin(ctx, input, places, windows)
        ctx.mark_non_differentiable(places)
        return y, places

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 7
        args = (grad, ctx.input_shape, *ctx.saved_tensors, *ctx.windows)
        return torch.ops.genesis.max_pool2d_backward(*args), *(None,) * 6


def _begin(ctx: Any, input: Tensor, places: Tensor, windows: Any) -> None:
    """Keep what the backward wants."""
    ctx.save_for_backward(places)
    ctx.input_shape, ctx.windows = tuple(input.shape), windows
    ctx.set_materialize_grads(False)


# --- for compilers ---
def _opaque_forward(input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """y, and the places in windows; nothing where these are not asked for."""
    *windows, with_places = args
    y, places = call("max_pool2d", input, _recorded(windows), "places" if with_places else None)
    like = _empty(y.shape, y.dtype, input)
    if not with_places:
        return laid_out(y, like), input.new_empty(0, dtype=torch.uint8)
    return laid_out(y, like), laid_out(places, torch.empty_like(like, dtype=places.dtype))


def _opaque_backward(grad: Tensor, input_shape: Any, places: Tensor, *windows: Any) -> Tensor:
    grad_input = call("max_pool2d_backward", grad, tuple(input_shape), places, _recorded(windows))
    return laid_out(grad_input, _empty(input_shape, grad.dtype, places))


def _recorded(windows: Any) -> Windows:
    """A schema gives lists."""
    kernel, stride, padding, dilation, ceil_mode = windows
    return Windows(tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), ceil_mode)


def _empty(shape: Any, dtype: torch.dtype, like: Tensor) -> Tensor:
    """Of this shape, in the memory order of like."""
    channels_last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if channels_last and not like.is_contiguous() else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=order)


def _shapes_forward(input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """What _opaque_forward gives, without values."""
    *windows, with_places = args
    y = _empty(nn.functional.max_pool2d(input, *windows).shape, input.dtype, input)
    if not with_places:
        return y, input.new_empty(0, dtype=torch.uint8)
    dtype = torch.int64
    if input.is_cuda:
        from genesis.backends.cuda.ops.pooling.launch import has_small_places

        dtype = torch.uint8 if has_small_places(windows[0]) else dtype
    return y, torch.empty_like(y, dtype=dtype)


def _shapes_backward(grad: Tensor, input_shape: Any, places: Tensor, *windows: Any) -> Tensor:
    return _empty(input_shape, grad.dtype, places)


_WINDOWS = "int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode"
define(
    f"max_pool2d(Tensor input, {_WINDOWS}, bool with_places) -> (Tensor, Tensor)",
    _opaque_forward,
    _shapes_forward,
    _TracedMaxPool2d.apply,
)
define(
    f"max_pool2d_backward(Tensor grad, SymInt[] input_shape, Tensor places, {_WINDOWS}) -> Tensor",
    _opaque_backward,
    _shapes_backward,
)
