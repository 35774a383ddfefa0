"""Traits of an op beside its signature: stated once, at its stub in contract.py, and read by all who need them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, TypeVar, Unpack

from genesis.backends import dispatch

Stub = TypeVar("Stub", bound=dispatch.Op)
CountFlops: TypeAlias = Callable[..., int]  # from an op's arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The facts of one op. Parameters are given by name, a field of a record as "record.field".

    Attributes:
        elementwise: each element of the result depends on one of each operand, which broadcast.
        floating: integers compute as the default float dtype.
        in_place: parameters that it changes.
        in_training: parameters that it changes in training: its argument `training`, or `options.training`, is true.
        random: it draws random numbers.
        accumulates: elements are sums of many, so that rounding is relative to the largest operand, not to the result.
        comparable: how many of its results are the same on every backend; the rest is one of several right answers, or
            the backend's own. None: all.
        query: it says what an array is, and computes nothing.
        idle: no element is read or written.
        views: its result shows its operand's memory.
        unwritten: its result has no values yet.
        from_outside, to_outside: the values of its result, or of its operand, are not only the backend's.
        optional: a backend may lack it: who calls it asks Backend.has(), and else composes it of others.
        unreplayable: why a recorded call cannot be run again; "" where it can.
        flops: counts floating-point operations, from the arguments.
    """

    name: str
    parameters: tuple[str, ...]
    elementwise: bool = False
    floating: bool = False
    in_place: tuple[str, ...] = ()
    in_training: tuple[str, ...] = ()
    random: bool = False
    accumulates: bool = False
    comparable: int | None = None
    query: bool = False
    idle: bool = False
    views: bool = False
    unwritten: bool = False
    from_outside: bool = False
    to_outside: bool = False
    optional: bool = False
    unreplayable: str = ""
    flops: CountFlops | None = None
    # By the annotations of the stub:
    arrays: tuple[str, ...] = ()  # parameters that are arrays, numbers beside arrays, or lists of arrays
    lists: tuple[str, ...] = ()  # those among them that are lists, tuples or records
    opaque: tuple[str, ...] = ()  # parameters that are a value of the backend's own
    makes_opaque: bool = False  # its result is one
    gives_arrays: bool = False  # its result is an array, or several

    def position(self, parameter: str) -> int:
        return self.parameters.index(parameter)

    def argument(
        self, parameter: str, args: Sequence[object], kwargs: Mapping[str, object], default: object = None
    ) -> object:
        """The value of a parameter in a call, or of a field of one."""
        parameter, _, field = parameter.partition(".")
        place = self.parameters.index(parameter) if parameter in self.parameters else len(args)
        value = args[place] if place < len(args) else kwargs.get(parameter, default)
        return getattr(value, field) if field else value

    def trains(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Does a call change what is changed in training?"""
        if not self.in_training:
            return False
        training = "training" if "training" in self.parameters else "options.training"
        return bool(self.argument(training, args, kwargs))

    def changed(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The arrays, and lists of arrays, that a call changes in place."""
        parameters = (*self.in_place, *self.in_training) if self.trains(args, kwargs) else self.in_place
        return [self.argument(parameter, args, kwargs) for parameter in parameters]


TRAITS: dict[str, Traits] = {}  # of each op of the contract, in its order


class Facts(TypedDict, total=False):
    """The arguments of @op. See Traits."""

    elementwise: bool
    floating: bool
    in_place: tuple[str, ...]
    in_training: tuple[str, ...]
    random: bool
    accumulates: bool
    comparable: int | None
    query: bool
    idle: bool
    views: bool
    unwritten: bool
    from_outside: bool
    to_outside: bool
    optional: bool
    unreplayable: str
    flops: CountFlops | None


def op(**facts: Unpack[Facts]) -> Callable[[Stub], Stub]:
    """Make a stub of the contract an op: a function that, called on arrays, runs it on their device. See Traits."""

    def declare(stub: Stub) -> Stub:
        name, kinds = stub.__name__, dict(stub.__annotations__)
        returned = kinds.pop("return")
        arrays = tuple([each for each, kind in kinds.items() if "Handle" in kind])
        facts["accumulates"] = facts.get("accumulates", False) or name.endswith("_backward")
        facts["idle"] = facts.get("idle", False) or facts.get("query", False)
        traits = TRAITS[name] = Traits(
            name=name, parameters=tuple(kinds), arrays=arrays,
            lists=tuple([each for each in arrays if "[" in kinds[each]]),
            opaque=tuple([each for each, kind in kinds.items() if kind == "Opaque"]),
            makes_opaque=returned == "Opaque",
            gives_arrays="Handle" in returned,
            **facts,
        )  # fmt: skip
        changed = {each.partition(".")[0] for each in (*traits.in_place, *traits.in_training)}
        assert changed <= set(arrays), f"{name} changes something else than an array"
        run = dispatch.dispatcher(stub, kinds, returned, traits.in_place, traits.floating)
        return functools.wraps(stub)(run)  # type: ignore[return-value]

    return declare
