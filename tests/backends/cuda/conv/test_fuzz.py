"""Random problems, each candidate that says it supports them, against float64.

A failure prints the line that repeats it. On a GPU there are 2,000 problems, in parts; of cuDNN's many plans for one
problem a few are run, since the tuner checks each that it takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.conv import families, tuner
from genesis.backends.cuda.conv.candidate import Candidate
from genesis.backends.cuda.conv.cudnn import CudnnFamily
from genesis.backends.cuda.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.memory import allocate
from genesis.shapes import channels_last_strides

Put = Callable[[Any], Any]
Get = Callable[[DeviceArray], torch.Tensor]

PARTS, PER_PART = 100, 20
_CUDNN_PLANS = 2
_TORCH = {
    dtypes.float64: torch.float64, dtypes.float32: torch.float32, dtypes.float16: torch.float16,
    dtypes.bfloat16: torch.bfloat16,
}  # fmt: skip


def draw(seed: int, largest: int) -> ConvProblem:
    """A problem of at most about largest channels and pixels along an axis."""
    chance = random.Random(seed)
    groups = chance.choice([1, 1, 1, 1, 2, 3, 8])
    per_group = chance.choice([1, 2, 3, 4, 8, chance.randint(1, 12)])
    if groups == 1:
        per_group = chance.choice([1, 3, 16, 32, 64, chance.randint(1, 70)])
    outputs = groups * chance.choice([1, 2, 8, 16, 64 if groups == 1 else 4, chance.randint(1, 20)])
    taps = (chance.choice([1, 1, 2, 3, 3, 5]), chance.choice([1, 2, 3, 3, 4]))
    if chance.random() < 0.4:
        taps = (taps[0], taps[0])
    stride, dilation = ((chance.choice([1, 1, 1, 2, 3]), chance.choice([1, 1, 2])) for _ in range(2))
    padding = (chance.randint(0, 3), chance.randint(0, 2))
    sizes = []
    for k, d, p in zip(taps, dilation, padding, strict=True):
        sizes.append(max(1, d * (k - 1) + 1 - 2 * p) + chance.randint(0, largest))
    direction = chance.choice([FORWARD, INPUT_GRAD, WEIGHT_GRAD])
    channels, cap = groups * per_group, max(largest * 4, groups)
    channels, outputs = (min(n, cap - cap % groups) for n in (channels, outputs))
    epilogue = direction == FORWARD and chance.random() < 0.3
    return ConvProblem(
        direction, (chance.randint(1, 3), channels, *sizes), (outputs, channels // groups, *taps), stride, padding,
        dilation, groups, dtype=chance.choice(list(_TORCH)), bias=direction != WEIGHT_GRAD and chance.random() < 0.3,
        residual=epilogue, activation=chance.choice(["relu", None]) if epilogue else None,
        alignment=chance.choice([16, 16, 16, 8]), precision=chance.choice(["highest", "highest", "high"]),
    )  # fmt: skip


def operand(shape: tuple[int, ...], problem: ConvProblem) -> torch.Tensor:
    """Normal numbers in channels-last order, at an address of the problem's alignment and no better."""
    gap = 0 if problem.alignment == 16 else max(1, problem.alignment // problem.dtype.itemsize)
    memory = torch.randn(math.prod(shape) + gap, dtype=torch.float64).to(_TORCH[problem.dtype])
    strides = channels_last_strides(shape) if len(shape) == 4 else (1,)
    return torch.as_strided(memory, shape, strides, gap)


def expected(problem: ConvProblem, operands: list[torch.Tensor | None]) -> torch.Tensor:
    """By torch, in float64."""
    first, second, bias, residual = (None if each is None else each.double() for each in operands)
    assert first is not None
    assert second is not None
    p = problem
    if p.direction == FORWARD:
        y = F.conv2d(first, second, bias, p.stride, p.padding, p.dilation, p.groups)
        y = y if residual is None else y + residual
        return y.relu() if p.activation == "relu" else y
    options = (p.stride, p.padding, p.dilation, False, (0, 0), p.groups)
    if p.direction == INPUT_GRAD:
        input = torch.empty(p.input_shape, dtype=torch.float64)
        grad = torch.ops.aten.convolution_backward(first, input, second, None, *options, (True, False, False))[0]
        return grad if bias is None else grad + bias[:, None, None]
    weight = torch.empty(p.weight_shape, dtype=torch.float64)
    return torch.ops.aten.convolution_backward(first, second, weight, None, *options, (False, True, False))[1]


def run(cuda: Backend, candidate: Candidate, problem: ConvProblem, operands: list[DeviceArray | None]) -> DeviceArray:
    out: DeviceArray = cuda.empty(problem.result_shape, channels_last_strides(problem.result_shape), problem.dtype)
    num_bytes = candidate.workspace(problem)
    workspace = allocate(num_bytes, 0, 0) if num_bytes else None
    addresses = [0 if each is None else each.data_pointer for each in operands]
    candidate.prepare(problem)(0, out.data_pointer, *addresses, 0 if workspace is None else workspace.pointer)
    return out


def check(cuda: Backend, put: Put, get: Get, seed: int, largest: int) -> int:
    """How many candidates computed the problem, all of them rightly."""
    problem = draw(seed, largest)
    torch.manual_seed(seed)
    scale = 1 if problem.direction == WEIGHT_GRAD else 1 / math.sqrt(problem.num_terms)
    host = [operand(problem.first_shape, problem), operand(problem.second_shape, problem) * scale]
    host.append(operand((problem.result_shape[1],), problem) if problem.bias else None)  # type: ignore[arg-type]
    host.append(operand(problem.result_shape, problem) if problem.residual else None)  # type: ignore[arg-type]
    reference = expected(problem, host)  # type: ignore[arg-type]
    given = [None if each is None else put(each) for each in host]
    # Of a result with few elements the error is not spread: a single one may be off by all of its rounding.
    few = 2 if reference.numel() < 200 else 1
    size = max(float(reference.norm()), math.sqrt(reference.numel() * (problem.num_terms if scale == 1 else 1)))
    checked = from_cudnn = 0
    for candidate in families.candidates(problem):
        if candidate.name.startswith(CudnnFamily.prefix + "/"):
            if from_cudnn == _CUDNN_PLANS:
                continue
            from_cudnn += 1
        try:
            result = get(run(cuda, candidate, problem, given))
        except KernelError:  # cuDNN lists plans that it then can't build
            assert candidate.name.startswith(CudnnFamily.prefix + "/")
            continue
        error = float((result.double() - reference).norm()) / size
        assert error <= few * tuner.error_bound(problem), f"draw({seed}, {largest}): {candidate.name}: {error:.2e}"
        checked += 1
    assert checked, f"draw({seed}, {largest}): no candidate for {problem}"
    return checked


@pytest.mark.parametrize("seed", range(12))
def test_random_problems_simulated(simulated: Backend, seed: int) -> None:
    put, get = ways(simulated)
    check(simulated, put, get, seed, largest=4)


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
def test_random_problems(gpu: Backend, part: int) -> None:
    put, get = ways(gpu)
    for seed in range(part * PER_PART, (part + 1) * PER_PART):
        check(gpu, put, get, seed, largest=16)


def ways(cuda: Backend) -> tuple[Put, Get]:
    """To the device, with the operand's strides and offset, and back."""

    def put(value: torch.Tensor) -> DeviceArray:
        memory = torch.as_strided(value, (value.untyped_storage().nbytes() // value.itemsize,), (1,), 0)
        bits = memory.view(torch.uint16) if value.dtype is torch.bfloat16 else memory
        whole = cuda.from_cpu(bits.numpy(), dtypes.BY_NAME[str(value.dtype).removeprefix("torch.")])
        view: DeviceArray = cuda.view(whole, tuple(value.shape), value.stride(), value.storage_offset())
        return view

    def get(x: DeviceArray) -> torch.Tensor:
        host = torch.from_numpy(cuda.to_cpu(x))
        return host.view(torch.bfloat16) if x.dtype is dtypes.bfloat16 else host

    return put, get
