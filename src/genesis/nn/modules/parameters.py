"""Modules made of parameters: ParameterList and ParameterDict. Values that are no tensors are plain attributes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, KeysView, Mapping
from typing import Any, NoReturn, Self, overload

from genesis.errors import DTypeError, describe
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["ParameterDict", "ParameterList"]


class _Collection(Module):
    """Attributes of the module, whose names and order it remembers."""

    _keys: dict[str, None]

    def __init__(self) -> None:
        super().__init__()
        self._keys = {}

    def __len__(self) -> int:
        return len(self._keys)

    def _get(self, key: str) -> Any:
        return getattr(self, key)

    def _set(self, key: str, value: object) -> None:
        if hasattr(type(self), key):
            raise KeyError(describe(type(self).__name__, "key", "a name that is not taken", repr(key)))
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        setattr(self, key, value)
        self._keys[key] = None

    def _delete(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(f"{type(self).__name__}: it holds parameters, and cannot be called")

    def extra_repr(self) -> str:
        return "\n".join(f"  ({key}): {self._text(self._get(key))}" for key in self._keys)

    def _text(self, value: object) -> str:
        if not isinstance(value, Tensor):
            return f"Object of type: {type(value).__name__}"
        size = "x".join(map(str, value.shape))
        place = f" ({value.device})" if value.device.type != "cpu" else ""
        return f"Parameter containing: [genesis.{value.dtype.name} of size {size}{place}]"


class ParameterList(_Collection):
    """A list of parameters. It registers them; a tensor that is not a Parameter becomes one.

    Args:
        values: tensors of any shape and floating dtype, which the list begins with, or values of any other kind.
    Raises: DTypeError: values is a tensor, or no iterable. IndexError: an index out of range.

    Example:
        >>> weights = nn.ParameterList([genesis.ones(2), genesis.zeros(3)])
        >>> [parameter.shape for parameter in weights.append(genesis.ones(4))]
        [(2,), (3,), (4,)]
        >>> weights[0] = genesis.ones(5)
        >>> weights += [genesis.ones(6)]  # as weights.extend(…)
        >>> [parameter.shape for parameter in weights[::3]]
        [(5,), (6,)]
    """

    def __init__(self, values: Iterable[object] | None = None) -> None:
        super().__init__()
        if values is not None:
            self.extend(values)

    def __iter__(self) -> Iterator[Parameter]:
        return (self._get(key) for key in list(self._keys))

    @overload
    def __getitem__(self, index: int) -> Parameter: ...
    @overload
    def __getitem__(self, index: slice[int | None, int | None, int | None]) -> Self: ...
    def __getitem__(self, index: int | slice[int | None, int | None, int | None]) -> Parameter | Self:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        parameter: Parameter = getattr(self, self._key(index))
        return parameter

    def __setitem__(self, index: int, value: object) -> None:
        self._set(self._key(index), value)

    def append(self, value: object) -> Self:
        """Add an entry at the end; returns the list.

        Args:
            value: a tensor of any shape and floating dtype, or a value of another kind.
        """
        self._set(str(len(self)), value)
        return self

    def extend(self, values: Iterable[object]) -> Self:
        """Add several entries at the end; returns the list.

        Args:
            values: added in this order.
        Raises: DTypeError: values is a tensor, or no iterable.
        """
        if isinstance(values, Tensor) or not isinstance(values, Iterable):
            raise DTypeError(describe("ParameterList", "values", "an iterable of tensors", type(values).__name__))
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def _key(self, index: int) -> str:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(describe("ParameterList", "index", f"an index into {len(self)} entries", index))
        return str(place % len(self))


class ParameterDict(_Collection):
    """A dict of parameters. It registers them; a tensor that is not a Parameter becomes one.

    Args:
        parameters: a mapping, or pairs of names and tensors; values of other kinds are kept too.
    Raises: DTypeError: a name is no string. KeyError: a name is empty, has a dot, or is one of the module's own.

    Example:
        >>> scales = nn.ParameterDict({"left": genesis.ones(2)})
        >>> scales["right"] = genesis.zeros(3)
        >>> [(name, parameter.shape) for name, parameter in scales.items()]
        [('left', (2,)), ('right', (3,))]
        >>> list((scales | nn.ParameterDict({"up": genesis.ones(1)})).keys())
        ['left', 'right', 'up']
        >>> scales.pop("left").shape, scales.get("left"), "right" in scales
        ((2,), None, True)
        >>> scales.update({"left": genesis.ones(1)})
        >>> scales.setdefault("left").shape, [parameter.shape for parameter in scales.copy().values()]
        ((1,), [(3,), (1,)])
        >>> list(scales.fromkeys(["up", "down"], genesis.ones(1))), scales.popitem()[0]
        (['up', 'down'], 'left')
        >>> scales.clear()
        >>> len(scales)
        0
    """

    def __init__(self, parameters: Mapping[str, object] | Iterable[tuple[str, object]] | None = None) -> None:
        super().__init__()
        if parameters is not None:
            self.update(parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(describe("ParameterDict", "key", f"one of {list(self._keys)}", repr(key)))
        return self._get(key)

    def __setitem__(self, key: str, value: object) -> None:
        if not isinstance(key, str):
            raise DTypeError(describe("ParameterDict", "key", "a str", type(key).__name__))
        self._set(key, value)

    def __delitem__(self, key: str) -> None:
        self._delete(key)

    def keys(self) -> KeysView[str]:
        """The names of the entries.

        Returns: a view of the names, in order.
        """
        return self._keys.keys()

    def values(self) -> Iterator[Any]:
        """The entries.

        Returns: an iterator over them, in order.
        """
        return (self._get(key) for key in list(self._keys))

    def items(self) -> Iterator[tuple[str, Any]]:
        """(name, entry) pairs.

        Returns: an iterator over them, in order.
        """
        return ((key, self._get(key)) for key in list(self._keys))

    def get(self, key: str, default: object = None) -> Any:
        """The entry of this name, or default.

        Args:
            key: its name.
            default: what is given where there is none.
        Returns: the entry, or default.
        """
        return self._get(key) if key in self._keys else default

    def setdefault(self, key: str, default: object = None) -> Any:
        """The entry of this name, which is default if there was none.

        Args:
            key: its name.
            default: the entry where there is none.
        Returns: the entry.
        """
        if key not in self._keys:
            self[key] = default
        return self._get(key)

    def pop(self, key: str) -> Any:
        """Remove and return the entry of this name.

        Args:
            key: its name.
        Returns: the entry.
        Raises: KeyError: there is none.
        """
        value = self[key]
        self._delete(key)
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last entry.

        Returns: (name, entry).
        Raises: KeyError: there is none.
        """
        if not self._keys:
            raise KeyError("popitem: the ParameterDict is empty")
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def clear(self) -> None:
        """Remove all entries."""
        for key in list(self._keys):
            self._delete(key)

    def copy(self) -> ParameterDict:
        """A new ParameterDict of the same parameters.

        Returns: it.
        """
        return ParameterDict(list(self.items()))

    def fromkeys(self, keys: Iterable[str], default: object = None) -> ParameterDict:
        """A new ParameterDict with default under each name.

        Args:
            keys: the names.
            default: the entry of each.
        Returns: the new ParameterDict.
        """
        return ParameterDict([(key, default) for key in keys])

    def update(self, parameters: Mapping[str, object] | ParameterDict | Iterable[tuple[str, object]]) -> None:
        """Add or replace entries.

        Args:
            parameters: a mapping, whose plain dicts are taken in the order of their names as in PyTorch; or pairs.
        Raises: DTypeError: neither a mapping nor pairs.
        """
        if isinstance(parameters, ParameterDict):
            pairs = list(parameters.items())
        elif isinstance(parameters, Mapping):
            pairs = list(parameters.items())
            pairs = sorted(pairs, key=operator.itemgetter(0)) if type(parameters) is dict else pairs
        else:
            pairs = [_pair(number, entry) for number, entry in enumerate(_entries(parameters))]
        for key, value in pairs:
            self[key] = value

    def __or__(self, other: ParameterDict) -> ParameterDict:
        joined = self.copy()
        joined.update(other)
        return joined

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other)
        return self


def _entries(parameters: object) -> Iterable[object]:
    if not isinstance(parameters, Iterable):
        raise DTypeError(describe("ParameterDict", "parameters", "a mapping, or pairs", type(parameters).__name__))
    return parameters


def _pair(number: int, entry: object) -> tuple[str, object]:
    if not isinstance(entry, Iterable) or len(pair := tuple(entry)) != 2:
        raise DTypeError(describe("ParameterDict", f"parameters[{number}]", "a name and a tensor", repr(entry)))
    return pair
