"""Interpolation in compiled graphs: its gradient gathers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.library import opcheck
from torch.nn import functional as F

import genesis.torch
from genesis.torch.graph_mends import mend
from tests.torch.image_ops import LAYOUTS, in_order, sample

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), {"size": 9, "mode": "linear"}),
    ((2, 3, 5), {"scale_factor": 2.5}),
    ((2, 3, 6, 5), {"scale_factor": 2}),
    ((2, 3, 6, 5), {"size": (4, 9), "mode": "nearest-exact"}),
    ((2, 3, 6, 5), {"scale_factor": 8, "mode": "bilinear", "align_corners": False}),
    ((2, 3, 6, 5), {"scale_factor": (1.7, 2.3), "mode": "bilinear"}),
    ((2, 3, 6, 5), {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
    ((2, 3, 6, 5), {"size": (1, 12), "mode": "bilinear", "align_corners": True}),
    ((2, 3, 6, 5), {"size": (4, 3), "mode": "bilinear"}),
    ((2, 3, 1, 1), {"size": (4, 3), "mode": "bilinear"}),  # of an image's mean, in DeepLab
    ((2, 3, 6, 5), {"scale_factor": 1.5, "mode": "bicubic"}),
    ((2, 3, 4, 3, 5), {"scale_factor": 2, "mode": "trilinear", "align_corners": True}),
    ((2, 3, 4, 3, 5), {"size": (5, 5, 5)}),
]
IDS = [" ".join(map(str, (len(shape) - 2, *how.values()))) for shape, how in CASES]
cases = pytest.mark.parametrize(("shape", "how"), CASES, ids=IDS)


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    torch._dynamo.reset()


def graph_of(x: Tensor, how: dict[str, Any]) -> fx.GraphModule:
    """A graph of one interpolation, as Dynamo records it."""
    found: list[fx.GraphModule] = []

    def record(graph: fx.GraphModule, _: Any) -> Any:
        found.append(graph)
        return graph

    torch.compile(lambda x: F.interpolate(x, **how), backend=record)(x)
    return found[0]


def is_gathered(graph: fx.GraphModule) -> bool:
    changed = mend(graph)
    graph.graph.lint()
    assert bool(changed) is any(node.target is torch.ops.genesis.interpolate for node in graph.graph.nodes)
    return bool(changed)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@cases
def test_the_same_as_pytorchs(shape: tuple[int, ...], how: dict[str, Any], dtype: torch.dtype, layout: str) -> None:
    right = sample(lambda x: F.interpolate(x, **how), shape)
    x = in_order(right.x.to(dtype), layout).requires_grad_()
    graph = graph_of(x, how)
    assert is_gathered(graph)
    (y,), theirs = graph(x), F.interpolate(x, **how)
    assert torch.equal(y, theirs)
    assert y.stride() == theirs.stride()
    grad = in_order(right.grad.to(dtype), layout)
    ours, pytorchs = (right.errors(each, *torch.autograd.grad(each, x, grad)) for each in (y, theirs))
    assert max(ours) < max(4 * torch.finfo(dtype).eps, 2 * max(pytorchs))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compilers_know_its_results(layout: str) -> None:
    x = in_order(torch.randn(2, 3, 6, 5), layout).requires_grad_()
    how = [2.0, 1.5], "bilinear", False
    opcheck(torch.ops.genesis.interpolate.default, (x, None, *how))
    y = F.interpolate(x, None, *how).detach()
    opcheck(torch.ops.genesis.interpolate_backward.default, (y, x.shape, layout == "channels_last", *how))


@pytest.mark.parametrize(
    ("shape", "requires_grad", "how"),
    [
        ((2, 3, 6, 5), False, {"scale_factor": 2}),
        ((2, 3, 6, 5), True, {"size": (4, 3), "mode": "bilinear", "antialias": True}),
        ((2, 3, 6), True, {"size": 4, "mode": "area"}),
    ],
)
def test_what_is_left(shape: tuple[int, ...], requires_grad: bool, how: dict[str, Any]) -> None:
    assert not is_gathered(graph_of(torch.randn(shape, requires_grad=requires_grad), how))


@pytest.mark.parametrize("how", [{"scale_factor": 2.0}, {"size": (9, 8)}])
def test_symbolic_sizes_stay_symbolic(how: dict[str, Any]) -> None:
    compiled: Any = genesis.torch.compile(lambda x: F.interpolate(x.sin(), **how), dynamic=True, compiler="aot_eager")
    for size in (5, 6, 9):
        compiled(torch.randn(2, 3, size, size + 1, requires_grad=True)).sum().backward()
    assert len(compiled.report().graphs) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.usefixtures("without_vectors")
@pytest.mark.filterwarnings("ignore")
def test_by_inductor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In channels-last, for which it is told other strides than row-major ones; the op is tested in each order, too."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    samples = [sample(lambda x, how=how: F.interpolate(x, **how), shape) for shape, how in CASES]  # type: ignore[misc]
    xs = [in_order(each.x.float(), "channels_last").requires_grad_() for each in samples]
    compiled: Any = genesis.torch.compile(
        lambda xs: [F.interpolate(x, **how) for x, (_, how) in zip(xs, CASES, strict=True)]
    )
    ys = compiled(xs)
    assert not compiled.report().graphs[0].obstacle
    grads = [in_order(each.grad.float(), "channels_last") for each in samples]
    for each, how, y, grad in zip(samples, IDS, ys, torch.autograd.grad(ys, xs, grads), strict=True):
        assert max(each.errors(y, grad)) < 1e-5, how
