"""Notes every op that runs: between which two points of time, with how many bytes and floating-point operations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from genesis.backends.backend import Backend, Op
from genesis.backends.contract import TRAITS
from genesis.backends.tools import operands
from genesis.backends.tools.timer import precision_of


class Call(NamedTuple):
    """One op that ran. The marks are the backend's: backend.seconds_between(start, end)."""

    op: str
    backend: Backend
    device_index: int
    queue: int  # the stream, or on the CPU the thread
    start: object
    end: object
    num_bytes: int  # read and written at least
    num_flops: int  # 0 where they are not counted
    arrays: str  # dtypes and shapes, in and out


def around(backend: Backend, record: Callable[[Call], None]) -> Callable[[str, Op], Op]:
    """The wrapper of each op that tells record of each call."""

    def note(op: str, function: Op) -> Op:
        traits = TRAITS[op]
        if traits.idle:
            return function

        def noted(*args: object, **kwargs: object) -> object:
            inputs = operands.arguments(op, (*args, *kwargs.values()))
            if inputs:
                _, device = inputs[0].__dlpack_device__()
            else:
                index = traits.argument("device_index", args, kwargs, 0)
                assert isinstance(index, int)
                device = index
            start = backend.time_mark(device)
            result = function(*args, **kwargs)
            end = backend.time_mark(device)
            outputs = operands.results(op, result)
            queue = threading.get_ident() if backend.name == "cpu" else backend.current_stream(device)
            num_bytes = operands.num_bytes(backend, inputs + outputs)
            arrays = f"{operands.describe(backend, inputs)} → {operands.describe(backend, outputs)}"
            arrays += precision_of(op, arrays)
            num_flops = traits.flops(*args) if traits.flops else 0
            record(Call(op, backend, device, queue, start, end, num_bytes, num_flops, arrays))
            return result

        return noted

    return note
