"""The C++ types that a kernel's parameters can have: which tensors and numbers they take, and how those are packed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Pointer:
    """Takes a tensor, or None for a null pointer."""

    dtypes: tuple[str, ...]  # names of the dtypes that fit; () for void*, which takes any
    lanes: int = 1  # elements per access: 4 for float4
    itemsize: int = 1  # bytes per element
    writable: bool = True

    slot: str = "Q"

    @property
    def alignment(self) -> int:
        """Bytes that the address must be divisible by; that of a vector type is its size."""
        return min(self.lanes * self.itemsize, 16) if self.lanes in (2, 4) else self.itemsize


@dataclasses.dataclass(frozen=True)
class Number:
    """Takes a Python number."""

    slot: str  # how struct packs it, filled to 8 bytes
    low: int | None = None  # None: a floating type
    high: int | None = None


@dataclasses.dataclass(frozen=True)
class Unsupported:
    """The reason why a kernel with this parameter cannot be called."""

    reason: str

    slot: str = ""


Kind = Pointer | Number | Unsupported


def _integer(bits: int, signed: bool, slot: str) -> Number:
    return Number(slot, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)


_NUMBERS = {
    "bool": Number("?7x", 0, 1),
    "int8": _integer(8, True, "b7x"),
    "int16": _integer(16, True, "h6x"),
    "int32": _integer(32, True, "i4x"),
    "int64": _integer(64, True, "q"),
    "uint8": _integer(8, False, "B7x"),
    "uint16": _integer(16, False, "H6x"),
    "uint32": _integer(32, False, "I4x"),
    "uint64": _integer(64, False, "Q"),
    "float16": Number("e6x"),
    "float32": Number("f4x"),
    "float64": Number("d"),
}
_ITEMSIZE = {"bool": 1, "bfloat16": 2} | {
    name: int(name.lstrip("uintfloa")) // 8 for name in _NUMBERS if name != "bool"
}

_NAMES = {  # as C++ spells them
    "bool": "bool", "float": "float32", "double": "float64",
    "half": "float16", "__half": "float16", "nv_bfloat16": "bfloat16", "__nv_bfloat16": "bfloat16",
    "int8_t": "int8", "int16_t": "int16", "int32_t": "int32", "int64_t": "int64",
    "uint8_t": "uint8", "uint16_t": "uint16", "uint32_t": "uint32", "uint64_t": "uint64",
    "size_t": "uint64", "ptrdiff_t": "int64", "intptr_t": "int64", "uintptr_t": "uint64",
}  # fmt: skip
_VECTOR_BASES = {
    "char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32",
    "longlong": "int64", "ulonglong": "uint64", "long": "int64", "ulong": "uint64", "float": "float32",
    "double": "float64",
}  # fmt: skip
_VECTORS = {f"{base}{lanes}": (name, lanes) for base, name in _VECTOR_BASES.items() for lanes in (1, 2, 3, 4)}
_VECTORS |= dict.fromkeys(("half2", "__half2"), ("float16", 2))
_VECTORS |= dict.fromkeys(("nv_bfloat162", "__nv_bfloat162"), ("bfloat16", 2))
_INTEGER_WORDS = {"signed", "unsigned", "char", "short", "int", "long"}
_IGNORED = {
    "const", "volatile", "restrict", "__restrict", "__restrict__", "__grid_constant__", "struct", "class", "enum",
    "typename", "register",
}  # fmt: skip
_SAME_SIZE = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}  # Genesis has only the signed ones


def kind_of(tokens: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> Kind:
    """The kind of a parameter of this type.

    Args:
        tokens: the type without the parameter's name: ["const", "float", "*", "__restrict__"].
        aliases: what typedefs and template arguments stand for.
    """
    if "&" in tokens or "&&" in tokens:
        return Unsupported("a reference to memory of the host; take a pointer or a value")
    tokens = _without_aliases(tokens, aliases)
    num_stars = tokens.count("*")
    star = tokens.index("*") if num_stars else len(tokens)
    before = [token for token in tokens[:star] if token not in _IGNORED]
    if "(" in tokens or num_stars > 1:
        return Unsupported("a pointer to pointers or functions; pass one tensor per parameter")
    name, lanes = _element(before)
    shown = "".join(before) if "::" in before or "<" in before else " ".join(before)
    if num_stars:
        writable = "const" not in tokens[:star]
        if name == "void":
            return Pointer((), writable=writable)
        if name is None:
            return Unsupported(f"a pointer to {shown}, which is no dtype; take a pointer to its elements")
        fitting = (name, _SAME_SIZE[name]) if name in _SAME_SIZE else (name,)
        return Pointer(fitting, lanes, _ITEMSIZE[name], writable)
    if name is None or name == "void":
        return Unsupported(f"the type {shown}: a struct, or unknown here; pass its members one by one")
    if lanes > 1 or name not in _NUMBERS:
        return Unsupported(f"{shown} by value; pass {'its elements one by one' if lanes > 1 else 'a float'}")
    return _NUMBERS[name]


def _without_aliases(tokens: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> list[str]:
    for _ in range(8):  # a typedef of a typedef; one that names itself ends here
        if not any(token in aliases for token in tokens):
            break
        tokens = [inner for token in tokens for inner in aliases.get(token, (token,))]
    return list(tokens)


def _element(words: Sequence[str]) -> tuple[str | None, int]:
    """The dtype's name and the number of lanes of a type without const and stars; (None, 1) for a type unknown here."""
    if len(words) > 1 and words[-2] == "::":  # std::int64_t, cuda::std::uint8_t
        words = words[-1:]
    if words and set(words) <= _INTEGER_WORDS:
        return _integer_name(words), 1
    if len(words) != 1:
        return None, 1
    if words[0] in _VECTORS:
        return _VECTORS[words[0]]
    return ("void" if words[0] == "void" else _NAMES.get(words[0])), 1


def _integer_name(words: Sequence[str]) -> str:
    """`long unsigned int` and its other spellings; `char` is signed and `long` has 64 bits, as on Linux."""
    count = Counter(words)
    bits = 8 if count["char"] else 16 if count["short"] else 64 if count["long"] else 32
    return f"{'u' if count['unsigned'] else ''}int{bits}"
