"""Fractional max pooling: windows at random steps, whose number is given."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import dtypes
from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.extremes import max as largest
from genesis.functional.selection import gather
from genesis.functional.shape import reshape
from genesis.functional.windows import Size, per_dimension, require_tensor
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["fractional_max_pool2d", "fractional_max_pool2d_with_indices"]


def fractional_max_pool2d(
    input: Tensor, kernel_size: Size, output_size: Size | None = None,
    output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The largest element of windows whose steps are random: as many windows as output_size says.

    Args:
        input: (N, C, H, W) or (C, H, W), any floating dtype.
        kernel_size: of the windows.
        output_size: (P, Q), how many windows; or one number for both.
        output_ratio: instead of it, P / H and Q / W, in (0, 1).
        return_indices: give as well where each value was found, in h·W + w.
        _random_samples: (N, C, 2) in [0, 1), for the steps along W and H; drawn if None.
    Returns: (N, C, P, Q) or (C, P, Q); with return_indices a pair.
    Raises: ShapeError: windows that do not fit; another rank. DTypeError: input is not floating. ValueError: neither
        output_size nor output_ratio.
    Grad: input.
    Source: Graham 2014, arXiv:1412.6071.

    Example:
        >>> image = genesis.arange(16.0).reshape(1, 4, 4)
        >>> F.fractional_max_pool2d(image, 2, output_size=2).shape
        (1, 2, 2)
    """
    op = "fractional_max_pool2d"
    require_tensor(op, "input", input)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
    if input.array.ndim not in (3, 4):
        raise ShapeError(describe(op, "input", "4 dimensions, or 3 without a batch", f"shape {input.array.shape}"))
    *batch, height, width = input.array.shape
    kernel = per_dimension(op, "kernel_size", kernel_size, 2, least=1)
    if output_size is None:
        if output_ratio is None:
            raise ValueError(describe(op, "output_size", "a size, or an output_ratio", None))
        ratios = tuple(output_ratio) if isinstance(output_ratio, Sequence) else (output_ratio, output_ratio)
        if len(ratios) != 2 or not all(0 < ratio < 1 for ratio in ratios):
            raise ValueError(describe(op, "output_ratio", "1 or 2 numbers in (0, 1)", output_ratio))
        output_size = (int(height * ratios[0]), int(width * ratios[1]))
    counts = per_dimension(op, "output_size", output_size, 2, least=1)
    for size, window, count in zip((height, width), kernel, counts, strict=True):
        if count + window - 1 > size:
            expected = f"at least {count + window - 1} elements, for {count} windows of {window}"
            raise ShapeError(describe(op, "input", expected, f"shape {input.array.shape}"))
    samples = _samples(op, input, (1, *batch) if len(batch) == 1 else tuple(batch), _random_samples)
    starts = [
        _starts(samples.select(2, 1 - dim), size, window, count)
        for dim, (size, window, count) in enumerate(zip((height, width), kernel, counts, strict=True))
    ]
    places = _places(starts[0], starts[1], kernel, width)  # (N, C, P·Q, window)
    area = kernel[0] * kernel[1]
    flat = reshape(input, (*places.shape[:2], height * width))
    windows = gather(flat, 2, input._like(places.reshape((*places.shape[:2], counts[0] * counts[1] * area))))
    values, found = largest(reshape(windows, (*places.shape[:2], counts[0] * counts[1], area)), 3)
    values = reshape(values, (*batch, *counts))
    if not return_indices:
        return values
    return values, reshape(gather(input._like(places), 3, found.unsqueeze(3)), (*batch, *counts))


def fractional_max_pool2d_with_indices(
    input: Tensor, kernel_size: Size, output_size: Size | None = None,
    output_ratio: float | Sequence[float] | None = None, return_indices: bool = True,
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """fractional_max_pool2d with return_indices. See `F.fractional_max_pool2d`."""
    values, indices = fractional_max_pool2d(input, kernel_size, output_size, output_ratio, True, _random_samples)
    return values, indices


def _samples(op: str, input: Tensor, shape: Shape, given: Tensor | None) -> NDArray:
    """(N, C, 2), in the dtype of input."""
    if given is None:
        dtype = input.array.dtype if input.array.dtype.itemsize > 2 else dtypes.float32
        return NDArray.random("rand", input.array.device, (*shape, 2), None, dtype)
    require_tensor(op, "_random_samples", given)
    if given.array.shape != (*shape, 2):
        raise ShapeError(describe(op, "_random_samples", f"shape {(*shape, 2)}", given.array.shape))
    if given.array.dtype is not input.array.dtype:
        expected = f"the dtype of input, {input.array.dtype}"
        raise DTypeError(describe(op, "_random_samples", expected, given.array.dtype))
    return given.array


def _starts(samples: NDArray, size: int, window: int, count: int) -> NDArray:
    """(N, C, count), int64: where windows begin. The last one ends with the image."""
    last = samples.full_like(size - window, (*samples.shape, 1)).to(dtypes.int64)
    if count == 1:
        return last
    step = (size - window) / (count - 1)
    numbers = NDArray.arange(0, 1, count - 1, samples.dtype, samples.device)
    first = samples.unsqueeze(2)
    end = numbers.reshape((1, 1, count - 1)).add(first).mul(step).to(dtypes.int64)
    return ops.cat([end.sub(first.mul(step).to(dtypes.int64)), last], 2)


def _places(rows: NDArray, columns: NDArray, kernel: Shape, width: int) -> NDArray:
    """(N, C, P·Q, window): h·W + w of each element of each window."""
    n, channels, high = rows.shape
    wide = columns.shape[2]
    down = NDArray.arange(0, 1, kernel[0], dtypes.int64, rows.device)
    along = NDArray.arange(0, 1, kernel[1], dtypes.int64, rows.device)
    h = rows.reshape((n, channels, high, 1, 1, 1)).add(down.reshape((1, 1, 1, 1, kernel[0], 1)))
    w = columns.reshape((n, channels, 1, wide, 1, 1)).add(along.reshape((1, 1, 1, 1, 1, kernel[1])))
    return h.mul(width).add(w).reshape((n, channels, high * wide, kernel[0] * kernel[1]))
