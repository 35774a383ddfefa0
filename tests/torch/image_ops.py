"""Functions of images that kernels and compilers treat differently by the order of memory, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHAPE = (4, 4, 6, 5)
LAYOUTS = ("contiguous", "channels_last", "permuted")
Op = Callable[[Tensor], Tensor]


def resized(mode: str, size: tuple[int, int] = (9, 8), **how: Any) -> Op:
    return lambda x: F.interpolate(x, size, mode=mode, **how)


def sampled(mode: str) -> Op:
    """At places that follow from the sizes alone, some of them outside."""

    def run(x: Tensor) -> Tensor:
        places = torch.arange(4 * 7 * 6 * 2, device=x.device).mul(37).remainder(101).sub(50).to(x.dtype) / 32
        return F.grid_sample(x, places.view(4, 7, 6, 2), mode=mode, padding_mode="border", align_corners=False)

    return run


def averaged(*how: Any, **named: Any) -> Op:
    return lambda x: F.avg_pool2d(x, *how, **named)


def padded(mode: str) -> Op:
    return lambda x: F.pad(x, (2, 1, 1, 2), mode)


def unpooled(x: Tensor) -> Tensor:
    y, indices = F.max_pool2d(x, 2, 2, return_indices=True)
    return F.max_unpool2d(y, indices, 2, 2, 0, x.shape[2:])


OPS: dict[str, Op] = {
    "average, group norm": lambda x: F.group_norm(F.avg_pool2d(x, 3, 1, 1), 2),
    "average": averaged(3, 1, 1),
    "average, no padding": averaged(3, 2, 0),
    "average, padding not counted": averaged(3, 1, 1, False, False),
    "average, divisor": averaged(3, 2, 1, divisor_override=5),
    "average, ceil": averaged(3, 2, 0, True),
    "average, ceil and padding": averaged(3, 2, 1, True),
    "average, ceil and a window in the padding": averaged(2, 3, 1, True),
    "average, many windows": averaged(6, 1, 3),
    "average, many windows, padding not counted": averaged(6, 1, (2, 1), False, False),
    "average, 1d": lambda x: F.avg_pool1d(x.flatten(2), 3, 2, 1, True),
    "average, 3d": lambda x: F.avg_pool3d(x.unsqueeze(2), (1, 3, 3), 2, (0, 1, 1), True),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "adaptive average of all": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    "maximum": lambda x: F.max_pool2d(x, 3, 1, 1),
    "maximum, ceil": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "maximum, dilated": lambda x: F.max_pool2d(x, 2, 1, 1, 2),
    "maximum, 3d": lambda x: F.max_pool3d(x.unsqueeze(2), (1, 2, 2), 1, (0, 1, 1)),
    "unpooled": unpooled,
    "group norm": lambda x: F.group_norm(x, 2),
    "instance norm": lambda x: F.instance_norm(x),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "local response norm": lambda x: F.local_response_norm(x, 3),
    "nearest": resized("nearest"),
    "nearest-exact": resized("nearest-exact"),
    "bilinear": resized("bilinear"),
    "bilinear, aligned": resized("bilinear", align_corners=True),
    "bilinear, smaller": resized("bilinear", (4, 3), antialias=True),
    "bicubic": resized("bicubic"),
    "grid, bilinear": sampled("bilinear"),
    "grid, bicubic": sampled("bicubic"),
    "reflected": padded("reflect"),
    "replicated": padded("replicate"),
    "replicated, 1d": lambda x: F.pad(x.flatten(2), (2, 1), "replicate"),
    "replicated, 3d": lambda x: F.pad(x.unsqueeze(2), (2, 1, 1, 2, 1, 0), "replicate"),
    "circular": padded("circular"),
    "zeros": lambda x: F.pad(x, (2, 1, 1, 2)),
    "shuffled": lambda x: F.pixel_shuffle(x, 2),
    "unfolded": lambda x: F.unfold(x, 3, 1, 1, 2),
}


def in_order(x: Tensor, layout: str) -> Tensor:
    """A copy of x in an order of memory."""
    if layout == "permuted" and x.dim() == 4:
        return x.permute(3, 1, 0, 2).clone(memory_format=torch.contiguous_format).permute(2, 1, 3, 0)
    last = layout == "channels_last" and x.dim() == 4
    return x.clone(memory_format=torch.channels_last if last else torch.contiguous_format)


class Sample(NamedTuple):
    """An input, a gradient of the result, and what comes of them in float64 on the CPU."""

    x: Tensor
    grad: Tensor
    y: Tensor
    grad_x: Tensor

    def errors(self, y: Tensor, grad_x: Tensor) -> tuple[float, float]:
        """The errors of a result and of a gradient, relative to the largest element."""
        return _error(y, self.y), _error(grad_x, self.grad_x)


def sample(op: Op, shape: tuple[int, ...] = SHAPE) -> Sample:
    """Of numbers that every dtype has."""
    torch.manual_seed(0)
    x = torch.randn(shape).bfloat16().double().requires_grad_()
    y = op(x)
    grad = torch.randn(y.shape).bfloat16().double()
    return Sample(x.detach(), grad, y.detach(), torch.autograd.grad(y, x, grad)[0])


def _error(found: Tensor, right: Tensor) -> float:
    assert found.shape == right.shape
    return ((found.detach().cpu().double() - right).abs().max() / right.abs().max()).item()


def two_steps(plain: nn.Module, ours: Any, x: Tensor) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Results, gradients and buffers of steps of both models, by name; they agree."""
    for _ in range(2):
        expected, found = _step(plain, x), _step(ours, x)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10, msg=lambda text, n=name: n + text)
        yield expected, found


def _step(model: Any, x: Tensor) -> dict[str, Tensor]:
    """Results, gradients and buffers of a step."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    results = model(x)
    results = results if isinstance(results, tuple) else (results,)
    sum((y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum() for y in results).backward()
    plain = getattr(model, "_orig_mod", model)
    found = {"input": x.grad} | {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    return found | {f"result {i}": y.detach() for i, y in enumerate(results)} | dict(plain.named_buffers())
