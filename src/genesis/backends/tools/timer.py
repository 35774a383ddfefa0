"""GENESIS_DEBUG=2: a line per op on stderr: what went in and out, the time, GB/s, and GFLOP/s where that counts."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from genesis.backends.backend import Backend, Op
from genesis.backends.tools import operands
from genesis.precision import get_float32_precision


def around(backend: Backend) -> Callable[[str, Op], Op]:
    """What to put around each op; backend is asked about its arrays, and waits for the device."""

    def measure(op: str, function: Op) -> Op:
        if op in operands.NO_WORK:
            return function

        def measured(*args: Any, **kwargs: Any) -> Any:
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


def _wait(backend: Backend, handles: list[Any]) -> None:
    if handles:
        _, device_index = handles[0].__dlpack_device__()
        backend.synchronize(device_index)


def _line(
    backend: Backend, op: str, args: tuple[Any, ...], inputs: list[Any], outputs: list[Any], seconds: float
) -> str:
    gigabytes = operands.num_bytes(backend, inputs + outputs) / 1e9
    columns = f"{op:<22} {seconds * 1e6:9.1f} µs {gigabytes / seconds:8.2f} GB/s"
    count = FLOPS.get(op)
    columns += f" {count(*args) / 1e9 / seconds:8.1f} GFLOP/s" if count else " " * 17
    arrays = f"{operands.describe(backend, inputs)} → {operands.describe(backend, outputs)}"
    return f"{columns}  {arrays}{precision_of(op, arrays)}"


# --- floating-point operations: a multiplication and an addition for each product of a sum ---------------------------


def _matmul(x: Any, y: Any) -> int:
    batch = max(math.prod(x.shape[:-2]), math.prod(y.shape[:-2]))
    return 2 * batch * math.prod(x.shape[-2:]) * y.shape[-1]


def _linear(x: Any, weight: Any, *_: Any) -> int:
    return 2 * math.prod(x.shape) * weight.shape[0]


def _conv_forward(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *_: Any) -> int:
    sizes = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    plane = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes]
    return 2 * input.shape[0] * math.prod(plane) * math.prod(weight.shape)


def _conv_input_grad(grad: Any, weight: Any, *_: Any) -> int:
    return _per_output(grad) * math.prod(weight.shape)


def _conv_weight_grad(grad: Any, input: Any, weight_shape: Any, *_: Any) -> int:
    return _per_output(grad) * math.prod(weight_shape)


def _conv_bn_relu(input: Any, weight: Any, *args: Any) -> int:
    stride, padding, dilation = args[9:12]
    return _conv_forward(input, weight, None, stride, padding, dilation)


def _conv_bn_relu_backward(grad: Any, input: Any, weight: Any, *args: Any) -> int:
    needs_input, needs_weight, *_ = args[13]
    return (needs_input + needs_weight) * _per_output(grad) * math.prod(weight.shape)


def _per_output(grad: Any) -> int:
    return 2 * grad.shape[0] * math.prod(grad.shape[2:])  # the channels are counted with the weight


def precision_of(op: str, arrays: str) -> str:
    """ " highest": what holds for the products of float32 in an op that has any; "" for other ops."""
    return f" {get_float32_precision()}" if op in FLOPS and "float32" in arrays else ""


FLOPS: dict[str, Callable[..., int]] = {
    "matmul": _matmul,
    "linear": _linear,
    "conv_forward": _conv_forward,
    "conv_input_grad": _conv_input_grad,
    "conv_weight_grad": _conv_weight_grad,
    "conv_bn_relu": _conv_bn_relu,
    "conv_bn_relu_backward": _conv_bn_relu_backward,
}
