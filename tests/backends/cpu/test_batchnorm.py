"""Batch norm of channels-last float32 against torch's in float64: as near as torch comes in its own order, NCHW."""

from __future__ import annotations

import pytest
import torch

from genesis.backends.cpu import batchnorm

# N, C, H, W. Fewer pixels than a sum may have; numbers of pixels that leave none, few and many; one channel.
SHAPES = [(2, 16, 8, 8), (3, 24, 5, 7), (2, 5, 9, 6), (1, 1, 16, 15), (1, 7, 11, 13), (2, 3, 5, 5), (3, 40, 20, 21)]


@pytest.fixture(params=["in rows", "in NCHW"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(batchnorm, "_LEAST_NUMBERS", 1 if request.param == "in rows" else 1 << 40)
    return str(request.param)


def channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).mul_(3).add_(2).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_normalize(shape: tuple[int, ...], is_tracked: bool, has_bias: bool, has_weight: bool) -> None:
    torch.manual_seed(0)
    x, channels = channels_last(*shape), shape[1]
    given = [torch.randn(channels) if wanted else None for wanted in (has_weight, has_bias, is_tracked)]
    weight, bias, mean = given
    var = torch.rand(channels) + 0.5 if is_tracked else None
    exact = [None if each is None else each.double() for each in (weight, bias, mean, var)]
    found = batchnorm.normalize(x, weight, bias, mean, var, True, 0.1, 1e-5)
    expected = torch.native_batch_norm(x.double(), *exact, True, 0.1, 1e-5)
    pairs = [*zip(found, expected, strict=True), *zip((mean, var), exact[2:], strict=True)]
    for ours, theirs in pairs:
        if theirs is not None:
            assert ours is not None
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6 * theirs.abs().max().item())
    assert found[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "needs", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(shape: tuple[int, ...], needs: tuple[bool, bool, bool], training: bool) -> None:
    torch.manual_seed(0)
    x, grad, channels = channels_last(*shape), torch.randn(shape), shape[1]
    weight, mean, inverse_std = torch.randn(channels), torch.randn(channels), torch.rand(channels) + 0.5
    if training:
        _, mean, inverse_std = batchnorm.normalize(x, weight, None, None, None, True, 0.1, 1e-5)
    found = batchnorm.backward(grad, x, weight, mean, inverse_std, training, needs)
    exact = exact_backward(grad, x, weight, mean, inverse_std, training)
    for ours, theirs, needed in zip(found, exact, needs, strict=True):
        assert (ours is not None) == needed
        if ours is not None:
            assert distance(ours, theirs) <= 1e-6
    if needs[0]:
        assert found[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(2, 16, 128, 128), (8, 64, 14, 14), (4, 8, 8, 8), (7, 40, 20, 21)])
def test_as_near_float64_as_torch_in_its_own_order(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torch.manual_seed(0)
    x, grad, weight, bias = channels_last(*shape), torch.randn(shape) + 0.1, torch.rand(shape[1]), torch.rand(shape[1])
    exact = torch.native_batch_norm(x.double(), weight.double(), bias.double(), None, None, True, 0.1, 1e-5)
    theirs = torch.native_batch_norm(x.contiguous(), weight, bias, None, None, True, 0.1, 1e-5)
    ours = batchnorm.normalize(x, weight, bias, None, None, True, 0.1, 1e-5)
    exact_grads = exact_backward(grad, x, weight, *exact[1:], True)
    their_grads = exact_backward(grad, x, weight, *theirs[1:], True, torch.float32)
    our_grads = batchnorm.backward(grad, x, weight, *ours[1:], True, (True, True, True))
    for mine, its, reference in zip(ours + our_grads, theirs + their_grads, exact + exact_grads, strict=True):
        assert distance(mine, reference) <= max(2 * distance(its, reference), 1.2e-7)


def exact_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, inverse_std: torch.Tensor,
    training: bool, dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    grad, x, weight, mean, inverse_std = (each.to(dtype).contiguous() for each in (grad, x, weight, mean, inverse_std))
    running = (None, None) if training else (mean, inverse_std**-2)
    return torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, *running, mean, inverse_std, training, 0.0, (True, True, True)
    )


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


def test_other_arrays_take_torchs_way() -> None:
    x, vector = channels_last(2, 16, 8, 8), torch.ones(16)
    assert batchnorm._is_ours(x, vector, None)
    others = [x.contiguous(), x[..., :7], x.double(), x.bfloat16(), x[:0], x.flatten(2), x[:, :, :1, :1]]
    for other in others:
        assert not batchnorm._is_ours(other, vector), (other.shape, other.dtype)
    assert not batchnorm._is_ours(x, vector.double())


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_in_its_channel(value: float) -> None:
    x, weight = channels_last(2, 4, 16, 16), torch.ones(4)
    x[0, 1, 2, 3] = value
    y, mean, inverse_std = batchnorm.normalize(x, weight, None, None, None, True, 0.1, 1e-5)
    grads = batchnorm.backward(torch.ones_like(x), x, weight, mean, inverse_std, True, (True, True, True))
    for array in (y, grads[0]):
        assert array[:, 1].isnan().all()
        assert array[:, [0, 2, 3]].isfinite().all()
