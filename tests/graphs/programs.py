"""Small programs that read a number from some place, compiled and eagerly, while that place changes."""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from pathlib import Path
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
        refused: a pattern of why genesis.compile refuses the program, if it does.
    """

    source: str
    read: str
    changes: tuple[str, ...]
    init: str = "pass"
    refused: str = ""

    def namespace(self) -> dict[str, Any]:
        module = types.ModuleType("a_program")
        sys.modules["a_program"] = module  # where dataclasses look
        names = vars(module)
        text = _FRAME.format(source=self.source, read=self.read, init=self.init)
        exec(compile(text, "a_program.py", "exec"), names)
        return names


def read_blocks(path: Path) -> dict[str, Program]:
    """The programs of a file by their names; places.txt says what its lines mean."""
    programs = {}
    for block in path.read_text().split("=== ")[1:]:
        name, *lines = block.rstrip().split("\n")
        source, changes, fields = "", list[str](), {"init": "pass", "read": "", "refused": ""}
        for line in lines:
            kind, found, rest = line.partition(": ")
            if found and kind == "change":
                changes.append(rest)
            elif found and kind == "   and":
                changes[-1] += "\n" + rest
            elif found and kind in fields:
                fields[kind] = rest
            else:
                source += line + "\n"
        programs[name] = Program(source, fields["read"], tuple(changes), fields["init"], fields["refused"])
    return programs


class Outcome(NamedTuple):
    """What both gave, call by call; how often the compiled one was replayed, and what it warned of."""

    compiled: list[list[Any]]
    as_it_stands: list[list[Any]]
    num_recordings: int
    warned: list[str]


def run(program: Program, kind: str, calls: int = 4, may_fail: bool = False) -> Outcome:
    """The program with and without compile; between calls, its changes.

    may_fail: errors of the program are part of what is compared.
    """
    caught_here: tuple[type[Exception], ...] = (Exception,) if may_fail else ()
    mine, theirs = program.namespace(), program.namespace()
    for names in (mine, theirs):
        if kind == MODEL:
            names["model"].eval().requires_grad_(False)
    target = mine[kind]
    compiled = genesis.compile(target)
    results: tuple[list[list[Any]], list[list[Any]]] = ([], [])
    most = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for change in (None, *program.changes):
            for names in (mine, theirs):
                if change is not None:
                    with contextlib.suppress(*caught_here):
                        exec(compile(change, "a_change.py", "exec"), names)
            for number in range(calls):
                x = genesis.full((3,), 1.0 + number)
                for function, found, names in ((compiled, results[0], mine), (theirs[kind], results[1], theirs)):
                    try:
                        found.append([_bits(function(x)), *_bits(names["model"].weight)])
                    except caught_here as error:
                        found.append([type(error).__name__, *_bits(names["model"].weight)])
                most = max(most, compiled.num_recordings)
    return Outcome(*results, most, [str(each.message) for each in caught])


def _bits(tensor: genesis.Tensor) -> list[str]:
    """Numbers as text, in which 0.0 and -0.0 and NaN are what they are."""
    return [repr(number) for number in tensor.detach().array.to(genesis.float64).numpy_values().reshape(-1).tolist()]
