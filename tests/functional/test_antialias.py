"""interpolate(antialias=True) beside PyTorch's: values, gradients, gradients of gradients, both devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis

CALLS: list[dict[str, Any]] = [
    {"size": (3, 4)},
    {"size": (14, 5)},
    {"size": (9, 11)},
    {"size": 1},
    {"size": (1, 4), "align_corners": True},
    {"size": (5, 17), "align_corners": True},
    {"scale_factor": 0.4},
    {"scale_factor": (1.7, 0.35)},
    {"scale_factor": 0.4, "recompute_scale_factor": True},
]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_values_and_gradients(call: dict[str, Any], mode: str) -> None:
    def of(interpolate: Any) -> Any:
        return lambda x: interpolate(x, mode=mode, antialias=True, **call)

    assert_agreement(of(F.interpolate), of(TF.interpolate), normal(2, 3, 9, 11))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype: torch.dtype, mode: str) -> None:
    x = normal(1, 2, 20, 30, dtype=dtype)
    expected = TF.interpolate(x.double(), (7, 11), mode=mode, antialias=True).to(dtype)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    assert_close(F.interpolate(to_genesis(x), (7, 11), mode=mode, antialias=True), expected, tolerance)


def test_precision_and_autocast_change_nothing() -> None:
    x = to_genesis(normal(1, 1, 40, 40, dtype=torch.float32))
    expected = F.interpolate(x, 8, mode="bicubic", antialias=True).tolist()
    with genesis.amp.autocast("cpu"), genesis.float32_precision("medium"):
        assert F.interpolate(x, 8, mode="bicubic", antialias=True).tolist() == expected


def test_gradients_of_gradients() -> None:
    def penalty(lib: Any, x: Any) -> Any:
        y = lib.nn.functional.interpolate(x * x, (3, 2), mode="bicubic", antialias=True)
        (grad,) = lib.autograd.grad((y * y).sum(), x, create_graph=True)
        (grad * grad).sum().backward()
        return x.grad

    x = normal(1, 2, 6, 5)
    expected = penalty(torch, x.clone().requires_grad_())
    assert_close(penalty(genesis, to_genesis(x, requires_grad=True)), expected)


def test_on_a_cuda_device(cuda: str) -> None:
    x = normal(1, 2, 9, 8, dtype=torch.float32)
    mine = to_genesis(x).to("cuda").requires_grad_()
    x.requires_grad_()
    y = F.interpolate(mine, (4, 10), mode="bicubic", antialias=True)
    expected = TF.interpolate(x, (4, 10), mode="bicubic", antialias=True)
    assert_close(y.cpu(), expected, 1e-5)
    (y * y).sum().backward()
    (expected * expected).sum().backward()
    assert mine.grad is not None
    assert x.grad is not None
    assert_close(mine.grad.cpu(), x.grad, 1e-5)
