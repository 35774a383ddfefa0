"""Find what a code object can read: globals, chains of attributes on them, attributes of any object, imports."""

from __future__ import annotations

import dis
import functools
from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple, Protocol


class Chain(NamedTuple):
    """A global followed by attributes, as in `config.rates.first()`."""

    names: tuple[str, ...]
    is_called: bool  # and nothing else: it is not handed on as a value
    line: int


class Reads(NamedTuple):
    """Everything that one code object reads by name; nested functions are code objects of their own."""

    chains: tuple[Chain, ...]
    attributes: dict[str, int]  # all that it takes of whatever object, with the line
    imports: dict[str, int]
    any_attribute: bool  # names of attributes are computed: getattr(x, name), vars(x), x.__dict__


_BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
_ANY_ATTRIBUTE = frozenset({"vars", "dir", "__dict__", "__getstate__", "attrgetter", "methodcaller", "getmembers"})
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


@functools.lru_cache(maxsize=4096)
def reads_of(code: CodeType) -> Reads:
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    chains: list[Chain] = []
    attributes: dict[str, int] = {}
    imports: dict[str, int] = {}
    any_attribute, line = False, code.co_firstlineno
    for position, instruction in enumerate(instructions):
        name, line = instruction.argval, instruction.starts_line or line
        if _takes_global(instruction):
            chains.append(_chain_at(instructions, position, line))
            if name in _BY_NAME:
                found = _constant_name(instructions, position)
                any_attribute |= found is None
                attributes.setdefault(found or "", line)
            any_attribute |= name in _ANY_ATTRIBUTE
        elif _takes_attribute(instruction):
            attributes.setdefault(name, line)
            any_attribute |= name in _ANY_ATTRIBUTE
        elif instruction.opname in ("IMPORT_NAME", "IMPORT_FROM"):
            (imports if instruction.opname == "IMPORT_NAME" else attributes).setdefault(name, line)
        elif instruction.opname in ("MATCH_CLASS", "MATCH_KEYS"):
            any_attribute |= instruction.opname == "MATCH_CLASS"
    return Reads(tuple(chains), attributes, imports, any_attribute)


class _Instruction(Protocol):
    """A dis.Instruction, as far as it is read here."""

    @property
    def opname(self) -> str: ...
    @property
    def opcode(self) -> int: ...
    @property
    def arg(self) -> int | None: ...
    @property
    def argval(self) -> Any: ...


def _takes_global(instruction: _Instruction) -> bool:
    return instruction.opname.endswith(("_GLOBAL", "_NAME", "_GLOBALS")) and instruction.opname != "IMPORT_NAME"


def _takes_attribute(instruction: _Instruction) -> bool:
    return instruction.opname.endswith(("_ATTR", "_METHOD"))


def _is_call_target(instruction: _Instruction) -> bool:
    """Whether the loaded value is called right here, rather than passed on."""
    if instruction.opname == "LOAD_METHOD":
        return True
    return instruction.opname in ("LOAD_GLOBAL", "LOAD_ATTR") and _has_low_bit(instruction)


def _has_low_bit(instruction: _Instruction) -> bool:
    """The bit by which an instruction prepares a call; LOAD_ATTR has it from Python 3.12 on."""
    has_bit = instruction.opname == "LOAD_GLOBAL" or "LOAD_METHOD" not in dis.opmap
    return has_bit and instruction.arg is not None and bool(instruction.arg & 1)


def _chain_at(instructions: Sequence[_Instruction], position: int, line: int) -> Chain:
    names, end = [instructions[position].argval], position + 1
    while end < len(instructions) and instructions[end].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        names.append(instructions[end].argval)
        end += 1
    # Room for a call is made with the global, with its last attribute, or by an instruction before or after.
    around = [instructions[each].opname for each in (position - 1, end) if 0 <= each < len(instructions)]
    is_called = any(map(_is_call_target, (instructions[position], instructions[end - 1])))
    return Chain(tuple(names), is_called or "PUSH_NULL" in around, line)


def _constant_name(instructions: Sequence[_Instruction], position: int) -> str | None:
    """The constant name in a call getattr(…, "name"); None if it is computed."""
    depth, name = 0, None
    for instruction in instructions[position + 1 :]:
        if instruction.opname in ("PRECALL", "CALL") and instruction.arg == depth:
            return name if depth >= 2 else None
        if instruction.opcode in _JUMPS:
            return None
        before = depth
        depth += dis.stack_effect(
            instruction.opcode, instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
        )
        if depth == 2:  # the second argument, as it is so far
            is_constant = before == 1 and instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)
            name = instruction.argval if is_constant else None
        if depth < 0:
            return None
    return None
