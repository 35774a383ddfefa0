"""view() where memory is channels-last, as after convolutions: what PyTorch's row-major tensors allow, both devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import ShapeError
from tests.functional.agreement import assert_close, normal, to_genesis

WEIGHT = normal(4, 3, 3, 3, dtype=torch.float32)
MAKERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "conv": lambda f, x, w: f.conv2d(x, w),
    "relu": lambda f, x, w: f.relu(f.conv2d(x, w)),
    "max pool": lambda f, x, w: f.max_pool2d(f.relu(f.conv2d(x, w)), 2),
    "average pool": lambda f, x, w: f.avg_pool2d(f.conv2d(x, w), 2),
    "norm": lambda f, x, w: f.batch_norm(f.conv2d(x, w), None, None, training=True),
    "interpolate": lambda f, x, w: f.interpolate(f.conv2d(x, w), scale_factor=2.0),
    "sum": lambda f, x, w: f.conv2d(x, w) * 2 + f.conv2d(x, w),
    "one picture": lambda f, x, w: f.conv2d(x, w)[1],
    "half of the channels": lambda f, x, w: f.conv2d(x, w).chunk(2, 1)[1],
    "a group of channels": lambda f, x, w: f.conv2d(x, w).view(2, 2, 2, 6, 6)[:, 1],
    "mean": lambda f, x, w: f.conv2d(x, w).mean(3),
    "conv1d": lambda f, x, w: f.conv1d(x[:, :, 0], w[:, :, 0]),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_views_of_channels_last_tensors(maker: str, device: str) -> None:
    x = normal(2, 3, 8, 8, dtype=torch.float32)
    mine, weight = to_genesis(x).to(device).requires_grad_(), to_genesis(WEIGHT).to(device)
    theirs = x.clone().requires_grad_()
    ours, expected = MAKERS[maker](F, mine, weight), MAKERS[maker](TF, theirs, WEIGHT)
    rows = ours.view(ours.shape[0], -1)
    (rows * rows + ours.view(-1).view_as(rows)).sum().backward()
    rows_expected = expected.view(expected.shape[0], -1)
    (rows_expected * rows_expected + rows_expected).sum().backward()
    assert_close(rows.cpu(), rows_expected, 2e-5)
    assert_close(ours.cpu(), expected, 2e-5)
    assert_close(mine.grad.cpu(), theirs.grad, 2e-4)


def test_the_layers_of_pytorchs_tutorial(device: str) -> None:
    """https://docs.pytorch.org/tutorials/beginner/blitz/neural_networks_tutorial.html, in small."""
    block = genesis.nn.ConvBNReLU(3, 4, 3, padding=1).to(device)
    for training in (True, False):
        x = F.max_pool2d(block.train(training)(to_genesis(normal(2, 3, 8, 8, dtype=torch.float32)).to(device)), 2)
        assert x.view(-1, 4 * 4 * 4).tolist() == x.reshape(2, 64).tolist()


def convolved(device: str) -> Any:
    return F.conv2d(genesis.ones(2, 3, 8, 8).to(device), to_genesis(WEIGHT).to(device))


def test_a_change_of_the_view_changes_the_tensor(device: str) -> None:
    y = convolved(device)
    y.view(2, -1)[0] = 0
    assert y[0].tolist() == genesis.zeros(4, 6, 6).tolist()
    assert (y[1] != 0).all()
    assert y.is_contiguous()
    y = convolved(device)
    y.detach().view(-1).zero_()
    y.data.view(2, -1)[1, 0] = 5
    assert y.sum().item() == 5


def test_what_is_shared_stays_where_it_is(device: str) -> None:
    y = convolved(device)
    first = y[0]
    flat = y.view(-1)  # a copy: y has a view already
    flat.zero_()
    assert (y != 0).all()
    first.zero_()
    assert not y[0].any()
    shown = convolved("cpu")
    values = shown.numpy()
    shown.view(-1)
    shown.zero_()
    assert not values.any()
    given = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    taken = genesis.from_torch(given)
    taken.view(-1)
    taken.zero_()
    assert not given.any()


def test_a_parameter_keeps_its_memory(device: str) -> None:
    weight = genesis.nn.Parameter(genesis.ones(4, 3, 3, 3).to(device).contiguous(memory_format="channels_last"))
    strides = weight.stride()
    weight.view(4, -1).sum().backward()
    assert weight.stride() == strides
    assert (weight.grad == 1).all()


def test_a_value_saved_before_the_move_still_counts_changes(device: str) -> None:
    x = genesis.ones(2, 3, 8, 8).to(device).requires_grad_()
    y = F.relu(F.conv2d(x, to_genesis(WEIGHT).to(device)))
    with genesis.no_grad():
        y.view(-1).zero_()
    with pytest.raises(genesis.errors.GraphError, match="changed in place"):
        y.sum().backward()


@pytest.mark.parametrize(
    "make",
    [
        lambda: genesis.ones(3, 2).T,
        lambda: genesis.ones(2, 3, 4, 5).transpose(1, 2),
        lambda: genesis.ones(2, 3, 4)[:, ::2],
        lambda: genesis.ones(2, 1, 4).expand(2, 3, 4),
    ],
)
def test_what_pytorch_refuses_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ShapeError, match=r"view: shape .* cannot be seen as .* without a copy; use .reshape\(\)"):
        make().view(-1)
