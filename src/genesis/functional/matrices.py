"""Matrices: diagonals, covariances, distances and norms of rows."""

from __future__ import annotations

import builtins

from genesis import shapes
from genesis.autograd import Tensor
from genesis.autograd.modes import checks_values
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.comparison import gt
from genesis.functional.compound import floating
from genesis.functional.conversion import clone
from genesis.functional.dimensions import movedim
from genesis.functional.elementwise import add, clamp, div, mul, sub, where
from genesis.functional.joining import cat
from genesis.functional.keywords import also
from genesis.functional.linalg import matmul
from genesis.functional.padding import pad
from genesis.functional.reduction import mean, norm
from genesis.functional.reduction import sum as total
from genesis.functional.regions import diagonal_scatter
from genesis.functional.shape import diagonal, reshape, transpose, unsqueeze
from genesis.functional.unary import sqrt
from genesis.ndarray import ops

__all__ = [
    "block_diag",
    "cdist",
    "corrcoef",
    "cov",
    "diag",
    "diag_embed",
    "diagflat",
    "dist",
    "renorm",
    "trace",
]

_diagonal = diagonal  # an argument has its name


def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal.

    Args:
        input: (M, N).
    Returns: a 0-d tensor.
    Raises: ShapeError: no matrix.
    Grad: input. Saves nothing.
    Example: >>> F.trace(genesis.eye(3)).item()
    3.0
    """
    require_tensors("trace", input=input)
    if input.array.ndim != 2:
        raise ShapeError(describe("trace", "input", "2 dimensions", f"shape {input.array.shape}"))
    return total(diagonal(input))


def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with the tensors along its diagonal, zero elsewhere.

    Args:
        tensors: matrices; vectors are rows, and numbers are (1, 1).
    Returns: a matrix.
    Raises: ShapeError: more than 2 dimensions.
    Grad: tensors.
    Example: >>> F.block_diag(genesis.ones(1, 1), genesis.ones(1, 2)).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    """
    require_tensors("block_diag", **{f"tensors[{number}]": tensor for number, tensor in enumerate(tensors)})
    blocks = []
    for number, tensor in enumerate(tensors):
        if tensor.array.ndim > 2:
            raise ShapeError(
                describe("block_diag", f"tensors[{number}]", "at most 2 dimensions", f"shape {tensor.array.shape}")
            )
        blocks.append(reshape(tensor, (1,) * (2 - tensor.array.ndim) + tensor.array.shape))
    width, before, rows = builtins.sum(block.array.shape[1] for block in blocks), 0, []
    for block in blocks:
        rows.append(pad(block, (before, width - before - block.array.shape[1])))
        before += block.array.shape[1]
    return cat(rows)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The distances of all pairs of rows: (Σ |a − b|ᵖ)^(1/p).

    Args:
        x1: (…, P, M).
        x2: (…, R, M).
        p: at least 0; inf for the greatest difference.
        compute_mode: accepted for PyTorch's sake.
    Returns: (…, P, R).
    Raises: ShapeError: sizes that don't fit. ValueError: p < 0.
    Grad: x1, x2; zero at distance 0.
    Example: >>> F.cdist(genesis.zeros(1, 2), genesis.tensor([[3.0, 4.0]])).item()
    5.0
    """
    require_tensors("cdist", x1=x1, x2=x2)
    for name, tensor in (("x1", x1), ("x2", x2)):
        if tensor.array.ndim < 2:
            raise ShapeError(describe("cdist", name, "at least 2 dimensions", f"shape {tensor.array.shape}"))
        if not tensor.array.dtype.is_floating_point:
            raise DTypeError(describe("cdist", name, "a floating dtype", tensor.array.dtype))
    if x1.array.shape[-1] != x2.array.shape[-1]:
        raise ShapeError(describe("cdist", "x2", f"rows of {x1.array.shape[-1]}, as x1", f"shape {x2.array.shape}"))
    if p < 0:
        raise ValueError(describe("cdist", "p", "at least 0", p))
    apart = sub(unsqueeze(x1, -2), unsqueeze(x2, -3))
    if not x1.array.shape[-1]:
        return total(apart, -1)
    return norm(apart, p, -1)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix with a vector on its diagonal.

    Args:
        input: (N,), or (M, N).
        diagonal: above the main one if positive.
    Returns: a matrix, or a vector.
    Raises: ShapeError: input has other dimensions.
    Grad: input. Saves nothing.
    Example: >>> F.diag(genesis.ones(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    require_tensors("diag", input=input)
    if input.array.ndim not in (1, 2):
        raise ShapeError(describe("diag", "input", "1 or 2 dimensions", f"shape {input.array.shape}"))
    return diag_embed(input, diagonal) if input.array.ndim == 1 else clone(_diagonal(input, diagonal))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dimension of input on their diagonals, zero elsewhere.

    Args:
        input: at least 1 dimension.
        offset: above the main diagonal if positive.
        dim1, dim2: where the matrices' dimensions are in the result.
    Returns: a dimension more than input.
    Raises: IndexError: no such dimension. ShapeError: dim1 is dim2.
    Grad: input. Saves nothing.
    Example: >>> F.diag_embed(genesis.ones(1, 2)).shape
    (1, 2, 2)
    """
    require_tensors("diag_embed", input=input)
    shape = input.array.shape
    ndim = len(shape) + 1
    first, second = (
        shapes.normalize_dim("diag_embed", dim, ndim, name) for dim, name in ((dim1, "dim1"), (dim2, "dim2"))
    )
    if first == second:
        raise ShapeError(describe("diag_embed", "dim2", f"another dimension than dim1 ({dim1})", dim2))
    if first > second:
        offset = -offset
    size = shape[-1] + builtins.abs(offset)
    zeros = input._like(input.array.full_like(0, (*shape[:-1], size, size)))
    return movedim(diagonal_scatter(zeros, input, offset, -2, -1), (-2, -1), sorted((first, second)))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with all elements of input on its diagonal.

    Args:
        input: any shape.
        offset: above the main diagonal if positive.
    Returns: a square matrix.
    Grad: input. Saves nothing.
    Example: >>> F.diagflat(genesis.ones(1, 2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return diag_embed(reshape(input, (-1,)), offset)


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of the rows.

    Args:
        input: (variables, observations), or (observations,).
        correction: what is subtracted from the number of observations.
        fweights: (observations,), integers: how often each counts.
        aweights: (observations,), floating: how much each counts.
    Returns: (variables, variables), or a 0-d tensor.
    Raises: ShapeError: more than 2 dimensions; weights that don't fit.
    Grad: input, aweights.
    Example: >>> F.cov(genesis.tensor([1.0, 3.0])).item()
    2.0
    """
    require_tensors("cov", input=input)
    if input.array.ndim > 2:
        raise ShapeError(describe("cov", "input", "at most 2 dimensions", f"shape {input.array.shape}"))
    if input.array.dtype.name == "bool":
        raise DTypeError(describe("cov", "input", "numbers", "bool"))
    x = reshape(input, (1, -1)) if input.array.ndim < 2 else input
    x = floating(x)
    count = x.array.shape[1]
    weights = _weights(count, fweights, aweights)
    if weights is None:
        sum_of_weights: Tensor | int = count
        centred = sub(x, mean(x, 1, True))
        product = matmul(centred, transpose(centred, 0, 1))
        freedom: Tensor | float = max(count - correction, 0)
    else:
        sum_of_weights = total(weights)
        centred = sub(x, div(total(mul(x, weights), 1, True), sum_of_weights))
        product = matmul(mul(centred, weights), transpose(centred, 0, 1))
        lost: Tensor | int = correction
        if aweights is not None and correction:
            lost = div(mul(total(mul(weights, aweights)), correction), sum_of_weights)
        freedom = clamp(sub(sum_of_weights, lost), 0)
    result = div(product, freedom)
    return reshape(result, ()) if result.array.numel == 1 else result


def corrcoef(input: Tensor) -> Tensor:
    """The correlation coefficients of the rows.

    Args:
        input: (variables, observations), or (observations,).
    Returns: (variables, variables), or a 0-d tensor.
    Raises: ShapeError: more than 2 dimensions.
    Grad: input.
    Example: >>> F.corrcoef(genesis.tensor([[1.0, 2.0], [2.0, 1.0]]))[0, 1].item()
    -1.0
    """
    found = cov(input)
    if not found.array.ndim:
        return div(found, found)
    deviation = sqrt(diagonal(found))
    scaled = div(div(found, unsqueeze(deviation, 1)), unsqueeze(deviation, 0))
    return clamp(scaled, -1, 1)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference.

    Args:
        input, other: tensors whose shapes broadcast, floating.
        p: as of `F.norm`.
    Returns: a 0-d tensor.
    Grad: input, other.
    Example: >>> F.dist(genesis.zeros(2), genesis.tensor([3.0, 4.0])).item()
    5.0
    """
    return norm(sub(input, other), p)


@also(axis="dim")
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale the slices along dim whose p-norm is above maxnorm down to it.

    Args:
        input: at least 2 dimensions, floating.
        p: above 0.
        dim: which slices.
        maxnorm: the greatest norm.
    Returns: shape and dtype of input.
    Raises: ShapeError: fewer than 2 dimensions. ValueError: p ≤ 0 or maxnorm < 0.
    Grad: input.
    Example: >>> F.renorm(genesis.tensor([[3.0, 4.0]]), 2, 0, 1.0).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    require_tensors("renorm", input=input)
    ndim = input.array.ndim
    if ndim < 2:
        raise ShapeError(describe("renorm", "input", "at least 2 dimensions", f"shape {input.array.shape}"))
    if p <= 0:
        raise ValueError(describe("renorm", "p", "above 0", p))
    if maxnorm < 0:
        raise ValueError(describe("renorm", "maxnorm", "at least 0", maxnorm))
    kept = shapes.normalize_dim("renorm", dim, ndim)
    norms = norm(input, p, [other for other in range(ndim) if other != kept], True)
    return mul(input, where(gt(norms, maxnorm), div(maxnorm, add(norms, 1e-7)), 1.0))


def _weights(count: int, fweights: Tensor | None, aweights: Tensor | None) -> Tensor | None:
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is None:
            continue
        if weights.array.shape != (count,):
            raise ShapeError(describe("cov", name, f"shape ({count},)", f"shape {weights.array.shape}"))
        if weights.array.dtype.is_floating_point != (name == "aweights"):
            expected = "a floating dtype" if name == "aweights" else "integers"
            raise DTypeError(describe("cov", name, expected, weights.array.dtype))
        if count and checks_values():
            ops.refuse(weights.array.lt(0), describe("cov", name, "no negative weights", "one"))
    if fweights is None or aweights is None:
        return aweights if fweights is None else fweights
    return mul(fweights, aweights)
