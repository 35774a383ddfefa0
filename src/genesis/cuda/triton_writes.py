"""The parameters of a Triton kernel through which it may write, read from its source: never too few."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType

_PURE = (range, min, max, len, int, float, bool, abs)
_READ = "load"  # gives values, and no address
_WRITES = ("store", "atomic", "scatter", "asm", "extern")  # parts of names
_MAKES_ADDRESSES = "pointer_type"  # of numbers


def written_parameters(function: FunctionType) -> frozenset[str] | None:
    """Names of the parameters through which a kernel may write; None: its source does not show where it writes.

    Addresses are followed from name to name. They end in loads, whose results are values, and in stores and atomics;
    what another function is given, it may write.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
    return _Reader(inspect.unwrap(function).__globals__, tree).written(list(inspect.signature(function).parameters))


class _Reader:
    def __init__(self, names: Mapping[str, object], tree: ast.AST) -> None:
        self._names, self._tree = names, tree
        self._origins: dict[str, set[str]] = {}  # of a name: the parameters whose addresses it may hold

    def written(self, parameters: list[str]) -> frozenset[str] | None:
        if any(_MAKES_ADDRESSES in (getattr(n, "attr", ""), getattr(n, "id", "")) for n in ast.walk(self._tree)):
            return None
        self._origins = {name: {name} for name in parameters}
        while self._follow():
            pass
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        return frozenset().union(*[self._through(call) for call in calls if self._may_write(call)])

    def _follow(self) -> bool:
        """Follow each assignment once; whether anything was new."""
        is_new = False
        for target, value in self._assignments():
            origins = self._through(value)
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    known = self._origins.setdefault(node.id, set())
                    is_new |= not origins <= known
                    known |= origins
        return is_new

    def _assignments(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign):
                yield from ((target, node.value) for target in node.targets)
            elif isinstance(node, ast.AugAssign | ast.NamedExpr | ast.AnnAssign):
                yield node.target, node.value or node.target
            elif isinstance(node, ast.For | ast.comprehension):
                yield node.target, node.iter

    def _through(self, node: ast.AST) -> set[str]:
        """The parameters whose addresses an expression may hold, or hand to a function."""
        if isinstance(node, ast.Name):
            return self._origins.get(node.id, set())
        if isinstance(node, ast.Call) and self._name_of(node) == _READ:
            return set()
        return set().union(*map(self._through, ast.iter_child_nodes(node)))

    def _may_write(self, call: ast.Call) -> bool:
        name = self._name_of(call)
        return name is None or any(part in name for part in _WRITES)

    def _name_of(self, call: ast.Call) -> str | None:
        """The name of a function of Triton's, or of a method; None: another function."""
        function = call.func
        if isinstance(function, ast.Attribute):
            owner = self._value_of(function.value)
            if owner is None or (isinstance(owner, ModuleType) and owner.__name__.startswith("triton.language")):
                return function.attr
            return None
        if isinstance(function, ast.Name):
            value = self._names.get(function.id, getattr(builtins, function.id, None))
            if value in _PURE or str(getattr(value, "__module__", "")).startswith("triton.language"):
                return str(getattr(value, "__name__", function.id))
        return None

    def _value_of(self, node: ast.expr) -> object:
        """The module or other global object that an expression names; None: something of the kernel's."""
        if isinstance(node, ast.Name):
            return None if node.id in self._origins else self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._value_of(node.value)
            return None if owner is None else getattr(owner, node.attr, None)
        return None
