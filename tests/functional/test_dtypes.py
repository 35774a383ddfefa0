"""Dtypes of results and NaN in gradients, where they once differed from PyTorch's; both devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from tests.functional.agreement import assert_close

NAN, INF = float("nan"), float("inf")
INTEGERS = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["sum", "prod", "cumsum"])
def test_reductions_in_a_dtype(op: str, dtype: str, device: str) -> None:
    values = [[1.7, 3.0], [0.0, 200.0], [250.0, 1.0]]
    theirs, mine = torch.tensor(values), genesis.tensor(values, device=device)
    for dim in (0, 1):
        try:
            expected = getattr(theirs, op)(dim, dtype=getattr(torch, dtype))
        except NotImplementedError:
            with pytest.raises(TypeError, match="cumsum: argument 'dtype': expected a dtype of numbers"):
                getattr(mine, op)(dim, dtype=getattr(genesis, dtype))
        else:
            torch.testing.assert_close(getattr(mine, op)(dim, dtype=getattr(genesis, dtype)).cpu().to_torch(), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda f, x: x.square(),
        lambda f, x: f.relu6(x),
        lambda f, x: f.hardtanh(x),
        lambda f, x: f.hardtanh(x, 0, 3),
        lambda f, x: f.hardtanh(x, 0.5, 2.5),
        lambda f, x: x.clamp(min=1),
        lambda f, x: x.clamp(max=2.5),
        lambda f, x: f.l1_loss(x, x, reduction="none"),
        lambda f, x: f.l1_loss(x, x, reduction="sum"),
        lambda f, x: f.l1_loss(x, x),
        lambda f, x: f.mse_loss(x, x),
        lambda f, x: f.mse_loss(x, x * 0.5),
        lambda f, x: f.smooth_l1_loss(x, x * 0.5),
        lambda f, x: f.huber_loss(x, x * 0.5),
        lambda f, x: f.binary_cross_entropy_with_logits(x, x * 0.5),
        lambda f, x: f.kl_div(x, x * 0.5, reduction="sum"),
    ],
)
def test_integers_stay_what_pytorch_makes_of_them(function: Callable[[Any, Any], Any], device: str) -> None:
    for dtype in ("bool", "uint8", "int8", "int64"):
        theirs = torch.tensor([0, 1, 2, 9]).to(getattr(torch, dtype))
        mine = genesis.from_torch(theirs.clone()).to(device)
        try:
            expected = function(TF, theirs)
        except (RuntimeError, NotImplementedError):
            with pytest.raises((TypeError, ValueError, NotImplementedError), match="expected"):
                function(F, mine)
        else:
            torch.testing.assert_close(function(F, mine).cpu().to_torch(), expected)


VALUES = [NAN, -INF, -1.0, 0.0, 1.0, 3.0, 6.0, 6.0, 7.0, INF]


@pytest.mark.parametrize("gradient", [1.0, NAN, INF])
@pytest.mark.parametrize(
    "function",
    [
        lambda lib, f, x: f.relu6(x),
        lambda lib, f, x: f.hardtanh(x),
        lambda lib, f, x: f.relu(x),
        lambda lib, f, x: f.elu(x),
        lambda lib, f, x: f.leaky_relu(x),
        lambda lib, f, x: x.clamp(-1, 6),
        lambda lib, f, x: x.clamp(NAN, 6),
        lambda lib, f, x: x.amax(),
        lambda lib, f, x: x[1:].amax(),
        lambda lib, f, x: x[2:8].amin(0),
        lambda lib, f, x: x.reshape(2, 5).amax(1),
        lambda lib, f, x: x.reshape(5, 2).amin(1),
        lambda lib, f, x: x.max(),
        lambda lib, f, x: x.min(),
        lambda lib, f, x: x.max(0).values,
        lambda lib, f, x: x[1:].norm(INF),
        lambda lib, f, x: lib.maximum(x, x.flip(0)),
        lambda lib, f, x: lib.minimum(x, x.flip(0)),
    ],
)
def test_nan_in_values_and_gradients(function: Callable[[Any, Any, Any], Any], gradient: float, device: str) -> None:
    theirs = torch.tensor(VALUES, requires_grad=True)
    mine = genesis.tensor(VALUES, device=device).requires_grad_()
    expected, actual = function(torch, TF, theirs), function(genesis, F, mine)
    assert_close(actual.cpu(), expected, 1e-6)
    expected.backward(torch.full_like(expected, gradient))
    actual.backward(genesis.full_like(actual.detach(), gradient))
    assert_close(mine.grad.cpu(), theirs.grad, 1e-6)


def test_clamp_between_a_number_and_a_0d_tensor(device: str) -> None:
    x = genesis.tensor([-1.0, 0.5, 3.0], device=device)
    assert x.clamp(0, genesis.tensor(1.0, device=device)).tolist() == [0, 0.5, 1]
    with pytest.raises(TypeError, match=r"clamp: argument 'max': expected a number or a 0-d .* got shape \(3,\)"):
        x.clamp(0, x)
