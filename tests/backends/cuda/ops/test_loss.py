"""nll_loss and embedding_backward against the CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import backends
from genesis.backends.backend import Backend

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

CPU = backends.get("cpu")
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
IGNORED = -100


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.manual_seed(seed)).to(dtype)


def targets(*shape: int, classes: int) -> torch.Tensor:
    target = torch.randint(0, classes, shape, generator=torch.manual_seed(1))
    target.view(-1)[::3] = IGNORED
    return target


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=DTYPES[expected.dtype], atol=DTYPES[expected.dtype])


def check_nll(cuda: Backend, put: Put, get: Get, log_probs: torch.Tensor, target: torch.Tensor, weight: Any) -> None:
    results = cuda.nll_loss(put(log_probs), put(target), put(weight), IGNORED)
    for result, expected in zip(results, CPU.nll_loss(log_probs, target, weight, IGNORED), strict=True):
        check(get(result), expected)
    grad = randn(*target.shape, dtype=log_probs.dtype, seed=2)
    result = cuda.nll_loss_backward(put(grad), log_probs.shape, put(target), put(weight), IGNORED)
    check(get(result), CPU.nll_loss_backward(grad, log_probs.shape, target, weight, IGNORED))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("places", [(), (4,), (3, 5)], ids=str)
def test_nll_loss(
    cuda: Backend, put: Put, get: Get, places: tuple[int, ...], weighted: bool, dtype: torch.dtype
) -> None:
    weight = randn(6, dtype=dtype).abs() if weighted else None
    check_nll(cuda, put, get, randn(7, 6, *places, dtype=dtype), targets(7, *places, classes=6), weight)


def test_nll_loss_of_any_strides(cuda: Backend, put: Put, get: Get) -> None:
    log_probs = randn(2, 6, 4, 5).contiguous(memory_format=torch.channels_last)
    target = targets(2, 5, 4, classes=6).transpose(1, 2)
    check_nll(cuda, put, get, log_probs, target, randn(12).abs()[::2])
    check_nll(cuda, put, get, log_probs[:, :, 1::2], target[:, 1::2], None)


def test_nll_loss_of_nothing(cuda: Backend, put: Put, get: Get) -> None:
    check_nll(cuda, put, get, randn(0, 6), targets(0, classes=6), None)
    check_nll(cuda, put, get, randn(2, 6), torch.full((2,), IGNORED), None)


def test_minus_infinity_that_is_ignored(cuda: Backend, put: Put, get: Get) -> None:
    log_probs = torch.tensor([[-torch.inf, 0.0], [-torch.inf, 0.0]])
    loss, each = cuda.nll_loss(put(log_probs), put(torch.tensor([0, IGNORED])), None, IGNORED)
    assert get(loss).tolist() == [torch.inf, 0]
    assert get(each).tolist() == [1, 0]


def test_a_class_that_there_is_not_makes_nan(cuda: Backend, put: Put, get: Get) -> None:
    loss, _ = cuda.nll_loss(put(randn(3, 4)), put(torch.tensor([4, -1, 0])), None, IGNORED)
    assert get(loss).isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale_grad_by_freq", [False, True])
@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_embedding_backward(
    cuda: Backend, put: Put, get: Get, padding_idx: int, scale_grad_by_freq: bool, dtype: torch.dtype
) -> None:
    indices = torch.randint(0, 5, (4, 6), generator=torch.manual_seed(0))
    grad = randn(4, 6, 3, dtype=dtype)
    args = (7, padding_idx, scale_grad_by_freq)
    expected = CPU.embedding_backward(grad.double(), indices, *args).to(dtype)
    check(get(cuda.embedding_backward(put(grad), put(indices), *args)), expected)


def test_embedding_backward_layouts(cuda: Backend, put: Put, get: Get) -> None:
    indices = torch.randint(0, 5, (6, 4), generator=torch.manual_seed(0)).T
    grad = randn(3, 4, 6).permute(1, 2, 0)
    check(
        get(cuda.embedding_backward(put(grad), put(indices), 7, -1, False)),
        CPU.embedding_backward(grad, indices, 7, -1, False),
    )
    nothing = cuda.embedding_backward(put(randn(0, 3)), put(torch.empty(0, dtype=torch.int64)), 2, -1, False)
    assert get(nothing).tolist() == [[0] * 3] * 2
    one = cuda.embedding_backward(put(torch.ones(3)), put(torch.tensor(1)), 2, -1, False)
    assert get(one).tolist() == [[0] * 3, [1] * 3]


def test_half_gradients_of_one_index_add_up_in_float32(cuda: Backend, put: Put, get: Get) -> None:
    grad = torch.full((4096, 1), 0.0625, dtype=torch.bfloat16)
    grad[0] = 1024
    total = cuda.embedding_backward(put(grad), put(torch.zeros(4096, dtype=torch.int64)), 1, -1, False)
    assert get(total).item() == 1280
