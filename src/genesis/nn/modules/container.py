"""Modules made of modules: Sequential, ModuleList, ModuleDict, Residual."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Generic, Self, overload

from genesis.errors import DTypeError, describe
from genesis.nn.module import Module
from genesis.nn.printable import format_parts
from genesis.tensor import Tensor

__all__ = ["ModuleDict", "ModuleList", "Residual", "Sequential"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    M = TypeVar("M", bound=Module, default=Module)  # so that ModuleList alone is a list of any modules
    Slice = slice[int | None, int | None, int | None]
else:
    from typing import TypeVar

    M = TypeVar("M", bound=Module)


class _Numbered(Module, Generic[M]):
    """Modules under the names "0", "1", …: what Sequential and ModuleList have in common."""

    _modules: dict[str, M]  # type: ignore[assignment]  # no entry is None

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[M]:
        return iter(self._modules.values())

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: Slice) -> Self: ...
    def __getitem__(self, index: int | Slice) -> M | Self:
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        return self._modules[self._key(index)]

    def __setitem__(self, index: int, module: M) -> None:
        _checked(type(self).__name__, module)
        self._modules[self._key(index)] = module

    def __delitem__(self, index: int | Slice) -> None:
        for key in list(self._modules)[index] if isinstance(index, slice) else [self._key(index)]:
            del self._modules[key]
        self._renumber(list(self._modules.items()))

    def append(self, module: M) -> Self:
        """Add a module at the end; returns the container.

        Args:
            module: the last from now on.
        Raises: DTypeError: module is not a Module.

        Example:
            >>> len(nn.Sequential(nn.ReLU()).append(nn.Tanh()))
            2
        """
        _checked("append", module)
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[M]) -> Self:
        """Add several modules at the end; returns the container.

        Args:
            modules: added in this order.

        Example:
            >>> len(nn.ModuleList([nn.ReLU()]).extend([nn.Tanh(), nn.SiLU()]))
            3
        """
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: M) -> Self:
        """Insert a module before the one at index; returns the container.

        Args:
            index: from −len to len.
            module: the one to insert.
        Raises: DTypeError: module is not a Module. IndexError: index is out of range.

        Example:
            >>> nn.Sequential(nn.ReLU()).insert(0, nn.Tanh())[0]
            Tanh()
        """
        _checked("insert", module)
        if not -len(self) <= index <= len(self):
            raise IndexError(describe("insert", "index", f"a place among {len(self)} modules", index))
        entries = list(self._modules.items())
        entries.insert(index, ("", module))
        self._renumber(entries)
        return self

    def pop(self, index: int = -1) -> M:
        """Remove and return the module at index; those behind it are renumbered.

        Args:
            index: from −len to len − 1.
        Returns: the module.
        Raises: IndexError: there is none.

        Example:
            >>> nn.Sequential(nn.ReLU(), nn.Tanh()).pop(0)
            ReLU()
        """
        module = self[index]
        del self[index]
        return module

    def _key(self, index: int) -> str:
        keys = list(self._modules)
        if not -len(keys) <= index < len(keys):
            raise IndexError(describe(type(self).__name__, "index", f"an index into {len(keys)} modules", index))
        return keys[index]

    def _renumber(self, entries: list[tuple[str, M]]) -> None:
        """Number the modules in their order; names that are not numbers stay."""
        self._modules.clear()
        for position, (key, module) in enumerate(entries):
            self._modules[str(position) if not key or key.isdigit() else key] = module

    def _of(self, entries: list[tuple[str, M]]) -> Self:
        raise NotImplementedError


class Sequential(_Numbered[Module]):
    """Call modules one after the other, each with the result of the one before.

    Args:
        modules: one by one, or a single dict of names and modules.
    Shape: the input of the first module → the output of the last.
    Raises: DTypeError: an argument is not a Module.

    Indexing gives a module, slicing a Sequential of the same modules. `a + b` is a Sequential of both's modules,
    `a * n` one that calls a's modules n times.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> net(genesis.ones(1, 3)).shape, len(net[:2]), len(net + nn.Sequential(nn.Tanh()))
        ((1, 2), 2, 4)
    """

    @overload
    def __init__(self, *modules: Module) -> None: ...
    @overload
    def __init__(self, modules: Mapping[str, Module], /) -> None: ...
    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        first = modules[0] if len(modules) == 1 else None
        named = first.items() if isinstance(first, Mapping) else enumerate(modules)
        for name, module in named:
            self.add_module(str(name), _checked("Sequential", module))

    def _of(self, entries: list[tuple[str, Module]]) -> Self:
        return type(self)(dict(entries))

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *_sequence("Sequential.__add__", other))

    def __iadd__(self, other: Sequential) -> Self:
        return self.extend(_sequence("Sequential.__iadd__", other))

    def __mul__(self, other: int) -> Sequential:
        return Sequential(*list(self) * _times("Sequential.__mul__", other))

    __rmul__ = __mul__

    def __imul__(self, other: int) -> Self:
        return self.extend(list(self) * (_times("Sequential.__imul__", other) - 1))

    def forward(self, input: Tensor) -> Tensor:
        for module in self:
            input = module(input)
        return input


class ModuleList(_Numbered[M]):
    """A list of submodules. It registers them and has no forward; type checkers know its elements' type.

    Args:
        modules: what the list begins with.
    Raises: DTypeError: an element is not a Module.

    Example:
        >>> layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        >>> len(layers), [name for name, _ in layers.named_parameters()][:2]
        (2, ['0.weight', '0.bias'])
    """

    def __init__(self, modules: Iterable[M] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _of(self, entries: list[tuple[str, M]]) -> Self:
        return type(self)(module for _, module in entries)

    def __add__(self, other: Iterable[M]) -> ModuleList[M]:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[M]) -> Self:
        return self.extend(other)

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


class ModuleDict(Module, Generic[M]):
    """A dict of submodules. It registers them and has no forward; type checkers know its values' type.

    Args:
        modules: what the dict begins with.
    Raises: DTypeError: a value is not a Module.

    Example:
        >>> heads = nn.ModuleDict({"mask": nn.Linear(4, 1)})
        >>> heads["mask"](genesis.ones(2, 4)).shape, list(heads)
        ((2, 1), ['mask'])
        >>> heads.update({"edge": nn.Identity()})
        >>> list(heads.keys()), list(heads.values())[1], list(heads.items())[1]
        (['mask', 'edge'], Identity(), ('edge', Identity()))
        >>> heads.pop("edge")
        Identity()
        >>> heads.clear()
        >>> len(heads)
        0
    """

    _modules: dict[str, M]  # type: ignore[assignment]  # no entry is None

    def __init__(self, modules: Mapping[str, M] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def __getitem__(self, key: str) -> M:
        return self._modules[key]

    def __setitem__(self, key: str, module: M) -> None:
        self.add_module(key, _checked("ModuleDict", module))

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def keys(self) -> KeysView[str]:
        """The modules' names.

        Returns: a view of the names, in order.
        """
        return self._modules.keys()

    def values(self) -> ValuesView[M]:
        """The modules.

        Returns: a view of the modules, in order.
        """
        return self._modules.values()

    def items(self) -> ItemsView[str, M]:
        """(name, module) pairs.

        Returns: a view of the pairs, in order.
        """
        return self._modules.items()

    def update(self, modules: Mapping[str, M] | Iterable[tuple[str, M]]) -> None:
        """Add or replace modules.

        Args:
            modules: a mapping, or pairs of names and modules.
        """
        for key, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[key] = module

    def pop(self, key: str) -> M:
        """Remove and return the module of this name.

        Args:
            key: its name.
        Returns: the module.
        Raises: KeyError: there is none.
        """
        return self._modules.pop(key)

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()


class Residual(Module):
    """Residual connection: y = module(x) + x, or module(x) + projection(x) where the shapes differ.

    Args:
        module: the residual branch.
        projection: brings x to the shape of module(x); None adds x itself.
    Shape: x of any shape; module(x) and the shortcut have one shape, the output's.
    Raises: DTypeError: module is not a Module.

    Example:
        >>> nn.Residual(nn.Identity())(genesis.ones(2)).tolist()
        [2.0, 2.0]
    """

    module: Module
    projection: Module | None

    def __init__(self, module: Module, projection: Module | None = None) -> None:
        super().__init__()
        self.module = _checked("Residual", module)
        self.add_module("projection", projection)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.module(input)
        return output + (input if self.projection is None else self.projection(input))


def _checked(op: str, module: object) -> Module:
    """module, if it is one."""
    if not isinstance(module, Module):
        raise DTypeError(describe(op, "module", "a Module", type(module).__name__))
    return module


def _sequence(op: str, other: object) -> Sequential:
    """other, if it is a Sequential."""
    if not isinstance(other, Sequential):
        raise DTypeError(describe(op, "other", "a Sequential", type(other).__name__))
    return other


def _times(op: str, other: object) -> int:
    """other, if it is a number of times."""
    if not isinstance(other, int):
        raise DTypeError(describe(op, "other", "an int", type(other).__name__))
    if other < 1:
        raise ValueError(describe(op, "other", "an int >= 1", other))
    return other
