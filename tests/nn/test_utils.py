"""Gradient clipping beside PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.nn.utils import clip_grad_norm_, clip_grad_value_


def gradients(dtypes: tuple[str, ...] = ("float32",) * 3) -> tuple[list[Any], list[Any]]:
    """The same parameters in Genesis and in PyTorch; the last has no gradient."""
    ours, theirs = [], []
    for seed, (shape, dtype) in enumerate(zip([(3, 4), (5,), ()], dtypes, strict=True)):
        theirs.append(torch.zeros(shape, dtype=getattr(torch, dtype), requires_grad=True))
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        theirs[-1].grad = noise.to(theirs[-1].dtype)
        ours.append(genesis.from_torch(theirs[-1].detach().clone()).requires_grad_())
        ours[-1].grad = genesis.from_torch(theirs[-1].grad.clone())
    return [*ours, genesis.zeros(2, requires_grad=True)], [*theirs, torch.zeros(2, requires_grad=True)]


def same(ours: list[Any], theirs: list[Any]) -> None:
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_allclose(mine.grad.float().numpy(), other.grad.float().numpy(), rtol=1e-6)
    assert ours[-1].grad is None


@pytest.mark.parametrize("max_norm", [0.5, 100.0, 0])
@pytest.mark.parametrize("norm_type", [2, 1.0, 3.0, math.inf, "inf"])
def test_clip_grad_norm(norm_type: Any, max_norm: float) -> None:
    ours, theirs = gradients()
    norm = clip_grad_norm_(ours, max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    assert norm.shape == ()
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    same(ours, theirs)


@pytest.mark.parametrize("dtypes", [("float64",) * 3, ("bfloat16",) * 3, ("float32", "bfloat16", "float64")])
def test_clip_grad_norm_of_other_and_mixed_dtypes(dtypes: tuple[str, ...]) -> None:
    ours, theirs = gradients(dtypes)
    norm, expected = clip_grad_norm_(ours, 1.0), torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    assert str(norm.dtype).split(".")[1] == str(expected.dtype).split(".")[1]
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    same(ours, theirs)


def test_a_single_parameter_and_none() -> None:
    ours, _ = gradients()
    assert clip_grad_norm_(ours[2], 1.0).item() == pytest.approx(abs(ours[2].grad.item()), abs=1.0)
    assert clip_grad_norm_([], 1.0).item() == 0.0
    assert clip_grad_norm_([ours[-1]], 1.0).item() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_error_if_nonfinite(bad: float) -> None:
    ours, _ = gradients()
    ours[0].grad = genesis.full((3, 4), bad)
    before = ours[1].grad.tolist()
    with pytest.raises(RuntimeError, match="clip_grad_norm_: the norm of order 2 of the gradients is"):
        clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)
    assert ours[1].grad.tolist() == before
    clip_grad_norm_(ours, 1.0)
    assert ours[1].grad.tolist() != before


def test_clip_grad_value() -> None:
    ours, theirs = gradients(("float32", "bfloat16", "float64"))
    clip_grad_value_(ours, 0.3)
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    same(ours, theirs)


def test_bad_parameters() -> None:
    with pytest.raises(TypeError, match=r"clip_grad_norm_: argument 'parameters\[0\]': expected a Tensor, got int"):
        clip_grad_norm_([3], 1.0)
