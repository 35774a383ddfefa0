"""Random problems, each candidate that says it supports them, against float64; all cores of a machine with a GPU:

    python -m tests.backends.cuda.ops.conv.fuzz --problems 2000
    python -m tests.backends.cuda.ops.conv.fuzz --only 1234        one of them again
    python -m tests.backends.cuda.ops.conv.fuzz --added            those alone that add to an input's gradient

A failure prints the line that repeats it. Of cuDNN's many plans for one problem two are run, and of cuBLASLt's, since
the tuner checks each that it takes; in float32 cuDNN's may be as far off as a chain of multiply-adds, however long it
is, which is no guess of ours and which the tuner takes up to 3e-7.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from genesis import backends, dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates.cublaslt import CublasltFamily
from genesis.backends.cuda.ops.conv.candidates.cudnn import CudnnFamily
from genesis.backends.cuda.ops.conv.candidates.depthwise.candidate import DepthwiseFamily
from genesis.backends.cuda.ops.conv.candidates.depthwise.toeplitz import ToeplitzFamily
from genesis.backends.cuda.ops.conv.candidates.grouped.candidate import GroupedFamily
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.candidate import SkinnyGemmFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma import forward as wgmma
from genesis.backends.cuda.ops.conv.candidates.wgmma import halo_tile as patch
from genesis.backends.cuda.ops.conv.candidates.wgmma import weight_grad as wgmma_weight_grad
from genesis.backends.cuda.ops.conv.launch import conv_input_grad_added
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.memory import allocate
from genesis.precision import float32_precision
from genesis.records import ConvGeometry
from genesis.shapes import channels_last_strides
from tests.backends.cuda.ops.conv.exact import Extended, convolved

Put = Callable[[Any], Any]
Get = Callable[[DeviceArray], torch.Tensor]

_MOST_OF_LIBRARY = 2
_COMPILED_FOR_THE_PROBLEM = (
    DepthwiseFamily.prefix, ToeplitzFamily.prefix, GroupedFamily.prefix, SkinnyGemmFamily.prefix,
)  # fmt: skip
_MOST_COMPILED = 4
_STATISTICS_BOUND = 1e-5  # of float32 sums
_ALIKE = 4  # consecutive problems that differ in their sizes only, by multiples of 16: they share compiled kernels
_MOST_FLOPS = 5e8  # for that, which the CPU computes in float64
_WIDE = [72, 136, 200, 264]  # channels, now and then: more than one tile of columns
_TORCH = {
    dtypes.float64: torch.float64, dtypes.float32: torch.float32, dtypes.float16: torch.float16,
    dtypes.bfloat16: torch.bfloat16,
}  # fmt: skip


def draw(seed: int, largest: int) -> ConvProblem:
    """A problem of at most about largest channels and pixels along an axis; of _ALIKE, all but the first are larger."""
    alike = seed // _ALIKE
    problem = _with_addend(_of_tiles(_in_groups(_drawn(alike, largest), alike), alike), alike)
    chance = random.Random(seed)
    if seed % _ALIKE:
        height, width = (
            size + 16 * stride * chance.randint(0, 2)
            for size, stride in zip(problem.input_shape[2:], problem.stride, strict=True)
        )
        larger = dataclasses.replace(problem, input_shape=(*problem.input_shape[:2], height, width))
        return larger if larger.flops <= _MOST_FLOPS else problem
    return problem


def _of_tiles(problem: ConvProblem, seed: int) -> ConvProblem:
    """One in ten without groups gets windows that do not overlap, or one that is the whole image."""
    chance = random.Random(f"tiles {seed}")
    if problem.groups > 1 or chance.random() < 0.9:
        return problem
    images, channels, *_ = problem.input_shape
    taps, counts = problem.weight_shape[2:], chance.choice([(1, 1), (1, 2), (2, 1), (2, 3), (3, 2)])
    height, width = (tap * count for tap, count in zip(taps, counts, strict=True))
    return dataclasses.replace(
        problem, input_shape=(images, channels, height, width), stride=(taps[0], taps[1]), padding=(0, 0),
        dilation=(1, 1),
    )  # fmt: skip


def _with_addend(problem: ConvProblem, seed: int) -> ConvProblem:
    """Half of the input's gradients are added to something."""
    added = problem.direction == INPUT_GRAD and random.Random(f"added {seed}").random() < 0.5
    return dataclasses.replace(problem, residual=added) if added else problem


def _in_groups(problem: ConvProblem, seed: int) -> ConvProblem:
    """Half of those that have groups of several channels get as many groups and channels as networks have."""
    chance = random.Random(f"groups {seed}")
    if problem.groups == 1 or problem.is_depthwise or chance.random() < 0.5:
        return problem
    inputs = chance.choice([2, 4, 8, 16, 24, 32, 56, 64, chance.randint(2, 64)])
    outputs = chance.choice([inputs, inputs, chance.randint(1, 64)])
    groups = chance.choice([2, 3, 5, 8, 32]) if max(inputs, outputs) <= 16 else chance.choice([2, 3])
    return dataclasses.replace(
        problem, groups=groups, input_shape=(problem.input_shape[0], groups * inputs, *problem.input_shape[2:]),
        weight_shape=(groups * outputs, inputs, *problem.weight_shape[2:]),
    )  # fmt: skip


def adds(problem: ConvProblem) -> bool:
    return problem.direction == INPUT_GRAD and problem.residual


def _drawn(seed: int, largest: int) -> ConvProblem:
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
    if groups == 1 and largest >= 16 and chance.random() < 0.15:
        channels, outputs = chance.choice([channels, *_WIDE]), chance.choice([outputs, *_WIDE])
    epilogue = direction == FORWARD and chance.random() < 0.3
    problem = ConvProblem(
        direction, (chance.randint(1, 3), channels, *sizes), (outputs, channels // groups, *taps), stride, padding,
        dilation, groups, dtype=chance.choice(list(_TORCH)), bias=direction != WEIGHT_GRAD and chance.random() < 0.3,
        residual=epilogue, activation=chance.choice(["relu", None]) if epilogue else None,
        alignment=chance.choice([16, 16, 16, 8]), precision=chance.choice(["highest", "highest", "high"]),
    )  # fmt: skip
    if largest >= 16 and chance.random() < 0.1:
        return _of_a_residual_block(problem, chance)
    if groups == 1 and chance.random() < 0.1:  # a product of matrices
        weight = (*problem.weight_shape[:2], 1, 1)
        return dataclasses.replace(problem, weight_shape=weight, stride=(1, 1), padding=(0, 0), dilation=(1, 1))
    if groups == 1 and problem.direction == INPUT_GRAD and chance.random() < 0.2:
        return _of_a_first_layer(problem, chance)
    return problem


def _of_a_residual_block(problem: ConvProblem, chance: random.Random) -> ConvProblem:
    """The same with 3×3 taps of few channels: kernels that take nothing else get their share."""
    images, _, height, width = problem.input_shape
    sizes = [max(size, 3 - 2 * padding) for size, padding in zip((height, width), problem.padding, strict=True)]
    outputs, inputs = chance.choice([64, 64, 128]), chance.choice([64, 64, 128])
    channels = (outputs, inputs) if problem.direction == INPUT_GRAD else (inputs, outputs)
    return dataclasses.replace(
        problem, input_shape=(images, channels[0], *sizes), weight_shape=(channels[1], channels[0], 3, 3),
        stride=(1, 1), dilation=(1, 1), groups=1,
        dtype=chance.choice([dtypes.float32, dtypes.float16, dtypes.bfloat16]), precision="high",
    )  # fmt: skip


def _of_a_first_layer(problem: ConvProblem, chance: random.Random) -> ConvProblem:
    """The same with few channels, more taps, and all bits of float32."""
    taps = chance.choice([3, 4, 5, 7]), chance.choice([2, 3, 5, 7])
    sizes = [max(each) for each in zip(problem.input_shape[2:], taps, strict=True)]
    channels = chance.choice([1, 3, 3, 4, chance.randint(1, 8)])
    return dataclasses.replace(
        problem, input_shape=(problem.input_shape[0], channels, *sizes),
        weight_shape=(problem.weight_shape[0], channels, *taps), dilation=(1, 1), dtype=dtypes.float32,
        precision="highest",
    )  # fmt: skip


def operand(shape: tuple[int, ...], problem: ConvProblem) -> torch.Tensor:
    """Normal numbers in channels-last order, at an address of the problem's alignment and no better."""
    gap = 0 if problem.alignment == 16 else max(1, problem.alignment // problem.dtype.itemsize)
    memory = torch.randn(math.prod(shape) + gap, dtype=torch.float64).to(_TORCH[problem.dtype])
    strides = channels_last_strides(shape) if len(shape) == 4 else (1,)
    return torch.as_strided(memory, shape, strides, gap)


def expected(problem: ConvProblem, operands: list[torch.Tensor | None]) -> Extended:
    """In extended precision, from sums by torch in float64; from such in extended precision if float64 is the dtype."""
    first, second, bias, residual = (None if each is None else each.double() for each in operands)
    assert first is not None
    assert second is not None
    if problem.dtype is dtypes.float64:
        result = convolved(problem, first, second)
    else:
        result = _by_torch(problem, first, second).numpy().astype(np.longdouble)
    if bias is not None:
        result += bias.numpy()[:, None, None]
    if residual is not None:
        result += residual.numpy()
    return np.maximum(result, 0) if problem.activation == "relu" else result


def _by_torch(problem: ConvProblem, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    p = problem
    if p.direction == FORWARD:
        return F.conv2d(first, second, None, p.stride, p.padding, p.dilation, p.groups)
    options = (p.stride, p.padding, p.dilation, False, (0, 0), p.groups)
    if p.direction == INPUT_GRAD:
        input = torch.empty(p.input_shape, dtype=torch.float64)
        return torch.ops.aten.convolution_backward(first, input, second, None, *options, (True, False, False))[0]
    weight = torch.empty(p.weight_shape, dtype=torch.float64)
    return torch.ops.aten.convolution_backward(first, second, weight, None, *options, (False, True, False))[1]


def run(cuda: Backend, candidate: Candidate, problem: ConvProblem, operands: list[DeviceArray | None]) -> DeviceArray:
    out: DeviceArray = cuda.empty(problem.result_shape, channels_last_strides(problem.result_shape), problem.dtype)
    num_bytes = candidate.workspace(problem)
    workspace = allocate(num_bytes, 0, 0) if num_bytes else None
    addresses = [0 if each is None else each.data_pointer for each in operands]
    candidate.prepare(problem)(0, out.data_pointer, *addresses, 0 if workspace is None else workspace.pointer)
    return out


def check(cuda: Backend, put: Put, get: Get, seed: int, largest: int) -> list[str]:
    """The families of the candidates that computed the problem, all of them rightly, as did the op."""
    problem = draw(seed, largest)
    torch.manual_seed(seed)
    scale = 1 if problem.direction == WEIGHT_GRAD else 1 / math.sqrt(problem.num_terms)
    host = [operand(problem.first_shape, problem), operand(problem.second_shape, problem) * scale]
    host.append(operand((problem.result_shape[1],), problem) if problem.bias else None)  # type: ignore[arg-type]
    host.append(operand(problem.result_shape, problem) if problem.residual else None)  # type: ignore[arg-type]
    reference = expected(problem, host)  # type: ignore[arg-type]
    given = [None if each is None else put(each) for each in host]
    # Of a result with few elements the error is not spread: a single one may be off by all of its rounding. (The bound
    # of float64 counts that in.)
    few = 2 if reference.size < 200 and problem.dtype is not dtypes.float64 else 1
    size = max(_norm(reference), math.sqrt(reference.size * (problem.num_terms if scale == 1 else 1)))
    bound = few * accuracy.error_bound(problem)
    bound_of_cudnn = max(bound, accuracy.chain_bound(problem) if problem.dtype is dtypes.float32 else 0)

    def distance(result: DeviceArray) -> float:
        return _norm(get(result).double().numpy() - reference) / size

    checked: list[str] = []
    tried: collections.Counter[tuple[str, bool, bool]] = collections.Counter()
    for candidate in CONV.candidates(problem):
        family = candidate.name.removeprefix("folded/").partition("/")[0]
        from_cudnn = f"{CudnnFamily.prefix}/" in candidate.name  # or sub_pixel_dgrad/cudnn/…
        source = family, candidate.name.startswith("folded/"), from_cudnn
        if (from_cudnn or family == CublasltFamily.prefix) and tried[source] == _MOST_OF_LIBRARY:
            continue
        if family in _COMPILED_FOR_THE_PROBLEM and tried[source] == _MOST_COMPILED:
            continue
        try:
            error = distance(run(cuda, candidate, problem, given))
        except KernelError:  # cuDNN lists plans that it then can't build
            assert from_cudnn
            continue
        allowed = bound_of_cudnn if from_cudnn else bound
        assert error <= allowed, f"{problem}: {candidate.name}: {error:.2e}, at most {allowed:.2e}"
        checked.append(family)
        tried[source] += 1
    assert checked, f"no candidate for {problem}"
    if problem.direction == FORWARD and problem.dtype.itemsize == 2:
        checked += _check_statistics(dataclasses.replace(problem, residual=False, activation=None, statistics=True))
    if problem.activation or (problem.residual and (problem.bias or problem.direction == FORWARD)):
        return checked  # no op has these
    orders = random.Random(seed)
    first, second, addend = (None if each is None else put(_reordered(each, orders)) for each in (*host[:2], host[3]))
    with float32_precision(problem.precision):
        error = distance(_call(cuda, problem, first, second, given[2], addend))
    assert error <= bound, f"{problem}: as an op: {error:.2e}, at most {bound:.2e}"
    return checked


def _check_statistics(problem: ConvProblem) -> list[str]:
    """Those of the result, found by a pass and by each kernel that finds them on the way."""
    bench = ConvBench(problem)
    aparts = 0
    checked = []
    for candidate in CONV.candidates(problem):
        is_apart = "with_statistics_pass/" in candidate.name
        aparts += is_apart
        if aparts > 1 and is_apart:
            continue
        error = bench.statistics_error(Built(candidate, candidate.prepare(problem), candidate.workspace(problem)))
        assert error <= _STATISTICS_BOUND, f"{problem}: {candidate.name}: statistics off by {error:.2e}"
        checked.append(f"{candidate.name.partition('/')[0]} with statistics")
    return checked


def _norm(x: Extended) -> float:
    return math.sqrt(float(np.square(x).sum()))


def _reordered(value: Any, chance: random.Random) -> torch.Tensor:
    """The same numbers in another order in memory: row by row, channels innermost, or with gaps between them."""
    order = chance.choice(["rows", "channels", "gaps"])
    if order == "gaps":
        wide = torch.zeros((*value.shape[:-1], 2 * value.shape[-1]), dtype=value.dtype)
        wide[..., ::2] = value
        return wide[..., ::2]
    formats = {"rows": torch.contiguous_format, "channels": torch.channels_last}
    return torch.clone(value, memory_format=formats[order])


def _call(cuda: Backend, problem: ConvProblem, first: Any, second: Any, bias: Any, addend: Any) -> DeviceArray:
    """By the backend's op, which brings the operands to the candidates' order and chooses one."""
    p = problem
    geometry = ConvGeometry(p.stride, p.padding, p.dilation, p.groups)
    result: DeviceArray
    if p.direction == FORWARD:
        result = cuda.conv_forward(first, second, bias, geometry)
    elif addend is not None:
        result = conv_input_grad_added(first, second, addend, p.input_shape, geometry)
    elif p.direction == INPUT_GRAD:
        result = cuda.conv_input_grad(first, second, p.input_shape, geometry, bias)
    else:
        result = cuda.conv_weight_grad(first, second, p.weight_shape, geometry)
    return result


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


# --- many at once -----------------------------------------------------------------------------------------------------
_LARGEST = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED", help="these problems")
    parser.add_argument("--added", action="store_true", help="of the problems, those that add to an input's gradient")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no problem after that time")
    arguments = parser.parse_args()
    seeds = arguments.only or range(arguments.problems)
    if arguments.added:
        seeds = [seed for seed in seeds if adds(draw(seed, _LARGEST))]
    begin = time.time()
    check_in_time = functools.partial(_checked, begin + arguments.seconds)
    families_seen: collections.Counter[str] = collections.Counter()
    done = failed = 0
    with ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn"), _begin) as workers:
        list(workers.map(_compile, range(len(_cubins()))))
        for seed, outcome in workers.map(check_in_time, seeds, chunksize=_ALIKE):
            done += outcome is not None
            if isinstance(outcome, str):
                failed += 1
                print(f"python -m {__spec__.name} --only {seed}   # {outcome}", flush=True)
            else:
                families_seen.update(outcome or [])
    counts = ", ".join(f"{name} {count}" for name, count in families_seen.most_common())
    print(f"{done} problems in {time.time() - begin:.0f} s, {failed} failed; candidates: {counts}")
    return int(failed > 0 or done < len(seeds))


def _begin() -> None:
    torch.set_num_threads(1)


def _cubins() -> list[Callable[[], bytes]]:
    """Those in CUDA C++, which every worker would else compile for itself."""
    forward = {
        dtypes.float32: [*wgmma._SPLIT_SHAPES, *wgmma._ROUNDED_SHAPES],
        dtypes.float16: wgmma._PLAIN_SHAPES, dtypes.bfloat16: wgmma._PLAIN_SHAPES,
    }  # fmt: skip
    weight_grad = {
        dtypes.float32: [*wgmma_weight_grad._SPLIT_SHAPES, *wgmma_weight_grad._ROUNDED_SHAPES],
        dtypes.float16: wgmma_weight_grad._PLAIN_SHAPES, dtypes.bfloat16: wgmma_weight_grad._PLAIN_SHAPES,
    }  # fmt: skip
    found: list[Callable[[], bytes]] = []
    for dtype in forward:
        found += [lambda shape=shape, dtype=dtype: shape.cubin(dtype) for shape in forward[dtype]]
        if dtype is not dtypes.float32:
            found += [lambda shape=shape, dtype=dtype: shape.cubin(dtype, True) for shape in forward[dtype]]
        found += [
            lambda shape=shape, dtype=dtype, transposed=transposed: shape.cubin(dtype, transposed)
            for shape in patch._SHAPES
            for transposed in (False, True)
        ]
        found += [lambda shape=shape, dtype=dtype: shape.cubin(dtype) for shape in weight_grad[dtype]]
    return found


def _compile(index: int) -> None:
    _cubins()[index]()


def _checked(deadline: float, seed: int) -> tuple[int, list[str] | str | None]:
    """The seed and what check() gives, or what is wrong, or None after the deadline."""
    if time.time() > deadline:
        return seed, None
    cuda = backends.get("cuda")
    try:
        return seed, check(cuda, *ways(cuda), seed, _LARGEST)
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
