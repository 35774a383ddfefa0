"""Modules made of modules: Sequential, ModuleList, ModuleDict, ParameterList, Residual."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, overload

from genesis.errors import DTypeError, describe
from genesis.nn.module import Module, format_parts
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["ModuleDict", "ModuleList", "ParameterList", "Residual", "Sequential"]


class _Numbered(Module):
    """Modules under the names "0", "1", …: what Sequential and ModuleList have in common."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        return self._modules[self._key(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        self._modules[self._key(index)] = _checked(type(self).__name__, module)

    def __delitem__(self, index: int | slice) -> None:
        for key in list(self._modules)[index] if isinstance(index, slice) else [self._key(index)]:
            del self._modules[key]
        self._renumber(list(self._modules.items()))

    def append(self, module: Module) -> Self:
        self.add_module(str(len(self)), _checked("append", module))
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Put module before the one at index."""
        entries: list[tuple[str, Any]] = list(self._modules.items())
        entries.insert(index, ("", _checked("insert", module)))
        self._renumber(entries)
        return self

    def pop(self, index: int = -1) -> Any:
        module = self[index]
        del self[index]
        return module

    def _key(self, index: int) -> str:
        keys = list(self._modules)
        if not -len(keys) <= index < len(keys):
            raise IndexError(describe(type(self).__name__, "index", f"an index into {len(keys)} modules", index))
        return keys[index]

    def _renumber(self, entries: list[tuple[str, Any]]) -> None:
        """Numbers follow the order again; names that are no numbers stay."""
        self._modules.clear()
        for position, (key, module) in enumerate(entries):
            self._modules[str(position) if not key or key.isdigit() else key] = module

    def _of(self, entries: list[tuple[str, Any]]) -> Self:
        raise NotImplementedError


class Sequential(_Numbered):
    """One module after the other, given one by one or by name in a dict.

    Indexing gives a module, slicing a Sequential of the same modules.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> net(genesis.ones(1, 3)).shape, len(net[:2])
        ((1, 2), 2)
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], Mapping) else enumerate(args)
        for name, module in named:
            self.add_module(str(name), _checked("Sequential", module))

    def _of(self, entries: list[tuple[str, Any]]) -> Self:
        return type(self)(dict(entries))

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


class ModuleList(_Numbered):
    """A list whose modules are registered; it has no forward of its own."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _of(self, entries: list[tuple[str, Any]]) -> Self:
        return type(self)(module for _, module in entries)

    def __repr__(self) -> str:
        # Equal neighbours on one line: (0-2): 3 x Linear(...)
        runs: list[tuple[int, int, str]] = []
        for position, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], position, text)
            else:
                runs.append((position, position, text))
        children = [
            f"({first}): {text}" if first == last else f"({first}-{last}): {last - first + 1} x {text}"
            for first, last, text in runs
        ]
        return format_parts(type(self).__name__, [], children)


class ModuleDict(Module):
    """A dict whose modules are registered; it has no forward of its own."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, _checked("ModuleDict", module))

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._modules.items()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        for key, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[key] = module

    def pop(self, key: str) -> Any:
        return self._modules.pop(key)

    def clear(self) -> None:
        self._modules.clear()


class ParameterList(Module):
    """A list whose parameters are registered; a tensor that is appended becomes a parameter."""

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        for value in values or ():
            self.append(value)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def __getitem__(self, index: int) -> Any:
        return list(self._parameters.values())[index]

    def append(self, value: Tensor) -> Self:
        parameter = value if isinstance(value, Parameter) else Parameter(value)
        self.register_parameter(str(len(self)), parameter)
        return self


class Residual(Module):
    """y = module(x) + x, or + projection(x) where the shapes differ.

    Example:
        >>> nn.Residual(nn.Identity())(genesis.ones(2)).tolist()
        [2.0, 2.0]
    """

    def __init__(self, module: Module, projection: Module | None = None) -> None:
        super().__init__()
        self.module = _checked("Residual", module)
        self.add_module("projection", projection)

    def forward(self, input: Tensor) -> Any:
        return self.module(input) + (input if self.projection is None else self.projection(input))


def _checked(op: str, module: Any) -> Module:
    if not isinstance(module, Module):
        raise DTypeError(describe(op, "module", "a Module", type(module).__name__))
    return module
