"""What batch norm needs of each channel, against float64; with the operands where memory begins and ends."""

from __future__ import annotations

import contextlib
import ctypes

import pytest
import torch
from torch import Tensor

from genesis.backends.cpu.x86 import channels, machine, micro, statistics
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
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_combine(shape: tuple[int, ...], at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_SMALL", 0)
    torch.manual_seed(0)
    count = shape[1]
    mean, factors = torch.randn(count), torch.randn(3, count)
    x, grad = (torch.randn(shape).add_(3).contiguous(memory_format=torch.channels_last) for _ in range(2))
    assert channels.is_supported(x)
    with contextlib.ExitStack() as stack:
        x, grad, mean = (placed(stack, each, at_end) for each in (x, grad, mean))
        y = channels.combine(x, grad, factors)
        moments, sums = channels.moments(x), channels.grad_sums(grad, x, mean)
        exact = x.double() * planes(factors[0]) + planes(factors[1]) + grad.double() * planes(factors[2])
        assert y.stride() == x.stride()
        assert (y - exact).norm() <= 1e-7 * exact.norm()
        num_groups = x.numel() // count // channels.SUMMANDS
        if num_groups < 2:
            return
        assert moments is not None
        assert sums is not None
        assert len(moments) == len(sums) == num_groups
        pixels, grads = (
            each.double().permute(0, 2, 3, 1).reshape(-1, count)[: num_groups * 64].view(-1, 64, count)
            for each in (x, grad)
        )
        exact = torch.stack([pixels.mean(1), (pixels - pixels.mean(1, keepdim=True)).square().sum(1)], 1)
        torch.testing.assert_close(moments.double(), exact, rtol=2e-6, atol=0)
        exact = torch.stack([grads.sum(1), (grads * (pixels - mean)).sum(1)], 1)
        assert (sums.double() - exact).norm() <= 2e-7 * exact.norm()


def planes(numbers: Tensor) -> Tensor:
    return numbers.double().view(-1, 1, 1)


@pytest.mark.parametrize("has", [(True, True, True), (False, False, False), (True, False, True), (False, True, True)])
@pytest.mark.parametrize("small", [0, 1 << 40])
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 16, 1, 3)])
def test_statistics(
    shape: tuple[int, ...], at_end: bool, small: int, has: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all pixels, and of groups of them and the rest."""
    monkeypatch.setattr(channels, "_SMALL", small)
    torch.manual_seed(0)
    count, (has_gamma, has_beta, is_tracked) = shape[1], has
    x, grad = (torch.randn(shape).add_(3).contiguous(memory_format=torch.channels_last) for _ in range(2))
    vectors = [torch.rand(count) + 0.5 if wanted else None for wanted in (has_gamma, has_beta, is_tracked, is_tracked)]
    exact = [None if each is None else each.double() for each in vectors]
    with contextlib.ExitStack() as stack:
        x, grad = (placed(stack, each, at_end) for each in (x, grad))
        vectors = [None if each is None else placed(stack, each, at_end) for each in vectors]
        gamma, beta, *running = vectors
        factors, mean, inverse = statistics.forward(
            x, channels.moments(x), gamma, beta, (running[0], running[1]), 0.1, 1e-3
        )
        of_grad = statistics.backward(x, grad, channels.grad_sums(grad, x, mean), gamma, mean, inverse)
        close = {"rtol": 2e-7, "atol": 2e-7}
        wide = x.double().requires_grad_()
        y, exact_mean, exact_inverse = torch.native_batch_norm(wide, *exact, True, 0.1, 1e-3)
        torch.testing.assert_close(mean.double(), exact_mean, **close)
        torch.testing.assert_close(inverse.double(), exact_inverse, rtol=1e-6, atol=0)
        for found, expected in zip(running, exact[2:], strict=True):
            if found is not None:
                torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
        got = x.double() * planes(factors[0]) + planes(factors[1])
        assert (got - y).norm() <= 2e-7 * y.norm() + 1e-6
        needs = torch.ops.aten.native_batch_norm_backward(
            grad.double(), wide, exact[0], None, None, mean.double(), inverse.double(), True, 1e-3, (True,) * 3
        )
        factors, of_gamma, of_beta = of_grad
        got = x.double() * planes(factors[0]) + planes(factors[1]) + grad.double() * planes(factors[2])
        scale = needs[0].norm() + 1e-6 * grad.norm()
        assert (got - needs[0]).norm() <= 1e-6 * scale
        torch.testing.assert_close(of_gamma.double(), needs[1], rtol=1e-6, atol=1e-6 * grad.norm().item())
        torch.testing.assert_close(of_beta.double(), needs[2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", micro.ACTIVATIONS)
@pytest.mark.parametrize("has_residual", [True, False])
@pytest.mark.parametrize("shape", [(1, 8, 8, 8), (2, 24, 9, 15), (1, 144, 20, 33), (2, 128, 7, 7)])
def test_normalized(shape: tuple[int, ...], has_residual: bool, activation: str | None) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(shape).mul_(4).contiguous(memory_format=torch.channels_last) for _ in range(2))
    x[0, 0, 0, 0] = float("nan")
    factors = torch.randn(2, shape[1])
    for at_end in (True, False):
        with contextlib.ExitStack() as stack:
            there, added = (placed(stack, each, at_end) for each in (x, residual))
            y = channels.normalized(there, factors, added if has_residual else None, activation)
        exact = x * planes(factors[0]) + planes(factors[1])
        exact = exact + residual if has_residual else exact
        exact = exact if activation is None else exact.relu() if activation == "relu" else exact.clamp(0.0, 6.0)
        torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=2e-6, equal_nan=True)


def test_what_is_left_to_others() -> None:
    assert not channels.is_supported(torch.ones(1, 12, 3, 3))
    assert not channels.is_supported(torch.ones(0, 16, 3, 3))
