"""Several runs of different sizes, seen as one: numbers that differ between them are Sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from genesis import shapes
from genesis.export.registry import NotExportableError
from genesis.export.tracing import Trace
from genesis.recording import Call, Kind, Value
from genesis.records import rebuilt


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """A number that follows from dynamic sizes: what it was in each of the runs.

    It is no int, so that a translation that would freeze it fails instead.
    """

    runs: tuple[int | float, ...]

    def __repr__(self) -> str:
        return " | ".join(map(str, self.runs))

    def minus(self, other: Size | int) -> int | None:
        """The difference to other, if it is the same in all runs."""
        others = other.runs if isinstance(other, Size) else (other,) * len(self.runs)
        differences = {a - b for a, b in zip(self.runs, others, strict=True)}
        difference = differences.pop()
        return int(difference) if not differences and difference == int(difference) else None

    def over(self, other: Size) -> Fraction | None:
        """The ratio to other, if it is the same in all runs."""
        if 0 in other.runs or not all(isinstance(number, int) for number in (*self.runs, *other.runs)):
            return None
        ratios = {Fraction(int(a), int(b)) for a, b in zip(self.runs, other.runs, strict=True)}
        ratio = ratios.pop()
        return ratio if not ratios else None

    def times(self, other: Size) -> Size:
        return Size(tuple(a * b for a, b in zip(self.runs, other.runs, strict=True)))


Dim = int | Size
Shape = tuple[Dim, ...]


class DependsOnSizeError(NotExportableError):
    """The runs of different sizes do different things, or use numbers that no expression of sizes gives."""


@dataclasses.dataclass(eq=False)
class Runs:
    """Traces of equal structure as one: the calls of the first, with Sizes where numbers differ.

    Attributes:
        first: the trace of the example.
        calls: with merged arguments.
        shapes: by number.
    """

    first: Trace
    calls: list[Call]
    shapes: dict[int, Shape]


def merge(traces: Sequence[Trace]) -> Runs:
    """Raises: DependsOnSizeError: the runs differ in more than numbers."""
    first = traces[0]
    shapes = dict[int, Shape]()
    for values in zip(*[trace.inputs.values() for trace in traces], strict=True):
        _note_shape(shapes, values)
    calls = []
    for step in range(max(len(trace.calls) for trace in traces)):
        calls_then = [trace.calls[step] if step < len(trace.calls) else None for trace in traces]
        call = calls_then[0]
        if call is None or any(other is None or other.op != call.op for other in calls_then):
            line = next((other.line for other in calls_then if other is not None), "")
            names = " | ".join("nothing more" if other is None else other.op for other in calls_then)
            raise DependsOnSizeError(f"what the model computes depends on the sizes of its inputs: {names} ({line})")
        calls.append(_merged_call(call, [other for other in calls_then if other is not None], shapes, traces))
    if any([*trace.outputs] != [*first.outputs] for trace in traces):
        raise DependsOnSizeError("which outputs the model has depends on the sizes of its inputs")
    for values in zip(*[trace.outputs.values() for trace in traces], strict=True):
        _note_shape(shapes, values)
    return Runs(first, calls, shapes)


def _merged_call(call: Call, others: Sequence[Call], shapes: dict[int, Shape], traces: Sequence[Trace]) -> Call:
    for values in zip(*[[*other.operands, *other.outputs] for other in others], strict=False):
        _note_shape(shapes, values)
        if values[0].memory.kind is Kind.CONSTANT:
            _require_equal_constants(values, traces, call.line)
    args = _merged([other.args for other in others], call)
    kwargs = {name: _merged([other.kwargs.get(name) for other in others], call) for name in call.kwargs}
    assert isinstance(args, tuple)
    return dataclasses.replace(call, args=args, kwargs=kwargs)


def _note_shape(shapes: dict[int, Shape], values: Sequence[Value]) -> None:
    numbers = {value.number for value in values}
    if len(numbers) > 1 or len({value.ndim for value in values}) > 1:
        raise DependsOnSizeError("which tensors the model combines depends on the sizes of its inputs")
    if values[0].number not in shapes:
        dims = zip(*[value.shape for value in values], strict=True)
        shapes[values[0].number] = tuple([runs[0] if len(set(runs)) == 1 else Size(runs) for runs in dims])


def _require_equal_constants(values: Sequence[Value], traces: Sequence[Trace], line: str) -> None:
    held = [trace.given.get(value.number) for value, trace in zip(values, traces, strict=True)]
    if any(each is not held[0] for each in held) and len({value.shape for value in values}) > 1:
        raise DependsOnSizeError(f"a tensor from outside of the run depends on the sizes of the inputs ({line})")


def _merged(parts: Sequence[object], call: Call) -> object:
    """An argument of all runs: the same, or a Size where numbers differ."""
    first = parts[0]
    if isinstance(first, Value):
        return first
    if isinstance(first, list | tuple) and all(isinstance(p, list | tuple) and len(p) == len(first) for p in parts):
        merged = [_merged(each, call) for each in zip(*parts, strict=True)]
        if all(new is old for new, old in zip(merged, first, strict=True)):
            return first
        return tuple(merged) if isinstance(first, shapes.Size) else rebuilt(first, merged)  # which holds ints alone
    if isinstance(first, int | float) and not isinstance(first, bool):
        if all(type(part) is type(first) for part in parts):
            numbers = tuple([part for part in parts if isinstance(part, int | float)])
            return first if len(set(numbers)) == 1 or first != first else Size(numbers)
    elif isinstance(first, np.ndarray):
        if all(isinstance(part, np.ndarray) and np.array_equal(first, part) for part in parts):
            return first
    elif isinstance(first, str | bool | None | np.generic):
        if all(part == first for part in parts):
            return first
    else:
        return first
    raise DependsOnSizeError(f"{call.op}: an argument depends on the sizes of the inputs ({call.line})")
