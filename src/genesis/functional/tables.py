"""Tables that are looked up by integers: embedding and one_hot."""

from __future__ import annotations

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_ints
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = ["embedding", "one_hot"]


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of weight that input names.

    Args:
        input: any shape, int64 or int32, in [0, V).
        weight: (V, E).
        padding_idx: a row that gets no gradient.
        max_norm: rows of input with a larger norm are first scaled down to it, in place in weight.
        norm_type: the p of that norm.
        scale_grad_by_freq: divide the gradient of a row by how often input names it.
        sparse: must be False; gradients are dense.
    Returns: (*input.shape, E).
    Raises: TypeError: a float index. ValueError: weight isn't a matrix. IndexError: a row out of range.
    Grad: weight. Saves input.

    Example:
        >>> F.embedding(genesis.tensor([1, 0]), genesis.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[3.0, 4.0], [1.0, 2.0]]
    """
    op = "embedding"
    require_tensor(op, "input", input)
    require_tensor(op, "weight", weight)
    if input.array.dtype.name not in ("int64", "int32"):
        raise DTypeError(describe(op, "input", "int64 or int32 indices", input.array.dtype))
    if weight.array.ndim != 2:
        raise ShapeError(describe(op, "weight", "2 dimensions", f"shape {weight.array.shape}"))
    if sparse:
        raise ValueError(describe(op, "sparse", "False", sparse))
    rows = weight.array.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise IndexError(describe(op, "padding_idx", f"a row in [{-rows}, {rows - 1}]", padding_idx))
    if max_norm is not None:
        _limit_rows(weight, input.array, max_norm, norm_type)
    padding = -1 if padding_idx is None else padding_idx % rows
    return Embedding.apply(input, weight, padding_idx=padding, scale_grad_by_freq=bool(scale_grad_by_freq))


class Embedding(ArrayFunction):
    @staticmethod
    def forward(
        ctx: Context, index: NDArray, weight: NDArray, *, padding_idx: int, scale_grad_by_freq: bool
    ) -> NDArray:
        index = index.to(dtypes.int64)
        ctx.save(index)
        ctx.options = (weight.shape[0], padding_idx, scale_grad_by_freq)
        return ops.index_select(weight, 0, index.reshape((index.numel,))).reshape((*index.shape, weight.shape[1]))

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        (index,) = ctx.saved
        return None, ops.embedding_backward(grad, index, *ctx.options)


def _limit_rows(weight: Tensor, index: NDArray, max_norm: float, norm_type: float) -> None:
    """In place: the named rows whose norm is above max_norm get that norm."""
    flat = index.to(dtypes.int64).reshape((index.numel,))
    rows = ops.index_select(weight.array, 0, flat)
    norms = ops.sum(rows.abs().pow(norm_type), (1,), True).pow(1 / norm_type)
    scale = norms.gt(max_norm).where(norms.add(1e-7).reciprocal().mul(max_norm), 1.0)
    ops.put(weight.array, (flat, None), rows.mul(scale), False)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A 1 in the place that each class index names, 0 elsewhere.

    Args:
        tensor: any shape, int64, in [0, num_classes).
        num_classes: -1 for the largest index plus 1, for which the host waits: a step with it is not recorded.
    Returns: (*tensor.shape, num_classes), int64.
    Raises: TypeError: another dtype. ValueError: an index out of range (on CUDA an IndexError, once the device has come
        to it); nothing to infer num_classes from.

    Example:
        >>> F.one_hot(genesis.tensor([0, 2])).tolist()
        [[1, 0, 0], [0, 0, 1]]
    """
    op = "one_hot"
    require_tensor(op, "tensor", tensor)
    require_ints(op, num_classes=num_classes)
    index = tensor.array
    if index.dtype is not dtypes.int64:
        raise DTypeError(describe(op, "tensor", "int64 class indices", index.dtype))
    if num_classes < 1 and (num_classes != -1 or not index.numel):
        raise ValueError(
            describe(op, "num_classes", "a positive number, or -1 and a tensor with elements", num_classes)
        )
    if num_classes == -1:
        every = tuple(range(index.ndim))
        smallest, largest = int(ops.amin(index, every).item()), int(ops.amax(index, every).item())
        num_classes = largest + 1
        if smallest < 0:
            raise ValueError(describe(op, "tensor", f"class indices in [0, {num_classes})", f"{smallest} to {largest}"))
    return OneHot.apply(tensor, num_classes=num_classes)


class OneHot(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(ctx: Context, index: NDArray, *, num_classes: int) -> NDArray:
        return ops.one_hot(index, num_classes)
