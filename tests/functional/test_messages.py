"""What each function says about wrong arguments, before it does any work."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import functional as F
from genesis.errors import DTypeError, ShapeError
from tests.conformance.surface import words

x = genesis.zeros(2, 3)
ints = genesis.tensor([0, 1])
mask = genesis.tensor([True, False])
BROADCASTING = words(
    "add sub mul div floor_divide remainder pow maximum minimum eq ne lt le gt ge logical_and logical_or"
)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.sum([1]), DTypeError, "sum: argument 'input': expected a tensor, got list"),
        (lambda: F.sum(x, 2), IndexError, "sum: argument 'dim': expected a dimension in [-2, 1], got 2"),
        (lambda: F.sum(x, (0, -2)), ShapeError, "sum: argument 'dim': expected distinct dimensions, got (0, -2)"),
        (lambda: F.mean(ints), DTypeError, "mean: argument 'input': expected a floating dtype; convert with .float()"),
        (lambda: F.var(ints), DTypeError, "var: argument 'input': expected a floating dtype"),
        (lambda: F.var(x, 0, True, correction=0), ValueError, "expected either correction or unbiased, got both"),
        (lambda: F.amax(genesis.zeros(0, 2), 0), ShapeError, "amax: argument 'input': expected at least one element"),
        (lambda: F.argmin(genesis.zeros(0)), ShapeError, "argmin: argument 'input': expected at least one element"),
        (lambda: F.max(x, 1.5), TypeError, "max: argument 'dim': expected an int, got float"),
        (lambda: F.max(1, ints), DTypeError, "max: argument 'input': expected a tensor, got int"),
        (lambda: F.norm(x, "nuc"), NotImplementedError, "norm: argument 'p': expected a number or 'fro', got 'nuc'"),
        (lambda: F.norm(x, "two"), ValueError, "norm: argument 'p': expected a number or 'fro', got 'two'"),
        (lambda: F.celu(x, 0), ValueError, "celu: argument 'alpha': expected a number other than 0, got 0"),
        (lambda: F.selu(ints), DTypeError, "selu: argument 'input': expected a floating dtype, got genesis.int64"),
        (lambda: F.prelu(x, x[:, 0]), ShapeError, "prelu: argument 'weight': expected 1 or 3 elements, as input has"),
        (lambda: F.rrelu(x, 0.5, 0.1), ValueError, "rrelu: argument 'lower': expected at most upper, 0.1, got 0.5"),
        (lambda: F.softshrink(x, -1), ValueError, "softshrink: argument 'lambd': expected a number >= 0, got -1"),
        (lambda: F.glu(x), ShapeError, "glu: argument 'input': expected an even size in dimension 1, got (2, 3)"),
        (lambda: F.normalize(x, out=x), DTypeError, "normalize: argument 'out': expected None"),
        (lambda: F.cosine_similarity(x, ints), DTypeError, "cosine_similarity: argument 'x2': expected a floating"),
        (lambda: F.bilinear(x, x, x), ShapeError, "bilinear: argument 'weight': expected 3 dimensions"),
        (lambda: F.local_response_norm(x, 2), ShapeError, "local_response_norm: argument 'input': expected at least 3"),
        (lambda: F.triplet_margin_loss(x, x, x, 0), ValueError, "'margin': expected a positive number, got 0"),
        (lambda: F.margin_ranking_loss(x, x, x[0]), ShapeError, "margin_ranking_loss: argument 'target': expected 2"),
        (lambda: F.multi_margin_loss(x, ints, 3), ValueError, "'p': expected 1 or 2, got 3"),
        (lambda: F.multi_margin_loss(x, x[:, 0]), DTypeError, "'target': expected class indices in int64"),
        (lambda: F.gaussian_nll_loss(x, x, -1.0), ValueError, "argument 'var': expected a number >= 0, got -1.0"),
        (lambda: F.gaussian_nll_loss(x, x, x.T), ShapeError, "gaussian_nll_loss: argument 'var': expected shape (2"),
        (lambda: F.gaussian_nll_loss(x, x, x - 1), ValueError, "'var': expected variances >= 0, got a negative one"),
        (lambda: F.unfold(x, 2), ShapeError, "unfold: argument 'input': expected 3 or 4 dimensions, of"),
        (lambda: F.unfold(x[None], 4), ShapeError, "'kernel_size': expected patches that fit into (2, 3)"),
        (lambda: F.fold(x, 2, 2), ShapeError, "fold: argument 'input': expected rows divisible by 4, the"),
        (lambda: F.fold(genesis.zeros(4, 3), 2, 2), ShapeError, "'input': expected 1 columns, as (2, 2)"),
        (lambda: F.channel_shuffle(x[None], 3), ShapeError, "argument 'groups': expected a divisor of the 2"),
        (lambda: F.affine_grid(x, (1, 1, 2, 2)), ShapeError, "argument 'theta': expected shape (1, 2, 3)"),
        (lambda: F.grid_sample(x, x), ShapeError, "grid_sample: argument 'input': expected 4 or 5 dimensions"),
        (lambda: F.grid_sample(x, x, "area"), ValueError, "argument 'mode': expected \"bilinear\", \"nearest\" or"),
        (lambda: F.dropout3d(x), ShapeError, "dropout3d: argument 'input': expected 4 or 5 dimensions"),
        (lambda: F.alpha_dropout(x, 2), ValueError, "alpha_dropout: argument 'p': expected a probability in"),
        (lambda: F.max_unpool2d(x, ints, 2), ShapeError, "max_unpool2d: argument 'input': expected 4 dim"),
        (lambda: F.max_unpool1d(x, ints, 2), ShapeError, "max_unpool1d: argument 'indices': expected the shape"),
        (lambda: F.max_unpool1d(x, x, 2), DTypeError, "max_unpool1d: argument 'indices': expected int64, got"),
        (lambda: F.adaptive_max_pool1d(x, (1, 2)), ShapeError, "'output_size': expected one number, got (1, 2)"),
        (lambda: F.reshape(x, (4, -1)), ShapeError, "reshape: shape (4, -1) is invalid for an input of 6 elements"),
        (lambda: F.reshape(x, (-1, -1)), ShapeError, "expected sizes >= 0 and at most one -1, got (-1, -1)"),
        (lambda: F.reshape(x, 6.0), DTypeError, "reshape: argument 'shape': expected a sequence of ints, got 6.0"),
        (lambda: F.flatten(x, 1, 0), ShapeError, "flatten: argument 'start_dim': expected at most end_dim (0), got 1"),
        (lambda: F.unflatten(x, 0, ()), ShapeError, "unflatten: argument 'sizes': expected at least one size"),
        (lambda: F.permute(x, (0, 0)), ShapeError, "permute: argument 'dims': expected each of the 2 dimensions once"),
        (lambda: F.t(genesis.zeros(1, 1, 1)), ShapeError, "t: argument 'input': expected at most 2 dimensions"),
        (lambda: F.movedim(x, (0, 1), 0), ShapeError, "movedim: argument 'destination': expected as many distinct"),
        (lambda: F.diagonal(x, 0, 1, -1), ShapeError, "diagonal: argument 'dim2': expected another dimension than"),
        (lambda: F.roll(x, (1, 1), 0), ShapeError, "roll: argument 'shifts': expected 1 shifts, one for each of dims"),
        (lambda: F.roll(x, (1, 1)), ShapeError, "roll: argument 'shifts': expected one shift, as no dims are given"),
        (lambda: F.roll(genesis.zeros(()), 1, 0), ShapeError, "roll: argument 'dims': expected no dims, as input is 0"),
        (lambda: F.expand(x, (3, 3)), ShapeError, "'input': expected a shape that broadcasts to (3, 3), got"),
        (lambda: F.expand(x, (-1, 2, 3)), ShapeError, "expand: argument 'size': expected sizes of at least 0, or -1"),
        (lambda: F.repeat(x, (2,)), ShapeError, "repeat: argument 'repeats': expected at least 2 numbers, got (2,)"),
        (lambda: F.repeat(x, (2, -1)), ShapeError, "repeat: argument 'repeats': expected numbers of at least 0"),
        (lambda: F.cat(x), DTypeError, "cat: argument 'tensors': expected a list or tuple of tensors, got Tensor"),
        (lambda: F.cat([]), ShapeError, "cat: argument 'tensors': expected at least one tensor, got none"),
        (lambda: F.cat([x, 1]), DTypeError, "cat: argument 'tensors[1]': expected a tensor, got int"),
        (lambda: F.cat([x, x.T]), ShapeError, "cat: argument 'tensors[1]': expected (2, 3) except in dimension 0, got"),
        (lambda: F.cat([x.sum()]), ShapeError, "cat: argument 'tensors': expected at least one dimension each; use st"),
        (lambda: F.stack([x, x.T]), ShapeError, "stack: argument 'tensors[1]': expected shape (2, 3), as tensors[0]"),
        (lambda: F.split(x, 0), ShapeError, "split: argument 'split_size_or_sections': expected a size of at least 1"),
        (lambda: F.split(x, [1, 2]), ShapeError, "expected sizes that add up to 2, got [1, 2]"),
        (lambda: F.chunk(x, 0), ShapeError, "chunk: argument 'chunks': expected at least 1, got 0"),
        (lambda: F.unbind(x.sum()), ShapeError, "unbind: argument 'input': expected at least one dimension, got a 0-d"),
        (lambda: F.narrow(x, 1, 4, 0), IndexError, "narrow: argument 'start': expected a position in [-3, 3], got 4"),
        (lambda: F.narrow(x, 1, 1, 3), ShapeError, "narrow: argument 'length': expected at most 2 elements from 1 on"),
        (lambda: F.narrow(x, 1, x, 3), DTypeError, "narrow: argument 'start': expected an integer, or a 0-d tensor of"),
        (lambda: F.tril(ints), ShapeError, "tril: argument 'input': expected at least 2 dimensions, got 1"),
        (lambda: F.matmul(x, 2), DTypeError, "matmul: argument 'other': expected a tensor, got int"),
        (lambda: F.matmul(x, x), ShapeError, "matmul: argument 'other': expected 3 elements in dimension -2, as the l"),
        (lambda: F.matmul(x, x.sum()), ShapeError, "matmul: argument 'other': expected at least 1 dimension, got a"),
        (lambda: F.matmul(x, x.T.half()), DTypeError, "expected genesis.float32, as input, got genesis.float16"),
        (lambda: F.matmul(mask, mask), DTypeError, "matmul: argument 'input': expected numbers, got genesis.bool"),
        (lambda: F.mm(x, ints), ShapeError, "mm: argument 'mat2': expected 2 dimensions, got shape (2,)"),
        (lambda: F.bmm(x[None], x[None].expand(2, 2, 3)), ShapeError, "bmm: argument 'mat2': expected a batch of 1, a"),
        (lambda: F.dot(ints, x), ShapeError, "dot: argument 'tensor': expected 1 dimension, got shape (2, 3)"),
        (lambda: F.mv(x, ints), ShapeError, "mv: argument 'vec': expected 3 elements in dimension -1"),
        (lambda: F.outer(x, ints), ShapeError, "outer: argument 'input': expected 1 dimension, got shape (2, 3)"),
        (lambda: F.einsum("ij,jk", x), ShapeError, "einsum: argument 'operands': expected 2 tensors for 'ij,jk', got "),
        (lambda: F.einsum("i", x), ShapeError, "einsum: argument 'operands[0]': expected as many dimensions as letter"),
        (lambda: F.einsum("i1", x), ShapeError, "einsum: argument 'equation': expected letters, ',', '->' and one '.."),
        (lambda: F.einsum("ij->k", x), ShapeError, "einsum: argument 'equation': expected an output of letters of the"),
        (lambda: F.einsum("ij,ij", x, x.T), ShapeError, "einsum: argument 'operands[1]': expected size 2 for 'i', got"),
        (lambda: F.einsum("ii", x), ShapeError, "einsum: argument 'operands[0]': expected size 2 for 'i', got 3"),
        (lambda: F.einsum(1, x), DTypeError, "einsum: argument 'equation': expected a string, got int"),
        (lambda: F.index_select(x, 0, x), DTypeError, "index_select: argument 'index': expected int64 or int32, got"),
        (lambda: F.index_select(x, 0, ints[None]), ShapeError, "index_select: argument 'index': expected at most 1 di"),
        (lambda: F.index_add(x, 1, ints, x), ShapeError, "index_add: argument 'source': expected shape (2, 2), got"),
        (lambda: F.gather(x, 0, ints), ShapeError, "gather: argument 'index': expected 2 dimensions, as input, got 1"),
        (lambda: F.gather(x, 0, 1), DTypeError, "gather: argument 'index': expected a tensor of integers, got int"),
        (lambda: F.gather(x, 0, ints[None], sparse_grad=True), NotImplementedError, "sparse_grad=True is not supporte"),
        (lambda: F.gather(x, 1, ints[None].expand(3, 2)), ShapeError, "expected at most 2 in dimension 0, the size of"),
        (lambda: F.scatter(x, 0, ints[None]), DTypeError, "scatter: argument 'src': expected a tensor or a number, go"),
        (lambda: F.scatter(x, 0, ints[None], 1.0, reduce="mean"), ValueError, "scatter: argument 'reduce': expected "),
        (lambda: F.scatter(x, 0, ints[None], x.half()), DTypeError, "scatter: argument 'src': expected genesis.float3"),
        (lambda: F.scatter_add(x, 0, ints[None], 1.0), DTypeError, "scatter_add: argument 'src': expected a tensor, g"),
        (lambda: F.masked_fill(x, ints, 1.0), DTypeError, "masked_fill: argument 'mask': expected a tensor of bool"),
        (lambda: F.masked_fill(ints, mask, 1e30), OverflowError, "a number that genesis.int64 holds, got 1e+30"),
        (lambda: F.masked_fill(x, x > 0, "a"), DTypeError, "masked_fill: argument 'value': expected a number or a 0-d"),
        (lambda: F.masked_fill(x, x > 0, x), ShapeError, "expected a number or a 0-d tensor, got shape (2, 3)"),
        (lambda: F.topk(x, 4), ShapeError, "topk: argument 'k': expected a number from 0 to 3, the size of dimension "),
        (lambda: F.take_along_dim(x, ints, 0), ShapeError, "take_along_dim: argument 'indices': expected 2 dimensions"),
        (lambda: F.maximum(x, 1), DTypeError, "maximum: argument 'other': expected a tensor, got int"),
        (lambda: F.eq(1, x), DTypeError, "eq: argument 'input': expected a tensor, got int"),
    ],
)  # fmt: skip
def test_messages(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("call", "argument", "got"),
    [
        *((lambda x, op=op: getattr(F, op)(x, x[:, :2]), "other", (2, 2)) for op in BROADCASTING),
        (lambda x: F.div(x, x[:, :2], rounding_mode="trunc"), "other", (2, 2)),
        (lambda x: x.__iadd__(x[:, :2]), "other", (2, 2)),
        (lambda x: F.bitwise_and(x > 0, (x > 0)[:, :2]), "other", (2, 2)),
        (lambda x: F.where(x > 0, x, x[:, :2]), "other", (2, 2)),
        (lambda x: F.where((x > 0)[:, :2], x, 0.0), "input", (2, 3)),
        (lambda x: F.clamp(x, x[:, :2]), "other", (2, 2)),
        (lambda x: F.masked_fill(x, (x > 0)[:, :2], 0.0), "mask", (2, 2)),
        (lambda x: F.masked_select(x, (x > 0)[:, :2]), "mask", (2, 2)),
        (lambda x: F.matmul(x.expand(4, 2, 3), x.mT.expand(5, 3, 2)), "other", (5,)),
        (lambda x: F.mse_loss(x, x[:, :2]), "target", (2, 2)),
        (lambda x: F.expand(x, (2, 2)), "input", (2, 3)),
        (lambda x: x[:, :2].copy_(x), "input", (2, 3)),
        (lambda x: x.__setitem__((slice(None), 0), x), "value", (2, 3)),
    ],
)
def test_shapes_that_do_not_broadcast(call: Callable[[Any], Any], argument: str, got: Any, device: str) -> None:
    x = genesis.ones(2, 3, device=device)
    with pytest.raises(ShapeError) as error:
        call(x)
    assert re.match(rf"\w+: argument '{argument}': expected a shape that broadcasts", str(error.value))
    assert str(error.value).endswith(f", got {got}")
    assert (x == 1).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.round(x, decimals=0.5),
        lambda x: F.tril(x, None),
        lambda x: F.triu(x, True),
        lambda x: F.diagonal(x, 1.5),
        lambda x: F.narrow(x, 0, 0, 1.0),
        lambda x: F.topk(x, 1.0),
        lambda x: F.chunk(x, None),
        lambda x: F.one_hot(x.long(), 3.0),
    ],
)
def test_what_counts_is_an_int(call: Callable[[Any], Any]) -> None:
    with pytest.raises(DTypeError, match=r"^\w+: argument '\w+': expected an int, got "):
        call(x)


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        *((lambda x, op=op: getattr(F, op)(x), "bool") for op in ("relu", "abs", "floor", "ceil", "round")),
        *((lambda x, op=op: getattr(F, op)(x.long()), "int64") for op in ("leaky_relu", "elu", "gelu", "silu")),
        *((lambda x, op=op: getattr(F, op)(x.long()), "int64") for op in ("softplus", "hardswish", "hardsigmoid")),
    ],
)
def test_dtypes_that_no_backend_computes_in(call: Callable[[Any], Any], dtype: str, device: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^\w+ has no (cpu|cuda) implementation for {dtype}$"):
        call(genesis.ones(2, 3, dtype=genesis.bool, device=device))


def test_what_else_a_backend_refuses_names_the_op_and_the_operands() -> None:
    deep = genesis.ones(*[1] * 65)
    with pytest.raises(RuntimeError, match=r"^amax of float32\[1, 1, .*\]: only tensors with up to 64 dims"):
        deep.amax(0)
    with pytest.raises(ZeroDivisionError, match="floor_divide: argument 'other': expected integers other than 0"):
        ints // genesis.tensor([1, 0])
