"""Norms folded into the convolutions before them, of many layers in one launch."""

from __future__ import annotations

import copy
import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.backends.cuda.ops.conv_bn_folded import many
from genesis.torch import graph_folds
from tests.backends.cuda.ops.conv.candidates import host_programs

TYPES = [torch.float32, torch.float16, torch.bfloat16]
GIVEN_AND_MADE = [(torch.float32, made) for made in TYPES] + [(torch.float16,) * 2, (torch.bfloat16,) * 2]
SHAPES = [(8, 3, 7, 7), (16, 8, 1, 1), (5, 7, 3, 3), (130, 4, 1, 3), (2, 4000, 1, 1), (1, 1, 1, 1), (6, 1, 5, 5)] * 8
SHAPES += [(3, 5000, 1, 1)]  # its filters have more elements than the threads load at once


def layers(given: torch.dtype, device: str) -> tuple[list[Tensor], list[Tensor], list[bool], list[float]]:
    """More than one launch takes; weights in several orders of memory, without one or another of their vectors."""
    generator = torch.Generator().manual_seed(0)
    weights, vectors, present = [], [], []
    for index, shape in enumerate(SHAPES):
        weight = torch.randn(shape, generator=generator).to(device, given)
        if index % 3 == 1:
            weight = weight.to(memory_format=torch.channels_last)
        if index % 3 == 2:
            weight = weight.transpose(2, 3).contiguous().transpose(2, 3)
        weights.append(weight)
        there = [index % 2 == 0, index % 4 != 3, index % 5 != 4, True, True]
        for place, is_there in enumerate(there):
            if is_there:
                vector = torch.randn(shape[0], generator=generator)
                vectors.append((vector.abs() + 0.1 if place == 4 else vector).to(device, given))
        present += there
    return weights, vectors, present, [1e-5 * (index + 1) for index in range(len(SHAPES))]


def folded(weight: Tensor, vectors: list[Tensor | None], eps: float) -> list[Tensor]:
    bias, gamma, beta, mean, var = (None if x is None else x.double() for x in vectors)
    assert mean is not None
    assert var is not None
    scale = (1 if gamma is None else gamma) / (var + eps).sqrt()
    shift = ((0 if bias is None else bias) - mean) * scale + (0 if beta is None else beta)
    return [weight.double() * scale[:, None, None, None], shift]


@pytest.mark.parametrize(("given", "made"), GIVEN_AND_MADE, ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_folds(given: torch.dtype, made: torch.dtype, device: str) -> None:
    weights, vectors, present, eps = layers(given, device)
    results = torch.ops.genesis.fold_norms(weights, vectors, present, eps, made)
    rest = iter(vectors)
    tolerance = {torch.float32: 4e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}[made]
    for index, weight in enumerate(weights):
        layer = [next(rest) if there else None for there in present[5 * index : 5 * index + 5]]
        for ours, exact in zip(results[2 * index : 2 * index + 2], folded(weight, layer, eps[index]), strict=True):
            assert ours.dtype is made
            assert (ours.double() - exact).abs().max() <= tolerance * exact.abs().max()
        assert results[2 * index].permute(0, 2, 3, 1).is_contiguous()


_ON_THE_HOST = """
#undef __shared__
#define __shared__ static
#define __grid_constant__
#define Table Geometry
extern "C" float sqrtf(float);
static float __fsqrt_rn(float x) { return sqrtf(x); }
static float __frcp_rn(float x) { return 1 / x; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
"""


@pytest.mark.skipif(not host_programs.is_available(), reason="no C++ compiler")
@pytest.mark.parametrize(("given", "made"), GIVEN_AND_MADE, ids=str)
def test_the_kernel_on_the_host(given: torch.dtype, made: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes its results, and nothing around them."""
    monkeypatch.setattr(graph_folds, "_has_kernel", lambda x: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    types = [f"-DGIVEN={TYPES.index(given)}", f"-DMADE={TYPES.index(made)}"]
    library = host_programs.build(
        many._SOURCE, [many._HEADERS / "overlap.cuh"], "fold_batch_norms(geometry)", types, _ON_THE_HOST
    )
    around: list[Tensor] = []

    def made_within(*args: Any) -> list[Tensor]:
        found = []
        for x in shapes(*args):
            memory = torch.full((x.numel() + 32,), 7, dtype=x.dtype)
            around.extend((memory[:16], memory[16 + x.numel() :]))
            found.append(memory[16 : 16 + x.numel()].as_strided(x.shape, x.stride(), 16))
        return found

    def fold(device: int, stream: int, some: Any, given: Any, made: Any) -> None:
        for begin in range(0, len(some), many._MOST):
            table, grid = many._table(some[begin : begin + many._MOST])
            assert library.launch(grid, many._THREADS, 0, None, table, len(table)) == 0

    shapes = graph_folds._shapes_folds
    monkeypatch.setattr(graph_folds, "_shapes_folds", made_within)
    monkeypatch.setattr(many, "fold", fold)
    test_folds(given, made, "cpu")
    assert all((x == 7).all() for x in around)


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles(capability: int) -> None:
    for given, made in itertools.product(many.TYPES, many.TYPES):
        assert many.cubin(given, made, capability)[:4] == b"\x7fELF"


def test_the_table_is_what_the_kernel_reads() -> None:
    source = many._SOURCE.read_text()
    for name, value in (("MOST", many._MOST), ("MOST_FILTERS", many._MOST_FILTERS), ("THREADS", many._THREADS)):
        assert re.search(rf"#define {name} +(\d+)", source).group(1) == str(value)  # type: ignore[union-attr]
    assert len(many._table([])[0]) <= 4096
    layer = many.Layer((1, 2, 3, 4, 5, 6, 7, 8), (130, 4, 1, 3), (12, 3, 3, 1), 1e-5)
    table, number = many._table([layer, layer])
    assert number == 2 * 3  # of 64, 64 and 2 filters
    first = many._TABLE.size + many._LAYER.size
    assert many._LAYER.unpack(table[first : first + many._LAYER.size])[-2] == 3  # where the second one's begin


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_captured_model(dtype: torch.dtype) -> None:
    """What changes in place, past the version counters too, shows in the next replay."""
    torch.manual_seed(0)
    parts = [
        nn.Sequential(nn.Conv2d(8, 8, size, padding=size // 2, groups=groups, bias=False), nn.BatchNorm2d(8), act)
        for size, groups, act in [(3, 1, nn.ReLU()), (1, 1, nn.SiLU()), (5, 8, nn.Hardswish()), (3, 1, nn.Identity())]
    ]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *parts).cuda().eval()
    model = model.to(memory_format=torch.channels_last)
    compiled = genesis.torch.compile(copy.deepcopy(model).to(dtype))
    with torch.no_grad():
        for index in range(6):
            x = torch.randn(2, 3, 33, 31, device="cuda").to(memory_format=torch.channels_last)
            y, expected = compiled(x.to(dtype)), model(x)
            tolerance = 2e-3 if dtype is torch.float32 else 2e-2  # PyTorch's convolutions are in TF32
            assert (y - expected).norm() <= tolerance * expected.norm(), index
            for each in (model, compiled):
                for tensor in (*each.parameters(), *each.buffers()):
                    if tensor.is_floating_point():
                        tensor.data.mul_(1.1)
    report = genesis.torch.report(compiled)
    assert all(graph.captured for graph in report.graphs)
