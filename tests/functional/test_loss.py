"""Losses: every operand's gradient, extreme values, the older arguments, and the message of every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import DTypeError, ShapeError
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis

REDUCTIONS = ["none", "sum", "mean"]
CLASSES = torch.tensor([[0, 3, -100], [2, 2, 1]])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weight", [None, normal(4).abs()])
def test_cross_entropy(reduction: str, label_smoothing: float, weight: Any) -> None:
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    mine = to_genesis(weight)
    probabilities = normal(2, 4, 3).softmax(1)
    assert_agreement(
        lambda x, t: F.cross_entropy(x, t, mine, **options),
        lambda x, t: TF.cross_entropy(x, t, weight, **options),
        normal(2, 4, 3), CLASSES,
    )  # fmt: skip
    assert_agreement(
        lambda x, t: F.cross_entropy(x, t, mine, **options),
        lambda x, t: TF.cross_entropy(x, t, weight, **options),
        normal(2, 4, 3), probabilities,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_one_sample(reduction: str) -> None:
    call = {"reduction": reduction, "label_smoothing": 0.1}
    for target in (torch.tensor(2), normal(4).softmax(0)):
        assert_agreement(
            lambda x, t: F.cross_entropy(x, t, **call), lambda x, t: TF.cross_entropy(x, t, **call), normal(4), target
        )


def test_ignored_targets() -> None:
    every = torch.full((2, 3), 7)
    assert F.cross_entropy(to_genesis(normal(2, 4, 3)), to_genesis(every), ignore_index=7).isnan().item()
    each = F.cross_entropy(to_genesis(normal(2, 4, 3)), to_genesis(every), ignore_index=7, reduction="none")
    assert each.tolist() == [[0.0] * 3] * 2


def test_huge_logits() -> None:
    x = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64)
    assert_agreement(F.cross_entropy, TF.cross_entropy, x, torch.tensor([1, 1]))
    call = {"pos_weight": torch.tensor([2.0, 3.0], dtype=torch.float64)}
    mine = to_genesis(call["pos_weight"])
    assert_agreement(
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=mine),
        lambda x, t: TF.binary_cross_entropy_with_logits(x, t, **call),
        x, torch.tensor([[1.0, 0.0], [1.0, 0.3]], dtype=torch.float64),
    )  # fmt: skip


PAIRS: list[Any] = [
    lambda F, x, t, **r: F.mse_loss(x, t, **r),
    lambda F, x, t, **r: F.l1_loss(x, t, **r),
    lambda F, x, t, **r: F.smooth_l1_loss(x, t, beta=0.7, **r),
    lambda F, x, t, **r: F.smooth_l1_loss(x, t, beta=0.0, **r),
    lambda F, x, t, **r: F.huber_loss(x, t, delta=0.7, **r),
    lambda F, x, t, **r: F.binary_cross_entropy(x.sigmoid(), t.sigmoid(), **r),
    lambda F, x, t, **r: F.binary_cross_entropy_with_logits(x, t, **r),
    lambda F, x, t, **r: F.kl_div(x, t.exp(), **r),
    lambda F, x, t, **r: F.kl_div(x, t, log_target=True, **r),
]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # PyTorch's, about kl_div
@pytest.mark.parametrize("call", PAIRS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_pairs(call: Any, reduction: str) -> None:
    ours, theirs = (lambda x, t, space=space: call(space, x, t, reduction=reduction) for space in (F, TF))
    assert_agreement(ours, theirs, normal(3, 4), normal(3, 4, seed=1))
    assert_agreement(ours, theirs, normal(0, 4), normal(0, 4))
    if reduction != "none":
        leaves = [to_genesis(normal(3, 2, seed=seed), True) for seed in (0, 1)]
        assert genesis.autograd.gradcheck(ours, leaves)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss"])
def test_weighted(name: str, reduction: str) -> None:
    assert_agreement(
        lambda x, t, w: getattr(F, name)(x, t, weight=w, reduction=reduction),
        lambda x, t, w: getattr(TF, name)(x, t, weight=w, reduction=reduction),
        normal(3, 4), normal(3, 4, seed=1), normal(3, 4, seed=2).abs(),
    )  # fmt: skip


def test_probabilities_of_zero_and_one() -> None:
    x, t = torch.tensor([0.0, 1.0, 0.0, 1.0]).double(), torch.tensor([0.0, 1.0, 1.0, 0.0]).double()
    mine = to_genesis(t)
    # Only to 1e-8, as PyTorch's smallest divisor is the float32 next to 1e-12.
    assert_agreement(
        lambda x: F.binary_cross_entropy(x, mine), lambda x: TF.binary_cross_entropy(x, t), x, tolerance=1e-8
    )


def test_batchmean() -> None:
    x, t = normal(3, 4), normal(3, 4, seed=1).softmax(1)
    call = {"reduction": "batchmean"}
    assert_agreement(lambda x, t: F.kl_div(x, t, **call), lambda x, t: TF.kl_div(x, t, **call), x, t)


@pytest.mark.parametrize(
    ("old", "new"),
    [((None, False), "none"), ((False, None), "sum"), ((True, None), "mean"), ((None, True), "mean")],
)
def test_older_arguments(old: tuple[Any, Any], new: str) -> None:
    x, t = to_genesis(normal(3, 4)), to_genesis(normal(3, 4, seed=1))
    assert F.mse_loss(x, t, *old).tolist() == F.mse_loss(x, t, reduction=new).tolist()


def test_broadcast_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"mse_loss: target has shape \(4,\) and input \(3, 4\): they are broadcast"):
        loss = F.mse_loss(to_genesis(normal(3, 4)), to_genesis(normal(4)))
    assert_close(loss, (normal(3, 4) - normal(4)).square().mean())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_dice_loss(reduction: str) -> None:
    def formula(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x, t = x.flatten(1), t.flatten(1)
        each = 1 - (2 * (x * t).sum(1) + 1e-6) / (x.square().sum(1) + t.square().sum(1) + 1e-6)
        return {"none": each, "sum": each.sum(), "mean": each.mean()}[reduction]

    x, t = normal(2, 1, 4, 5).sigmoid(), normal(2, 1, 4, 5, seed=1).sigmoid()
    assert_agreement(lambda x, t: F.dice_loss(x, t, reduction=reduction), formula, x, t)
    empty = genesis.zeros(1, 3)
    assert F.dice_loss(empty, empty).item() == 0.0


X, T = genesis.zeros(2, 4, 3), genesis.zeros(2, 3, dtype=genesis.int64)
REFUSALS = [
    (lambda: F.cross_entropy([1.0], T), DTypeError, "cross_entropy: argument 'input': expected a Tensor, got list"),
    (lambda: F.cross_entropy(X, T.float()), DTypeError, r"'target': expected class indices in int64, got genesis\.flo"),
    (lambda: F.cross_entropy(X, T[:, :2]), ShapeError, r"'target': expected shape \(2, 3\) for input \(2, 4, 3\), got"),
    (lambda: F.cross_entropy(X, T + 4), IndexError, r"a target is out of range: expected a class in \[0, 3\]"),
    (lambda: F.cross_entropy(X, T - 1), IndexError, "a target is out of range"),
    (lambda: F.cross_entropy(X, T, X[0, :3, 0]), ShapeError, r"'weight': expected shape \(4,\), one for each class"),
    (lambda: F.cross_entropy(X, T, reduction="max"), ValueError, "'reduction': expected \"none\", \"mean\" or \"sum\""),
    (lambda: F.cross_entropy(X, T, label_smoothing=2), ValueError, r"'label_smoothing': expected a number in \[0, 1\]"),
    (lambda: F.cross_entropy(X.long(), T), DTypeError, "'input': expected a floating dtype"),
    (lambda: F.nll_loss(genesis.tensor(1.0), T), ShapeError, "nll_loss: argument 'input': expected at least 1 dimensi"),
    (lambda: F.mse_loss(X, 1.0), DTypeError, "'target': expected a Tensor, got float"),
    (lambda: F.mse_loss(T, T), DTypeError, "'input': expected a floating dtype"),
    (lambda: F.mse_loss(X, X[:, :3]), ShapeError, "target': expected a shape that broadcasts with"),
    (lambda: F.mse_loss(X, X, weight=X[0]), ShapeError, "'weight': expected the shape of input"),
    (lambda: F.smooth_l1_loss(X, X, beta=-1), ValueError, "'beta': expected a number >= 0, got -1"),
    (lambda: F.huber_loss(X, X, delta=0), ValueError, "'delta': expected a positive number, got 0"),
    (lambda: F.binary_cross_entropy(X, X[0]), ShapeError, r"'target': expected the shape of input, \(2, 4, 3\)"),
    (lambda: F.binary_cross_entropy(X, X, weight=X[:, :2]), ShapeError, "'weight': expected a shape that broadcasts t"),
    (lambda: F.dice_loss(X[0, 0], X[0, 0]), ShapeError, "'input': expected at least 2 dimensions"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("weight", [None, 2.0])
@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float64", "float32"), ("float32", "bfloat16")], ids=str)
def test_logits_and_targets_of_different_dtypes_give_a_loss_of_the_targets(dtypes: Any, weight: float | None) -> None:
    x, t = (
        torch.tensor([0.5, -1.25, 3.0, -2.0], dtype=getattr(torch, dtypes[0])),
        torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=getattr(torch, dtypes[1])),
    )
    factor = None if weight is None else torch.tensor([weight], dtype=t.dtype)
    theirs = TF.binary_cross_entropy_with_logits(x, t, pos_weight=factor)
    exact = x.double().requires_grad_()
    wanted = TF.binary_cross_entropy_with_logits(
        exact, t.double(), pos_weight=None if factor is None else factor.double()
    )
    wanted.backward()
    mine = genesis.from_torch(x).requires_grad_()
    value = F.binary_cross_entropy_with_logits(mine, genesis.from_torch(t), pos_weight=to_genesis(factor))
    value.backward()
    assert str(value.dtype).split(".")[1] == str(theirs.dtype).split(".")[1] == dtypes[1]
    assert mine.grad is not None
    assert mine.grad.dtype is mine.dtype
    assert value.item() == pytest.approx(wanted.item(), rel=torch.finfo(theirs.dtype).eps)
    assert exact.grad is not None
    assert mine.grad.tolist() == pytest.approx(exact.grad.tolist(), rel=2 * torch.finfo(x.dtype).eps + 1e-7)
