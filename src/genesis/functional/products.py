"""Products that are composed of matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis import shapes
from genesis.autograd import Tensor
from genesis.dtypes import Number, bool_, float32
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.complex_numbers import conj
from genesis.functional.conversion import cast
from genesis.functional.elementwise import add, mul, sub, where
from genesis.functional.keywords import also
from genesis.functional.linalg import bmm, dot, matmul, mm, mv, outer
from genesis.functional.matrices import diag_embed
from genesis.functional.reduction import sum as total
from genesis.functional.shape import expand, permute, reshape, roll
from genesis.shapes import Shape

__all__ = [
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "chain_matmul",
    "cross",
    "ger",
    "inner",
    "kron",
    "matrix_power",
    "tensordot",
    "vdot",
]


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta · input + alpha · mat1 · mat2.

    Args:
        input: broadcasts to the product; ignored, NaN too, where beta is 0.
        mat1, mat2: (N, M) and (M, P).
        beta, alpha: factors; integers if the tensors are.
    Returns: the product's shape, in its dtype.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: input, mat1, mat2.
    Example: >>> F.addmm(genesis.ones(1), genesis.eye(2), genesis.eye(2)).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    return _added("addmm", input, mm(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta · input + alpha · mat · vec.

    Args:
        input: broadcasts to the product; ignored, NaN too, where beta is 0.
        mat, vec: (N, M) and (M,).
        beta, alpha: factors; integers if the tensors are.
    Returns: the product's shape, in its dtype.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: input, mat, vec.
    Example: >>> F.addmv(genesis.ones(1), genesis.eye(2), genesis.ones(2)).tolist()
    [2.0, 2.0]
    """
    return _added("addmv", input, mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta · input + alpha · vec1 ⊗ vec2.

    Args:
        input: broadcasts to the product; ignored, NaN too, where beta is 0.
        vec1, vec2: (N,) and (M,).
        beta, alpha: factors; integers if the tensors are.
    Returns: the product's shape, in its dtype.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: input, vec1, vec2.
    Example: >>> F.addr(genesis.ones(1), genesis.ones(1), genesis.ones(2)).tolist()
    [[2.0, 2.0]]
    """
    product = outer(vec1, vec2)
    if product.array.dtype.is_floating_point and product.array.dtype.itemsize == 2:  # rounded once, at the end
        wide = [cast(tensor, float32) for tensor in (input, vec1, vec2)]
        return cast(addr(*wide, beta=beta, alpha=alpha), product.array.dtype)
    return _added("addr", input, product, beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta · input + alpha · batch1 · batch2.

    Args:
        input: broadcasts to the product; ignored, NaN too, where beta is 0.
        batch1, batch2: (B, N, M) and (B, M, P).
        beta, alpha: factors; integers if the tensors are.
    Returns: the product's shape, in its dtype.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: input, batch1, batch2.
    Example: >>> F.baddbmm(genesis.ones(1), genesis.ones(1, 1, 2), genesis.ones(1, 2, 1)).tolist()
    [[[3.0]]]
    """
    return _added("baddbmm", input, bmm(batch1, batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta · input + alpha · Σ batch1 · batch2.

    Args:
        input: broadcasts to the product; ignored, NaN too, where beta is 0.
        batch1, batch2: (B, N, M) and (B, M, P).
        beta, alpha: factors; integers if the tensors are.
    Returns: the product's shape, in its dtype.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: input, batch1, batch2.
    Example: >>> F.addbmm(genesis.ones(1), genesis.ones(2, 1, 2), genesis.ones(2, 2, 1)).tolist()
    [[5.0]]
    """
    _require_batches(batch1, batch2)
    dtype = batch1.array.dtype
    if dtype.is_floating_point and dtype.itemsize == 2:  # rounded once, at the end
        wide = [cast(tensor, float32) for tensor in (input, batch1, batch2)]
        return cast(addbmm(*wide, beta=beta, alpha=alpha), dtype)
    (batch, rows, inner), columns = batch1.array.shape, batch2.array.shape[2]
    left = reshape(permute(batch1, (1, 0, 2)), (rows, batch * inner))
    product = mm(left, reshape(batch2, (batch * inner, columns)))
    return _added("addbmm", input, product, beta, alpha)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sum of products over the last dimension of both.

    Args:
        input: (…, K), or a number.
        other: (…, K), or a number.
    Returns: the other dimensions of input, then those of other.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: input, other.
    Example: >>> F.inner(genesis.tensor([1.0, 2.0]), genesis.tensor([3.0, 4.0])).item()
    11.0
    """
    require_tensors("inner", input=input, other=other)
    if not input.array.ndim or not other.array.ndim:
        return mul(input, other)
    if input.array.shape[-1] != other.array.shape[-1]:
        expected = f"a last dimension of {input.array.shape[-1]}, as input"
        raise ShapeError(describe("inner", "other", expected, f"shape {other.array.shape}"))
    return tensordot(input, other, ([-1], [-1]))


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The dot product of two vectors, the first one conjugated.

    Args:
        input, other: (N,), of one dtype.
    Returns: a 0-d tensor.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: input, other.
    Example: >>> F.vdot(genesis.ones(2), genesis.ones(2)).item()
    2.0
    """
    return dot(conj(input), other)


def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """The sum of products over several dimensions of both.

    Args:
        a, b: any shapes, of one dtype.
        dims: how many last dimensions of a meet the first ones of b; or two sequences of dimensions that meet.
    Returns: the other dimensions of a, then those of b.
    Raises: ShapeError: the sizes that meet differ.
    Grad: a, b.
    Example: >>> F.tensordot(genesis.ones(2, 3), genesis.ones(3, 4), 1).shape
    (2, 4)
    """
    require_tensors("tensordot", a=a, b=b)
    x, y = a.array.shape, b.array.shape
    if isinstance(dims, int):
        if not 0 <= dims <= min(len(x), len(y)):
            raise ShapeError(describe("tensordot", "dims", f"from 0 to {min(len(x), len(y))}", dims))
        dims = (range(len(x) - dims, len(x)), range(dims))
    mine, its = (_dims(name, given, shape) for name, given, shape in zip("ab", dims, (x, y), strict=True))
    sizes = [[shape[dim] for dim in met] for met, shape in ((mine, x), (its, y))]
    if len(mine) != len(its) or any(m != n and 1 not in (m, n) for m, n in zip(*sizes, strict=True)):
        raise ShapeError(describe("tensordot", "dims", "dimensions of equal sizes", f"{sizes[0]} and {sizes[1]}"))
    for dim, other in zip(mine, its, strict=True):  # a size of 1 meets any
        if x[dim] != y[other]:
            a, b = (total(a, dim, True), b) if y[other] == 1 else (a, total(b, other, True))
    kept_a, kept_b = ([dim for dim in range(len(shape)) if dim not in met] for shape, met in ((x, mine), (y, its)))
    shape = [x[dim] for dim in kept_a] + [y[dim] for dim in kept_b]
    inner = math.prod(a.array.shape[dim] for dim in mine)
    rows = reshape(permute(a, [*kept_a, *mine]), (math.prod(x[dim] for dim in kept_a), inner))
    columns = reshape(permute(b, [*its, *kept_b]), (inner, math.prod(y[dim] for dim in kept_b)))
    return reshape(mm(rows, columns), shape)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product.

    Args:
        input, other: any shapes.
    Returns: sizes are products of both; missing first dimensions count as 1.
    Grad: input, other.
    Example: >>> F.kron(genesis.ones(2), genesis.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    require_tensors("kron", input=input, other=other)
    ndim = max(input.array.ndim, other.array.ndim)
    x, y = ((1,) * (ndim - each.array.ndim) + each.array.shape for each in (input, other))
    left = reshape(input, [size for pair in zip(x, (1,) * ndim, strict=True) for size in pair])
    right = reshape(other, [size for pair in zip((1,) * ndim, y, strict=True) for size in pair])
    return reshape(mul(left, right), [m * n for m, n in zip(x, y, strict=True)])


@also(axis="dim")
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product of vectors of 3.

    Args:
        input, other: of size 3 in dim; the others broadcast.
        dim: the first of size 3 if None.
    Returns: the common shape.
    Raises: ShapeError: dim has another size; dimensions differ in number.
    Grad: input, other.
    Example: >>> F.cross(genesis.tensor([1.0, 0, 0]), genesis.tensor([0, 1.0, 0])).tolist()
    [0.0, 0.0, 1.0]
    """
    require_tensors("cross", input=input, other=other)
    x, y = input.array.shape, other.array.shape
    if len(x) != len(y):
        raise ShapeError(describe("cross", "other", f"{len(x)} dimensions, as input", f"shape {y}"))
    if dim is None:
        dim = next((number for number, size in enumerate(x) if size == 3), None)
        if dim is None:
            raise ShapeError(describe("cross", "input", "a dimension of size 3", f"shape {x}"))
    dim = shapes.normalize_dim("cross", dim, len(x))
    for name, shape in (("input", x), ("other", y)):
        if shape[dim] != 3:
            raise ShapeError(describe("cross", name, f"size 3 in dimension {dim}", f"shape {shape}"))
    shapes.broadcast("cross", x, y)
    a, b = roll(input, -1, dim), roll(other, -1, dim)
    return roll(sub(mul(input, b), mul(a, other)), -1, dim)  # x × y, rotated by one


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices.

    Args:
        matrices: (M, K), (K, L), … of one dtype.
    Returns: a matrix.
    Raises: ShapeError: sizes that don't fit. DTypeError: dtypes differ.
    Grad: matrices.
    Example: >>> F.chain_matmul(genesis.eye(2), genesis.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    product = matrices[0]
    for matrix in matrices[1:]:
        product = mm(product, matrix)
    return product


def matrix_power(input: Tensor, n: int) -> Tensor:
    """A square matrix to the n-th power.

    Args:
        input: (…, N, N).
        n: at least 0.
    Returns: the shape of input.
    Raises: ShapeError: not square. NotImplementedError: n < 0.
    Grad: input.
    Example: >>> F.matrix_power(2 * genesis.eye(2), 3).tolist()
    [[8.0, 0.0], [0.0, 8.0]]
    """
    require_tensors("matrix_power", input=input)
    shape = input.array.shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(describe("matrix_power", "input", "square matrices", f"shape {shape}"))
    if n < 0:
        raise NotImplementedError(describe("matrix_power", "n", "at least 0", n))
    result, power = None, input
    while n:  # by squaring
        if n & 1:
            result = power if result is None else matmul(result, power)
        n >>= 1
        power = matmul(power, power) if n else power
    if result is None:
        ones = input._like(input.array.full_like(1, shape[-1:]))
        always = input._like(input.array.full_like(1, (), bool_))
        return where(always, expand(diag_embed(ones), shape), input)  # which depends on input, with a gradient of 0
    return result


def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """The outer product. See `F.outer`."""
    return outer(input, vec2)


def _added(op: str, input: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    """beta · input + alpha · product; the sum has the product's shape."""
    require_tensors(op, input=input)
    dtype = product.array.dtype
    if input.array.dtype is not dtype:
        raise DTypeError(describe(op, "input", f"{dtype}, as the other tensors", input.array.dtype))
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if isinstance(factor, float) and not dtype.is_differentiable:
            raise DTypeError(describe(op, name, f"an integer, for {dtype}", factor))
    input = expand(input, product.array.shape)
    product = product if alpha == 1 else mul(product, alpha)
    if beta == 0:
        return product
    return add(input if beta == 1 else mul(input, beta), product)


def _require_batches(batch1: Tensor, batch2: Tensor) -> None:
    require_tensors("addbmm", batch1=batch1, batch2=batch2)
    x, y = batch1.array.shape, batch2.array.shape
    if len(x) != 3 or len(y) != 3 or x[0] != y[0] or x[2] != y[1]:
        raise ShapeError(describe("addbmm", "batch2", "(B, M, P) to (B, N, M)", f"shapes {x} and {y}"))


def _dims(name: str, given: Sequence[int] | int, shape: Shape) -> list[int]:
    dims = [given] if isinstance(given, int) else given
    return [shapes.normalize_dim("tensordot", dim, len(shape), f"dims of {name}") for dim in dims]
