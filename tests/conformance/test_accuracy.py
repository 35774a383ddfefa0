"""Long sums, where orders of adding up part: float32 no more than twice as far from float64 as PyTorch's.

PyTorch's samples, which are short, are measured where they are compared: opinfo.check_samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as GF
from genesis.records import ConvSettings, NormOptions, NormState
from genesis.settings import override
from tests.conformance import accuracy, opinfo
from tests.conformance.accuracy import Distances
from tests.conformance.harness import distances


def normal(*shape: int, mean: float = 0.0) -> torch.Tensor:
    return torch.randn(shape, generator=_generator) + mean


_generator = torch.Generator()


def image(*shape: int, mean: float = 1.0) -> torch.Tensor:
    return normal(*shape, mean=mean).contiguous(memory_format=torch.channels_last)


def labels(count: int, classes: int) -> torch.Tensor:
    return torch.randint(classes, (count,), generator=_generator)


def both(name: str, **options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    ours, theirs = (getattr(space, name, None) for space in (GF, TF))
    ours, theirs = ours or getattr(genesis, name), theirs or getattr(torch, name)
    return (lambda *args: ours(*args, **options)), (lambda *args: theirs(*args, **options))


def batch_norm(space: Any, training: bool) -> Callable[..., Any]:
    def function(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
        return space.batch_norm(x, mean.detach(), var.detach(), weight, bias, training=training)

    return function


def fused(x: Any, weight: Any, gamma: Any, beta: Any, residual: Any) -> Any:
    norm, options = NormState(gamma, beta, None, None), NormOptions(training=True)
    return GF.conv_bn_relu(x, weight, None, norm, options, ConvSettings(padding=1), residual)


def layers(x: Any, weight: Any, gamma: Any, beta: Any, residual: Any) -> Any:
    y = TF.batch_norm(TF.conv2d(x, weight, None, 1, 1), None, None, gamma, beta, training=True)
    return torch.relu(y + residual)


def norm_operands(*shape: int) -> list[torch.Tensor]:
    return [image(*shape), normal(shape[1], mean=1), normal(shape[1]), normal(shape[1]), normal(shape[1]).abs() + 0.5]


# name → the functions of both, and the operands; a size s is 1 for the simulated device, larger for the CPU.
LONG: dict[str, tuple[tuple[Callable[..., Any], Callable[..., Any]], Callable[[int], list[torch.Tensor]]]] = {
    "sum": (both("sum"), lambda s: [normal(1000 * s * s, mean=0.5)]),
    "sum of channels": (both("sum", dim=(0, 2, 3)), lambda s: [image(2 * s, 8, 16 * s, 16)]),
    "mean": (both("mean", dim=0), lambda s: [normal(1000 * s, 8, mean=0.5)]),
    "var": (both("var", dim=0), lambda s: [normal(1000 * s, 8, mean=3.0)]),
    "prod": (both("prod", dim=0), lambda s: [normal(64, 8) * 0.01 + 1]),
    "norm": (both("norm"), lambda s: [normal(1000 * s * s)]),
    "logsumexp": (both("logsumexp", dim=1), lambda s: [normal(8, 1000 * s)]),
    "cumsum": (both("cumsum", dim=0), lambda s: [normal(500 * s, 8, mean=0.5)]),
    "softmax": (both("softmax", dim=1), lambda s: [normal(8, 500 * s)]),
    "log_softmax": (both("log_softmax", dim=1), lambda s: [normal(8, 500 * s)]),
    "softmax of channels": (both("softmax", dim=1), lambda s: [image(2, 21, 8 * s, 8)]),
    "cross_entropy": (both("cross_entropy"), lambda s: [normal(200 * s, 21), labels(200 * s, 21)]),
    "mse_loss": (both("mse_loss"), lambda s: [normal(1000 * s), normal(1000 * s)]),
    "l1_loss": (both("l1_loss"), lambda s: [normal(1000 * s), normal(1000 * s)]),
    "linear": (both("linear"), lambda s: [normal(32, 256 * s), normal(16, 256 * s), normal(16)]),
    "matmul": (both("matmul"), lambda s: [normal(16, 256 * s), normal(256 * s, 16)]),
    "conv2d": (both("conv2d", padding=1), lambda s: [image(2, 48 * s, 7, 7), image(16, 48 * s, 3, 3), normal(16)]),
    "conv2d, strided": (
        both("conv2d", stride=2, padding=1), lambda s: [image(2, 48 * s, 9, 9), image(16, 48 * s, 3, 3), normal(16)],
    ),
    "conv2d, 1×1": (both("conv2d"), lambda s: [image(2, 128 * s, 7, 7), image(16, 128 * s, 1, 1), normal(16)]),
    "conv2d, weights over many pixels": (
        both("conv2d", padding=1), lambda s: [image(2, 4, 16 * s, 16), normal(8, 4, 3, 3), normal(8)],
    ),
    "conv_transpose2d": (
        both("conv_transpose2d", stride=2), lambda s: [image(2, 48 * s, 5, 5), normal(48 * s, 8, 2, 2), normal(8)],
    ),
    "batch_norm": ((batch_norm(GF, True), batch_norm(TF, True)), lambda s: norm_operands(2, 8, 16 * s, 16)),
    "batch_norm, eval": ((batch_norm(GF, False), batch_norm(TF, False)), lambda s: norm_operands(2, 8, 16 * s, 16)),
    "batch_norm, small": ((batch_norm(GF, True), batch_norm(TF, True)), lambda s: norm_operands(2, 8, 8, 8)),
    "conv_bn_relu": (
        (fused, layers),
        lambda s: [
            image(2, 8 * s, 16, 16), normal(8, 8 * s, 3, 3), normal(8, mean=1), normal(8, mean=8), image(2, 8, 16, 16),
        ],
    ),
    "layer_norm": (
        both("layer_norm", normalized_shape=(300,)), lambda s: [normal(50 * s, 300, mean=2)],
    ),
    "group_norm": (both("group_norm", num_groups=2), lambda s: [image(2, 8, 8 * s, 16)]),
    "instance_norm": (both("instance_norm"), lambda s: [image(2, 8, 8 * s, 16)]),
    "avg_pool2d": (both("avg_pool2d", kernel_size=8), lambda s: [image(2, 8, 16 * s, 16)]),
    "adaptive_avg_pool2d": (both("adaptive_avg_pool2d", output_size=1), lambda s: [image(2, 8, 16 * s, 16)]),
    "interpolate": (
        both("interpolate", scale_factor=3, mode="bilinear", align_corners=False), lambda s: [image(2, 4, 4 * s, 8)],
    ),
    "embedding": (both("embedding"), lambda s: [labels(500 * s, 5), normal(5, 8)]),
    "scaled_dot_product_attention": (
        both("scaled_dot_product_attention"), lambda s: [normal(1, 2, 64 * s, 16) for _ in range(3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_long_sums(name: str) -> None:
    accuracy.check(_of_long(name, "cpu", size=6))


@pytest.mark.parametrize("name", LONG)
def test_long_sums_simulated(name: str) -> None:
    with override(cuda="simulated"):
        accuracy.check(_of_long(name, "cuda", size=1), accuracy.rounding(name, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LONG)
def test_long_sums_on_a_gpu(name: str) -> None:
    with override(cuda="auto"):
        accuracy.check(_of_long(name, "cuda", size=6), accuracy.rounding(name, "cuda"))


def _of_long(name: str, device: str, size: int) -> Iterator[Distances]:
    (ours, theirs), operands = LONG[name]
    for seed in range(1, 4):  # from 0, harness.seed_like draws the gradients: they would be the operands
        _generator.manual_seed(seed)
        mine = [each.requires_grad_(each.is_floating_point()) for each in operands(size)]
        # PyTorch in its own order of memory, NCHW, for which its sums are made.
        sample = opinfo.Sample(mine[0], tuple(mine[1:]))
        yield distances(ours, lambda *args: theirs(*(each.contiguous() for each in args)), sample, device)
