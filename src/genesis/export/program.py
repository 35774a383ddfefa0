"""The order in which a recorded run is translated: which call defines which contents.

Contents are named by (number, version), as in SSA form. The first version of a value is what its call gave; later ones
come from changes in place. A changed value takes the new contents. The tensor of which it is a view gets them written
back through the views between, and other views of that memory are taken again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from genesis.backends.contract import TRAITS
from genesis.export.registry import NotExportableError, translation_of
from genesis.export.sizes import Runs
from genesis.recording import Call, Kind, Value

Contents = tuple[int, int]  # the number of a value, and its version


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """How one value gets its contents.

    Attributes:
        contents: what it defines.
        call: what is translated; None: the value was there before the run.
        kind: "call", "given", "change" (by the call, in place), "write back" (into what `call` took a view of).
        sources: for each operand of the call, whose contents it sees; of a "write back": the old contents, and those
            of the view.
    """

    contents: Contents
    call: Call | None
    kind: str
    sources: dict[int, Contents]


class Program:
    """A recorded run by what defines what."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self._producers: dict[int, list[Call]] = {}
        self._given: dict[Contents, Call] = {}  # the outermost call with a translation that gave these contents
        self._first: dict[int, Value] = {}  # as it was when its call gave it
        self._changes: dict[Contents, Call] = {}  # by the number of a memory, and the version that they made
        self._depends: set[int] = set()  # memories whose contents depend on an input
        self._unsized: set[int] = set()  # memories whose shape does
        for value in runs.first.inputs.values():
            self._first[value.number] = value
            self._depends.add(value.memory.number)
        for call in runs.calls:
            self._note(call)

    def _note(self, call: Call) -> None:
        operands = call.operands
        taken = {value.number for value in operands}
        for value in operands:
            self._first.setdefault(value.number, value)
        outputs = [value for value in call.outputs if value.number not in taken]
        for value in outputs:
            self._first.setdefault(value.number, value)
            self._producers.setdefault(value.number, []).append(call)
            if translation_of(call) is not None:
                self._given[value.contents] = call
        for value in call.changed:
            self._changes[value.memory.number, value.version + 1] = call
        if any(value.memory.number in self._unsized for value in operands):
            raise NotExportableError(
                f"{call.op}: computes with a tensor whose shape depends on values of the inputs (nonzero, or an index "
                f"of bools); use where() or masked_fill() ({call.line})"
            )
        if any(value.memory.number in self._depends for value in operands):
            if call.op == "nonzero":
                self._unsized.update(value.memory.number for value in outputs)
            self._depends.update(value.memory.number for value in (*outputs, *call.changed))
            if call.op in TRAITS and TRAITS[call.op].to_outside:
                raise NotExportableError(
                    "the model reads values of a tensor that depends on its inputs (.item(), .numpy(), bool()): Python "
                    f"may then do something else for other inputs ({call.line})"
                )

    # --- order --------------------------------------------------------------------------------------------------------

    def steps(self, wanted: Iterable[Value]) -> Iterator[Step]:
        """The steps that define these values, each after those that it needs."""
        done: set[Contents] = set()
        pending: list[tuple[Contents, Step | None]] = [(value.contents, None) for value in reversed(list(wanted))]
        while pending:
            contents, step = pending.pop()
            if contents in done:
                continue
            if step is not None:
                done.add(contents)
                yield step
                continue
            step = self._step(contents)
            pending.append((contents, step))
            pending += [(source, None) for source in reversed(step.sources.values()) if source not in done]

    def _step(self, contents: Contents) -> Step:
        number, version = contents
        first = self._first[number]
        given = self._given.get(contents)
        if given is not None:
            return Step(contents, given, "call", {value.number: value.contents for value in given.operands})
        if version <= first.version:
            call = self._producer(number)
            if call is None:
                return Step(contents, None, "given", {})
            return Step(contents, call, "call", {value.number: value.contents for value in call.operands})
        change = self._changes.get((first.memory.number, version))
        if change is None:
            return Step(contents, None, "given", {})
        if len(change.changed) != 1 or change.op not in TRAITS or not TRAITS[change.op].in_place:
            raise NotExportableError(f"{change.op}: updates running statistics; call .eval() ({change.line})")
        (changed,) = change.changed
        if first.memory.kind in (Kind.PARAMETER, Kind.BUFFER, Kind.CONSTANT):
            raise NotExportableError(
                f"{change.op}: the model changes a parameter, a buffer or a tensor from outside of it in place; in a "
                f"file they stay as they are ({change.line})"
            )
        if changed.number == number:
            return Step(contents, change, "change", {value.number: value.contents for value in change.operands})
        parent = self._viewed(number)
        if parent is not None and not self._is_below(changed.number, number):  # another view: it is taken again
            call = self._producer(number)
            assert call is not None
            sources = {value.number: value.contents for value in call.operands}
            return Step(contents, call, "call", sources | {parent.number: (parent.number, version)})
        return self._write_back(contents, changed.number, change)

    def _write_back(self, contents: Contents, changed: int, change: Call) -> Step:
        """The step that brings the contents of a changed view into what it is a view of."""
        number, version = contents
        view = changed
        while (parent := self._viewed(view)) is not None and parent.number != number:
            view = parent.number
        call = self._producer(view)
        if parent is None or call is None:
            raise NotExportableError(f"{change.op}: in place, on a view that cannot be followed ({change.line})")
        return Step(contents, call, "write back", {number: (number, version - 1), view: (view, version)})

    # --- views --------------------------------------------------------------------------------------------------------

    def _producer(self, number: int) -> Call | None:
        """The outermost call that gave this value and has a translation; None: it was there before the run."""
        calls = self._producers.get(number)
        if not calls:
            return None
        for call in reversed(calls):
            if translation_of(call) is not None:
                return call
        raise NotExportableError(f"{calls[-1].op}: has no translation to ONNX ({calls[-1].line})")

    def _viewed(self, number: int) -> Value | None:
        """The operand of which this value is a view."""
        memory = self._first[number].memory
        call = self._producer(number)
        for operand in () if call is None else call.operands:
            if operand.memory is memory:
                return operand
        return None

    def _is_below(self, view: int, number: int) -> bool:
        """Whether view was taken of number, or of a view of it."""
        while (parent := self._viewed(view)) is not None:
            if parent.number == number:
                return True
            view = parent.number
        return False
