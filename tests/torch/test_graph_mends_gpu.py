"""Results and gradients of functions of images on a GPU, in all orders of memory, beside float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import genesis.torch
from tests.torch.image_ops import LAYOUTS, OPS, Sample, in_order, sample

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::Warning:torch")]

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1}  # grid_sample sums in it
_FORGOTTEN = "average"  # whose padding PyTorch's own kernel forgets in channels-last images, up to 2.13
Functions = Callable[[list[Tensor]], list[Tensor]]


def wrong(
    run: Functions, samples: dict[str, Sample], dtype: torch.dtype, layout: str
) -> dict[str, tuple[float, float]]:
    """The errors of those that are too far from float64, in the third of three steps."""
    for _ in range(3):
        xs = [in_order(each.x.to("cuda", dtype), layout).requires_grad_() for each in samples.values()]
        grads = [in_order(each.grad.to("cuda", dtype), layout) for each in samples.values()]
        ys = run(xs)
        found = torch.autograd.grad(ys, xs, grads)
    errors = {name: samples[name].errors(*both) for name, *both in zip(samples, ys, found, strict=True)}
    return {name: each for name, each in errors.items() if not max(each) <= _TOLERANCE[dtype]}


def functions(samples: dict[str, Sample]) -> Functions:
    return lambda xs: [OPS[name](x) for name, x in zip(samples, xs, strict=True)]


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", list(_TOLERANCE), ids=str)
@pytest.mark.parametrize("how", [{}, {"compiler": "aot_eager"}], ids=str)
def test_compiled_gradients(how: dict[str, Any], dtype: torch.dtype, layout: str) -> None:
    samples = {name: sample(op) for name, op in OPS.items()}
    run: Any = genesis.torch.compile(functions(samples), **how)
    assert wrong(run, samples, dtype, layout) == {}
    assert not any(graph.obstacle for graph in run.report().graphs), str(run.report())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", list(_TOLERANCE), ids=str)
def test_eager_gradients_of_all_but_averages(dtype: torch.dtype, layout: str) -> None:
    """Of PyTorch itself: should a kernel be wrong, compiled graphs that call it are too."""
    samples = {name: sample(op) for name, op in OPS.items() if not name.startswith(_FORGOTTEN)}
    assert wrong(functions(samples), samples, dtype, layout) == {}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", list(_TOLERANCE), ids=str)
@pytest.mark.parametrize("how", [(3, 1, 1), (3, 2, 1, True), (3, 1, (1, 0), False, False), (6, 1, 3)], ids=str)
def test_fused_layers(how: tuple[Any, ...], dtype: torch.dtype, layout: str) -> None:
    layer = torch.nn.AvgPool2d(*how)
    samples = {"average": sample(layer)}
    model = genesis.torch.fuse(torch.nn.Sequential(layer))
    assert wrong(lambda xs: [model(xs[0])], samples, dtype, layout) == {}
