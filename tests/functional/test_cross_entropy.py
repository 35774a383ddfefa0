"""Cross entropy as one op of the backends: PyTorch's losses and gradients, and what is left to other ops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as TF

import genesis
import genesis.nn.functional as F
from genesis.functional import classification
from genesis.functional.classification import CrossEntropy
from genesis.settings import override

GPU = pytest.param("auto", marks=pytest.mark.gpu, id="gpu")


@pytest.fixture(params=["cpu", "simulated", GPU])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cpu":
        yield "cpu"
    else:
        with override(cuda=request.param):
            yield "cuda"


def ours(x: torch.Tensor, device: str) -> Any:
    return genesis.tensor(x.detach().double().numpy(), dtype=getattr(genesis, str(x.dtype)[6:]), device=device)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("weighted", "smoothing"), list(itertools.product([False, True], [0.0, 0.1])))
@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (7, 10), (130, 33), (3, 1000)])
def test_losses_and_gradients(
    device: str, rows: int, classes: int, weighted: bool, smoothing: float, reduction: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, classes, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, classes, (rows,))
    target[::3] = 1  # which is ignored
    weight = torch.rand(classes, dtype=torch.float64) + 0.5 if weighted else None
    options: dict[str, Any] = {"ignore_index": 1 if rows > 1 else -100, "reduction": reduction}
    expected = TF.cross_entropy(x, target, weight, label_smoothing=smoothing, **options)
    grad = torch.randn_like(expected)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    logits = ours(x, device).requires_grad_()
    weights = None if weight is None else ours(weight, device)
    loss = F.cross_entropy(logits, ours(target, device), weights, label_smoothing=smoothing, **options)
    assert loss.shape == expected.shape
    loss.backward(ours(grad, device))
    torch.testing.assert_close(torch.from_numpy(loss.detach().cpu().numpy()), expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.from_numpy(logits.grad.cpu().numpy()), expected_grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lower_precisions(device: str, dtype: str) -> None:
    """As far from float64 as one rounding of the dtype, whatever the rows have in common."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    x = (torch.randn(50, 20) + 300).to(kind)
    target = torch.randint(0, 20, (50,))
    exact = x.double().requires_grad_()
    expected = TF.cross_entropy(exact, target)
    expected.backward()
    logits = ours(x, device).requires_grad_()
    loss = F.cross_entropy(logits, ours(target, device))
    loss.backward()
    assert (loss.dtype.name, logits.grad.dtype.name) == (dtype, dtype)
    assert exact.grad is not None
    bound = 4e-7 if dtype == "float32" else 2e-2  # the logarithms of probabilities are kept in bfloat16
    assert abs(loss.item() - expected.item()) <= bound * expected.item()
    found = torch.from_numpy(logits.grad.float().cpu().numpy()).double()
    assert (found - exact.grad).norm() <= bound * exact.grad.norm()


def test_weights_of_another_dtype(device: str) -> None:
    """Everything is in that of the logits."""
    torch.manual_seed(0)
    x, target, weight = torch.randn(6, 4).bfloat16(), torch.randint(0, 4, (6,)), torch.tensor([1.0, 2.0, 0.5, 4.0])
    expected = torch.autograd.functional.jacobian(lambda x: TF.cross_entropy(x, target, weight.double()), x.double())
    for smoothing in (0.0, 0.1):
        logits = ours(x, device).requires_grad_()
        weights = genesis.tensor(weight.tolist(), device=device)
        loss = F.cross_entropy(logits, ours(target, device), weights, label_smoothing=smoothing)
        loss.backward()
        assert (loss.dtype.name, logits.grad.dtype.name) == ("bfloat16", "bfloat16")
        if smoothing == 0:
            found = torch.from_numpy(logits.grad.float().cpu().numpy()).double()
            assert (found - expected).norm() <= 2e-2 * expected.norm()


def test_any_strides(device: str) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(6, 2, 9).double(), torch.randint(0, 9, (6, 2))
    expected = TF.cross_entropy(x[::2, 1], target[::2, 1])
    logits, classes = ours(x, device), ours(target, device)
    assert F.cross_entropy(logits[::2, 1], classes[::2, 1]).item() == pytest.approx(expected.item(), rel=1e-12)
    transposed = ours(x[:, 0].t().contiguous(), device).t()
    expected = TF.cross_entropy(x[:, 0], target[:, 0])
    assert F.cross_entropy(transposed, classes[:, 0]).item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_class_that_there_is_not(device: str) -> None:
    """An error on the CPU; on CUDA, which would have to wait for the targets, NaN."""
    if device == "cpu":
        with pytest.raises(IndexError, match=r"a target is out of range: expected a class in \[0, 3\]"):
            F.cross_entropy(genesis.zeros(3, 4), genesis.tensor([1, 4, -1]))
        return
    logits = genesis.zeros(3, 4, device=device).requires_grad_()
    each = F.cross_entropy(logits, genesis.tensor([1, 4, -1], device=device), reduction="none")
    assert [value != value for value in each.tolist()] == [False, True, True]
    assert F.cross_entropy(logits, genesis.tensor([7, 7, 7], device=device), ignore_index=7).isnan().item()  # 0 / 0


def test_gradients_of_gradients(device: str) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.randint(0, 5, (4,))
    weight = torch.rand(5, dtype=torch.float64)

    def penalty(loss: Any, logits: Any, grad: Any) -> Any:
        (first,) = grad(loss, logits, create_graph=True)
        return (first * first).sum()

    expected = penalty(TF.cross_entropy(x, target, weight, label_smoothing=0.2), x, torch.autograd.grad)
    (expected_grad,) = torch.autograd.grad(expected, x)
    logits = ours(x, device).requires_grad_()
    loss = F.cross_entropy(logits, ours(target, device), ours(weight, device), label_smoothing=0.2)
    found = penalty(loss, logits, genesis.autograd.grad)
    (found_grad,) = genesis.autograd.grad(found, logits)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(torch.from_numpy(found_grad.cpu().numpy()), expected_grad, rtol=1e-10, atol=1e-12)


def test_logits_may_be_changed_before_the_backward(device: str) -> None:
    """As in PyTorch, which keeps what it computed of them."""
    weight = genesis.ones(3, device=device).requires_grad_()
    logits = genesis.tensor([[1.0, 2.0, 3.0]], device=device) * weight
    loss = F.cross_entropy(logits, genesis.tensor([0], device=device))
    logits.zero_()
    loss.backward()
    expected = torch.tensor([1.0, 2.0, 3.0]).softmax(0) * torch.tensor([1.0, 2.0, 3.0]) - torch.tensor([1.0, 0, 0])
    torch.testing.assert_close(torch.from_numpy(weight.grad.cpu().numpy()), expected)


@pytest.mark.parametrize(
    ("shape", "is_one"), [((4, 3), True), ((3,), False), ((4, 3, 2), False), ((0, 3), False), ((2, 8193), False)]
)
def test_which_losses_are_one_op(
    device: str, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], is_one: bool
) -> None:
    calls: list[str] = []
    for function in (CrossEntropy, classification.NLLLoss):
        apply = function.apply

        def counted(*args: Any, apply: Any = apply, name: str = function.__name__, **kwargs: Any) -> Any:
            calls.append(name)
            return apply(*args, **kwargs)

        monkeypatch.setattr(function, "apply", counted)
    target = genesis.zeros(*(shape[:1] + shape[2:] if len(shape) > 1 else ()), dtype=genesis.int64, device=device)
    F.cross_entropy(genesis.zeros(*shape, device=device), target)
    assert calls == ["CrossEntropy" if is_one else "NLLLoss"]
