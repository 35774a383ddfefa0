"""ctc_loss beside PyTorch's: values, gradients of logits and of normalized log_probs, both devices, refusals."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import DTypeError, ShapeError
from tests.functional.agreement import assert_close, normal, to_genesis

SIZES = [(20, 4, 6, 8), (7, 3, 4, 5), (3, 2, 3, 4), (1, 1, 2, 1), (5, 4, 6, 0)]  # T, N, C, S; some don't fit


def batch(sizes: tuple[int, ...], blank: int, one_row: bool) -> list[torch.Tensor]:
    """targets, input_lengths, target_lengths."""
    torch.manual_seed(0)
    steps, count, classes, most = sizes
    lengths = torch.randint(0, most + 1, (count,))
    counts = torch.randint(max(1, steps // 2), steps + 1, (count,))
    targets = torch.randint(0, classes - 1, (count, most))
    targets[targets >= blank] += 1
    if one_row:
        targets = torch.cat([row[:length] for row, length in zip(targets, lengths, strict=True)])
    return [targets, counts, lengths]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("one_row", [False, True], ids=["rows", "one row"])
@pytest.mark.parametrize("blank", [0, 1])
def test_values_and_gradients(sizes: tuple[int, ...], blank: int, one_row: bool) -> None:
    given = batch(sizes, blank, one_row)
    for reduction, zero_infinity in itertools.product(("none", "sum", "mean"), (False, True)):
        logits = normal(*sizes[:3])
        theirs = logits.log_softmax(2).requires_grad_()
        ours = to_genesis(theirs, requires_grad=True)
        expected = TF.ctc_loss(theirs, *given, blank, reduction, zero_infinity)
        found = F.ctc_loss(ours, *map(to_genesis, given), blank, reduction, zero_infinity)
        assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        assert ours.grad is not None
        assert theirs.grad is not None
        assert_close(ours.grad, theirs.grad)


def test_the_gradient_of_logits_is_that_of_the_values() -> None:
    given = [to_genesis(each) for each in batch((6, 2, 4, 2), 0, False)]
    assert genesis.autograd.gradcheck(
        lambda x: F.ctc_loss(F.log_softmax(x, 2), *given, reduction="none"), to_genesis(normal(6, 2, 4), True)
    )


def test_the_sum_over_all_alignments() -> None:
    """By counting: the probability of each of the 3⁵ paths, if it says 1, 2, 2."""
    scores = normal(5, 1, 3).log_softmax(2)
    total = 0.0
    for path in itertools.product(range(3), repeat=5):
        said = [label for label, _ in itertools.groupby(path) if label]
        if said == [1, 2, 2]:
            total += math.exp(sum(scores[step, 0, label].item() for step, label in enumerate(path)))
    loss = F.ctc_loss(to_genesis(scores), genesis.tensor([[1, 2, 2]]), [5], [3], reduction="sum")
    assert loss.item() == pytest.approx(-math.log(total), rel=1e-12)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_without_a_batch(reduction: str) -> None:
    x, target = normal(6, 4).log_softmax(1), torch.tensor([1, 3])
    expected = TF.ctc_loss(x, target, torch.tensor(6), torch.tensor(2), reduction=reduction)
    found = F.ctc_loss(to_genesis(x), to_genesis(target), genesis.tensor(6), genesis.tensor(2), reduction=reduction)
    assert found.shape == ()
    assert_close(found, expected)
    assert_close(genesis.nn.CTCLoss(reduction=reduction)(to_genesis(x), to_genesis(target), 6, 2), expected)


def test_no_steps_and_impossible_labels() -> None:
    x = to_genesis(normal(2, 2, 3).log_softmax(2), requires_grad=True)
    each = F.ctc_loss(x, genesis.tensor([[1], [1]]), [0, 0], [0, 1], reduction="none")
    assert each.tolist() == [0.0, math.inf]
    never = genesis.tensor([[[0.0, -math.inf]], [[0.0, -math.inf]]], requires_grad=True)
    loss = F.ctc_loss(never, genesis.tensor([[1]]), [2], [0])
    loss.backward()
    assert loss.item() == 0.0
    assert never.grad is not None
    assert never.grad.tolist() == [[[0.0, 0.0]]] * 2  # PyTorch's is NaN for the label that cannot be


@pytest.mark.parametrize("dtype", [genesis.bfloat16, genesis.float16], ids=str)
def test_16_bits_are_summed_in_float32(dtype: Any) -> None:
    x = F.log_softmax(to_genesis(normal(30, 2, 5, dtype=torch.float32)), 2).to(dtype)
    call: Any = (genesis.tensor([[1, 2, 3], [4, 4, 1]]), [30, 25], [3, 3])
    each = F.ctc_loss(x, *call, reduction="none")
    assert each.tolist() == F.ctc_loss(x.float(), *call, reduction="none").to(dtype).tolist()


def test_on_a_cuda_device(cuda: str) -> None:
    given = batch((6, 3, 4, 2), 0, False)
    theirs = normal(6, 3, 4, dtype=torch.float32).log_softmax(2).requires_grad_()
    ours = to_genesis(theirs).to("cuda").requires_grad_()
    expected = TF.ctc_loss(theirs, *given, zero_infinity=True)
    found = F.ctc_loss(ours, to_genesis(given[0]).to("cuda"), *map(to_genesis, given[1:]), zero_infinity=True)
    expected.backward()
    found.backward()
    assert_close(found.cpu(), expected, 1e-5)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert_close(ours.grad.cpu(), theirs.grad, 1e-5)


X = genesis.zeros(4, 2, 3)
LABELS = genesis.tensor([[1, 2], [1, 1]])
REFUSALS: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((X.long(), LABELS, [4, 4], [2, 2]), {}, DTypeError, "'log_probs': expected a floating dtype, got genesis.int64"),
    ((X[0, 0], LABELS, [4], [2]), {}, ShapeError, "'log_probs': expected 3 dimensions, or 2 without a batch"),
    ((X, LABELS.float(), [4, 4], [2, 2]), {}, DTypeError, "'targets': expected integers, got genesis.float32"),
    ((X, LABELS, [4, 4], [2, 2]), {"blank": 3}, ValueError, r"'blank': expected a class in \[0, 3\), got 3"),
    ((X, LABELS, [4, 5], [2, 2]), {}, ValueError, "'input_lengths': expected at most 4, the steps of log_probs, got 5"),
    ((X, LABELS, [4, 4], [2, 3]), {}, ValueError, "'target_lengths': expected at most 2, the labels of targets, got 3"),
    ((X, LABELS, [4], [2, 2]), {}, ShapeError, "'input_lengths': expected 2 of them"),
    ((X, LABELS, [4, 4], [2, -1]), {}, ValueError, "'target_lengths': expected numbers >= 0, got -1"),
    ((X, LABELS, [4, 4], [2.0, 1.0]), {}, DTypeError, "'target_lengths': expected integers"),
    ((X, LABELS[0], [4, 4], [2, 1]), {}, ShapeError, r"'targets': expected shape \(2, S\), or \(3,\)"),
    ((X, LABELS + 1, [4, 4], [2, 2]), {}, ValueError, r"'targets': expected labels in \[0, 3\), got 3"),
    ((X, LABELS, [4, 4], [2, 2]), {"reduction": "all"}, ValueError, "'reduction': expected"),
]


@pytest.mark.parametrize(("args", "options", "error", "message"), REFUSALS, ids=[each[3][:40] for each in REFUSALS])
def test_refusals(args: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"ctc_loss: argument {message}"):
        F.ctc_loss(*args, **options)
