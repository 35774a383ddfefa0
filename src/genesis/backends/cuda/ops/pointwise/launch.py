"""apply(): one element-wise op on arrays and numbers, with broadcasting, any strides and any of the dtypes.

What is decided once per combination of shapes, strides, dtypes and alignments is kept as a Plan, so that the second
call looks it up, allocates and launches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import LoadedKernel, RawLaunch, Value
from genesis.backends.cuda.launch import triton as launch
from genesis.backends.cuda.launch.strides import collapse, is_dense, reach
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE, pointwise_kernel, pointwise_strided_kernel
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.shapes import Shape, broadcast, broadcast_strides, contiguous_strides, numel

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

Number = bool | int | float
Operand = DeviceArray | Number | None

_BLOCK = 1024


@dataclasses.dataclass(slots=True)
class Plan:
    """All that calls with equal layouts share."""

    result: Layout
    # What Python numbers are converted to, and Nones are dropped; None: nothing of that is needed.
    number: Callable[[Number], Number] | None
    run: RawLaunch | None = None  # (stream, address of the result, operands); None: the result is empty


_plans: dict[tuple[object, ...], Plan] = {}
driver.forget_on_switch(_plans.clear)


def apply(op: JITFunction, *operands: Operand, dtype: DType | None = None, floats_only: bool = False) -> DeviceArray:
    """A new array of op's results.

    Args:
        op: a @triton.jit function of as many values as there are operands.
        operands: arrays that broadcast together, numbers, and None for an optional last ones.
        dtype: of the result; by default that of the operands, promoted.
        floats_only: op has no meaning on integers; NotImplementedError says so.
    """
    key: list[object] = [op.fn, dtype]  # the Python function: Triton hashes its own slowly
    values: list[Value] = []
    for operand in operands:
        if isinstance(operand, DeviceArray):
            key.append(operand._layout or operand.layout)
            values.append(operand.data_pointer)
        else:
            key.append(type(operand))
            values.append(operand)
    plan = _plans.get(tuple(key))
    if plan is None:
        plan = _plans[tuple(key)] = _plan(op, operands, None, dtype, floats_only)
    stream = streams.current_handle(plan.result.device_index)
    out = plan.result.new(stream)
    if plan.number is not None:
        values = _converted(operands, values, plan.number)
    if plan.run is not None:
        plan.run(stream, out.data_pointer, *values)
    return out


def binary(
    module: str, op: JITFunction, dtype: DType | None = None, floats_only: bool = False
) -> Callable[[Operand, Operand], DeviceArray]:
    """A module's function of two operands: apply(op, x, y, ...).

    It finds the plan for two arrays, or for an array and a float, with less on the way than apply(), which does the
    rest.
    """
    plans: dict[tuple[Layout, Layout | type], Plan] = {}
    driver.forget_on_switch(plans.clear)

    def apply_to_two(x: Any, y: Any) -> DeviceArray:
        kind = type(y)
        if type(x) is not DeviceArray or (kind is not DeviceArray and kind is not float):
            return apply(op, x, y, dtype=dtype, floats_only=floats_only)
        if kind is DeviceArray:
            key, value = (x._layout or x.layout, y._layout or y.layout), y.data_pointer
        else:  # what is computed with a float is computed in floats: it needs no conversion
            key, value = (x._layout or x.layout, kind), y
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = _plan(op, (x, y), None, dtype, floats_only)
        result = plan.result
        stream = streams.current_handle(result.device_index)
        out = result.new(stream)
        if plan.run is not None:
            plan.run(stream, out.data_pointer, x.data_pointer, value)
        return out

    apply_to_two.__module__ = module
    apply_to_two.__name__ = apply_to_two.__qualname__ = _name(op)
    return apply_to_two


def apply_into(target: DeviceArray, op: JITFunction, *operands: Operand, dtype: DType | None = None) -> None:
    """target = op's results, cast; the operands broadcast to target's shape. dtype: to compute in."""
    kinds = [operand.layout if isinstance(operand, DeviceArray) else type(operand) for operand in operands]
    key = (op.fn, dtype, *kinds, "into", target.layout)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _plan(op, operands, target, dtype, False)
    values = [operand.data_pointer if isinstance(operand, DeviceArray) else operand for operand in operands]
    if plan.number is not None:
        values = _converted(operands, values, plan.number)
    if plan.run is not None:
        plan.run(streams.current_handle(target.device_index), target.data_pointer, *values)


def _converted(operands: Sequence[Operand], values: Sequence[Value], number: Callable[[Number], Number]) -> list[Value]:
    """The values without Nones, and with the numbers among the operands in the type that the kernel takes."""
    pairs = zip(operands, values, strict=True)
    return [v if isinstance(operand, DeviceArray) else number(v) for operand, v in pairs if v is not None]


def _name(op: JITFunction) -> str:
    return op.__name__.removeprefix("_").removesuffix("_kernel")


def _plan(
    op: JITFunction,
    operands: Sequence[Operand],
    target: DeviceArray | None,
    dtype: DType | None,
    floats_only: bool,
) -> Plan:
    name = _name(op)
    arrays = [operand for operand in operands if isinstance(operand, DeviceArray)]
    operand_dtype = dtypes.result_type(
        (operand.dtype, 2) if isinstance(operand, DeviceArray) else (dtypes.of_scalar(operand), 0)
        for operand in operands
        if operand is not None
    )
    if floats_only and not operand_dtype.is_floating_point:
        raise NotImplementedError(f"{name} has no cuda implementation for {operand_dtype.name}")
    if target is None:
        compute = operand_dtype
        shape = broadcast(name, *(x.shape for x in arrays))
        strides = next((x.strides for x in arrays if x.shape == shape and is_dense(x)), contiguous_strides(shape))
        out = layout_of(shape, operand_dtype if dtype is None else dtype, arrays[0].device_index, strides)
    else:
        compute, out = dtype or operand_dtype, target.layout
    number = float if compute.is_floating_point else int
    ready = all(isinstance(operand, DeviceArray) or type(operand) is number for operand in operands)
    plan = Plan(out, None if ready else number)
    if out.size == 0:
        return plan

    walks = [out.strides] + [broadcast_strides(name, x.shape, x.strides, out.shape) for x in arrays]
    sizes, merged = collapse(out.shape, walks)
    wide = any(reach(sizes, walk) >= 2**31 for walk in merged) or numel(sizes) >= 2**31 - _BLOCK
    kinds: list[launch.ArgumentKind] = ["*" + launch.TRITON_NAMES[out.dtype] + ("/16" if out.aligned else "")]
    for operand in operands:
        if isinstance(operand, DeviceArray):
            kinds.append(launch.array_kind(operand))
        else:
            kinds.append(None if operand is None else "f" if number is float else "i64")
    kinds.extend([None] * (5 - len(kinds)))
    constants: dict[str, object] = {"OP": op, "COMPUTE": COMPUTE[compute], "WIDE": wide}
    if len(sizes) == 1 and all(walk == (1,) for walk in merged):
        constants["ARRAYS"] = sum(1 << i for i, operand in enumerate(operands) if isinstance(operand, DeviceArray))
        kinds.append(launch.number_kind(sizes[0]))
        kernel = launch.load(pointwise_kernel, out.device_index, tuple(kinds), {**constants, "BLOCK": _BLOCK})
        return _with_run(plan, kernel, -(-sizes[0] // _BLOCK), operands, sizes)
    return _with_strided_run(plan, kinds, constants, operands, sizes, merged)


def _with_strided_run(
    plan: Plan, kinds: list[launch.ArgumentKind], constants: dict[str, object], operands: Sequence[Operand],
    sizes: Shape, walks: list[Shape],
) -> Plan:  # fmt: skip
    """kinds: of the result and the four operands; walks: of the result and the arrays."""
    if len(sizes) == 1:  # the kernel has rows
        sizes, walks = (1, *sizes), [(0, *walk) for walk in walks]
    num_columns, others = sizes[-1], sizes[:-1][::-1]
    num_rows = math.prod(others)
    innermost = [walk[-1] for walk in walks]
    block_columns = min(1 << (num_columns - 1).bit_length(), _BLOCK if all(s <= 1 for s in innermost) else 32)
    block_rows = min(1 << (num_rows - 1).bit_length(), _BLOCK // block_columns)
    next_walk = iter([walk[::-1] for walk in walks])
    tuples: list[tuple[int, ...] | None] = [others, next(next_walk)]
    tuples += [next(next_walk) if isinstance(operand, DeviceArray) else None for operand in operands]
    tuples += [None] * (6 - len(tuples))
    kinds = [*kinds, launch.number_kind(num_rows), launch.number_kind(num_columns)]
    tail: list[Value] = [num_rows, num_columns]
    for entry in tuples:
        kinds.append(None if entry is None else tuple(launch.number_kind(size) for size in entry))
        tail.extend([None] if entry is None else entry)
    blocks = {"RANK": len(others), "BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns}
    device = plan.result.device_index
    kernel = launch.load(pointwise_strided_kernel, device, tuple(kinds), {**constants, **blocks})
    grid = -(-num_rows // block_rows) * -(-num_columns // block_columns)
    return _with_run(plan, kernel, grid, operands, tail)


def _with_run(plan: Plan, kernel: LoadedKernel, grid: int, operands: Sequence[Operand], rest: Sequence[Value]) -> Plan:
    """rest: the kernel's values after its four operands."""
    given = sum(operand is not None for operand in operands)
    plan.run = kernel.prepare((grid, 1, 1), 1 + given, (*[None] * (4 - given), *rest))
    return plan


def new_like(x: DeviceArray, dtype: DType | None = None) -> DeviceArray:
    """A new array of x's shape, in its order of memory where it is dense, else row-major; of its dtype by default."""
    return layout_like(x._layout or x.layout, dtype or x.dtype).new(streams.current_handle(x.device_index))


@functools.cache
def layout_like(layout: Layout, dtype: DType) -> Layout:
    """Layout of new_like()."""
    return layout_of(layout.shape, dtype, layout.device_index, layout.strides if is_dense(layout) else None)
