"""Generates one Python function from recorded calls, which frees each array after its last use.

def replay(v0):
    v1 = f0(v0)
    del v0
    v2 = f1([v1, v1], c2)
    del v1
    return [v2]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genesis.backends.backend import Op
from genesis.callsite import COMPILED
from genesis.frames import in_room_beside
from genesis.recording import Call, Value, values_in


class Recording:
    """The calls of one run, in order, as a function of its inputs.

    `source` is its code: v are arrays, f functions, c constants.
    """

    def __init__(self, calls: Sequence[Call], inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        self.calls, self.inputs, self.outputs = calls, inputs, outputs
        self._constants: dict[str, object] = {}
        lines = [f"def replay({', '.join(f'v{value.number}' for value in inputs)}):"]
        for call, ended in zip(calls, _ends(calls, outputs), strict=True):
            lines.append(f"    {_targets(call.results)}{self._call(call)}")
            if ended:
                lines.append(f"    del {', '.join(f'v{number}' for number in ended)}")
        lines.append(f"    return [{', '.join(f'v{value.number}' for value in outputs)}]")
        self.source = "\n".join(lines) + "\n"
        exec(compile(self.source, COMPILED, "exec"), self._constants)
        self._num_variables = sum(len(call.outputs) for call in calls) + len(inputs)
        # Taken out of its own globals, in a cycle with which it would hold memory until the next collection.
        self._replay: Op = self._constants.pop("replay")  # type: ignore[assignment]

    def run(self, inputs: Iterable[object]) -> list[object]:
        """Replay: output handles for these input handles, whose shapes and strides are those of the recording."""
        return in_room_beside(self._num_variables, self._replay, *inputs)

    def _call(self, call: Call) -> str:
        function = self._name("f", call.function)
        args = [self._value(arg) for arg in call.args]
        args += [f"{name}={self._value(arg)}" for name, arg in call.kwargs.items()]
        return f"{function}({', '.join(args)})"

    def _value(self, place: object) -> str:
        if isinstance(place, Value):
            return f"v{place.number}"
        if isinstance(place, list | tuple) and values_in(place):
            kind = "" if type(place) in (list, tuple) else self._name("c", type(place))
            parts = ", ".join(map(self._value, place))
            return f"[{parts}]" if isinstance(place, list) else f"{kind}({parts})" if kind else f"({parts},)"
        return self._name("c", place)

    def _name(self, letter: str, value: object) -> str:
        name = f"{letter}{len(self._constants)}"
        self._constants[name] = value
        return name


def _ends(calls: Sequence[Call], outputs: Sequence[Value]) -> list[list[int]]:
    """Number, for each call, the values that it is the last to use."""
    last_use: dict[int, int] = {}
    for position, call in enumerate(calls):
        for value in (*call.operands, *call.outputs):
            last_use[value.number] = position
    kept = {value.number for value in outputs}
    ends: list[list[int]] = [[] for _ in calls]
    for number, position in last_use.items():
        if number not in kept:
            ends[position].append(number)
    return ends


def _targets(results: Value | Sequence[Value | None] | None) -> str:
    """The assignment targets of a call's results, with "_" for None."""
    if isinstance(results, Value):
        return f"v{results.number} = "
    if not results:
        return ""
    return "".join("_, " if value is None else f"v{value.number}, " for value in results) + "= "
