"""Images made smaller without aliasing: the filter of an interpolation widens with the distance of the samples."""

from __future__ import annotations

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context
from genesis.ndarray import Device, NDArray, ops
from genesis.precision import float32_precision
from genesis.shapes import Shape

__all__: list[str] = []  # F.interpolate(antialias=True)


class Antialiased(ArrayFunction):
    """y = A · x · Bᵀ for each plane: each row of A and B holds the weights of one output along one dimension."""

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, *, size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]
    ) -> NDArray:
        dtype = dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32
        along = zip(x.shape[2:], size, scales, strict=True)
        ctx.filters = [_filter(*each, mode, align_corners, x.device).to(dtype) for each in along]
        return resampled(x, *ctx.filters)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return resampled(grad, *[each.transpose(0, 1) for each in ctx.filters])


def resampled(x: NDArray, rows: NDArray, columns: NDArray) -> NDArray:
    """rows · x · columnsᵀ, in the dtype of x; the products of 16 bits are rounded once."""
    with float32_precision("highest"):
        wide = ops.matmul(x.to(columns.dtype), columns.transpose(0, 1))
        return ops.matmul(rows, wide).to(x.dtype)


def _filter(before: int, after: int, scale: float | None, mode: str, align_corners: bool, device: Device) -> NDArray:
    """(after, before): the weights of each output. They are PyTorch's, which are Pillow's."""
    if align_corners:
        distance = (before - 1) / (after - 1) if after > 1 else 0.0
    else:
        distance = 1 / scale if scale else before / after  # between two outputs, in input samples
    outputs = NDArray.arange(0, 1, after, dtypes.float64, device).add(0.5).mul(distance)
    inputs = NDArray.arange(0, 1, before, dtypes.float64, device).add(0.5)
    offsets = inputs.reshape((1, before)).sub(outputs.reshape((after, 1))).abs().mul(1 / max(distance, 1.0))
    weights = _cubic(offsets) if mode == "bicubic" else offsets.neg().add(1).clamp(0, None)
    return weights.div(ops.sum(weights, (1,), True))


def _cubic(x: NDArray) -> NDArray:
    """Keys' kernel of |x| with a = −½: 1.5x³ − 2.5x² + 1 up to 1, −½(x³ − 5x² + 8x − 4) up to 2."""
    near = x.mul(1.5).sub(2.5).mul(x).mul(x).add(1)
    far = x.sub(5).mul(x).add(8).mul(x).sub(4).mul(-0.5)
    return x.le(1).where(near, x.lt(2).where(far, 0.0))
