"""Padding: rows and columns added around (or, where negative, cropped from) the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import dtypes
from genesis.autograd import ArrayFunction
from genesis.autograd import Variable as Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["pad"]

Pads = tuple[tuple[int, int], ...]


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """input with its last dimensions made longer, or shorter where a number is negative.

    Args:
        input: any shape; the modes other than "constant" pad the last 1 to 3 dimensions of 2 to 5.
        pad: (before, after) of the last dimension, then of the one before it, and so on.
        mode: "constant", "reflect" (without repeating the edge), "replicate" (the edge) or "circular".
        value: what "constant" fills in; 0 if None.
    Returns: the dtype of input.
    Raises: ValueError: an odd count or too many numbers; more is reflected or wrapped than there is.
    Grad: input.

    Example:
        >>> F.pad(genesis.tensor([[1.0, 2.0, 3.0]]), (2, 1), mode="reflect").tolist()
        [[3.0, 2.0, 1.0, 2.0, 3.0, 2.0]]
    """
    require_tensor("pad", "input", input)
    pads = _check_pads(input.array.shape, pad)
    if mode == "constant":
        is_written = value is not None and any(number > 0 for number in pad)
        value = dtypes.number("pad", "value", float(value), input.array.dtype) if is_written and value else 0
        return Pad.apply(input, pads=pads, mode=mode, value=value)
    if mode not in ("reflect", "replicate", "circular"):
        expected = '"constant", "reflect", "replicate" or "circular"'
        raise ValueError(describe("pad", "mode", expected, repr(mode)))
    if value is not None and value != 0:
        raise ValueError(describe("pad", "value", f"None with mode {mode!r}", value))
    _check_repeats(input.array.shape, len(pad) // 2, pads, mode)
    return Pad.apply(input, pads=pads, mode=mode, value=0)


class Pad(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, pads: Pads, mode: str, value: float) -> NDArray:
        ctx.shape, ctx.pads, ctx.mode = x.shape, pads, mode
        return ops.pad(x, pads, mode, value)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return ops.pad_backward(grad, ctx.shape, ctx.pads, ctx.mode)


def _check_pads(shape: Shape, pad: Any) -> Pads:
    """pad as (before, after) for each dimension, first to last."""
    if not isinstance(pad, Sequence) or any(not hasattr(number, "__index__") for number in pad):
        raise DTypeError(describe("pad", "pad", "a tuple of ints", repr(pad)))
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        expected = f"an even count of at most {2 * len(shape)} numbers for shape {shape}"
        raise ShapeError(describe("pad", "pad", expected, tuple(pad)))
    last_first = [(pad[i].__index__(), pad[i + 1].__index__()) for i in range(0, len(pad), 2)]
    pads = ((0, 0),) * (len(shape) - len(last_first)) + tuple(reversed(last_first))
    if any(size + min(before, 0) + min(after, 0) < 0 for size, (before, after) in zip(shape, pads, strict=True)):
        raise ShapeError(describe("pad", "pad", f"to crop no more than there is of shape {shape}", tuple(pad)))
    return pads


def _check_repeats(shape: Shape, count: int, pads: Pads, mode: str) -> None:
    """The modes that repeat the input have something to repeat."""
    if not 1 <= count <= 3 or len(shape) not in (count + 1, count + 2):
        expected = f"{count + 1} or {count + 2} dimensions, as mode {mode!r} pads the last {count} (1 to 3)"
        raise ShapeError(describe("pad", "input", expected, f"shape {shape}"))
    most = {"reflect": "less than", "circular": "at most", "replicate": "as"}[mode]
    for size, (before, after) in zip(shape[-count:], pads[-count:], strict=True):
        longest = max(before, after)
        too_long = {"reflect": longest >= size, "circular": longest > size, "replicate": size == 0}[mode]
        if too_long and (longest > 0 or mode == "replicate"):
            raise ShapeError(describe("pad", "pad", f"{most} the size {size} it repeats", (before, after)))
        if size + before + after < 1:
            raise ShapeError(describe("pad", "pad", f"to leave something of size {size}", (before, after)))
