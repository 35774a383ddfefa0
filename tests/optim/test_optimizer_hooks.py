"""Hooks of optimizers beside PyTorch's: the order of the calls, what they replace, everywhere and of one optimizer."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch

import genesis
from genesis.errors import DTypeError


def play(lib: Any, name: str) -> list[Any]:
    """All hooks of an optimizer and of all of them, and what they saw."""
    param, seen = lib.ones(2, requires_grad=True), []
    optimizer = getattr(lib.optim, name)([param], lr=0.5)
    module = importlib.import_module(f"{lib.__name__}.optim.optimizer")

    def note(what: str) -> Any:
        return lambda *args: seen.append((what, len(args), args[0] is optimizer))

    handles = [
        optimizer.register_step_pre_hook(note("pre")),
        optimizer.register_step_post_hook(note("post")),
        module.register_optimizer_step_pre_hook(note("pre everywhere")),
        module.register_optimizer_step_post_hook(note("post everywhere")),
        optimizer.register_state_dict_pre_hook(note("state")),
        optimizer.register_state_dict_pre_hook(note("state first"), prepend=True),
        optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": 1}),
        optimizer.register_load_state_dict_pre_hook(lambda _, state: {**state, "param_groups": groups(state)}),
        optimizer.register_load_state_dict_post_hook(note("loaded")),
    ]

    def groups(state: Any) -> Any:
        return [{**group, "lr": 0.25} for group in state["param_groups"]]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (param * param).sum()
        loss.backward()
        return loss

    seen.append(float(optimizer.step(closure)))
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    seen += [sorted(state), optimizer.param_groups[0]["lr"]]
    for handle in handles:
        handle.remove()
    seen.append("removed")
    optimizer.step(closure)
    optimizer.load_state_dict(optimizer.state_dict())
    return seen


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("name", ["SGD", "Adam", "LBFGS"])
def test_hooks_as_pytorchs(name: str) -> None:
    assert play(genesis, name) == play(torch, name)


def test_a_pre_hook_replaces_the_arguments() -> None:
    param = genesis.ones(1, requires_grad=True)
    optimizer = genesis.optim.SGD([param], lr=0.1)
    optimizer.register_step_pre_hook(lambda own, args, kwargs: ((own, lambda: 7), {}))
    assert optimizer.step() == 7
    optimizer.register_step_pre_hook(lambda own, args, kwargs: 3)
    with pytest.raises(DTypeError, match=r"SGD.step: argument 'hook': expected None or \(args, kwargs\), got 3"):
        optimizer.step()
    assert "_inside" not in vars(optimizer)


def test_a_step_that_calls_its_bases_runs_them_once() -> None:
    class Twice(genesis.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step()
            return super().step(closure)

    param, seen = genesis.ones(1, requires_grad=True), []
    optimizer = Twice([param], lr=0.1)
    optimizer.register_step_post_hook(lambda *args: seen.append(1))
    param.grad = genesis.ones(1)
    optimizer.step()
    assert (seen, round(param.item(), 6)) == ([1], 0.8)


def test_copies_have_the_hooks_of_their_own() -> None:
    seen: list[int] = []
    optimizer = genesis.optim.SGD([genesis.ones(1, requires_grad=True)], lr=0.1)
    handle = optimizer.register_step_pre_hook(lambda *args: seen.append(1))
    twin = copy.deepcopy(optimizer)
    handle.remove()
    optimizer.step()
    twin.step()
    assert seen == [1]
