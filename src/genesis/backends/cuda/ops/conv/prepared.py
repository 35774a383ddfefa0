"""Convolutions prepared for operands of certain layouts, for calls on addresses: what all ops with one share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypedDict, Unpack

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.engine.plan import Plan, Ready
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.kernels import weight as kernels
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, ConvProblem
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.runtime.array import Layout, layout_of
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry
from genesis.settings import settings
from genesis.shapes import channels_last_strides

_age = 0  # grows whenever plans are to be chosen anew


def _forget() -> None:
    global _age
    _age += 1


planner.when_choosing_anew(_forget)
driver.forget_on_switch(_forget)


def unchanged() -> Callable[[], bool]:
    """Are plans still those of now?"""
    then = _age
    return lambda: then == _age


class _Wanted(TypedDict, total=False):
    """Fields of a problem in which several convolutions of the same shapes differ."""

    direction: str
    bias: bool
    residual: bool
    activation: str | None
    statistics: bool


class Plans:
    """Convolutions' plans, as they were found."""

    def __init__(self, problem: ConvProblem) -> None:
        """problem: the shapes and settings of all of them."""
        self._age, self._problem = _age, problem
        self._found: list[tuple[Plan[ConvProblem], Ready]] = []
        self._may_keep = True
        self._precision = problem.precision if problem.dtype is dtypes.float32 else None

    def add(self, **wanted: Unpack[_Wanted]) -> Ready:
        problem = dataclasses.replace(self._problem, **wanted)
        if problem.statistics and not families.gives_statistics(problem):
            problem = dataclasses.replace(problem, statistics=False)
        plan = planner.plan(CONV, problem)
        ready = plan.ready
        assert ready is not None
        self._may_keep = self._may_keep and planner.may_keep(plan)
        self._found.append((plan, ready))
        return ready

    def are_current(self) -> bool:
        if (
            not self._may_keep
            or self._age != _age
            or (self._precision is not None and self._precision != get_float32_precision())
        ):
            return False
        for plan, ready in self._found:  # noqa: SIM110, a generator takes longer than all else here
            if plan.ready is not ready:
                return False
        return True


def problem_of(x: Layout, weight: Layout, geometry: ConvGeometry) -> ConvProblem:
    precision = get_float32_precision() if x.dtype is dtypes.float32 else "highest"
    return ConvProblem(
        FORWARD, x.shape, weight.shape, *geometry, dtype=x.dtype, precision=precision,
        deterministic=settings.deterministic, device=x.device_index,
    )  # fmt: skip


def ordered(layout: Layout, dtype: dtypes.DType) -> Layout:
    """The layout of a new array in NHWC."""
    return layout_of(layout.shape, dtype, layout.device_index, channels_last_strides(layout.shape))


def prepare_copy(out: Layout, weight: Layout) -> Callable[[int, int, int], None]:
    """run(stream, out, weight): out = weight, in another dtype or order."""
    wide = out.dtype if out.dtype.itemsize > weight.dtype.itemsize else weight.dtype
    num_elements, block = weight.size, 1024
    return prepare_raw(
        kernels._weight_kernel, out.device_index, (-(-num_elements // block),), (out, weight), num_elements,
        *weight.shape[1:], *out.strides, *weight.strides, COMPUTE=COMPUTE[wide], BLOCK=block,
    )  # fmt: skip


def rounded(num_bytes: int) -> int:
    """To where the next part of a piece of memory may begin."""
    return -(-num_bytes // 256) * 256
