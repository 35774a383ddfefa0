"""The built-in functions and types that are pure: they only compute from their arguments."""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import re
import types
import uuid
from types import BuiltinFunctionType, ModuleType

import numpy as np

from genesis.dtypes import DType
from genesis.ndarray import Device

PLAIN: frozenset[type[object]] = frozenset({int, float, bool, complex, str, bytes, type(None)})
SEQUENCES = (list, tuple, collections.deque)
MAPPINGS = (dict, types.MappingProxyType)
SETS = (set, frozenset)

# Values that nobody can change.
IMMUTABLE: tuple[type[object], ...] = (
    *PLAIN, range, slice, type(...), type(NotImplemented), re.Pattern, re.Match, datetime.date, datetime.time,
    datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction, uuid.UUID, np.generic, np.dtype,
    types.CodeType, types.GenericAlias, types.UnionType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType,
    types.MethodDescriptorType, DType, Device, type(vars(collections.namedtuple("_", "field"))["field"]),
)  # fmt: skip

_OF_TORCH = frozenset({"device", "dtype", "layout", "memory_format"})  # which is not imported for them


def is_immutable(value: object) -> bool:
    """Whether nobody can change it; what is made of it, as a tuple's elements, may change."""
    kind = type(value)
    return isinstance(value, IMMUTABLE) or (kind.__module__ == "torch" and kind.__name__ in _OF_TORCH)


_NAMES = (
    "__build_class__", "abs", "all", "any", "ascii", "bin", "callable", "chr", "delattr", "dir", "divmod",
    "format", "getattr", "hasattr", "hash", "hex", "isinstance", "issubclass", "iter", "len", "max", "min", "next",
    "oct", "ord", "pow", "repr", "round", "setattr", "sorted", "sum", "vars",
)  # fmt: skip
_FUNCTIONS = frozenset(getattr(builtins, name) for name in _NAMES)
_MODULES = frozenset(
    {
        "math",
        "cmath",
        "_operator",
        "_functools",
        "itertools",
        "_collections",
        "_abc",
        "_heapq",
        "_bisect",
        "_statistics",
    }
)
# Their methods, and they themselves as functions, read and change nothing but what they are given.
_TYPES: tuple[type[object], ...] = (
    type, *PLAIN, *SEQUENCES, *MAPPINGS, *SETS, range, slice, property, staticmethod, classmethod, super, map,
    filter, zip, enumerate, reversed, BaseException, types.GeneratorType, types.SimpleNamespace, types.MappingProxyType,
    types.FunctionType, types.MethodType, types.CellType, re.Pattern, re.Match, decimal.Decimal, np.generic, np.dtype,
    datetime.timedelta, type(iter([])), type(iter(())), type(iter({})), type(iter(set())), type(iter("")),
    type(iter(range(0))), type({}.keys()), type({}.values()), type({}.items()), type(iter({}.items())),
    type(iter({}.values())), memoryview, bytearray,
)  # fmt: skip
_TYPE_MODULES = frozenset(
    {"builtins", "collections", "functools", "itertools", "types", "decimal", "fractions", "datetime"}
)


def is_pure(function: BuiltinFunctionType) -> bool:
    """Whether a function or bound method written in C only computes, or changes no more than its own object."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return function in _FUNCTIONS if owner is builtins else owner.__name__ in _MODULES
    base = solid_base(owner if isinstance(owner, type) else type(owner))
    return base is object or issubclass(base, _TYPES)


def is_pure_type(kind: type[object]) -> bool:
    """Whether objects of a type written in C depend on nothing but themselves."""
    return kind is object or issubclass(kind, (*_TYPES, *IMMUTABLE)) or kind.__module__ in _TYPE_MODULES


def solid_base(kind: type[object]) -> type[object]:
    """The nearest base of a class that is written in C, and may hold state that Python's dictionaries do not show."""
    while kind is not object:
        base = kind.__base__ or object
        is_python = kind.__flags__ & _HEAP_TYPE and not kind.__flags__ & _IMMUTABLE_TYPE
        if not is_python or (
            "__slots__" not in vars(kind) and kind.__basicsize__ - base.__basicsize__ > _DICT_AND_WEAKREF
        ):
            return kind
        kind = base
    return object


_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_DICT_AND_WEAKREF = 16  # bytes that a class of Python's may add to an object of its base
