"""docs/architecture.md is true: every hop that it lists is called, in that order, each inside the one before.

The page is the data. A section that says "Six hops from `x + y`" lists the hops in paragraphs, "**1. The module** …"
with the source file and a block of code, or in a table of file and function. The test makes that call (on the simulated
device where the sentence goes on "on a GPU") and compares the hops with the stack of the calls.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import pytest

import genesis
from genesis import nn
from genesis.backends import contract
from genesis.settings import override
from tests.docs.examples import ROOT

PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
PACKAGE = f"{ROOT / 'src' / 'genesis'}/"
NUMBERS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


class Hop(NamedTuple):
    """A function: its file, from the root of the repository, and its qualified name or the end of that."""

    path: str
    function: str

    def is_at(self, frame: Hop) -> bool:
        same = frame.function == self.function or frame.function.endswith(f".{self.function}")
        return frame.path == self.path and same


class Walk(NamedTuple):
    call: str
    on_a_gpu: bool
    number: str
    hops: list[Hop]


def walks(text: str) -> Iterator[Walk]:
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        claim = re.search(r"(\w+) hops from `([^`]+)`( on a GPU)?", section)
        if claim:
            yield Walk(claim[2], claim[3] is not None, claim[1], hops(section))


def hops(section: str) -> list[Hop]:
    found = []
    for title, rest in re.findall(r"^\*\*\d+\. (.*?)\*\*(.*?)(?=^\*\*\d+\. |\Z)", section, re.MULTILINE | re.DOTALL):
        block = re.search(r"^```py\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
        path = re.search(r"`(src/[\w/]+\.py)`", rest)
        assert path is not None, f"hop without a file: {title}"
        found.append(Hop(path[1], defined(block[1])[0] if block else code_in(title)))
    for path, rest in re.findall(r"^\| \d+ \| `(src/[\w/]+\.py)` \| (.*) \|$", section, re.MULTILINE):
        found.append(Hop(path, code_in(rest)))
    return found


def code_in(text: str) -> str:
    name = re.search(r"`([\w.]+)`", text)
    assert name is not None, f"hop without a function: {text}"
    return name[1]


def defined(source: str) -> list[str]:
    """The qualified names of the functions that a block of code defines."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.ClassDef):
            names += [f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)]
    return names


def source_of(file_name: str) -> str:
    """Where a reader finds the code: the contract's stubs are functions that dispatch.py has written out."""
    path, is_written_out, op = file_name.partition(":")
    if is_written_out:
        path = inspect.unwrap(getattr(contract, op)).__code__.co_filename
    return f"src/genesis/{path.removeprefix(PACKAGE)}"


def stacks_of(call: Callable[[], Any]) -> list[list[Hop]]:
    """For each call of a function of the package while call() runs, the functions on the stack, outermost first."""
    stacks: list[list[Hop]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        stack: list[Hop] = []
        above: FrameType | None = frame
        while above is not None:
            code = above.f_code
            if code.co_filename.startswith(PACKAGE):
                stack.insert(0, Hop(source_of(code.co_filename), code.co_qualname))
            above = above.f_back
        stacks.append(stack)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return stacks


def reached(listed: list[Hop], stacks: list[list[Hop]]) -> int:
    """How many of the listed hops some stack holds in their order."""

    def held(stack: list[Hop]) -> int:
        count = 0
        for frame in stack:
            count += count < len(listed) and listed[count].is_at(frame)
        return count

    return max(map(held, stacks), default=0)


def record(walk: Walk) -> list[list[Hop]]:
    device = "cuda" if walk.on_a_gpu else "cpu"
    with override(cuda="simulated" if walk.on_a_gpu else "off"), genesis.no_grad():
        x, y, image = (genesis.ones(*shape, device=device) for shape in ((2, 3), (2, 3), (1, 2, 4, 4)))
        names: dict[str, Any] = {"nn": nn, "x": x, "y": y, "image": image}
        made, _, arguments = walk.call.rpartition("(")
        if made.startswith("nn."):  # a module is made before the recording, and on the device
            names["module"] = eval(made, names).to(device)
            source = f"module({arguments}"
        else:
            source = walk.call
        code = compile(source, PAGE.name, "eval")
        eval(code, names)  # plans and kernels are made in the first call
        return stacks_of(lambda: eval(code, names))


WALKS = list(walks(TEXT))


def test_the_page_follows_three_ops() -> None:
    assert [walk.call for walk in WALKS] == ["nn.ReLU()(x)", "x + y", "nn.Conv2d(2, 3, 3)(image)"]
    assert [walk.on_a_gpu for walk in WALKS] == [False, False, True]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.call)
def test_every_hop_is_called_inside_the_one_before(walk: Walk) -> None:
    assert walk.number == NUMBERS[len(walk.hops)]
    stacks = record(walk)
    num_reached = reached(walk.hops, stacks)
    assert num_reached == len(walk.hops), f"{walk.call}: {walk.hops[num_reached]} is not called there"


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.call)
def test_no_layer_is_left_out(walk: Walk) -> None:
    """Every layer on the stack of the last hop has a hop."""
    stack = next(stack for stack in record(walk) if reached(walk.hops, [stack]) == len(walk.hops))
    assert {frame.path.split("/")[2] for frame in stack} == {hop.path.split("/")[2] for hop in walk.hops}


def test_code_on_the_page_is_in_its_file() -> None:
    """Every function in the blocks of the walks is defined in the file named above it."""
    pairs = re.findall(r"`(src/[\w/]+\.py)`(?: again)?:\n\n```py\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(pairs) >= 5
    for path, block in pairs:
        source = (ROOT / path).read_text(encoding="utf-8")
        there = [name.rpartition(".")[2] for name in defined(source)]
        missing = [name for name in defined(block) if name.rpartition(".")[2] not in there]
        assert missing == [], f"{path} has no {missing}"


def test_every_file_on_the_page_exists() -> None:
    """Files that the page names without their folder exist somewhere in the package or the tests."""
    there = {path.name for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"(?<![\w/<>])(\w+\.py)\b", TEXT))
    assert named - there == set()


def test_a_hop_that_is_not_called_is_found() -> None:
    walk = WALKS[0]
    stacks = record(walk)
    assert reached(walk.hops[::-1], stacks) < len(walk.hops)
    wrong = [*walk.hops[:-1], walk.hops[-1]._replace(function="gelu")]
    assert reached(wrong, stacks) == len(walk.hops) - 1
