"""Along a dimension: each element several times, and differences of neighbours."""

from __future__ import annotations

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_ints, require_tensors
from genesis.functional.comparison import ne
from genesis.functional.elementwise import sub
from genesis.functional.joining import cat, narrow
from genesis.functional.selection import index_select
from genesis.functional.shape import clone, expand, reshape
from genesis.ndarray import NDArray, ops

__all__ = ["diff", "repeat_interleave"]


def repeat_interleave(
    input: Tensor, repeats: Tensor | int | None = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each slice along dim several times, one behind the other.

    Args:
        input: any shape and dtype; without repeats, it is them, and the result counts: each i so often as input[i].
        repeats: a number ≥ 0, or int64 or int32 of one dimension: one for each slice.
        dim: None repeats the elements of the flattened tensor.
        output_size: the size of the result in dim, if known; it is checked.
    Returns: a copy.
    Raises: TypeError: repeats are no integers. ShapeError: their number differs from that of the slices, or one is
        negative, or output_size is wrong.
    Grad: input. Saves the positions.
    Example: >>> F.repeat_interleave(genesis.tensor([5, 6]), genesis.tensor([1, 2])).tolist()
    [5, 6, 6]
    """
    require_tensors("repeat_interleave", input=input)
    if repeats is None:
        positions = _Positions.apply(_counts(input, None))
        _require_size(output_size, positions)
        return positions
    if dim is None:
        input, dim = reshape(input, (-1,)), 0
    dim = shapes.normalize_dim("repeat_interleave", dim, input.array.ndim)
    if not isinstance(repeats, Tensor):
        require_ints("repeat_interleave", repeats=repeats)
        repeats = input._like(input.array.full_like(int(repeats), (1,), dtypes.int64))
    positions = _Positions.apply(_counts(repeats, input.array.shape[dim]))
    _require_size(output_size, positions)
    return index_select(input, dim, positions)


def _counts(repeats: Tensor, size: int | None) -> Tensor:
    """How often each of so many slices is wanted."""
    array = repeats.array
    if array.dtype not in (dtypes.int64, dtypes.int32):
        raise DTypeError(describe("repeat_interleave", "repeats", "int64 or int32", array.dtype))
    if array.ndim > 1 or (size is not None and array.numel not in (1, size)):
        expected = "1 dimension" if size is None else f"1 number, or {size}"
        raise ShapeError(describe("repeat_interleave", "repeats", expected, f"shape {array.shape}"))
    if array.numel and ops.amin(array.reshape((-1,)), (0,), False).item() < 0:
        raise ShapeError(describe("repeat_interleave", "repeats", "numbers of at least 0", "a negative one"))
    flat = reshape(repeats, (-1,))
    return flat if size is None else expand(flat, (size,))


def _require_size(output_size: int | None, positions: Tensor) -> None:
    if output_size is not None and output_size != positions.array.numel:
        raise ShapeError(describe("repeat_interleave", "output_size", positions.array.numel, output_size))


class _Positions(ArrayFunction):
    """0 counts[0] times, 1 counts[1] times, …: a running sum of the places where the next number begins."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, counts: NDArray) -> NDArray:
        counts = counts.contiguous().to(dtypes.int64)
        ends = ops.cumsum(counts, 0)
        total = int(ends.select(0, ends.numel - 1).item()) if ends.numel else 0
        steps = ends.full_like(0, (total + 1,))
        return ops.cumsum(ops.index_add(steps, 0, ends, ends.full_like(1)), 0).narrow(0, 0, total).clone()


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along dim, n times: x[i + 1] − x[i]; of bools whether they differ.

    Args:
        input: at least 1 dimension.
        n: how often; ≥ 0.
        dim: counts from the end if negative.
        prepend, append: what stands before and behind input along dim; 0-d values repeat.
    Returns: a size in dim that is n less, and not below 0.
    Raises: ShapeError: a 0-d input, a negative n, or sizes that don't fit.
    Grad: input, prepend, append. Saves nothing.
    Example: >>> F.diff(genesis.tensor([1, 4, 9])).tolist()
    [3, 5]
    """
    require_tensors("diff", input=input)
    require_ints("diff", n=n)
    if not input.array.ndim:
        raise ShapeError(describe("diff", "input", "at least 1 dimension", "a 0-d tensor"))
    if n < 0:
        raise ShapeError(describe("diff", "n", "at least 0", n))
    dim = shapes.normalize_dim("diff", dim, input.array.ndim)
    if n == 0:
        return clone(input)  # without what would stand at its ends, as in PyTorch
    ends = [None if each is None else _along(each, input, dim) for each in (prepend, append)]
    parts = [each for each in (ends[0], input, ends[1]) if each is not None]
    result = cat(parts, dim) if len(parts) > 1 else input
    for _ in range(min(n, result.array.shape[dim])):
        length = max(result.array.shape[dim] - 1, 0)
        after, before = narrow(result, dim, min(1, result.array.shape[dim]), length), narrow(result, dim, 0, length)
        result = ne(after, before) if result.array.dtype is dtypes.bool_ else sub(after, before)
    return result


def _along(value: Tensor, input: Tensor, dim: int) -> Tensor:
    """A 0-d value in the shape of input, of size 1 along dim."""
    if value.array.ndim:
        return value
    shape = input.array.shape
    return expand(value, (*shape[:dim], 1, *shape[dim + 1 :]))
