"""Small programs that read a number from some place, compiled and as they stand, while that place changes."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any, NamedTuple

import genesis

MODEL, STEP = "model", "step"

_FRAME = """
import genesis
import genesis.nn.functional as F
from genesis import nn, optim
{source}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(genesis.ones(3))
        {init}

    def forward(self, x):
        return x * self.weight + ({read})

model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.125)

def step(x):
    self = model
    optimizer.zero_grad()
    loss = ((x * model.weight).sum() * ({read})).sum()
    loss.backward()
    optimizer.step()
    return loss
"""


class Program(NamedTuple):
    """What stands around a model and a step that read a number, and what changes it.

    Args:
        source: what stands before them; init: in the model's __init__.
        read: the expression that they read.
        changes: statements, of which one is executed after every few calls.
    """

    source: str
    read: str
    changes: tuple[str, ...]
    init: str = "pass"

    def namespace(self) -> dict[str, Any]:
        module = types.ModuleType("a_program")
        sys.modules["a_program"] = module  # where dataclasses look
        names = vars(module)
        text = _FRAME.format(source=self.source, read=self.read, init=self.init)
        exec(compile(text, "a_program.py", "exec"), names)
        return names


class Outcome(NamedTuple):
    """What both gave, call by call; how often the compiled one was replayed, and what it warned of."""

    compiled: list[list[float]]
    as_it_stands: list[list[float]]
    num_recordings: int
    warned: list[str]


def run(program: Program, kind: str, calls: int = 4) -> Outcome:
    """The program with and without compile; between calls, its changes."""
    mine, theirs = program.namespace(), program.namespace()
    for names in (mine, theirs):
        if kind == MODEL:
            names["model"].eval().requires_grad_(False)
    target = mine[kind]
    compiled = genesis.compile(target)
    results: tuple[list[list[float]], list[list[float]]] = ([], [])
    most = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for change in (None, *program.changes):
            for names in (mine, theirs):
                if change is not None:
                    exec(compile(change, "a_change.py", "exec"), names)
            for number in range(calls):
                x = genesis.full((3,), 1.0 + number)
                for function, found, names in ((compiled, results[0], mine), (theirs[kind], results[1], theirs)):
                    found.append([_bits(function(x)), *_bits(names["model"].weight)])
                most = max(most, compiled.num_recordings)
    return Outcome(*results, most, [str(each.message) for each in caught])


def _bits(tensor: genesis.Tensor) -> list[str]:
    """Numbers as text, in which 0.0 and -0.0 and NaN are what they are."""
    return [repr(number) for number in tensor.detach().array.to(genesis.float64).numpy_values().reshape(-1).tolist()]
