"""The layout of a structure that a kernel takes by value, read from its source: what Python packs is what C++ reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from genesis.backends.cuda.nvrtc.preprocessor import Preprocessor
from genesis.backends.cuda.nvrtc.signature import matching, split_at_commas
from genesis.backends.cuda.nvrtc.types import Number, kind_of


class Structure:
    """Its members, packed as on every 64-bit Linux: each at a multiple of its size, the whole a multiple of the widest.

    Example:
        >>> Structure("Point", {"x": "i", "y": "i", "weight": "d"}).pack(x=1, y=2, weight=0.5).hex()
        '0100000002000000000000000000e03f'
    """

    def __init__(self, name: str, members: Mapping[str, str]) -> None:
        """members: names and what struct calls their types, in their order."""
        self.name, self.members = name, tuple(members)
        widest = max(members.values(), key=struct.calcsize, default="b")
        self._packer = struct.Struct("@" + "".join(members.values()) + "0" + widest)

    @property
    def num_bytes(self) -> int:
        return self._packer.size

    def pack(self, **values: float) -> bytes:
        """Raises: TypeError: a member is missing, or unknown."""
        if values.keys() != set(self.members):
            wrong = ", ".join(sorted(values.keys() ^ set(self.members)))
            raise TypeError(f"{self.name}: expected {', '.join(self.members)}; missing or unknown: {wrong}")
        return self._packer.pack(*[values[name] for name in self.members])


def read(name: str, source: str, options: Sequence[str] = ()) -> Structure:
    """The structure of this name in a CUDA C++ source.

    Raises: ValueError: it is not there, or has other members than numbers.
    """
    tokens = Preprocessor([source], options).tokens(source)
    for position, token in enumerate(tokens):
        if token == "struct" and tokens[position + 1 : position + 3] == [name, "{"]:
            body = tokens[position + 3 : matching(tokens, position + 2)]
            return Structure(name, dict(_members(name, body)))
    raise ValueError(f"struct {name}: the source has none")


def _members(structure: str, body: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and struct's types of `int x, y; long long size;`."""
    statement: list[str] = []
    for token in body:
        if token != ";":
            statement.append(token)
            continue
        (*type_, first), *others = split_at_commas(statement)
        kind = kind_of(type_, {})
        for names in ([first], *others):
            if not isinstance(kind, Number) or len(names) != 1 or not names[0].isidentifier():
                raise ValueError(f"struct {structure}: expected numbers as members, got {' '.join(statement)}")
            yield names[0], kind.slot[0]
        statement = []
    if statement:
        raise ValueError(f"struct {structure}: expected numbers as members, got {' '.join(statement)}")
