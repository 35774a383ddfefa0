"""What a Function says of itself agrees with what the contract says of the ops that its forward calls."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator

import pytest

from genesis import functional
from genesis.autograd import ArrayFunction
from genesis.backends.contract import TRAITS
from genesis.growth import rules
from genesis.ndarray.arithmetic import Arithmetic


def functions() -> Iterator[type[ArrayFunction]]:
    """Every Function of the functional layer that has a forward."""
    for found in pkgutil.iter_modules(functional.__path__, functional.__name__ + "."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            own = isinstance(value, type) and issubclass(value, ArrayFunction) and value.__module__ == module.__name__
            if own and "forward" in vars(value):
                yield value


FUNCTIONS = {f"{function.__module__.rpartition('.')[2]}.{function.__name__}": function for function in functions()}


def ops_of(function: type[ArrayFunction]) -> tuple[set[str], bool]:
    """The ops that forward calls, as ops.name(x) or as arithmetic of NDArray; and whether it calls other functions."""
    calls = [
        node.func
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function.forward))))
        if isinstance(node, ast.Call)
    ]
    named = {
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute)
        and ((isinstance(call.value, ast.Name) and call.value.id == "ops") or call.attr in vars(Arithmetic))
    }
    return named & set(TRAITS), any(isinstance(call, ast.Name) and call.id not in dir(builtins) for call in calls)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_element_wise_functions_are_made_of_element_wise_ops(name: str) -> None:
    function = FUNCTIONS[name]
    made_of, has_helpers = ops_of(function)
    if function.elementwise:
        assert {op for op in made_of if not TRAITS[op].elementwise} == set()
    elif made_of and not has_helpers and all(TRAITS[op].elementwise for op in made_of):
        assert function in {*rules.RULES, *rules._REFUSED}, f"{name} is element-wise: make it an ElementwiseFunction"
