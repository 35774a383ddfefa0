"""Attention: masks, grouped heads, the fused kernel and the formula, and the message of every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import DTypeError, ShapeError
from tests.functional.agreement import assert_agreement, normal, to_genesis

attend, reference = F.scaled_dot_product_attention, TF.scaled_dot_product_attention
BOOL_MASK = normal(5, 6) > -0.5
ADDITIVE_MASK = normal(5, 6).masked_fill(normal(5, 6) > 1, -torch.inf)


def operands(value_size: int = 8) -> tuple[torch.Tensor, ...]:
    return normal(2, 3, 5, 8), normal(2, 3, 6, 8), normal(2, 3, 6, value_size)


@pytest.mark.parametrize("value_size", [8, 4])  # torch's fused kernel, and the formula beside it
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_without_mask(value_size: int, options: dict[str, Any]) -> None:
    assert_agreement(
        lambda *qkv: attend(*qkv, **options), lambda *qkv: reference(*qkv, **options), *operands(value_size)
    )


@pytest.mark.parametrize("value_size", [8, 4])
@pytest.mark.parametrize("mask", [BOOL_MASK, ADDITIVE_MASK, ADDITIVE_MASK[:1], BOOL_MASK.expand(2, 1, 5, 6)])
def test_masks(value_size: int, mask: torch.Tensor) -> None:
    mine = to_genesis(mask)
    assert_agreement(lambda *qkv: attend(*qkv, mine), lambda *qkv: reference(*qkv, mask), *operands(value_size))


def test_gradient_of_an_additive_mask() -> None:
    assert_agreement(attend, reference, *operands(), normal(5, 6))


@pytest.mark.parametrize("value_size", [8, 4])
@pytest.mark.parametrize("kind", ["bool", "additive", "formula"])
def test_a_query_that_sees_no_key_gives_zeros(value_size: int, kind: str) -> None:
    mask = BOOL_MASK.clone()
    mask[2] = False
    if kind != "bool":
        mask = torch.zeros(5, 6, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    q, k, v = [to_genesis(operand, True) for operand in operands(value_size)]
    y = attend(q, k, v, to_genesis(mask, kind == "formula"))
    assert not y[:, :, 2].any().item()
    y.sum().backward()
    assert all(x.grad.isfinite().all().item() for x in (q, k, v))
    assert not q.grad[:, :, 2].any().item()


def test_grouped_heads() -> None:
    shapes = ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    assert_agreement(
        lambda *qkv: attend(*qkv, enable_gqa=True),
        lambda *qkv: reference(*qkv, enable_gqa=True),
        *[normal(*shape) for shape in shapes],
    )


def test_other_ranks_and_broadcast_batches() -> None:
    assert_agreement(attend, reference, normal(5, 8), normal(6, 8), normal(6, 8))
    assert_agreement(attend, reference, normal(3, 5, 8), normal(2, 3, 6, 8), normal(2, 1, 6, 8))
    assert_agreement(attend, reference, normal(2, 2, 3, 5, 8), normal(2, 2, 3, 6, 8), normal(2, 2, 3, 6, 8))
    assert_agreement(attend, reference, normal(2, 3, 0, 8), normal(2, 3, 6, 8), normal(2, 3, 6, 8))


def test_dropout() -> None:
    qkv = [to_genesis(operand) for operand in operands()]
    assert not attend(*qkv, dropout_p=1.0).any().item()
    genesis.manual_seed(0)
    dropped = attend(*qkv, dropout_p=0.5)
    assert (dropped - attend(*qkv)).abs().sum().item() > 0


@pytest.mark.parametrize("mask", [None, BOOL_MASK[:3, :4]])
def test_gradcheck(mask: Any) -> None:
    leaves = [to_genesis(normal(*shape), True) for shape in ((2, 1, 3, 2), (2, 1, 4, 2), (2, 1, 4, 2))]
    assert genesis.autograd.gradcheck(lambda *qkv: attend(*qkv, to_genesis(mask)), leaves)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_formula_rounds_only_its_result(dtype: torch.dtype, autocast: bool) -> None:
    """Scores near 60: rounded to 16 bits, they would be off by up to a fourth."""
    q, k, v = (x.to(dtype) for x in (4 * normal(3, 20, 16), 4 * normal(3, 30, 16), normal(3, 30, 8)))
    mask = normal(20, 30).to(dtype)
    exact = reference(q.double(), k.double(), v.double(), mask.double())
    lower = to_genesis(q).dtype
    given = [to_genesis(x.float() if autocast else x) for x in (q, k, v)]
    with genesis.autocast("cpu", lower, enabled=autocast):
        y = attend(*given, to_genesis(mask, True))
    assert y.dtype is lower
    spacing = torch.finfo(dtype).eps * exact.abs()
    assert ((y.to_torch().double() - exact).abs() <= 0.51 * spacing + 1e-5).all()


Q, K = genesis.zeros(2, 3, 5, 8), genesis.zeros(2, 3, 6, 8)
REFUSALS = [
    (lambda: attend(Q[0, 0, 0], K, K), ShapeError, "'query': expected at least 2 dimensions"),
    (lambda: attend(Q, K[..., :4], K), ShapeError, r"'key': expected \(…, S, 8\), as query's last size"),
    (lambda: attend(Q, K, K[:, :, :4]), ShapeError, r"'value': expected \(…, 6, V\), as many rows as key has"),
    (lambda: attend(Q, K, K.double()), DTypeError, r"'value': expected the dtype of query, genesis\.float32"),
    (lambda: attend(Q, K.half(), K, dropout_p=0.5), DTypeError, "'key': expected the dtype of query, genesis.float32"),
    (lambda: attend(Q.long(), K, K), DTypeError, "'query': expected a floating dtype"),
    (lambda: attend(Q, K, None), DTypeError, "'value': expected a Tensor, got NoneType"),
    (lambda: attend(Q, K, K, dropout_p=2.0), ValueError, r"'dropout_p': expected a probability in \[0, 1\], got 2"),
    (lambda: attend(Q, K, K, Q[0, 0], is_causal=True), ValueError, "'attn_mask': expected None beside is_causal"),
    (lambda: attend(Q, K, K, genesis.zeros(5, 6).long()), DTypeError, "'attn_mask': expected bool or a floating dtype"),
    (lambda: attend(Q, K, K, genesis.zeros(4, 6)), ShapeError, "attn_mask': expected a shape that broadcasts with"),
    (lambda: attend(Q, K, K, genesis.zeros(7, 2, 3, 5, 6)), ShapeError, "'attn_mask': expected a shape that broadcast"),
    (lambda: attend(Q, K[:, :2], K[:, :2], enable_gqa=True), ShapeError, "'key': expected a count of heads that divid"),
    (lambda: attend(Q[0, 0], K, K, enable_gqa=True), ShapeError, "'key': expected at least 3 dimensions with enable_g"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
