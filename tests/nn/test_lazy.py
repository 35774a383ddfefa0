"""Lazy layers against PyTorch's: what they become, states, optimizers that came before, copies."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import ShapeError

LAYERS = {
    "LazyLinear(4)": (2, 3), "LazyLinear(4, bias=False)": (3,), "LazyConv1d(4, 2)": (2, 3, 5),
    "LazyConv2d(4, 2, padding=1, groups=2)": (2, 6, 5, 5), "LazyConvTranspose1d(4, 2)": (3, 5),
    "LazyConvTranspose2d(4, 2, stride=2)": (2, 3, 5, 5), "LazyBatchNorm1d()": (4, 3),
    "LazyBatchNorm1d(eps=0.1)": (4, 3, 2),
    "LazyBatchNorm2d(affine=False)": (2, 3, 4, 4), "LazyInstanceNorm1d()": (2, 3, 4),
    "LazyInstanceNorm2d(track_running_stats=False)": (2, 3, 4, 4),
}  # fmt: skip


def made(lib: Any, text: str) -> Any:
    return eval(f"lib.nn.{text}", {"lib": lib})


@pytest.mark.parametrize("text", LAYERS)
def test_what_they_become(text: str, device: str) -> None:
    theirs, ours = made(torch, text), made(genesis, text).to(device)
    x = np.random.default_rng(0).standard_normal(LAYERS[text]).astype("float32")
    parameters = list(ours.parameters())
    optimizer = genesis.optim.SGD(parameters, lr=0.1) if parameters else None
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    assert any(nn.parameter.is_lazy(each) for each in (*parameters, *ours.buffers())) or "affine=False" in text
    y = theirs(torch.tensor(x))
    ours(genesis.tensor(x, device=device))
    assert type(ours) is getattr(nn, text.partition("(")[0].removeprefix("Lazy"))
    texts = [re.sub(r", bias=\w+(?=, track)", "", repr(layer)) for layer in (ours, theirs)]  # says PyTorch from 2.13 on
    assert texts[0] == texts[1]
    assert [id(each) for each in ours.parameters()] == [id(each) for each in parameters]
    fresh = made(genesis, text)  # one that takes its shapes from a state
    for layer in (ours, fresh):
        state = {key: genesis.from_torch(value.clone()) for key, value in theirs.state_dict().items()}
        layer.load_state_dict(state)
    theirs.eval(), ours.eval(), fresh.eval()
    y = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(fresh(genesis.tensor(x)).detach().numpy(), y, rtol=1e-5, atol=1e-6)
    result = ours(genesis.tensor(x, device=device))
    np.testing.assert_allclose(result.detach().cpu().numpy(), y, rtol=1e-5, atol=1e-6)
    if optimizer is not None:
        before = parameters[0].detach().cpu().tolist()
        (result * genesis.arange(float(result.numel()), device=device).reshape(result.shape)).sum().backward()
        optimizer.step()
        assert parameters[0].detach().cpu().tolist() != before


def test_seeds_draw_what_the_layer_draws() -> None:
    genesis.manual_seed(1)
    lazy = nn.LazyLinear(4)
    lazy(genesis.ones(2, 3))
    genesis.manual_seed(1)
    assert lazy.weight.tolist() == nn.Linear(3, 4).weight.tolist()


def test_copies_and_refusals() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    other = copy.deepcopy(net)
    assert other(genesis.ones(2, 5)).shape == (2, 1)
    assert net[0].has_uninitialized_params()
    assert net[0].in_features == 0
    with pytest.raises(ShapeError, match="'input': expected at least 3 dimensions"):
        nn.LazyConv2d(2, 3)(genesis.ones(2, 3))
    buffer = nn.UninitializedBuffer()
    buffer.materialize((2,))
    assert type(buffer) is nn.Buffer
