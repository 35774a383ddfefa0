"""A program that Genesis and PyTorch run side by side, and what has to be the same: see fuzz_in_place.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

import genesis

TOLERANCE = {"rtol": 1e-8, "atol": 1e-10}
DETACHED = "Trying to use a saved tensor that has been detached in-place"


class Pair(NamedTuple):
    """What a name stands for in both libraries."""

    mine: Any
    theirs: torch.Tensor


class DifferenceError(AssertionError):
    """The libraries disagree."""


class RefusedError(Exception):
    """PyTorch refuses what Genesis computes, as docs/deviations.md says: the program ends here."""


class Program:
    """The names of a program so far, in both libraries, and its statements."""

    def __init__(self, device: str) -> None:
        def mine(values: Any, **options: Any) -> Any:
            return genesis.tensor(values, device=device, **options)

        self.mine: dict[str, Any] = {
            "lib": genesis, "F": genesis.nn.functional, "tensor": mine,
            "arange": lambda n: genesis.arange(n, device=device), "seen": [],
        }  # fmt: skip
        self.theirs: dict[str, Any] = {
            "lib": torch, "F": torch.nn.functional, "tensor": torch.tensor, "arange": torch.arange, "seen": [],
        }  # fmt: skip
        self.lines: list[str] = []
        self.names: list[str] = []  # of tensors
        self.num_raised = 0

    def run(self, line: str) -> bool:
        """Run a statement in both libraries; gives whether it raised."""
        self.lines.append(line)
        outcome = []
        for names in (self.mine, self.theirs):
            try:
                exec(line, names)
                outcome.append("")
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
                outcome.append(f"{type(error).__name__}: {str(error)[:300]}")
        if not outcome[0] and DETACHED in outcome[1]:
            raise RefusedError
        if bool(outcome[0]) is not bool(outcome[1]):
            raise DifferenceError(f"Genesis: {outcome[0] or 'runs'}\nPyTorch: {outcome[1] or 'runs'}")
        self.num_raised += bool(outcome[0])
        return bool(outcome[0])

    def pairs(self) -> dict[str, Pair]:
        return {name: Pair(self.mine[name], self.theirs[name]) for name in self.names}

    def compare(self, with_grads: bool = True) -> None:
        for name, (mine, theirs) in self.pairs().items():
            _same(f"{name}", mine, theirs.detach())
            if not is_detached_view(theirs):
                _same(f"{name}.requires_grad", mine.requires_grad, theirs.requires_grad)
            if with_grads and (theirs.retains_grad or _is_leaf(theirs)):
                _same(f"{name}.grad", mine.grad, theirs.grad)
        if not with_grads:
            return
        _same("what hooks have seen", len(self.mine["seen"]), len(self.theirs["seen"]))
        for mine, theirs in zip(self.mine["seen"], self.theirs["seen"], strict=True):
            _same("what a hook has seen", mine, theirs)


def is_detached_view(x: torch.Tensor) -> bool:
    """A view made under no_grad of what requires grad: in PyTorch it says that it does too, but gets no gradient."""
    return bool(x._is_view() and x.requires_grad and x._base.requires_grad and _is_leaf(x, if_refused=True))


def _is_leaf(x: torch.Tensor, if_refused: bool = False) -> bool:
    """Whether x is a leaf; PyTorch refuses to say so of some views whose base has changed."""
    try:
        return x.is_leaf
    except RuntimeError:
        return if_refused


def _same(what: str, mine: Any, theirs: Any) -> None:
    if isinstance(mine, genesis.Tensor) and isinstance(theirs, torch.Tensor):
        mine, theirs = mine.detach().cpu().numpy(), theirs.detach().numpy()
        fits = mine.shape == theirs.shape and mine.dtype == theirs.dtype
        if fits and np.allclose(mine, theirs, equal_nan=True, **TOLERANCE):
            return
    elif mine == theirs:
        return
    raise DifferenceError(f"{what}\nGenesis: {mine}\nPyTorch: {theirs}")
