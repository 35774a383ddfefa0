"""GENESIS_CHECK=cpu: each op of a device also runs on the CPU; the first whose results differ raises, with its line."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from genesis import dtypes
from genesis.backends.backend import Backend, Op
from genesis.backends.contract import TRAITS, Shape
from genesis.backends.tools import operands
from genesis.backends.tools.operands import Handle, is_handle
from genesis.callsite import user_line
from genesis.errors import MismatchError
from genesis.records import (
    BegunConvNorm,
    ConvGeometry,
    NormState,
    SavedAttention,
    SavedConvNorm,
    SavedGroupNorm,
    Windows,
    is_output,
    rebuilt,
)

# Relative to the element itself and to the largest one, see _allowed().
TOLERANCE = {dtypes.float64: 1e-10, dtypes.float32: 1e-4, dtypes.float16: 4e-3, dtypes.bfloat16: 3e-2}


def around(backend: Backend, get_cpu: Callable[[], Backend]) -> Callable[[str, Op], Op]:
    """The wrapper of each op of a backend other than the CPU's; get_cpu gives that one."""
    copies = _Copies(backend, get_cpu)

    def check(op: str, function: Op) -> Op:
        traits = TRAITS[op]
        if traits.idle or traits.random or traits.unwritten or traits.from_outside or traits.to_outside:
            return function

        def checked(*args: object, **kwargs: object) -> object:
            theirs = [copies.of(value) for value in args]
            options = {name: copies.of(value) for name, value in kwargs.items()}
            before = _largest(copies.cpu, theirs) if traits.accumulates else 0.0
            result = function(*args, **kwargs)
            expected = _REFERENCES.get(op, _same_op)(copies.cpu, op, *theirs, **options)
            if traits.makes_opaque:
                copies.remember(result, expected)
                return result
            inputs = operands.arguments(op, (*args, *kwargs.values()))
            pairs = [("argument", *pair) for pair in enumerate(zip(inputs, _handles(theirs, options), strict=True))]
            outputs = list(zip(operands.results(op, result), operands.results(op, expected), strict=False))
            if op in _REFERENCES:
                outputs = [(ours, copies.cpu.cast(theirs, backend.dtype(ours))) for ours, theirs in outputs]
            pairs += [("result", *pair) for pair in enumerate(outputs[: traits.comparable])]
            for kind, number, (ours, reference) in pairs:
                difference = _difference(copies, ours, reference, before, inputs)
                if difference is not None:
                    raise MismatchError(
                        f"{op}: {kind} {number} differs from the CPU's: {difference}; from "
                        f"{operands.describe(backend, inputs)}; called at {user_line()}"
                    )
            return result

        return checked

    return check


class _Copies:
    """The arguments of a device's op, on the CPU."""

    def __init__(self, backend: Backend, get_cpu: Callable[[], Backend]) -> None:
        self._backend, self._get_cpu = backend, get_cpu
        self._remembered: dict[int, object] = {}  # opaque values of the device → those of the CPU

    @property
    def cpu(self) -> Backend:
        return self._get_cpu()

    def of(self, value: object) -> object:
        if isinstance(value, list | tuple):
            return rebuilt(value, [self.of(item) for item in value])
        if is_handle(value):
            return self.of_handle(value)
        return self._remembered.get(id(value), value)

    def of_handle(self, handle: Handle) -> Handle:
        made: Handle = self.cpu.from_cpu(self._backend.to_cpu(handle), self._backend.dtype(handle))
        return made

    def remember(self, value: object, reference: object) -> None:
        """From now on `reference` stands for `value`, as long as that lives."""
        self._remembered[id(value)] = reference
        weakref.finalize(value, self._remembered.pop, id(value), None)


def _same_op(cpu: Backend, op: str, *args: object, **kwargs: object) -> object:
    return getattr(cpu, op)(*args, **kwargs)


def _attention_backward(
    cpu: Backend, op: str, grad: object, saved: SavedAttention[object, object], is_causal: bool, scale: float
) -> object:
    """From what softmax gave on the CPU: each backend has its own."""
    _, softmax = cpu.attention(saved.query, saved.key, saved.value, saved.mask, is_causal, scale)
    return cpu.attention_backward(grad, saved._replace(softmax=softmax), is_causal, scale)


def _norm_backward(cpu: Backend, op: str, *args: object) -> object:
    """In float32 at least: in which dtype the statistics of 16-bit arrays are is each backend's own choice."""

    def widened(value: object) -> object:
        if isinstance(value, SavedGroupNorm):
            return SavedGroupNorm(*map(widened, value))
        is_short = is_handle(value) and cpu.dtype(value) in (dtypes.float16, dtypes.bfloat16)
        return cpu.cast(value, dtypes.float32) if is_short else value

    return getattr(cpu, op)(*map(widened, args))


def _conv_bn_relu_backward(
    cpu: Backend, op: str, grad: object, saved: SavedConvNorm[Handle], training: bool, geometry: ConvGeometry,
    activation: str | None, *rest: object,
) -> object:  # fmt: skip
    """From a convolution's output of the CPU's own; what was kept of the values before the activation is taken over."""
    needs, _, addend = (*rest, False, None)[:3]  # between them: may_overwrite
    saved = saved._replace(kept=cpu.conv_forward(saved.input, saved.weight, saved.bias, geometry))
    if activation is not None:
        passed = _passed(cpu, saved)
        if activation != "relu":
            begun = BegunConvNorm(saved.mean, saved.inverse_std, saved.kept, cpu.cast(passed, cpu.dtype(grad)))
            norm = NormState(saved.gamma, saved.beta, None, None)
            *_, passed = cpu.conv_bn_finish(saved.input, saved.weight, norm, begun, None, 0.0, activation)
        saved = saved._replace(passed=passed)
    return cpu.conv_bn_relu_backward(grad, saved, training, geometry, activation, needs, False, addend)


def _passed(cpu: Backend, saved: SavedConvNorm[Handle]) -> Handle:
    """The values before the activation, or such as are positive where those are: from one bit per element, channels
    innermost, or as they were kept, or from the norm's output."""
    x, mean, bits = saved.kept, saved.mean, saved.passed
    if bits is None:
        identity = [cpu.view(v, (1, v.shape[0], 1, 1), (0, 1, 0, 0), cpu.offset(v)) for v in (mean, saved.inverse_std)]
        y = cpu.mul(cpu.sub(cpu.cast(x, cpu.dtype(mean)), identity[0]), identity[1])
        for vector, combine in ((saved.gamma, cpu.mul), (saved.beta, cpu.add)):
            if vector is not None:
                wide = cpu.cast(vector, cpu.dtype(mean))
                y = combine(y, cpu.view(wide, (1, wide.shape[0], 1, 1), (0, 1, 0, 0), cpu.offset(wide)))
        return y
    if is_output(bits):
        return cpu.cast(bits, cpu.dtype(x))
    num_images, num_channels, height, width = x.shape
    rows = np.unpackbits(np.ascontiguousarray(cpu.to_cpu(bits)), axis=1, bitorder="little")[:, :num_channels]
    images = rows.reshape(num_images, height, width, num_channels).transpose(0, 3, 1, 2)
    return cpu.cast(cpu.from_cpu(np.ascontiguousarray(images)), cpu.dtype(x))


def _max_pool2d_backward(
    cpu: Backend, op: str, grad: object, input_shape: Shape, found: Handle, windows: Windows
) -> object:
    """From indices, where the device kept places in windows instead."""
    if cpu.dtype(found) is not dtypes.int64:
        kernel_size, stride, padding, dilation, _ = windows
        steps = divmod(np.array(cpu.to_cpu(found), np.int64), kernel_size[1])
        starts = [np.arange(found.shape[i - 2]) * stride[i] - padding[i] for i in (0, 1)]
        rows = starts[0][:, None] + steps[0] * dilation[0]
        found = cpu.from_cpu(rows * input_shape[-1] + starts[1] + steps[1] * dilation[1])
    return cpu.max_pool2d_backward(grad, input_shape, found, windows)


_REFERENCES: dict[str, Op] = {
    "conv_bn_relu_backward": _conv_bn_relu_backward,
    "attention_backward": _attention_backward,
    "max_pool2d_backward": _max_pool2d_backward,
    **dict.fromkeys(
        ("batch_norm_backward", "layer_norm_backward", "group_norm_backward", "rms_norm_backward"), _norm_backward
    ),
}  # what to compare with, where it is not the same op with the same arguments


def _handles(args: list[object], kwargs: dict[str, object]) -> list[Handle]:
    return operands.handles_in((*args, *kwargs.values()))


def _difference(copies: _Copies, ours: Handle, reference: Handle, before: float, inputs: list[Handle]) -> str | None:
    """Describe the difference, or None. before: the largest value of the inputs, where it counts."""
    cpu, backend = copies.cpu, copies._backend
    kinds = [(tuple(ours.shape), backend.dtype(ours).name), (tuple(reference.shape), cpu.dtype(reference).name)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0][1]} {kinds[0][0]}, on the CPU {kinds[1][1]} {kinds[1][0]}"
    actual, expected = (_values(cpu, x) for x in (copies.of_handle(ours), reference))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore"):  # infinities that are the same subtract to NaN
        error = np.where(same, 0, np.nan_to_num(np.abs(actual - expected), nan=np.inf, posinf=np.inf))
    tolerance = max([TOLERANCE.get(dtype, 0.0) for dtype in [backend.dtype(x) for x in (ours, *inputs)]])
    if not backend.dtype(ours).is_floating_point:
        tolerance = 0.0
    finite = np.abs(np.where(np.isfinite(expected), expected, 0))
    allowed = tolerance * (finite + max(finite.max(initial=0.0), before))
    wrong = error > allowed
    if not wrong.any():
        return None
    worst = np.unravel_index(np.argmax(np.where(wrong, error, 0)), error.shape)
    index = tuple(int(i) for i in worst)
    return (
        f"{wrong.sum()} of {wrong.size} elements, most at {index}: {actual[worst]:.6g} on {backend.name}, "
        f"{expected[worst]:.6g} on the CPU (error {error[worst]:.3g}, allowed {allowed[worst]:.3g})"
    )


def _largest(cpu: Backend, args: list[object]) -> float:
    """The largest finite absolute value among the floating arrays."""
    floats = [_values(cpu, x) for x in operands.handles_in(args) if cpu.dtype(x).is_floating_point]
    return max([float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in floats], default=0.0)


def _values(cpu: Backend, x: Handle) -> npt.NDArray[np.float64]:
    """A CPU handle as float64; integers beyond 2**53 lose their last digits alike on both sides."""
    return np.array(cpu.to_cpu(cpu.cast(x, dtypes.float64)))
