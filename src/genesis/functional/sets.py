"""The distinct elements of a tensor, and of its runs."""

from __future__ import annotations

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.ndarray import NDArray, ops

__all__ = ["unique", "unique_consecutive"]

Unique = Tensor | tuple[Tensor, ...]


def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Unique:  # fmt: skip
    """The distinct elements, in ascending order. NaN differs from itself.

    Args:
        input: any shape, numbers or bool.
        sorted: accepted; the result is always sorted.
        return_inverse: also give, for each element of input, where the result has it.
        return_counts: also give how often each element of the result is in input.
        dim: compare slices along dim, which are ordered lexicographically; None: elements of the flattened tensor.
    Returns: the elements or slices; with return_inverse and return_counts a tuple of it and of int64 tensors.
    Raises: IndexError: input has no such dimension. ShapeError: slices without elements.
    Grad: none.
    Example: >>> F.unique(genesis.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    return _distinct("unique", input, dim, True, return_inverse, return_counts)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Unique:
    """The elements that differ from the one before them: the first of each run.

    Args:
        input: any shape, numbers or bool.
        return_inverse, return_counts: as in `F.unique`, of runs.
        dim: compare slices along dim; None: elements of the flattened tensor.
    Returns: as in `F.unique`.
    Raises: IndexError: input has no such dimension. ShapeError: slices without elements.
    Grad: none.
    Example: >>> F.unique_consecutive(genesis.tensor([1, 1, 3, 1])).tolist()
    [1, 3, 1]
    """
    return _distinct("unique_consecutive", input, dim, False, return_inverse, return_counts)


class Distinct(ArrayFunction):
    """The first row of each run, the number of each row's run, and the length of each run."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int | None, ordered: bool) -> tuple[NDArray, NDArray, NDArray]:
        length = x.numel if dim is None else x.shape[dim]
        front = x.reshape((-1,)) if dim is None else x.permute((dim, *(i for i in range(x.ndim) if i != dim)))
        rows = front.contiguous().reshape((length, -1)) if length else front.reshape((0, 1))
        order = _order(rows) if ordered else None
        rows = rows if order is None else ops.index_select(rows, 0, order)
        starts = NDArray.full((length,), True, dtypes.bool_, x.device)
        if length > 1:
            differs = ops.any(rows.narrow(0, 1, length - 1).ne(rows.narrow(0, 0, length - 1)), (1,), False)
            starts = ops.cat([starts.narrow(0, 0, 1), differs], 0)
        firsts = ops.nonzero(starts).reshape((-1,))
        runs = ops.cumsum(starts, 0).sub(1)
        if order is not None:
            runs = ops.scatter(runs, 0, order, runs)
        ends = ops.cat([firsts, firsts.full_like(length, (1,))], 0)
        counts = ends.narrow(0, 1, firsts.numel).sub(firsts)
        chosen = ops.index_select(rows, 0, firsts)
        if dim is None:
            return chosen.reshape((-1,)), runs.reshape(x.shape), counts
        back = list(range(1, x.ndim))
        back.insert(dim, 0)
        return chosen.reshape((firsts.numel, *front.shape[1:])).permute(back).contiguous(), runs, counts


def _order(rows: NDArray) -> NDArray:
    """The order in which rows ascend lexicographically: sorted by their last column first, as sorting is stable."""
    _, order = ops.sort(rows.select(1, rows.shape[1] - 1), 0, False, True)
    for column in range(rows.shape[1] - 2, -1, -1):
        _, then = ops.sort(ops.index_select(rows.select(1, column), 0, order), 0, False, True)
        order = ops.index_select(order, 0, then)
    return order


def _distinct(
    op: str, input: Tensor, dim: int | None, ordered: bool, return_inverse: bool, return_counts: bool
) -> Unique:
    require_tensors(op, input=input)
    if dim is not None:
        dim = shapes.normalize_dim(op, dim, input.array.ndim)
        if 0 in (*input.array.shape[:dim], *input.array.shape[dim + 1 :]):
            raise ShapeError(describe(op, "input", "slices with elements", f"shape {input.array.shape}"))
    values, inverse, counts = Distinct.apply(input, dim=dim, ordered=ordered)
    further = (inverse,) * return_inverse + (counts,) * return_counts
    return (values, *further) if further else values
