"""No candidate touches an operand or its result before what was launched ahead of it has ended; libraries' included.
Nor does PyTorch, whose operations come behind Genesis' in fused models.

What is launched ahead lets the next kernel come up at once, and takes its time before it writes an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import genesis
from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import Bench, Built, build
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.replays import Operand
from genesis.backends.cuda.ops.attention.operation import ATTENTION
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.matmul.operation import MATMUL
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.backends.cuda.runtime import streams

SOURCE = """
extern "C" __global__ void write_late(unsigned char* to, const unsigned char* from, long long n, long long cycles) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  for (const long long began = clock64(); clock64() - began < cycles;) {}
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += 256ll * gridDim.x) to[i] = from[i];
}
"""
CYCLES = 400_000  # a fifth of a millisecond: several times what a launch takes the host
PROGRAMS = 16  # which leave room beside them
OF_EACH_FAMILY = 3
SQUARE, WIDE = ((8, 256, 14, 14), (256, 256, 3, 3)), ((4, 256, 4, 4), (256, 256, 3, 3))
FIRST, DEPTHWISE = ((4, 3, 64, 64), (64, 3, 7, 7)), ((8, 64, 28, 28), (64, 1, 3, 3))
FUSED = {"bias": True, "residual": True, "activation": "relu"}
HEADS = ((2, 16, 1024, 64), (16 * 1024 * 64, 1024 * 64, 64, 1))


def _conv(direction: str, sizes: Any, dtype: Any = dtypes.bfloat16, stride: int = 1, **options: Any) -> ConvProblem:
    padding, groups = sizes[1][2] // 2, sizes[0][1] // sizes[1][1]
    geometry = ((stride, stride), (padding, padding), (1, 1), groups)
    return ConvProblem(direction, *sizes, *geometry, dtype=dtype, **options)


def _matmul(dtype: dtypes.DType, precision: str = "highest") -> MatmulProblem:
    return MatmulProblem(0, dtype, 128, 512, 784, (784, 1), (1, 784), (1,), (0,), (0,), True, 16, precision)


PROBLEMS: dict[str, tuple[Operation[Any], Any]] = {
    "forward": (CONV, _conv(FORWARD, SQUARE)),
    "fused": (CONV, _conv(FORWARD, SQUARE, **FUSED)),
    "fused, few pixels": (CONV, _conv(FORWARD, WIDE, **FUSED)),
    "fused, float16": (CONV, _conv(FORWARD, SQUARE, dtypes.float16, **FUSED)),
    "bias and ReLU": (CONV, _conv(FORWARD, WIDE, bias=True, activation="relu")),
    "statistics": (CONV, _conv(FORWARD, SQUARE, statistics=True)),
    "input gradient": (CONV, _conv(INPUT_GRAD, SQUARE)),
    "input gradient, added": (CONV, _conv(INPUT_GRAD, SQUARE, residual=True)),
    "weight gradient": (CONV, _conv(WEIGHT_GRAD, SQUARE)),
    "float32": (CONV, _conv(FORWARD, SQUARE, dtypes.float32)),
    "TensorFloat32": (CONV, _conv(FORWARD, SQUARE, dtypes.float32, precision="high")),
    "first layer": (CONV, _conv(FORWARD, FIRST, stride=2)),
    "first layer, weight gradient": (CONV, _conv(WEIGHT_GRAD, FIRST, stride=2)),
    "depthwise": (CONV, _conv(FORWARD, DEPTHWISE)),
    "matmul": (MATMUL, _matmul(dtypes.bfloat16)),
    "matmul, float32": (MATMUL, _matmul(dtypes.float32)),
    "matmul, TensorFloat32": (MATMUL, _matmul(dtypes.float32, "medium")),
    "attention": (ATTENTION, AttentionProblem(0, dtypes.bfloat16, HEADS, HEADS, HEADS, False, 0.125)),
}


@pytest.fixture
def write_late(gpu: Backend) -> Callable[[torch.Tensor, torch.Tensor], None]:
    kernel = genesis.cuda.load_inline("late", SOURCE).write_late

    def launch(to: torch.Tensor, source: torch.Tensor) -> None:
        stream = streams.current_handle(0)
        kernel(to, source, to.numel(), CYCLES, grid=PROGRAMS, block=256, stream=stream)

    return launch


def _bytes(operand: Operand) -> torch.Tensor:
    """The operand's memory, for PyTorch."""
    assert operand.array is not None
    size = operand.array.layout.num_bytes
    memory = {"shape": (size,), "typestr": "|u1", "data": (operand.address, False), "version": 3}
    return torch.as_tensor(type("Memory", (), {"__cuda_array_interface__": memory})(), device="cuda")


def _builts(operation: Operation[Any], problem: Any) -> Iterator[Built[Any]]:
    """Some of each family."""
    taken: dict[str, int] = {}
    for candidate in operation.in_turns(problem):
        family = candidate.name.partition("/")[0]
        taken[family] = taken.get(family, 0) + 1
        if taken[family] <= OF_EACH_FAMILY and (built := build(candidate, problem, 1 << 30)) is not None:
            yield built


def _run(bench: Bench[Any], built: Built[Any], result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    bench.run(built)
    genesis.cuda.synchronize()
    return result.clone().view(dtype).double()


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_wait(name: str, write_late: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    operation, problem = PROBLEMS[name]
    bench, dtype = operation.bench(problem), getattr(torch, problem.dtype.name)
    result, *others = [_bytes(each) for each in bench.operands if each.array is not None]
    operands = others[1:] if operation is ATTENTION else others  # the second is a result too
    tried = 0
    for built in _builts(operation, problem):
        expected, tried = _run(bench, built, result, dtype), tried + 1
        for place, memory in enumerate(operands):
            right = memory.clone()
            memory.zero_()
            result.fill_(255)  # NaN, where nothing is written
            torch.cuda.synchronize()
            write_late(memory, right)
            found = _run(bench, built, result, dtype)
            distance = (found - expected).norm() / expected.norm()
            assert distance <= 1e-2, f"{built.candidate.name}: operand {place} was read early, {distance:.3f}"
        before = torch.zeros_like(result)
        result.fill_(7)
        torch.cuda.synchronize()
        write_late(before, result)
        bench.run(built)
        genesis.cuda.synchronize()
        assert (before == 7).all(), f"{built.candidate.name}: the result was written early"
    assert tried >= 2


def _drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


IMAGES, WEIGHT, ROWS, HEAD = (8, 256, 14, 14), (256, 256, 3, 3), (512, 256), (2, 8, 128, 64)
OF_PYTORCH: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "convolution": (lambda x, weight, bias: F.conv2d(x, weight, bias, padding=1), [IMAGES, WEIGHT, (256,)]),
    "linear": (F.linear, [ROWS, (384, 256), (384,)]),
    "batches of products": (torch.bmm, [(8, 128, 64), (8, 64, 128)]),
    "attention": (F.scaled_dot_product_attention, [HEAD, HEAD, HEAD]),
    "layer norm": (lambda x, weight, bias: F.layer_norm(x, (256,), weight, bias), [ROWS, (256,), (256,)]),
    "softmax": (lambda x: x.softmax(-1), [ROWS]),
    "sum": (lambda x: x.sum(0), [ROWS]),
    "addition": (torch.add, [ROWS, ROWS]),
    "concatenation": (lambda x, y: torch.cat([x, y]), [ROWS, ROWS]),
    "max pooling": (lambda x: F.max_pool2d(x, 2), [IMAGES]),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", OF_PYTORCH)
def test_pytorch_waits(name: str, dtype: torch.dtype, write_late: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """On the default stream, which is Genesis' too."""
    operation, shapes = OF_PYTORCH[name]
    operands = [_drawn(*shape, dtype=dtype) for shape in shapes]
    expected = operation(*operands).double()
    for place, operand in enumerate(operands):
        right = operand.clone()
        operand.zero_()
        torch.cuda.synchronize()
        write_late(operand.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8))
        found = operation(*operands).double()
        distance = (found - expected).norm() / expected.norm()
        assert distance <= 1e-2, f"operand {place} was read early, {distance:.3f}"
