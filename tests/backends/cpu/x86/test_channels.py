"""What batch norm needs of each channel, against float64; with the operands where memory begins and ends."""

from __future__ import annotations

import contextlib
import ctypes

import pytest
import torch
from torch import Tensor

from genesis.backends.cpu.x86 import channels, machine, micro
from tests.backends.cpu.x86.guarded import guarded

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")


SHAPES = ((1, 8, 8, 8), (2, 24, 9, 15), (3, 16, 31, 7), (1, 144, 20, 33), (2, 960, 7, 7), (2, 16, 65, 67))


@pytest.fixture(params=["avx512", "avx2"], autouse=True)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    monkeypatch.setattr(machine, "vectors", lambda: request.param)


def placed(stack: contextlib.ExitStack, x: Tensor, at_end: bool) -> Tensor:
    """A copy beside memory that must not be touched."""
    address = stack.enter_context(guarded(4 * x.numel(), at_end))
    flat = torch.frombuffer((ctypes.c_char * (4 * x.numel())).from_address(address), dtype=torch.float32)
    return flat.as_strided(x.shape, x.stride()).copy_(x)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 8, 8, 8), (2, 24, 9, 15), (3, 16, 31, 7), (1, 144, 20, 33), (2, 960, 7, 7), (2, 16, 65, 67)]
)
def test_all(shape: tuple[int, ...], at_end: bool) -> None:
    torch.manual_seed(0)
    count = shape[1]
    mean, *numbers = torch.randn(4, count).unbind()
    scale, other_scale, shift = (each.double().numpy() for each in numbers)
    x, grad = (torch.randn(shape).add_(3).contiguous(memory_format=torch.channels_last) for _ in range(2))
    assert channels.is_supported(x)
    with contextlib.ExitStack() as stack:
        x, grad, mean = (placed(stack, each, at_end) for each in (x, grad, mean))
        y = channels.combine(x, scale, grad, other_scale, shift)
        moments, sums = channels.moments(x), channels.grad_sums(grad, x, mean)
        pixels, grads = (each.double().permute(0, 2, 3, 1).reshape(-1, count) for each in (x, grad))
        num_groups, first = x.numel() // count // channels.SUMMANDS, 0
        assert [each.pixels for each in moments] == ([4096, 64] if num_groups >= 128 else [64])
        for size, means, squares in moments:
            end = first + size * len(means)
            groups = pixels[first:end].view(-1, size, count)
            exact = torch.stack([groups.mean(1), (groups - groups.mean(1, keepdim=True)).square().sum(1)])
            found = torch.stack([torch.from_numpy(each).double() for each in (means, squares)])
            torch.testing.assert_close(found, exact, rtol=2e-6, atol=0)
            first = end
        assert first == num_groups * channels.SUMMANDS > 0
        pixels, grads = pixels[:first], grads[:first]
        exact = torch.stack([grads.sum(0), (grads * (pixels - mean)).sum(0)])
        assert (torch.from_numpy(sums) - exact).norm() <= 2e-7 * exact.norm()
        planes = [torch.from_numpy(each).view(-1, 1, 1) for each in (scale, other_scale, shift)]
        exact = x * planes[0] + grad * planes[1] + planes[2]
        assert y.stride() == x.stride()
        assert (y - exact).norm() <= 1e-7 * exact.norm()


@pytest.mark.parametrize("activation", micro.ACTIVATIONS)
@pytest.mark.parametrize("has_residual", [True, False])
@pytest.mark.parametrize("shape", [(1, 8, 8, 8), (2, 24, 9, 15), (1, 144, 20, 33), (2, 128, 7, 7)])
def test_normalized(shape: tuple[int, ...], has_residual: bool, activation: str | None) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(shape).mul_(4).contiguous(memory_format=torch.channels_last) for _ in range(2))
    x[0, 0, 0, 0] = float("nan")
    scale, shift = (each.double().numpy() for each in torch.randn(2, shape[1]).unbind())
    for at_end in (True, False):
        with contextlib.ExitStack() as stack:
            there, added = (placed(stack, each, at_end) for each in (x, residual))
            y = channels.normalized(there, scale, shift, added if has_residual else None, activation)
        exact = x * torch.from_numpy(scale).view(-1, 1, 1) + torch.from_numpy(shift).view(-1, 1, 1)
        exact = exact + residual if has_residual else exact
        exact = exact if activation is None else exact.relu() if activation == "relu" else exact.clamp(0.0, 6.0)
        torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=2e-6, equal_nan=True)


def test_what_is_left_to_others() -> None:
    assert not channels.is_supported(torch.ones(1, 12, 3, 3))
    assert not channels.is_supported(torch.ones(0, 16, 3, 3))
