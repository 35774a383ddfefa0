"""The weight gradient of depthwise convolutions by our kernel, against float64, beside memory that must not be touched.

python -m tests.backends.cpu.x86.test_depthwise_weight_grad SEEDS tries many.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys

import pytest
import torch

from genesis.backends.cpu import weight_gradient
from genesis.backends.cpu.x86 import depthwise_weight_grad, machine
from genesis.backends.cpu.x86.problem import Problem
from genesis.records import ConvGeometry
from tests.backends.cpu.x86.test_channels import placed

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

BOUND = 3e-7  # of the result's norm


@pytest.mark.parametrize("kind", ["avx512", "avx2"])
@pytest.mark.parametrize("seed", range(16))
def test_against_float64(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> None:
    if kind == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    monkeypatch.setattr(machine, "vectors", lambda: kind)
    check(seed)


def check(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kernel = draw.choice([1, 3, 3, 5, 7]), draw.choice([1, 2, 3, 5])
    stride, dilation = (draw.choice([1, 2, 3]), draw.choice([1, 2])), (draw.choice([1, 1, 2]), draw.choice([1, 1, 3]))
    padding = draw.randint(0, kernel[0] + 1), draw.randint(0, kernel[1])
    sizes = [
        max(1, d * (k - 1) + 1 - 2 * p) + draw.choice([0, 2, 9, 70])
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    batch, channels = draw.randint(1, 3), 16 * draw.randint(1, 5)
    geometry = ConvGeometry(stride, padding, dilation, channels)
    x = torch.randn(batch, channels, *sizes).contiguous(memory_format=torch.channels_last)
    strides = x.shape[1] * x.shape[2] * x.shape[3], 1, x.shape[1] * x.shape[3], x.shape[1]
    problem = Problem(tuple(x.shape), strides, (channels, 1, *kernel), geometry, False, False, None)
    grad = torch.randn(problem.output_shape).contiguous(memory_format=torch.channels_last)
    wide = machine.vectors() == "avx512"
    assert depthwise_weight_grad.is_supported(problem, wide)
    exact = plain(grad.double(), x.double(), problem.weight_shape, geometry)
    for at_end in (True, False):
        with contextlib.ExitStack() as stack:
            job, count = depthwise_weight_grad.planned(problem, wide, draw.randint(1, 4))
            sums = torch.zeros(count, math.prod(kernel), channels)
            operands = [placed(stack, each, at_end) for each in (x, grad, sums)]
            job.run(*[each.data_ptr() for each in operands], 0, 0)
            found = operands[-1].sum(0).t().reshape(problem.weight_shape).clone()
        assert (found - exact).norm() <= BOUND * exact.norm(), f"seed {seed}"


def plain(grad: torch.Tensor, x: torch.Tensor, weight_shape: tuple[int, ...], geometry: ConvGeometry) -> torch.Tensor:
    weight = torch.empty(weight_shape, dtype=grad.dtype)
    options = (None, *geometry[:3], False, (0, 0), geometry.groups, (False, True, False))
    return torch.ops.aten.convolution_backward(grad, x, weight, *options)[1]


def test_what_is_chosen() -> None:
    """Our kernel without tuning, and PyTorch's where it has none."""

    def refuse(*args: object) -> torch.Tensor:
        raise AssertionError("not ours")

    x, geometry = torch.randn(2, 32, 9, 9).contiguous(memory_format=torch.channels_last), ((1, 1), (1, 1), (1, 1))
    found = weight_gradient.compute(x, x, (32, 1, 3, 3), ConvGeometry(*geometry, 32), refuse)
    assert found is not None
    exact = plain(x.double(), x.double(), (32, 1, 3, 3), ConvGeometry(*geometry, 32))
    assert (found - exact).norm() <= BOUND * exact.norm()
    assert weight_gradient.compute(x, x, (32, 8, 3, 3), ConvGeometry(*geometry, 4), refuse) is None
    small = x[:, :20].contiguous(memory_format=torch.channels_last)
    assert weight_gradient.compute(small, small, (20, 1, 3, 3), ConvGeometry(*geometry, 20), refuse) is None


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        check(number)
    print("all right")
