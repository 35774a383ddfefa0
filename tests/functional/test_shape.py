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
from tests.conformance.surface import words
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


def _rows(x: Any) -> Any:
    return x if x.ndim else x[None]


# Functions of a library, its functional module and a tensor: which of their results are views?
RESULTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{
        name: lambda lib, f, x, name=name: getattr(x, name)()
        for name in words(
            "sum mean amax amin max prod norm all any clone contiguous float relu round abs floor nonzero squeeze "
            "flatten detach"
        )
    },
    **{
        name: lambda lib, f, x, name=name: getattr(_rows(x), name)(0)
        for name in words("cumsum softmax logsumexp flip roll unsqueeze argsort all any sum")
    },
    "all of bools": lambda lib, f, x: (x > 0).all(),
    "to": lambda lib, f, x: x.to(x.dtype),
    "view_as": lambda lib, f, x: x.view_as(x),
    "expand_as": lambda lib, f, x: x.expand_as(x),
    "broadcast_to": lambda lib, f, x: x.broadcast_to(x.shape),
    "repeat": lambda lib, f, x: x.repeat(*[1] * max(1, x.ndim)),
    "tile": lambda lib, f, x: x.tile(1),
    "where": lambda lib, f, x: lib.where(x == x, x, x),
    "maximum": lambda lib, f, x: lib.maximum(x, x),
    "masked_fill": lambda lib, f, x: x.masked_fill(x != x, 0),
    "pow": lambda lib, f, x: x**1,
    "clamp": lambda lib, f, x: x.clamp(min=-9),
    "stack": lambda lib, f, x: lib.stack([x]),
    "cat": lambda lib, f, x: lib.cat([_rows(x)]),
    "pad": lambda lib, f, x: f.pad(_rows(x), (0, 0)),
    "narrow": lambda lib, f, x: _rows(x).narrow(0, 0, 1),
    "split": lambda lib, f, x: _rows(x).split(1)[0],
    "dropout": lambda lib, f, x: f.dropout(x, 0.5, training=False),
    "pixel_shuffle": lambda lib, f, x: f.pixel_shuffle(_image(x), 1),
    "pixel_unshuffle": lambda lib, f, x: f.pixel_unshuffle(_image(x), 1),
    "interpolate": lambda lib, f, x: f.interpolate(_image(x), scale_factor=1.0),
    "max_pool2d": lambda lib, f, x: f.max_pool2d(_image(x), 1),
    "avg_pool2d": lambda lib, f, x: f.avg_pool2d(_image(x), 1),
    "adaptive_avg_pool2d": lambda lib, f, x: f.adaptive_avg_pool2d(_image(x), tuple(_image(x).shape[2:])),
}


def _image(x: Any) -> Any:
    return x.reshape(1, 1, 1, -1)


@pytest.mark.parametrize("result", RESULTS)
def test_results_share_memory_where_those_of_pytorch_do(result: str) -> None:
    for values in (torch.tensor(2.0), torch.tensor(True), torch.tensor([1.0]), normal(2, 3)):
        theirs, mine = values.clone(), to_genesis(values)
        if values.dtype is torch.bool and result not in words("all any amax max where clone flatten repeat"):
            continue
        expected = RESULTS[result](torch, TF, theirs)
        actual = RESULTS[result](genesis, F, mine)
        shares = expected.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
        assert (actual.data_ptr() == mine.data_ptr()) == shares, values
