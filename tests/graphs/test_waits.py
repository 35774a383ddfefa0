"""Waits of a recording: each comes just before the first call that uses its arrays' memory."""

from __future__ import annotations

import pytest

import genesis
from genesis.graphs.waits import Waits
from genesis.recording import Call, Kind, Recorder, Value

CASES = {  # calls, as the arrays that they use, and waits with a "?"; and their order in a replay
    "": "",
    "a b": "a b",
    "a? b": "b a?",
    "a? a b": "a? a b",
    "a? b ab c": "b a? ab c",
    "a? b? c b a": "c b? b a? a",
    "a? b? c ba": "c a? b? ba",
    "a? a? b": "a? b a?",  # a second one of the same arrays stays behind the first
    "a b? c": "a c b?",
}


def _noted(waits: Waits, calls: str, values: dict[str, Value]) -> list[Call]:
    made = [Call(each, print, (*[values[name] for name in each.rstrip("?")],), {}, None) for each in calls.split()]
    for call in made:
        waits.note(call, call.op.endswith("?"))
    return made


@pytest.mark.parametrize("calls", CASES)
def test_the_order(calls: str) -> None:
    waits, recorder = Waits(), Recorder()
    values = {name: recorder.declare(Kind.BUFFER, object()) for name in "abc"}
    made = _noted(waits, calls, values)
    assert " ".join(call.op for call in waits.postponed(made)) == CASES[calls]


def test_views_are_of_the_same_memory() -> None:
    waits, recorder, base = Waits(), Recorder(), genesis.ones(4).array
    arrays = {"a": base, "b": base.narrow(0, 0, 2), "c": genesis.ones(1).array}
    values = {name: recorder.declare(Kind.BUFFER, array.handle) for name, array in arrays.items()}
    for name, array in arrays.items():
        waits.declare(values[name], array)
    made = _noted(waits, "a? c b", values)
    assert [call.op for call in waits.postponed(made)] == ["c", "a?", "b"]


def test_what_the_last_wait_gives() -> None:
    waits, recorder = Waits(), Recorder()
    values = {name: recorder.declare(Kind.BUFFER, object()) for name in "abc"}
    everything = list(values.values())
    assert waits.are_due(everything) == [False, False, False]
    _noted(waits, "a? b? c", values)
    assert waits.are_due([*everything, None]) == [False, True, False, False]
    _noted(waits, "b", values)
    assert waits.are_due(everything) == [False, False, False]
