"""GENESIS_DEBUG=2: a line per op on stderr: what went in and out, the time, GB/s, and GFLOP/s where that counts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from genesis.backends.backend import Backend, Op
from genesis.backends.contract import TRAITS
from genesis.backends.tools import operands
from genesis.backends.tools.operands import Handle
from genesis.precision import get_float32_precision


def around(backend: Backend) -> Callable[[str, Op], Op]:
    """The wrapper of each op; backend is asked about its arrays, and waits for the device."""

    def measure(op: str, function: Op) -> Op:
        if TRAITS[op].idle:
            return function

        def measured(*args: object, **kwargs: object) -> object:
            inputs = operands.arguments(op, (*args, *kwargs.values()))
            _wait(backend, inputs)
            start = time.perf_counter()
            result = function(*args, **kwargs)
            outputs = operands.results(op, result)
            _wait(backend, outputs or inputs)
            seconds = time.perf_counter() - start
            print(_line(backend, op, args, inputs, outputs, seconds), file=sys.stderr)
            return result

        return measured

    return measure


def _wait(backend: Backend, handles: list[operands.Handle]) -> None:
    if handles:
        _, device_index = handles[0].__dlpack_device__()
        backend.synchronize(device_index)


def _line(
    backend: Backend, op: str, args: tuple[object, ...], inputs: list[Handle], outputs: list[Handle], seconds: float
) -> str:
    gigabytes = operands.num_bytes(backend, inputs + outputs) / 1e9
    columns = f"{op:<22} {seconds * 1e6:9.1f} µs {gigabytes / seconds:8.2f} GB/s"
    count = TRAITS[op].flops
    columns += f" {count(*args) / 1e9 / seconds:8.1f} GFLOP/s" if count else " " * 17
    arrays = f"{operands.describe(backend, inputs)} → {operands.describe(backend, outputs)}"
    return f"{columns}  {arrays}{precision_of(op, arrays)}"


def precision_of(op: str, arrays: str) -> str:
    """ " highest": what holds for the products of float32 in an op that has any; "" for other ops."""
    return f" {get_float32_precision()}" if TRAITS[op].flops and "float32" in arrays else ""
