"""The names of PyTorch's that a source file imports and uses, and which of them have no counterpart."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

import genesis
from genesis.port import facade, names
from genesis.port.advice import advice_for
from genesis.port.names import Found


class Use(NamedTuple):
    """A name of PyTorch's in a file."""

    line: int
    name: str  # "torch.nn.Linear"


class Gap(NamedTuple):
    """A name in a file that has no counterpart, and what to do."""

    line: int
    name: str
    advice: str

    def __str__(self) -> str:
        return f"{self.line}: {self.name}: {self.advice}"


def is_pytorch(module: str) -> bool:
    return module == "torch" or module.startswith("torch.")


def bindings(tree: ast.Module) -> dict[str, str]:
    """The names that the file's imports bind: F is "torch.nn.functional". Scopes are not told apart."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_pytorch(alias.name):
                    bound[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and is_pytorch(node.module or ""):
            bound.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return bound


def uses(tree: ast.Module) -> Iterator[Use]:
    """The dotted names that begin with one that an import of PyTorch binds, in full; imports themselves included."""
    bound = bindings(tree)
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and is_pytorch(node.module or ""):
            yield from (Use(alias.lineno, f"{node.module}.{alias.name}") for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Import):
            yield from (Use(alias.lineno, alias.name) for alias in node.names if is_pytorch(alias.name))
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            parts: list[str] = []
            part: ast.expr = node
            while isinstance(part, ast.Attribute):
                inner.add(id(part))
                parts.append(part.attr)
                part = part.value
            if isinstance(part, ast.Name) and part.id in bound:
                yield Use(node.end_lineno or node.lineno, ".".join([bound[part.id], *reversed(parts)]))


def missing_part(name: str) -> str | None:
    """The shortest beginning of a dotted name of PyTorch's that Genesis lacks; None if it has the whole."""
    space: object = facade.facade("torch")
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not isinstance(space, facade.Facade):
            return None  # an attribute of an object: Genesis' own matter
        try:
            space = facade.member(space._torch_name, part)
        except ImportError as error:
            if not names.lacks_package(error):
                raise
            return None  # it needs a package that is not installed here
        if space is Found.MISSING:
            return path
        if space is Found.UNKNOWN:
            return None
    if isinstance(space, facade.Facade) and not names.source_names(space._torch_name):
        return path
    return None


def is_elsewhere(name: str) -> bool:
    """Whether a dotted name is found, but not in the module of Genesis that is called so."""
    space: object = genesis
    path = "torch"
    for part in name.split(".")[1:]:
        try:
            here = getattr(space, part, None)
            is_same = here is not None and names.find(path, part) is here
        except ImportError as error:
            if not names.lacks_package(error):
                raise
            return False  # it needs a package that is not installed here
        if not is_same:
            return missing_part(name) is None
        path, space = f"{path}.{part}", here
        if not isinstance(space, ModuleType):
            return False
    return False


_NOT_TENSORS = (str, list, dict, set, tuple, bytes, int, float, np.ndarray, builtins.slice, genesis.nn.Module)
_METHODS = frozenset(
    name
    for name in dir(torch.Tensor)
    if not name.startswith("_") and not hasattr(genesis.Tensor, name)
    and not any(hasattr(kind, name) for kind in _NOT_TENSORS)
)  # fmt: skip


def gaps(tree: ast.Module) -> list[Gap]:
    """The names without a counterpart, by line; of methods, those that only tensors of PyTorch's have."""
    found = set()
    for use in uses(tree):
        path = missing_part(use.name)
        if path is not None:
            found.add(Gap(use.line, path, advice_for(path)))
    bound = bindings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            start = node.func.value
            while isinstance(start, ast.Attribute):
                start = start.value
            if not (isinstance(start, ast.Name) and start.id in bound):
                name = f"torch.Tensor.{node.func.attr}"
                found.add(Gap(node.func.end_lineno or node.lineno, name, advice_for(name) + ", if this is a tensor"))
    return sorted(found)
