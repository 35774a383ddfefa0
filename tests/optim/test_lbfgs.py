"""LBFGS beside PyTorch's: the same parameters and number of evaluations, the same state, both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import genesis
from genesis.errors import CheckpointError

OPTIM_DB = [
    sample.kwargs
    for info in optim_db
    if info.optim_cls.__name__ == "LBFGS"
    for sample in info.optim_inputs_func(device="cpu")
]
MORE: list[dict[str, Any]] = [
    {"history_size": 2, "lr": 0.5},
    {"line_search_fn": "strong_wolfe", "history_size": 3},
    {"line_search_fn": "strong_wolfe", "max_iter": 3, "max_eval": 2},
    {"line_search_fn": "strong_wolfe", "lr": 20.0},  # the first step is too long: brackets are divided
    {"max_iter": 2, "tolerance_change": 1e-3},
]


class Problem:
    """A strictly convex loss of a weight and a bias; a third parameter has no gradient."""

    def __init__(self, dtype: str, library: Any) -> None:
        draw = np.random.default_rng(0).standard_normal
        x, y, weight = (draw(shape).astype(dtype) for shape in ((20, 4), (20, 3), (4, 3)))
        convert: Callable[..., Any] = library.tensor
        self.x, self.y = convert(x), convert(y)
        self.params = [convert(array, requires_grad=True) for array in (weight, np.ones(2, dtype), np.zeros(3, dtype))]
        self.optimizer: Any = None
        self.num_calls = 0

    def closure(self) -> Any:
        self.num_calls += 1
        self.optimizer.zero_grad()
        weight, _, bias = self.params
        error = self.x @ weight + bias - self.y
        loss = (error * error).mean() + (weight * weight * weight * weight).sum() * 0.1
        loss.backward()
        return loss

    def values(self) -> list[np.ndarray]:
        return [param.detach().numpy().copy() for param in self.params]


def pair(dtype: str, options: dict[str, Any]) -> tuple[Problem, Problem]:
    ours, theirs = Problem(dtype, genesis), Problem(dtype, torch)
    lr = options.get("lr", 1)
    mine = genesis.from_torch(lr) if isinstance(lr, torch.Tensor) else lr
    ours.optimizer = genesis.optim.LBFGS(ours.params, **(options | {"lr": mine}))
    theirs.optimizer = torch.optim.LBFGS(theirs.params, **options)
    return ours, theirs


def train(ours: Problem, theirs: Problem, steps: int, limit: float, place_limit: float | None = None) -> None:
    """limit: of differences in the loss, and in the parameters, if these have no other limit."""
    for _ in range(steps):
        first, expected = ours.optimizer.step(ours.closure), theirs.optimizer.step(theirs.closure)
        assert first.item() == pytest.approx(expected.item(), rel=limit, abs=limit)
    for mine, other in zip(ours.values(), theirs.values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=limit, atol=place_limit or limit)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", OPTIM_DB, ids=str)
def test_steps_with_the_options_of_pytorchs_own_tests(options: dict[str, Any], dtype: str) -> None:
    """Seven fill the history of 100 differences; those of a bowl are in test_optim_db.py.

    A line search in float32 ends where the loss no longer changes: within √eps or so of the minimum, on some processors
    PyTorch's own after 21 calls or after 60.
    """
    place_limit = 3 * np.finfo(dtype).eps ** 0.5 if dtype == "float32" and "line_search_fn" in options else None
    train(*pair(dtype, options), 7, {"float32": 1e-5, "float64": 1e-10}[dtype], place_limit)


@pytest.mark.parametrize("options", [*OPTIM_DB, *MORE], ids=str)
def test_closures_are_called_as_often(options: dict[str, Any]) -> None:
    ours, theirs = pair("float64", options)
    train(ours, theirs, 4, 1e-10)
    assert ours.num_calls == theirs.num_calls > 4
    mine, other = ours.optimizer.state[ours.params[0]], theirs.optimizer.state[theirs.params[0]]
    assert (mine["func_evals"], mine["n_iter"]) == (other["func_evals"], other["n_iter"])
    assert mine.keys() == other.keys()


def as_torch(value: Any) -> Any:
    if isinstance(value, genesis.Tensor):
        return value.to_torch().clone()
    if isinstance(value, dict):
        return {key: as_torch(item) for key, item in value.items()}
    return [as_torch(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("way", ["from PyTorch", "to PyTorch", "to Genesis"])
def test_training_goes_on_from_the_others_state(way: str) -> None:
    options = {"max_iter": 2, "line_search_fn": "strong_wolfe"}
    ours, theirs = pair("float64", options)
    train(ours, theirs, 2, 1e-10)
    if way == "to PyTorch":
        saved = as_torch(ours.optimizer.state_dict())
        theirs.optimizer = torch.optim.LBFGS(theirs.params)
        theirs.optimizer.load_state_dict(saved)
    else:
        saved = (theirs if way == "from PyTorch" else ours).optimizer.state_dict()
        ours.optimizer = genesis.optim.LBFGS(ours.params)
        ours.optimizer.load_state_dict(saved)
    train(ours, theirs, 2, 1e-10)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_closure_that_fails_leaves_everything_as_it_was(at: int) -> None:
    ours, _ = pair("float64", {"max_iter": 4, "line_search_fn": "strong_wolfe"})
    ours.optimizer.step(ours.closure)
    before = ours.values(), repr(ours.optimizer.state_dict())
    num_calls = ours.num_calls

    def closure() -> Any:
        loss = ours.closure()
        if ours.num_calls == num_calls + at:
            raise ArithmeticError
        return loss

    with pytest.raises(ArithmeticError):
        ours.optimizer.step(closure)
    assert repr(ours.optimizer.state_dict()) == before[1]
    for mine, expected in zip(ours.values(), before[0], strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_on_a_cuda_device(cuda: str) -> None:
    results = []
    for device in ("cpu", "cuda"):
        p = genesis.tensor([1.0, -2.0, 0.5], device=device, requires_grad=True)
        optimizer = genesis.optim.LBFGS([p], max_iter=3, line_search_fn="strong_wolfe")

        def closure(p: genesis.Tensor = p, optimizer: Any = optimizer) -> genesis.Tensor:
            optimizer.zero_grad()
            loss = (p * p * p * p + (p - 3) * (p - 3)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        results.append(p.detach().cpu().numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


def test_refusals() -> None:
    p = genesis.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="LBFGS: argument 'params': expected one group of parameters, got a second"):
        genesis.optim.LBFGS([{"params": [p]}, {"params": [genesis.ones(1, requires_grad=True)]}])
    with pytest.raises(ValueError, match="'line_search_fn': expected \"strong_wolfe\" or None, got 'armijo'"):
        genesis.optim.LBFGS([p], line_search_fn="armijo")
    with pytest.raises(ValueError, match="argument 'history_size': expected a number >= 1, got 0"):
        genesis.optim.LBFGS([p], history_size=0)
    optimizer = genesis.optim.LBFGS([p])
    with pytest.raises(TypeError, match=r"LBFGS\.step: argument 'closure': expected a function that gives the loss"):
        optimizer.step()
    with pytest.raises(CheckpointError, match=r"groups of \[1\] parameters"):
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]})
