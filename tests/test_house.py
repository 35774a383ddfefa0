"""Ratchets on the source: how long files and functions are, how many parameters they take, how often types end in Any.

A limit is what there is today, or its goal where that is reached. It only goes down: who mends one lowers it.
`python -m tests.test_house` prints what there is.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "genesis"

LONG_FILE = 450  # lines; from here on a file is long
LONG_FUNCTION = 60  # lines; a function may have so many, its decorators not counted
MANY_PARAMETERS = 8  # a function may have so many; self, cls, *args and **kwargs are not counted


class Limit(NamedTuple):
    """How many there may be now, and how many there should be."""

    most: int
    goal: int


LIMITS = {
    "long files": Limit(0, 0),
    "long kernels": Limit(9, 10),
    "long functions": Limit(0, 0),
    "functions of many parameters": Limit(15, 15),
    "functions of F that return Any": Limit(0, 0),
    "methods of Tensor that return Any": Limit(0, 0),
    "forwards that return Any": Limit(0, 0),
}


class Function(NamedTuple):
    """A function of the source, wherever it stands."""

    path: Path
    node: ast.FunctionDef
    owner: str  # the class of a method

    def __str__(self) -> str:
        return f"{name_of(self.path)}:{self.node.lineno} {self.node.name}"

    @property
    def is_kernel(self) -> bool:
        return any("triton.jit" in ast.unparse(decorator) for decorator in self.node.decorator_list)

    @property
    def num_lines(self) -> int:
        return (self.node.end_lineno or 0) - self.node.lineno + 1

    @property
    def num_parameters(self) -> int:
        arguments = self.node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        return len(names) - (names[:1] in (["self"], ["cls"]))

    @property
    def is_public_and_returns_any(self) -> bool:
        returns = self.node.returns
        return not self.node.name.startswith("_") and returns is not None and ast.unparse(returns) == "Any"


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def functions_in(path: Path, tree: ast.AST, owner: str = "") -> list[Function]:
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            found.append(Function(path, node, owner))
        if not isinstance(node, ast.expr):  # in which there are none
            found += functions_in(path, node, node.name if isinstance(node, ast.ClassDef) else "")
    return found


@functools.cache
def all_functions() -> list[Function]:
    return [each for path, tree in trees().items() for each in functions_in(path, tree)]


def functions(wanted: Callable[[Function], bool]) -> list[str]:
    return [str(each) for each in all_functions() if wanted(each)]


def is_long(function: Function) -> bool:
    return function.num_lines > LONG_FUNCTION


FINDINGS: dict[str, Callable[[], list[str]]] = {
    "long files": lambda: [
        f"{name_of(path)}: {num_lines} lines"
        for path in sorted(SOURCE.rglob("*"))
        if path.suffix in (".py", ".cu", ".cuh")
        and (num_lines := len(path.read_text(encoding="utf-8").splitlines())) >= LONG_FILE
    ],
    "long kernels": lambda: functions(lambda function: is_long(function) and function.is_kernel),
    "long functions": lambda: functions(lambda function: is_long(function) and not function.is_kernel),
    "functions of many parameters": lambda: functions(
        lambda function: function.num_parameters > MANY_PARAMETERS and not function.is_kernel
    ),
    "functions of F that return Any": lambda: functions(
        lambda function: (
            package_of(function.path) == "functional" and not function.owner and function.is_public_and_returns_any
        )
    ),
    "methods of Tensor that return Any": lambda: functions(
        lambda function: (
            package_of(function.path) in ("tensor.py", "methods.py", "adapted.py", "in_place.py")
            and bool(function.owner)
            and function.is_public_and_returns_any
        )
    ),
    "forwards that return Any": lambda: functions(
        lambda function: (
            package_of(function.path) == "nn" and function.node.name == "forward" and function.is_public_and_returns_any
        )
    ),
}


@pytest.mark.parametrize("what", FINDINGS)
def test_there_are_no_more_of(what: str) -> None:
    found = FINDINGS[what]()
    assert len(found) <= max(LIMITS[what]), f"{what}:\n" + "\n".join(found)


def test_what_is_counted() -> None:
    source = (
        "@triton.jit\ndef kernel(a, b):\n  pass\n"
        "class C:\n  def m(self, a, *b, c=1, **d) -> Any:\n    def inner(): pass\n"
    )
    kernel, method, inner = functions_in(SOURCE / "x.py", ast.parse(source))
    assert (kernel.is_kernel, kernel.num_lines, kernel.num_parameters) == (True, 2, 2)
    assert (method.owner, method.num_lines, method.num_parameters, method.is_public_and_returns_any) == (
        "C",
        2,
        2,
        True,
    )
    assert (str(inner), inner.owner, inner.is_kernel) == ("x.py:6 inner", "", False)


if __name__ == "__main__":
    for what, find in FINDINGS.items():
        found = find()
        print(f"{what}: {len(found)} (at most {max(LIMITS[what])}, goal {LIMITS[what].goal})", *found, sep="\n    ")
