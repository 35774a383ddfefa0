"""Convolution: forward, both gradients, and the forward with a prepacked weight.

    problem.py        what decides: ConvProblem
    families.py       where candidates come from, the most promising first
    candidates/       the ways to compute it, with their kernels
    ../../engine/     chooses among them: from the store, by tuning, or by guess

Each launcher finds its call by a look-up with a cheap key (the operands' layouts); only the first call of a kind makes
the ConvProblem and asks for its plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, overload

from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.ops.activation.fused import activate
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.plan import ConvPlan, Result
from genesis.backends.cuda.ops.conv.plan import Moments as Moments
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.storage.launch import copy, copy_into
from genesis.backends.cuda.ops.storage.rows import channels_last, dense
from genesis.backends.cuda.runtime.array import DeviceArray, empty
from genesis.dtypes import float32
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry
from genesis.settings import settings
from genesis.shapes import Shape, channels_last_strides, numel


def conv_forward(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, geometry: ConvGeometry
) -> DeviceArray:
    return _run(FORWARD, (input, weight, bias, None), geometry)


def conv_forward_with_moments(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, geometry: ConvGeometry
) -> tuple[DeviceArray, Moments | None]:
    """conv_forward, and its result's statistics per channel; None where no kernel finds them by the way."""
    found = _run(FORWARD, (input, weight, bias, None), geometry, statistics=True)
    return found if isinstance(found, tuple) else (found, None)


def conv_forward_folded(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, residual: DeviceArray | None,
    activation: str | None, geometry: ConvGeometry,
) -> DeviceArray:  # fmt: skip
    """activation(conv_forward + residual); all but ReLU by a pass over the result, which no kernel does without."""
    if activation in (None, "relu"):
        return _run(FORWARD, (input, weight, bias, residual), geometry, activation=activation)
    return activate(_run(FORWARD, (input, weight, bias, residual), geometry), activation)


def conv_input_grad(
    grad: DeviceArray, weight: DeviceArray, input_shape: Shape, geometry: ConvGeometry, bias: DeviceArray | None = None
) -> DeviceArray:
    return _run(INPUT_GRAD, (grad, weight, bias, None), geometry, input_shape)


def conv_input_grad_added(
    grad: DeviceArray, weight: DeviceArray, addend: DeviceArray | None, input_shape: Shape, geometry: ConvGeometry
) -> DeviceArray:
    """conv_input_grad + addend, which has the result's shape and dtype; None adds nothing."""
    return _run(INPUT_GRAD, (grad, weight, None, addend), geometry, input_shape)


def conv_weight_grad(grad: DeviceArray, input: DeviceArray, weight_shape: Shape, geometry: ConvGeometry) -> DeviceArray:
    return _run(WEIGHT_GRAD, (grad, input, None, None), geometry, weight_shape)


@dataclass(frozen=True)
class PackedWeight:
    """A weight in the layout of the candidates, and what a convolution with it needs to know."""

    fits_all_shapes: ClassVar[bool] = True
    weight: DeviceArray
    bias: DeviceArray | None
    geometry: ConvGeometry


def conv_prepack(
    weight: DeviceArray, bias: DeviceArray | None, input_shape: Shape, geometry: ConvGeometry
) -> PackedWeight:
    return PackedWeight(copy(weight, channels_last_strides(weight.shape)), bias, geometry)


def conv_prepacked(
    input: DeviceArray, packed: PackedWeight, residual: DeviceArray | None, activation: str | None
) -> DeviceArray:
    return conv_forward_folded(input, packed.weight, packed.bias, residual, activation, packed.geometry)


_Operands = tuple[DeviceArray, DeviceArray, DeviceArray | None, DeviceArray | None]  # two, bias, residual
_Call = Callable[[DeviceArray, DeviceArray, DeviceArray | None, DeviceArray | None], Result]
_calls: dict[tuple[object, ...], _Call] = {}
planner.when_choosing_anew(_calls.clear)


_OPS = {FORWARD: "conv_forward", INPUT_GRAD: "conv_input_grad", WEIGHT_GRAD: "conv_weight_grad"}


@overload
def _run(
    direction: str, operands: _Operands, geometry: ConvGeometry, result_shape: Shape | None = None,
    activation: str | None = None,
) -> DeviceArray: ...  # fmt: skip
@overload
def _run(direction: str, operands: _Operands, geometry: ConvGeometry, *, statistics: Literal[True]) -> Result: ...
def _run(
    direction: str, operands: _Operands, geometry: ConvGeometry, result_shape: Shape | None = None,
    activation: str | None = None, statistics: bool = False,
) -> Result:  # fmt: skip
    """result_shape: of gradients, where it does not follow from the operands' shapes."""
    first, second, bias, residual = operands
    precision = get_float32_precision() if first.dtype is float32 else "highest"
    key = (
        direction, first._layout or first.layout, second._layout or second.layout,
        None if bias is None else bias.layout, None if residual is None else residual.layout, _alignment(operands),
        activation, result_shape, geometry, precision, statistics,
    )  # fmt: skip
    call = _calls.get(key)
    if call is not None:
        return call(first, second, bias, residual)
    if not first.dtype.is_floating_point:
        raise NotImplementedError(f"{_OPS[direction]} has no cuda implementation for {first.dtype.name}")
    ordered = _ordered(*operands)
    input_shape, weight_shape = {
        FORWARD: (first.shape, second.shape),
        INPUT_GRAD: (result_shape, second.shape),
        WEIGHT_GRAD: (second.shape, result_shape),
    }[direction]
    assert input_shape is not None
    assert weight_shape is not None
    problem = ConvProblem(
        direction, input_shape, weight_shape, *geometry, dtype=first.dtype,
        bias=bias is not None, residual=residual is not None, activation=activation, statistics=statistics,
        alignment=_alignment(ordered), precision=precision, deterministic=settings.deterministic,
        device=first.device_index,
    )  # fmt: skip
    if numel(problem.result_shape) == 0:
        shape = problem.result_shape
        return empty(shape, first.dtype, first.device_index, channels_last_strides(shape))
    if first.size == 0:  # a weight's gradient without a pixel
        shape = problem.result_shape
        zeros = empty(shape, first.dtype, first.device_index, channels_last_strides(shape))
        copy_into(zeros, 0)
        return zeros
    if statistics and not families.gives_statistics(problem):
        problem = dataclasses.replace(problem, statistics=False)
    plan = planner.plan(CONV, problem)
    assert isinstance(plan, ConvPlan)
    as_given = all(a is b for a, b in zip(ordered, operands, strict=True))
    if planner.may_keep(plan):
        _calls[key] = plan if as_given else lambda *operands: plan(*_ordered(*operands))
    return plan(*ordered)


def _alignment(operands: _Operands) -> int:
    """By how many bytes all addresses are divisible, up to 16."""
    first, second, bias, residual = operands
    bits = first.data_pointer | second.data_pointer | 16
    if bias is not None:
        bits |= bias.data_pointer
    if residual is not None:
        bits |= residual.data_pointer
    return bits & -bits


def _ordered(
    first: DeviceArray, second: DeviceArray, bias: DeviceArray | None, residual: DeviceArray | None
) -> _Operands:
    """The operands as the candidates want them, in copies where they are not."""
    return channels_last(first), channels_last(second), dense(bias), channels_last(residual)
