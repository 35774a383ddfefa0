"""Functions that draw numbers in another order than PyTorch: their distribution, their gradients, their refusals."""

from __future__ import annotations

import numpy as np
import pytest

import genesis
from genesis import functional as F


@pytest.fixture(autouse=True)
def seeded() -> None:
    genesis.manual_seed(0)


def test_slopes_of_rrelu_are_uniform(device: str) -> None:
    x = genesis.tensor(np.linspace(-1, 1, 800, dtype="float32"), device=device, requires_grad=True)
    y = F.rrelu(x, 0.25, 0.75, training=True)
    y.sum().backward()
    slopes = (y.detach() / x.detach()).cpu().numpy()
    np.testing.assert_allclose(x.grad.cpu().numpy(), slopes, rtol=1e-5)
    below, above = slopes[:400], slopes[400:]
    np.testing.assert_allclose(above, 1)
    assert 0.25 <= below.min() < 0.27 < 0.73 < below.max() <= 0.75
    assert abs(below.mean() - 0.5) < 0.03
    assert abs(below.std() - 0.5 / 12**0.5) < 0.01


def test_gumbel_samples_have_the_probabilities_of_the_logits(device: str) -> None:
    logits = genesis.tensor(np.tile(np.log(np.array([0.1, 0.2, 0.7], "float32")), (1500, 1)), device=device)
    share = F.gumbel_softmax(logits, hard=True).mean(0).cpu().numpy()
    np.testing.assert_allclose(share, [0.1, 0.2, 0.7], atol=0.05)


def test_a_hard_gumbel_sample_has_the_gradient_of_the_soft_one() -> None:
    grads = []
    for hard in (False, True):
        genesis.manual_seed(3)
        logits = genesis.tensor([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]], requires_grad=True)
        sample = F.gumbel_softmax(logits, tau=0.5, hard=hard, dim=-1)
        (sample * genesis.tensor([1.0, 2.0, 3.0])).sum().backward()
        grads.append(logits.grad.numpy())
        if hard:
            assert sorted(sample.flatten().tolist()) == [0, 0, 0, 0, 1, 1]
    np.testing.assert_allclose(grads[0], grads[1], rtol=1e-6)


@pytest.mark.parametrize("name", ["alpha_dropout", "feature_alpha_dropout"])
def test_alpha_dropout_keeps_mean_and_variance(name: str, device: str) -> None:
    x = np.random.default_rng(0).standard_normal((300, 20, 1)).astype("float32")
    input = genesis.tensor(x, device=device, requires_grad=True)
    y = getattr(F, name)(input, 0.3, training=True)
    y.sum().backward()
    found, slopes = y.detach().cpu().numpy(), input.grad.cpu().numpy()
    assert abs(found.mean()) < 0.06
    assert abs(found.var() - 1) < 0.06
    dropped = slopes == 0
    assert abs(dropped.mean() - 0.3) < 0.03
    assert np.ptp(found[dropped]) < 1e-6
    a = slopes[~dropped][0]
    np.testing.assert_allclose(found[~dropped], a * x[~dropped] + found[dropped][0] + a * 1.7580993408473766, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("dropout1d", (40, 50, 3)),
        ("dropout1d", (300, 3)),
        ("dropout3d", (40, 50, 2, 1, 2)),
        ("dropout3d", (300, 2, 1, 2)),
    ],
)
def test_whole_channels_are_dropped(name: str, shape: tuple[int, ...]) -> None:
    y = getattr(F, name)(genesis.ones(*shape), 0.25).numpy()
    channels = y.reshape(-1, 3 if name == "dropout1d" else 4)
    np.testing.assert_allclose(np.unique(channels), [0, 1 / 0.75], rtol=1e-6)
    assert (channels == channels[:, :1]).all()
    assert abs((channels[:, 0] == 0).mean() - 0.25) < 0.07
