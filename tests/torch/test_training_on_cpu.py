"""On the CPU a fused model trains by PyTorch's own layers, which are faster there, and its inference is fused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import genesis.torch
from genesis.torch import bridge, ops
from genesis.torch.entries import TRAINED_BY_PYTORCH
from tests.torch.residual_blocks import BLOCKS


@pytest.fixture(autouse=True)
def by_pytorch(monkeypatch: pytest.MonkeyPatch, trains: None) -> None:
    monkeypatch.setattr(bridge, "trains", lambda x: x.is_cuda)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", BLOCKS)
def test_results_and_gradients_are_pytorch_s_bit_for_bit(name: str, training: bool) -> None:
    torch.manual_seed(0)
    make, _ = BLOCKS[name]
    model = make().train(training)
    fused = genesis.torch.fuse(copy.deepcopy(model))
    for _ in range(2):
        x = torch.randn(2, 8, 8, 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        theirs, ours = model(x), fused(y)
        assert torch.equal(ours, theirs)
        theirs.square().sum().backward()
        ours.square().sum().backward()
        assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
        pairs = zip(model.parameters(), fused.parameters(), strict=True)
        assert all(torch.equal(p.grad, q.grad) for p, q in pairs)  # type: ignore[arg-type]
        assert all(map(torch.equal, model.buffers(), fused.buffers()))


def test_inference_after_training_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = genesis.torch.fuse(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()))
    x = torch.randn(2, 3, 8, 8)
    for _ in range(5):
        model(x).sum().backward()
    assert genesis.torch.report(model).left == [("0", TRAINED_BY_PYTORCH)]
    monkeypatch.setattr(ops, "call", lambda *args: pytest.fail("a chain with gradients ran as one op"))
    model(x).sum().backward()
    monkeypatch.undo()
    with torch.no_grad():
        model.eval()(x)
    assert genesis.torch.report(model).fused == [("0", "1", "2")]


def test_what_needs_no_gradient_is_fused_before_what_does() -> None:
    """A frozen backbone, whose results a trained head takes."""
    parts = [nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).eval() for _ in range(2)]
    plain = nn.Sequential(parts[0].requires_grad_(False), parts[1])
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    x = torch.randn(2, 16, 8, 8)
    for _ in range(4):
        plain.zero_grad()
        fused.zero_grad()
        plain(x).sum().backward()
        fused(x).sum().backward()
        for p, q in zip(plain[1].parameters(), fused[1].parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)
    assert genesis.torch.report(fused).fused == [("0.0", "0.1", "0.2")]
