"""Convolutions with packed weights, for inputs of any shape, by the algorithm that is expected to be the fastest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu import fused_activation, packing
from genesis.backends.cpu.x86 import choices, depthwise, direct, expand_depthwise, machine, pages, winograd
from genesis.backends.cpu.x86.choices import ConvBench, ConvChoice
from genesis.backends.cpu.x86.direct import Options
from genesis.backends.cpu.x86.driver import Job
from genesis.backends.cpu.x86.plans import guess, planned, widths_of
from genesis.backends.cpu.x86.problem import Problem
from genesis.backends.engine import host
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry

mkldnn = torch.ops.mkldnn

_FEW_CHANNELS = 4
_FAR = 1 << 28  # floats: places of a kernel's operands are 32 bits of bytes


def is_supported(dtype: torch.dtype, weight_shape: Shape, groups: int) -> bool:
    """Whether there is a kernel for such a convolution on this machine."""
    kind = machine.vectors()
    if kind is None or dtype is not torch.float32 or 0 in weight_shape:
        return False
    lanes = 16 if kind == "avx512" else 8
    if groups != 1:
        return groups == weight_shape[0] and weight_shape[1] == 1 and groups % lanes == 0
    return kind == "avx512" or weight_shape[0] % lanes == 0


def readable(x: Tensor) -> Tensor:
    """x in a layout that the kernels read fast: channels last, or any if they are few, and near each other."""
    if x.shape[1] <= _FEW_CHANNELS and x.numel() < _FAR:
        return x
    return x.contiguous(memory_format=torch.channels_last)


class PackedConv:
    """The weights of a convolution, packed for the kernels, and how to run it on inputs of any shape."""

    max_plans = 16  # the oldest goes first

    def __init__(self, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> None:
        self.wide = machine.vectors() == "avx512"
        lanes = 16 if self.wide else 8
        self.weight_shape, self.geometry = tuple(weight.shape), geometry
        self._widths = widths_of(weight.shape[0], self.wide)
        self._parts = direct.parts_of(self.weight_shape)
        if geometry.groups == 1:
            packed = direct.packed(weight, [width * lanes for width in self._widths], self._parts)
        else:
            packed = depthwise.packed(weight, lanes)
        self._weight = pages.kept(packed)
        self._bias = None if bias is None else torch.nn.functional.pad(bias, (0, -bias.shape[0] % lanes))
        self._tiles: Tensor | None = None  # the weight for Winograd's algorithm
        self._plans: dict[object, AnyPlan] = {}

    def __call__(self, x: Tensor, residual: Tensor | None, activation: str | None) -> Tensor:
        """residual: channels-last."""
        plan = self.plan(x, residual is not None, activation)
        return plan.run(x, residual)

    def plan(self, x: Tensor, has_residual: bool, activation: str | None) -> AnyPlan:
        """For inputs like x."""
        key = x.shape, x.stride(), has_residual, activation, torch.get_num_threads(), host.epoch()
        plan = self._plans.get(key)
        if plan is None:
            while len(self._plans) >= self.max_plans:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = self._planned(x, has_residual, activation)
        return plan

    def _planned(self, x: Tensor, has_residual: bool, activation: str | None) -> AnyPlan:
        problem = Problem(
            tuple(x.shape), x.stride(), self.weight_shape, self.geometry, self._bias is not None, has_residual,
            activation,
        )  # fmt: skip
        if not math.prod(problem.output_shape):
            return self.by(problem, "")
        num_threads = torch.get_num_threads()
        best = guess(problem, self.wide, num_threads)
        choice = ConvChoice(choices.PACKED, problem, best, machine.vectors(), num_threads, get_float32_precision())
        return self.by(problem, host.chosen(choice, lambda: _bench(problem)))

    def by(self, problem: Problem, algorithm: str) -> AnyPlan:
        """A problem by the candidate of this name; any if the result is empty."""
        if algorithm in (choices.BLOCKED, choices.COLUMNS):
            weight = self._plain_weight()
            bias = None if self._bias is None else self._bias[: weight.shape[0]]
            return (
                BlockedPlan(problem, weight, bias)
                if algorithm == choices.BLOCKED
                else ProductPlan(problem, weight, bias)
            )
        shape = problem.output_shape
        result = shape, (shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1])
        bias = 0 if self._bias is None else self._bias.data_ptr()
        keep = self._weight, self._bias
        if not math.prod(shape):
            return Plan(*result, None, 0, bias, 0, keep)
        job = planned(problem, self.wide, torch.get_num_threads(), algorithm)
        if job.by_tiles:
            keep = transformed, _ = self._transformed(), self._bias
            return Plan(*result, job.job, transformed.data_ptr(), bias, job.scratch_bytes, keep)
        return Plan(*result, job.job, self._weight.data_ptr(), bias, 0, keep, problem)

    def _plain_weight(self) -> Tensor:
        lanes = 16 if self.wide else 8
        if self.geometry.groups != 1:
            return (
                self._weight.view(-1, math.prod(self.weight_shape[2:]), lanes)
                .transpose(1, 2)
                .reshape(self.weight_shape)
            )
        widths = [width * lanes for width in self._widths]
        return direct.unpacked(self._weight, self.weight_shape, widths, self._parts)

    def _transformed(self) -> Tensor:
        if self._tiles is None:
            widths = [width * (16 if self.wide else 8) for width in self._widths]
            self._tiles = pages.kept(winograd.packed(self._plain_weight(), widths))
        return self._tiles


def _bench(problem: Problem) -> ConvBench:
    given = choices.operands(problem)
    x, residual = given["x"], given.get("residual")
    conv = PackedConv(given["weight"], given.get("bias"), problem.geometry)

    def runs(name: str) -> Callable[[], Tensor]:
        plan = conv.by(problem, name)
        return lambda: plan.run(x, residual)

    return ConvBench(runs, lambda: choices.reference(problem, given), x)


def transposed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Plan:
    """The transposed convolution of inputs like x whose windows meet without overlapping; weight: (C, K, R, S)."""
    wide, num_threads = machine.vectors() == "avx512", torch.get_num_threads()
    lanes = 16 if wide else 8
    (in_channels, out_channels, *spread), (batch, _, height, width) = weight.shape, x.shape
    widths = widths_of(out_channels, wide)
    weight_shape = out_channels, in_channels, 1, 1
    parts = direct.parts_of(weight_shape)
    places = [weight[:, :, r, s].t()[:, :, None, None] for r in range(spread[0]) for s in range(spread[1])]
    packed = pages.kept(torch.cat([direct.packed(each, [width * lanes for width in widths], parts) for each in places]))
    bias = None if bias is None else torch.nn.functional.pad(bias, (0, -out_channels % lanes))
    geometry = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
    problem = Problem(tuple(x.shape), x.stride(), weight_shape, geometry, bias is not None, False, None)
    options = Options(wide, num_threads, False)
    job = direct.Direct(problem, options, widths, parts, (spread[0], spread[1])).job()
    shape = batch, out_channels, height * spread[0], width * spread[1]
    strides = out_channels * shape[2] * shape[3], 1, out_channels * shape[3], out_channels
    return Plan(shape, strides, job, packed.data_ptr(), 0 if bias is None else bias.data_ptr(), 0, (packed, bias))


class Plan(NamedTuple):
    """A convolution of inputs of one shape and layout.

    Attributes:
        shape, strides: of the result.
        job: None if that is empty.
        weight, bias: their addresses; keep: what holds their memory.
        scratch_bytes: of memory that the job needs.
        problem: where weight and bias are those of PackedConv: see joined().
    """

    shape: Shape
    strides: Shape
    job: Job | None
    weight: int
    bias: int
    scratch_bytes: int
    keep: tuple[Tensor, Tensor | None]
    problem: Problem | None = None

    def run(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = x.new_empty_strided(self.shape, self.strides)
        if self.job is not None:
            added = 0 if residual is None else residual.data_ptr()
            scratch = pages.scratch(self.scratch_bytes) if self.scratch_bytes else None
            place = 0 if scratch is None else scratch.data_ptr()
            self.job.run(x.data_ptr(), self.weight, y.data_ptr(), self.bias, added, place)
        return y


def joined(first: Plan, second: Plan) -> Plan | None:
    """Both as one plan, where the second takes the first's result and that is faster."""
    wide, num_threads = machine.vectors() == "avx512", torch.get_num_threads()
    if first.problem is None or second.problem is None:
        return None
    if not expand_depthwise.is_supported(first.problem, second.problem, wide):
        return None
    if not expand_depthwise.pays(first.problem, second.problem, wide, num_threads):
        return None
    weights, biases = zip(first.keep, second.keep, strict=True)
    weight = pages.kept(torch.cat(weights))
    channels = first.problem.weight_shape[0]
    bias = torch.cat([weight.new_zeros(channels) if each is None else each for each in biases])
    job, scratch_bytes = expand_depthwise.job(first.problem, second.problem, wide, num_threads)
    return Plan(second.shape, second.strides, job, weight.data_ptr(), bias.data_ptr(), scratch_bytes, (weight, bias))


class BlockedPlan:
    """The same by oneDNN, with a weight in its own layout."""

    def __init__(self, problem: Problem, weight: Tensor, bias: Tensor | None) -> None:
        stride, padding, dilation, groups = problem.geometry
        if max(weight.shape[2:]) == 1:  # where it means nothing, and oneDNN fails
            dilation = (1, 1)
        self._weight = packing.pack(weight, padding, stride, dilation, groups, problem.input_shape)
        self._bias, self._options = bias, (padding, stride, dilation, groups)
        self._activation = problem.activation

    def run(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        if residual is None:
            unary, left = fused_activation.pointwise(self._activation)
            y = mkldnn._convolution_pointwise(x, self._weight, self._bias, *self._options, *unary)
            return y if left is None else fused_activation.apply(y, left)[0]
        y = mkldnn._convolution_pointwise.binary(
            x, residual, self._weight, self._bias, *self._options, "add", 1.0, None, [], ""
        )
        return y if self._activation is None else fused_activation.apply(y, self._activation)[0]


class ProductPlan:
    """The same as one product of matrices: each pixel by itself."""

    def __init__(self, problem: Problem, weight: Tensor, bias: Tensor | None) -> None:
        self._shape, self._activation = problem.output_shape, problem.activation
        self._weight, self._bias = weight.reshape(weight.shape[:2]).t().contiguous(), bias

    def run(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        rows = x.permute(0, 2, 3, 1).reshape(-1, self._weight.shape[0])
        product = rows @ self._weight if self._bias is None else torch.addmm(self._bias, rows, self._weight)
        batch, channels, height, width = self._shape
        y = product.view(batch, height, width, channels).permute(0, 3, 1, 2)
        if residual is not None:
            y.add_(residual)
        return y if self._activation is None else fused_activation.apply(y, self._activation)[0]


AnyPlan: TypeAlias = "Plan | BlockedPlan | ProductPlan"
