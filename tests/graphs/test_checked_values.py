"""genesis.compile of steps whose functions refuse some values: they are recorded, and replays refuse them too."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest

import genesis
from genesis import Tensor
from genesis.nn import functional as F


class Checked(NamedTuple):
    """A loss of a weight (4, 3) and of integers (4,), each in 0 … 2."""

    loss: Callable[[Tensor, Tensor], Tensor]
    bad: int
    on_cpu: type[Exception]
    on_cuda: type[Exception] | None  # None: the loss is NaN


def masked(weight: Tensor, x: Tensor) -> Tensor:
    return genesis.zeros_like(weight).masked_scatter(x.unsqueeze(1) < 2, weight[:3] * 2).square().sum()


CHECKED = {
    "one_hot": Checked(lambda w, x: (w * F.one_hot(x, 3)).sum(), 3, ValueError, IndexError),
    "gaussian_nll_loss": Checked(
        lambda w, x: F.gaussian_nll_loss(w, w.detach() + 1, x.to(w.dtype).unsqueeze(1).expand(4, 3)), -1,
        ValueError, ValueError,
    ),
    "masked_scatter": Checked(masked, 1, ValueError, ValueError),
    "cov": Checked(lambda w, x: genesis.cov(w.t(), fweights=x).square().sum(), -1, ValueError, ValueError),
    "cross_entropy": Checked(
        lambda w, x: F.cross_entropy(w, x, weight=w.detach()[0].exp(), ignore_index=1), 3, IndexError, None
    ),
    "nll_loss": Checked(lambda w, x: F.nll_loss(w, x), 3, IndexError, None),
    "embedding": Checked(lambda w, x: F.embedding(x, w).square().sum(), 4, IndexError, IndexError),
    "gather": Checked(lambda w, x: w.gather(1, x.unsqueeze(1)).square().sum(), 3, RuntimeError, IndexError),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_replays_refuse_what_the_function_refuses(name: str, device: str) -> None:
    checked = CHECKED[name]
    weights = [genesis.arange(12.0, device=device).reshape(4, 3).requires_grad_() for _ in range(2)]

    def step(weight: Tensor, x: Tensor) -> Tensor:
        weight.grad = None
        loss = checked.loss(weight, x)
        loss.backward()
        with genesis.no_grad():
            weight.sub_(weight.grad * 0.01)
        return loss.detach()

    compiled = genesis.compile(lambda x: step(weights[0], x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(6):
            x = genesis.tensor([0, 2, number % 3, 2], device=device)
            assert compiled(x).item() == step(weights[1], x).item()
            assert weights[0].tolist() == weights[1].tolist()
    num_replays = compiled.num_replays
    assert num_replays >= 3
    bad = genesis.tensor([0, 0, checked.bad, 0], device=device)
    refusal = checked.on_cpu if device == "cpu" else checked.on_cuda
    for run in (compiled, lambda x: step(weights[1], x)):
        if refusal is None:
            assert math.isnan(run(bad).item())
        else:
            with pytest.raises(refusal):
                run(bad).item()
    assert compiled.num_recordings == 1
