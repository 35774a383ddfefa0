"""Runs our own convolutions with each operand at the very end, or the very start, of memory that may be touched.

python -m tests.backends.cpu.x86.guarded KIND runs the table with that kind of vectors ("avx512" or "avx2"); with SEEDS
behind it that many drawn problems, with SECONDS behind that no longer than those. A kernel that reads or writes outside
ends the process; the problem that it ran is the last line.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import random
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from genesis.backends.cpu.x86 import changing, expand_depthwise, machine, packed, product, weight_grad, winograd
from genesis.backends.cpu.x86.driver import Job
from genesis.backends.cpu.x86.packed import PackedConv
from genesis.backends.cpu.x86.plans import guess
from genesis.backends.cpu.x86.problem import Problem
from genesis.records import ConvGeometry

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Case(NamedTuple):
    """A convolution; how: "direct", "Winograd", "depthwise", "transposed", "changing" for weights that change,
    "weight gradient" for that of the weight, "expanded": a 1×1 one, and of its result the depthwise one, or "columns"
    and "rows": products with the weight where it lies, forward and for the input's gradient."""

    how: str
    x: tuple[int, int, int, int]
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    has_bias: bool = True
    has_residual: bool = False
    activation: str | None = None
    is_planar: bool = False  # x is NCHW
    is_cropped: bool = False  # x is a view of a larger one
    groups: int = 1


_OF_ANY_WIDTH = "weight gradient", "columns", "rows"

TABLE = (
    Case("direct", (1, 1, 1, 1), 16, (1, 1)),
    Case("direct", (2, 3, 9, 11), 24, (3, 3), (2, 2), (1, 1), is_planar=True, activation="relu"),
    Case("direct", (1, 3, 30, 31), 64, (7, 7), (2, 2), (3, 3), is_planar=True, is_cropped=True),
    Case("direct", (1, 4, 12, 13), 16, (5, 2), (1, 3), (4, 1), has_bias=False),
    Case("direct", (1, 37, 7, 7), 40, (1, 1), has_residual=True, activation="relu6"),
    Case("direct", (3, 29, 6, 5), 72, (1, 1), (2, 2)),
    Case("direct", (1, 17, 9, 40), 136, (3, 3), (1, 1), (1, 1), has_residual=True),
    Case("direct", (2, 5, 8, 8), 8, (3, 3), (1, 2), (2, 0), (2, 3), has_bias=False, has_residual=True),
    Case("direct", (1, 300, 3, 4), 24, (3, 1), (1, 1), (3, 0)),
    Case("direct", (1, 9, 2, 2), 16, (3, 3), (1, 1), (5, 5), (4, 4), activation="relu"),
    Case("direct", (1, 23, 5, 27), 128, (1, 5), (1, 1), (0, 2), is_cropped=True),
    Case("direct", (5, 301, 1, 1), 112, (1, 1)),  # linear
    Case("direct", (1, 512, 1, 1), 1000, (1, 1)),
    Case("changing", (2, 13, 9, 9), 48, (3, 3), (2, 1), (1, 1)),
    Case("changing", (1, 32, 9, 7), 48, (3, 3), (1, 1), (1, 1)),
    Case("Winograd", (1, 16, 4, 4), 16, (3, 3), (1, 1), (1, 1)),
    Case("Winograd", (2, 32, 7, 5), 48, (3, 3), (1, 1), (1, 1), has_residual=True, activation="relu"),
    Case("Winograd", (1, 80, 13, 3), 96, (3, 3), (1, 1), (0, 2), has_bias=False),
    Case("Winograd", (1, 128, 5, 6), 128, (3, 3), (1, 1), (1, 1), has_residual=True),  # threads share the weights
    Case("Winograd", (1, 48, 1, 1), 80, (3, 3), (1, 1), (2, 2), (1, 1), activation="relu6"),
    Case("Winograd", (1, 16, 17, 90), 16, (3, 3), (1, 1), (3, 2), (3, 2), has_residual=True),
    Case("Winograd", (1, 128, 21, 33), 128, (3, 3), (1, 1), (1, 1), is_cropped=True),
    Case("depthwise", (1, 16, 1, 1), 16, (1, 1)),
    Case("depthwise", (2, 48, 9, 31), 48, (3, 3), (2, 2), (1, 1), activation="relu6"),
    Case("depthwise", (1, 32, 7, 5), 32, (5, 2), (1, 1), (4, 2), (2, 3), has_residual=True, has_bias=False),
    Case("depthwise", (1, 16, 15, 16), 16, (7, 7), (1, 1), (3, 3), is_cropped=True),
    Case("expanded", (2, 21, 9, 11), 48, (3, 3), (2, 2), (1, 1), activation="relu6"),
    Case("expanded", (1, 300, 7, 5), 112, (5, 2), (1, 1), (4, 1), (2, 3), has_bias=False),
    Case("expanded", (3, 16, 5, 20), 16, (3, 3), (1, 1), (5, 0), activation="relu"),
    Case("transposed", (2, 24, 5, 7), 40, (2, 2)),
    Case("transposed", (1, 7, 3, 3), 16, (3, 1), has_bias=False),
    Case("changing", (2, 32, 9, 7), 32, (3, 3), (2, 1), (1, 1), groups=32),
    Case("weight gradient", (2, 32, 9, 8), 20, (3, 3), (1, 1), (1, 1)),
    Case("weight gradient", (3, 64, 11, 13), 7, (3, 2), (2, 3), (1, 0), is_cropped=True),
    Case("weight gradient", (1, 16, 12, 12), 16, (3, 3), (1, 1), (2, 2), (2, 2)),
    Case("weight gradient", (2, 96, 7, 7), 33, (1, 1)),
    Case("weight gradient", (2, 48, 7, 9), 5, (1, 1), (2, 2), is_cropped=True),
    Case("weight gradient", (1, 80, 20, 30), 1, (1, 3), (1, 1), (0, 1)),
    Case("columns", (1, 65, 7, 7), 71, (3, 3), (1, 1), (1, 1), has_bias=False),
    Case("columns", (2, 200, 4, 5), 64, (1, 1), (2, 1), has_bias=False),
    Case("rows", (1, 64, 7, 7), 68, (3, 3), (2, 1), (1, 1), has_bias=False),
    Case("rows", (3, 80, 5, 4), 200, (1, 1), has_bias=False),
    Case("rows", (1, 64, 2, 1), 64, (2, 3), (1, 1), (1, 1), has_bias=False),
)


def drawn(draw: random.Random, kind: str) -> Case:
    hows = ["direct", "direct", "Winograd", "depthwise", "expanded", "transposed", "changing", "weight gradient"]
    how = draw.choice(hows)
    lanes = 16 if kind == "avx512" else 8
    kernel = (3, 3) if how == "Winograd" else (draw.choice([1, 2, 3, 5, 7]), draw.choice([1, 2, 3, 4]))
    stride = (1, 1) if how in ("Winograd", "transposed") else (draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2]))
    dilation = draw.choice([1, 1, 2, 3, 5]), draw.choice([1, 1, 2, 4])
    padding = draw.randint(0, kernel[0]), draw.randint(0, kernel[1])
    is_whole = how in ("Winograd", "depthwise", "weight gradient")
    channels = lanes * draw.randint(1, 12) if is_whole else draw.choice([1, 3, 4, draw.randint(1, 90)])
    outputs = lanes * draw.randint(1, 12)
    if how == "weight gradient" or (not is_whole and how != "expanded" and kind == "avx512"):
        outputs -= draw.randint(0, lanes - 1)
    height, width = (
        max(1, d * (k - 1) + 1 - 2 * p + draw.choice([0, 1, 5, 20, draw.randint(0, 60)]))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    return Case(
        how, (draw.randint(1, 3), channels, height, width), channels if how == "depthwise" else outputs, kernel, stride,
        padding, dilation, draw.random() < 0.5, draw.random() < 0.5, draw.choice([None, "relu", "relu6"]),
        draw.random() < 0.5 and channels <= 4, draw.random() < 0.3,
    )  # fmt: skip


@contextlib.contextmanager
def guarded(num_bytes: int, at_end: bool) -> Iterator[int]:
    """The address of so much memory, with nothing readable after it, or before it."""
    page = mmap.PAGESIZE
    inner = -(-max(num_bytes, 1) // page) * page
    start = _libc.mmap(None, inner + 2 * page, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        if _libc.mprotect(start + page, inner, mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), "mprotect")
        yield start + page + (inner - num_bytes if at_end else 0)
    finally:
        _libc.munmap(start, inner + 2 * page)


def made(case: Case) -> tuple[Tensor, Tensor | None, Job | None, Tensor, Tensor | None, int]:
    """x, the residual, the job, the packed weight, the padded bias, and how many bytes of scratch memory it takes.

    Of a weight's gradient: the gradient, None, the job, and x.
    """
    batch, channels, height, width = case.x
    margin = 2 * case.is_cropped
    x = torch.randn(batch, channels, height, width + margin)
    if not case.is_planar:
        x = x.contiguous(memory_format=torch.channels_last)
    if case.is_cropped:
        x = x[..., 1:-1]
    groups = channels if case.how == "depthwise" else case.groups
    geometry = ConvGeometry(case.stride, case.padding, case.dilation, groups)
    bias = torch.randn(case.outputs) if case.has_bias else None
    if case.how == "transposed":
        plan = packed.transposed(x, torch.randn(channels, case.outputs, *case.kernel), bias)
        weight, bias = plan.keep  # type: ignore[misc]
        return x, None, plan.job, weight, bias, 0
    if case.how == "weight gradient":
        return _made_weight_gradient(case, x, geometry)
    if case.how in ("columns", "rows"):
        return _made_product(case, x, geometry)
    weight = torch.randn(case.outputs, channels // groups, *case.kernel)
    if case.how == "changing":
        key = case.x, x.stride(), tuple(weight.shape), geometry, case.has_bias
        problem, wide = Problem(*key, False, None), machine.vectors() == "avx512"
        threads = torch.get_num_threads()
        lent = changing.Repacked(problem, wide, threads, guess(problem, wide, threads))
        weight, bias = lent.packed(weight, bias)
        return x, None, lent.job, weight, bias, lent.scratch_bytes
    if case.how == "expanded":
        return _made_expanded(case, x, bias, geometry)
    conv = PackedConv(weight, bias, geometry)
    plan = conv.plan(x, case.has_residual, case.activation)
    weight, bias = plan.keep  # type: ignore[misc]
    residual = None
    if case.has_residual:
        residual = torch.randn(plan.shape).contiguous(memory_format=torch.channels_last)
    return x, residual, plan.job, weight, bias, plan.scratch_bytes


def _made_expanded(
    case: Case, x: Tensor, bias: Tensor | None, geometry: ConvGeometry
) -> tuple[Tensor, None, Job | None, Tensor, Tensor | None, int]:
    weights = torch.randn(case.outputs, case.x[1], 1, 1), torch.randn(case.outputs, 1, *case.kernel)
    first = PackedConv(weights[0], bias, ConvGeometry((1, 1), (0, 0), (1, 1), 1)).plan(x, False, case.activation)
    second = PackedConv(weights[1], bias, geometry._replace(groups=case.outputs))
    plan = packed.joined(first, second.plan(first.run(x), False, case.activation))
    if plan is None:  # x is cropped, or the result empty
        return x, None, None, x, None, 0
    return x, None, plan.job, *plan.keep, plan.scratch_bytes


def _made_weight_gradient(
    case: Case, x: Tensor, geometry: ConvGeometry
) -> tuple[Tensor, None, Job | None, Tensor, None, int]:
    weight_shape, wide = (case.outputs, case.x[1], *case.kernel), machine.vectors() == "avx512"
    problem = Problem(case.x, x.stride(), weight_shape, geometry, False, False, None)
    grad = torch.randn(problem.output_shape).contiguous(memory_format=torch.channels_last)
    job = None
    if weight_grad.is_supported(problem, wide):
        job = weight_grad.planned(problem, wide, torch.get_num_threads())
    return grad, None, job, x, None, 0


def _made_product(case: Case, x: Tensor, geometry: ConvGeometry) -> tuple[Tensor, None, Job | None, Tensor, None, int]:
    weight = torch.randn(case.outputs, case.x[1], *case.kernel).contiguous(memory_format=torch.channels_last)
    problem = Problem(case.x, x.stride(), tuple(weight.shape), geometry, False, False, None)
    wide, threads = machine.vectors() == "avx512", torch.get_num_threads()
    if case.how == "columns":
        forward = product.Forward(problem, wide, threads)
        return weight, None, forward._job, forward._packed(x).clone(), None, 0
    grad = torch.randn(problem.output_shape).contiguous(memory_format=torch.channels_last)
    return grad, None, product.InputGrad(problem, wide, threads)._job, weight, None, 0


def span(x: Tensor) -> int:
    """The bytes from a tensor's first number to the end of its last one."""
    return 4 * (1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)))


def result_floats(case: Case) -> int:
    (batch, channels, *sizes), total = case.x, case.outputs
    if case.how == "weight gradient":
        return total * channels * case.kernel[0] * case.kernel[1]
    pixels = batch
    for size, k, s, p, d in zip(sizes, case.kernel, case.stride, case.padding, case.dilation, strict=True):
        pixels *= size * k if case.how == "transposed" else (size + 2 * p - d * (k - 1) - 1) // s + 1
    lanes = 16 if machine.vectors() == "avx512" else 8
    if case.how == "columns":
        return total * -(-pixels // lanes) * lanes
    return pixels * (channels * case.kernel[0] * case.kernel[1] if case.how == "rows" else total)


def check(case: Case) -> None:
    """At the end and at the start of memory, twice each: the results are the same."""
    winograd.pays = lambda *args: case.how == "Winograd" or case.x[1] == 32  # type: ignore[assignment]
    expand_depthwise.pays = lambda *args: True  # type: ignore[assignment]
    expand_depthwise._SCRATCH_BYTES = dict.fromkeys((True, False), 16 << 10)  # some blocks of rows
    x, residual, job, weight, bias, scratch_bytes = made(case)
    if job is None:
        return
    size = 4 * result_floats(case)
    results = []
    for at_end, _ in itertools.product((True, False), range(2)):
        with contextlib.ExitStack() as stack:

            def place(num_bytes: int, source: Tensor | None = None, at_end: bool = at_end) -> int:
                address = stack.enter_context(guarded(num_bytes, at_end))
                if source is not None:
                    ctypes.memmove(address, source.data_ptr(), num_bytes)
                return address

            operands = [place(span(x), x), place(span(weight), weight), place(size)]
            operands += [0 if each is None else place(span(each), each) for each in (bias, residual)]
            ctypes.memset(operands[2], 0xFF, size)  # NaN
            job.run(*operands, place(scratch_bytes) if scratch_bytes else 0)
            results.append(ctypes.string_at(operands[2], size))
    if len({*results}) != 1 or torch.frombuffer(bytearray(results[0]), dtype=torch.float32).isnan().any():
        raise AssertionError(f"other results where memory lies elsewhere, or none: {case}")


def main(kind: str, seeds: int | None, seconds: float) -> None:
    machine.vectors = lambda: kind  # type: ignore[assignment]
    end = time.monotonic() + seconds
    cases: Iterator[Case] = iter(TABLE)
    if seeds is not None:
        cases = (drawn(random.Random(seed), kind) for seed in range(seeds))
    count = 0
    for count, case in enumerate(cases, 1):
        print(case, flush=True)
        torch.set_num_threads(1 + count % 2)
        if kind == "avx512" or case.outputs % 8 == 0 or case.how in _OF_ANY_WIDTH:
            check(case)
        if time.monotonic() > end:
            break
    print(f"all right: {count} problems")


if __name__ == "__main__":
    torch.manual_seed(0)
    main(
        sys.argv[1],
        int(sys.argv[2]) if len(sys.argv) > 2 else None,
        float(sys.argv[3]) if len(sys.argv) > 3 else float("inf"),
    )
