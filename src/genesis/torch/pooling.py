"""max_pool2d as an op of PyTorch: with gradients, on its streams and memory, and opaque to torch.compile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, overload

import torch
from torch import Tensor, nn

from genesis.records import Windows
from genesis.torch.bridge import call
from genesis.torch.opaque import define, laid_out
from genesis.torch.shapes import FLOATS, Pair

Sizes: TypeAlias = int | Sequence[int]  # per dimension, or one for both


@overload
def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, *, return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """torch.nn.functional.max_pool2d that runs Genesis' kernels for floating-point inputs on CUDA.

    Values are the same, ties and NaN included. The backward saves a byte per result instead of the input, and adds
    overlapping windows in float32 or wider, in a fixed order. PyTorch's function runs for other devices and dtypes,
    subclasses of Tensor, return_indices, and arguments that it refuses.

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, dilation: an int or a pair; stride defaults to kernel_size.
        ceil_mode: round the output's size up instead of down.
        return_indices: return the indices of the maxima too.
    Returns: (N, C, P, Q) or (C, P, Q), dtype and memory order of input; with return_indices a pair (y, indices).

    Example:
        >>> import genesis.torch, torch
        >>> genesis.torch.max_pool2d(torch.arange(4.0).reshape(1, 1, 2, 2), 2).item()
        3.0
    """
    windows = None
    if not return_indices and takes(input):
        windows = windows_of(input, kernel_size, stride, padding, dilation, ceil_mode)
    if windows is None:
        return nn.functional.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    needs_gradient = torch.is_grad_enabled() and input.requires_grad
    if torch.compiler.is_compiling():
        return torch.ops.genesis.max_pool2d(input, *windows, needs_gradient)[0]
    return _MaxPool2d.apply(input, windows) if needs_gradient else call("max_pool2d", input, windows, None)[0]


def takes(input: Tensor) -> bool:
    """Return whether this is a tensor, no subclass, which may override PyTorch's function, and has_kernels(input)."""
    return type(input) is Tensor and has_kernels(input)


def has_kernels(input: Tensor) -> bool:
    """Return whether Genesis' kernels can pool such a tensor."""
    return input.is_cuda and input.dtype in FLOATS and input.dim() in (3, 4) and input.numel() > 0


def windows_of(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> Windows | None:
    """Return the settings as the backends take them; None for those that they refuse."""
    stride = kernel_size if stride is None or stride == () or stride == [] else stride
    kernel, step, pad, spread = _pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation)
    if kernel is None or step is None or pad is None or spread is None:
        return None
    for size, k, s, p, d in zip(input.shape[-2:], kernel, step, pad, spread, strict=True):
        if min(k, s, d) < 1 or not 0 <= 2 * p <= k or size + 2 * p < d * (k - 1) + 1:
            return None
    return Windows(kernel, step, pad, spread, bool(ceil_mode))


def _pair(value: object) -> Pair | None:
    """The pair that one or two integers stand for; None for anything else."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(values) not in (1, 2):
        return None
    first, last = values[0], values[-1]
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


class _Context(Protocol):
    """The context of both functions: PyTorch's, and the attributes that they add."""

    input_shape: tuple[int, ...]
    result_shape: torch.Size  # where gradients are differentiated
    windows: Windows
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _MaxPool2d(torch.autograd.Function):
    """The eager op: it calls the backend directly."""

    @staticmethod
    def forward(ctx: _Context, input: Tensor, windows: Windows) -> Tensor:
        y, places = call("max_pool2d", input, windows, "places")
        _save(ctx, input, places, windows)
        return y

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None
        args = (grad, ctx.input_shape, *ctx.saved_tensors, ctx.windows)
        return _MaxPool2dBackward.apply(*args) if torch.is_grad_enabled() else _scatter(*args), None


class _MaxPool2dBackward(torch.autograd.Function):
    """The gradient, where it may be differentiated: each element of it is that of one maximum, or a sum of several."""

    @staticmethod
    def forward(ctx: _Context, grad: Tensor, input_shape: tuple[int, ...], places: Tensor, windows: Windows) -> Tensor:
        ctx.save_for_backward(places)
        ctx.input_shape, ctx.windows, ctx.result_shape = input_shape, windows, grad.shape
        return _scatter(grad, input_shape, places, windows)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            (places,) = ctx.saved_tensors
            positions = _positions(ctx.result_shape, ctx.input_shape, places, ctx.windows)
        return grad.flatten(-2).gather(-1, positions).view(ctx.result_shape), None, None, None


def _positions(shape: torch.Size, input_shape: tuple[int, ...], places: Tensor, windows: Windows) -> Tensor:
    """(..., P · Q): where in its plane each result was found.

    The backend alone can read the places. So the results' numbers are scattered as a gradient would be, a part of them
    at a time whose windows do not overlap, where a sum would hide them.
    """
    kernel_size, stride, _, dilation, _ = windows
    apart = [-(-(d * (k - 1) + 1) // s) for k, s, d in zip(kernel_size, stride, dilation, strict=True)]
    numbers = torch.arange(1, shape[-2] * shape[-1] + 1, dtype=torch.float64, device=places.device).view(shape[-2:])
    pixels = torch.arange(input_shape[-2] * input_shape[-1], device=places.device)
    found = pixels.new_zeros((*shape[:-2], numbers.numel() + 1))  # the first is of pixels that are no maximum
    for i, j in itertools.product(*map(range, apart)):
        part = numbers.new_zeros(shape)
        part[..., i :: apart[0], j :: apart[1]] = numbers[i :: apart[0], j :: apart[1]]
        scattered = _scatter(part, input_shape, places, windows).flatten(-2).long()
        found.scatter_(-1, scattered, pixels.expand_as(scattered))
    return found[..., 1:]


def _scatter(grad: Tensor, input_shape: tuple[int, ...], places: Tensor, windows: Windows) -> Tensor:
    found: Tensor = call("max_pool2d_backward", grad, input_shape, places, windows)
    return found


class _TracedMaxPool2d(torch.autograd.Function):
    """The autograd of torch.ops.genesis.max_pool2d, for compilers too: the places are an output."""

    @staticmethod
    def forward(
        ctx: _Context, input: Tensor, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool,
        with_places: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        windows = _windows_of(kernel_size, stride, padding, dilation, ceil_mode)
        with torch._C._AutoDispatchBelowAutograd():
            y, places = torch.ops.genesis.max_pool2d(input, *windows, with_places or ctx.needs_input_grad[0])
        _save(ctx, input, places, windows)
        ctx.mark_non_differentiable(places)
        return y, places

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 7
        args = (grad, ctx.input_shape, *ctx.saved_tensors, *ctx.windows)
        return torch.ops.genesis.max_pool2d_backward(*args), *(None,) * 6


def _save(ctx: _Context, input: Tensor, places: Tensor, windows: Windows) -> None:
    """Save what the backward needs."""
    ctx.save_for_backward(places)
    ctx.input_shape, ctx.windows = tuple(input.shape), windows
    ctx.set_materialize_grads(False)


# --- for compilers ---
def _opaque_forward(
    input: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, with_places: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y and the places of the maxima in their windows, an empty tensor unless with_places."""
    windows = _windows_of(kernel_size, stride, padding, dilation, ceil_mode)
    y, places = call("max_pool2d", input, windows, "places" if with_places else None)
    like = _empty(y.shape, y.dtype, input)
    if not with_places:
        return laid_out(y, like), input.new_empty(0, dtype=torch.uint8)
    return laid_out(y, like), laid_out(places, torch.empty_like(like, dtype=places.dtype))


def _opaque_backward(
    grad: Tensor, input_shape: Sequence[int], places: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> Tensor:  # fmt: skip
    windows = _windows_of(kernel_size, stride, padding, dilation, ceil_mode)
    grad_input = call("max_pool2d_backward", grad, tuple(input_shape), places, windows)
    return laid_out(grad_input, _empty(input_shape, grad.dtype, places))


def _windows_of(
    kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool
) -> Windows:
    """The record of a schema's arguments, which are lists."""
    (a, b), (c, d), (e, f), (g, h) = kernel_size, stride, padding, dilation
    return Windows((a, b), (c, d), (e, f), (g, h), ceil_mode)


def _empty(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """An uninitialized tensor of this shape, in the memory order of like."""
    channels_last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if channels_last and not like.is_contiguous() else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=order)


def _shapes_forward(
    input: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, with_places: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The results of _opaque_forward without values."""
    shape = nn.functional.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode).shape
    y = _empty(shape, input.dtype, input)
    if not with_places:
        return y, input.new_empty(0, dtype=torch.uint8)
    dtype = torch.int64
    if input.is_cuda:
        from genesis.backends.cuda.ops.pooling.launch import has_small_places

        dtype = torch.uint8 if has_small_places((kernel_size[0], kernel_size[1])) else dtype
    return y, torch.empty_like(y, dtype=dtype)


def _shapes_backward(
    grad: Tensor, input_shape: Sequence[int], places: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> Tensor:  # fmt: skip
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
