"""Recorded calls as source: what it says, and that no array outlives its last use."""

from __future__ import annotations

import weakref
from typing import Any

from genesis.graphs.source import Recording
from genesis.recording import Call, Kind, Memory, Value

a, b, c, d, e = [Value(number, Memory(Kind.INTERMEDIATE, number)) for number in range(5)]


class Value:
    """Something that weak references can point to."""


def test_source() -> None:
    calls = [
        Call("", min, (a, 3), {}, b),
        Call("", divmod, (b, 2), {}, (c, None)),
        Call("", max, ([c, b],), {"default": 0}, d),
        Call("", print, (), {}, None),
        Call("", abs, (a,), {}, e),
    ]
    recording = Recording(calls, [a], [d])
    assert recording.source.splitlines() == [
        "def replay(v0):",
        "    v1 = f0(v0, c1)",
        "    v2, _, = f2(v1, c3)",
        "    v3 = f4([v2, v1], default=c5)",
        "    del v1, v2",
        "    f6()",
        "    v4 = f7(v0)",
        "    del v0, v4",
        "    return [v3]",
    ]
    assert recording.run([9]) == [3]


def test_values_are_let_go_after_their_last_use() -> None:
    alive: list[list[bool]] = []
    made: list[weakref.ref[Value]] = []

    def step(*_: Any) -> Value:
        alive.append([made_before() is not None for made_before in made])
        value = Value()
        made.append(weakref.ref(value))
        return value

    calls = [
        Call("", step, (), {}, a),
        Call("", step, (a,), {}, b),
        Call("", step, (b, a), {}, c),
        Call("", step, (c,), {}, d),
    ]
    (result,) = Recording(calls, [], [d]).run([])
    assert alive == [[], [True], [True, True], [False, False, True]]
    assert [made_before() for made_before in made] == [None, None, None, result]
