"""Matrix products: cuBLASLt where it is installed or the Triton kernel, whichever the engine chooses."""

from __future__ import annotations

from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.matmul.operation import MATMUL, MatmulPlan
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.precision import get_float32_precision
from genesis.settings import settings
from genesis.shapes import Shape, broadcast, broadcast_strides, contiguous_strides


class _Call(NamedTuple):
    """The part that calls with operands of the same layouts share."""

    result: Layout
    plan: MatmulPlan | None  # None: the result is empty


_calls: dict[tuple[object, ...], _Call] = {}
planner.when_choosing_anew(_calls.clear)


def matmul(x: DeviceArray, y: DeviceArray) -> DeviceArray:
    return _product(x, y, None, transposed=False)


def linear(x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None) -> DeviceArray:
    return _product(x, weight, bias, transposed=True)


def splits_float32(device: int) -> bool:
    """Are products of float32 of which all bits count computed in parts, on tensor cores, if nothing is measured?"""
    return hopper.is_available(device)


def _product(x: DeviceArray, y: DeviceArray, bias: DeviceArray | None, transposed: bool) -> DeviceArray:
    """x @ y, or of rows x with y transposed, plus bias."""
    if bias is not None and bias.strides != (1,):
        bias = copy(bias, (1,))
    bits = x.data_pointer | y.data_pointer | (0 if bias is None else bias.data_pointer) | 16
    alignment = bits & -bits
    precision = get_float32_precision() if x.dtype is dtypes.float32 else "highest"
    key = (x._layout or x.layout, y._layout or y.layout, bias is None, alignment, precision, transposed)
    call = _calls.get(key)
    if call is None:
        call = _prepared(x, y, bias is not None, alignment, precision, transposed)
        if call.plan is None or planner.may_keep(call.plan):
            _calls[key] = call
    result, plan = call
    stream = streams.current_handle(result.device_index)
    out = result.new(stream)
    if plan is not None:
        _, launch, num_bytes, _ = plan.ready  # type: ignore[misc]
        third = 0 if bias is None else bias.data_pointer
        if num_bytes:
            plan.launch_with_workspace(stream, out.data_pointer, x.data_pointer, y.data_pointer, third)
        else:
            launch(stream, out.data_pointer, x.data_pointer, y.data_pointer, third, 0, 0)
    return out


def _prepared(
    x: DeviceArray, y: DeviceArray, has_bias: bool, alignment: int, precision: str, transposed: bool
) -> _Call:
    if x.dtype is dtypes.bool_:
        raise NotImplementedError("matmul has no cuda implementation for bool")
    if transposed:
        shape = (*x.shape[:-1], y.shape[0])
        y = y.view(y.shape[::-1], y.strides[::-1], y.offset)
        x = x if len(x.shape) > 1 else x.view((1, *x.shape), (0, *x.strides), x.offset)
        batch = x.shape[:-2]
    else:
        batch = broadcast("matmul", x.shape[:-2], y.shape[:-2])
        shape = (*batch, x.shape[-2], y.shape[-1])
    result = layout_of(shape, x.dtype, x.device_index)
    if result.size == 0:
        return _Call(result, None)
    plan = planner.plan(MATMUL, problem_of(x, y, has_bias, alignment, precision, batch))
    assert isinstance(plan, MatmulPlan)
    return _Call(result, plan)


def problem_of(
    x: DeviceArray, y: DeviceArray, has_bias: bool, alignment: int, precision: str, batch: Shape
) -> MatmulProblem:
    rows, terms, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    x_strides, y_strides = x.strides[-2:], y.strides[-2:]
    x_walk = broadcast_strides("matmul", x.shape[:-2], x.strides[:-2], batch)
    y_walk = broadcast_strides("matmul", y.shape[:-2], y.strides[:-2], batch)
    if batch and not any(y_walk):  # one matrix for all: x's batch becomes more rows, where its strides allow
        whole, walk = (*batch, rows), (*x_walk, x_strides[0])
        sizes, walks = collapse(whole, [contiguous_strides(whole), walk])
        if len(sizes) == 1:
            rows, x_strides, batch, x_walk, y_walk = sizes[0], (walks[1][0], x_strides[1]), (), (), ()
    sizes, walks = collapse(batch, [contiguous_strides(batch), x_walk, y_walk])
    return MatmulProblem(
        x.device_index, x.dtype, rows, columns, terms, x_strides, y_strides,
        sizes[::-1], walks[1][::-1], walks[2][::-1], has_bias, alignment, precision, settings.deterministic,
    )  # fmt: skip
