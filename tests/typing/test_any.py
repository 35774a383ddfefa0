"""A ratchet on explicit Any, package by package: all together at most 136.

`python -m tests.typing.test_any` prints what there is, as the table that stands here.
"""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.typing.checkers import ROOT

MOST = {
    "autograd": 16, "backends": 22, "checkpoint": 1, "creation": 2, "cuda": 15, "data": 3, "distributed": 3,
    "distributions": 2, "functional": 1, "fusion": 2, "graphs": 7, "growth": 3, "interop": 1, "ndarray": 3, "nn": 16,
    "optim": 2, "port": 7, "recording": 2, "segmentation": 3, "tensor": 2, "tensor_types": 1, "torch": 15, "utils": 7,
}  # fmt: skip
TOGETHER = 136
SLACK = 5  # so many fewer are no reason yet to lower a limit


def count() -> dict[str, int]:
    """How often each package, or file beside the packages, writes Any, imports aside; quoted annotations count too."""
    package = ROOT / "src" / "genesis"
    found: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).parts[0].removesuffix(".py")
        found[name] += sum(map(_is_any, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    return {name: number for name, number in sorted(found.items()) if number}


def _is_any(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="Any") | ast.Attribute(attr="Any"):
            return True
        case ast.arg(annotation=ast.Constant(value=str(text))) | ast.FunctionDef(returns=ast.Constant(value=str(text))):
            return re.search(r"\bAny\b", text) is not None
        case _:
            return False


def test_no_package_says_any_more_often() -> None:
    found = count()
    more = {name: number for name, number in found.items() if number > MOST.get(name, 0)}
    assert not more, f"more explicit Any than { ({name: MOST.get(name, 0) for name in more}) }: {more}"
    assert sum(found.values()) <= TOGETHER, f"{sum(found.values())} explicit Any together, more than {TOGETHER}"
    fewer = {name: found.get(name, 0) for name, most in MOST.items() if most - found.get(name, 0) > SLACK}
    assert not fewer, f"fewer explicit Any: lower the limits in MOST to {fewer}"


if __name__ == "__main__":
    numbers = count()
    print(", ".join(f'"{name}": {number}' for name, number in numbers.items()))
    print("together:", sum(numbers.values()))
