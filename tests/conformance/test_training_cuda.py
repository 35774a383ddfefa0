"""Training on CUDA (simulated here, real with -m gpu) gives what training on the CPU gives, network and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import genesis
import genesis.nn.functional as F
from genesis import amp, nn, optim
from genesis.models.unet import UNet

pytestmark = pytest.mark.usefixtures("cuda")


def mlp() -> nn.Module:
    genesis.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def classes() -> tuple[Any, Any]:
    genesis.manual_seed(1)
    return genesis.randn(10, 6), genesis.randint(0, 3, (10,))


def unet() -> nn.Module:
    genesis.manual_seed(0)
    return UNet(in_channels=1, num_classes=1, width=6, depth=2)


def masks() -> tuple[Any, Any]:
    genesis.manual_seed(1)
    return genesis.randn(2, 1, 8, 8), (genesis.rand(2, 1, 8, 8) > 0.5).float()


def train(
    model: nn.Module, optimizer: Any, data: tuple[Any, Any], criterion: Callable[..., Any], steps: int = 3
) -> list[float]:
    """The losses."""
    device = next(iter(model.parameters())).device
    x, target = (tensor.to(device) for tensor in data)
    losses = []
    for _ in range(steps):
        loss = criterion(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def on_both(build: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    return build(), build().to("cuda")


def assert_same_state(actual: Any, expected: Any, tolerance: float) -> None:
    """Nested states agree; tensors on any device, numbers and all else exactly."""
    if isinstance(expected, genesis.Tensor):
        values = (side.detach().cpu().float().numpy() for side in (actual, expected))
        np.testing.assert_allclose(*values, rtol=tolerance, atol=tolerance)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_same_state(actual[key], value, tolerance)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same_state(a, e, tolerance)
    else:
        assert actual == expected


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda parameters: optim.Adam(parameters, lr=0.01, amsgrad=True),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.01),
    "LARS": lambda parameters: optim.LARS(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mlp_trains_as_on_the_cpu(name: str) -> None:
    cpu, cuda = on_both(mlp)
    optimizers = [OPTIMIZERS[name](model.parameters()) for model in (cpu, cuda)]
    expected = train(cpu, optimizers[0], classes(), F.cross_entropy)
    assert train(cuda, optimizers[1], classes(), F.cross_entropy) == pytest.approx(expected, rel=1e-4)
    assert_same_state(cuda.state_dict(), cpu.state_dict(), 1e-4)
    assert_same_state(optimizers[1].state_dict(), optimizers[0].state_dict(), 1e-4)


def test_unet_trains_as_on_the_cpu() -> None:
    """Convolutions with batch norm and ReLU in one, pooling, transposed convolutions, concatenation; and eval mode."""
    cpu, cuda = on_both(unet)
    optimizers = [optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (cpu, cuda)]
    expected = train(cpu, optimizers[0], masks(), F.binary_cross_entropy_with_logits)
    losses = train(cuda, optimizers[1], masks(), F.binary_cross_entropy_with_logits)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0]
    assert_same_state(cuda.state_dict(), cpu.state_dict(), 1e-3)
    cuda.load_state_dict(cpu.state_dict())
    x = masks()[0]
    with genesis.no_grad():
        expected_output, output = cpu.eval()(x), cuda.eval()(x.to("cuda"))
    assert_same_state(output, expected_output, 1e-4)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_conv_bn_relu_and_its_gradients(training: bool, residual: bool) -> None:
    genesis.manual_seed(0)
    results = []
    for device in ("cpu", "cuda"):
        genesis.manual_seed(2)
        layer = nn.ConvBNReLU(3, 4, 3)
        x, skip = genesis.randn(2, 3, 5, 6), genesis.randn(2, 4, 5, 6)
        layer, x, skip = layer.to(device).train(training), x.to(device), skip.to(device)
        operands = [x.requires_grad_(), *([skip.requires_grad_()] if residual else [])]
        y = layer(*operands)
        y.square().sum().backward()
        grads = [tensor.grad for tensor in (*operands, *layer.parameters())]
        results.append([y, *grads, list(layer.state_dict().values())])
    assert_same_state(results[1], results[0], 1e-4)


@pytest.mark.parametrize("dtype", [genesis.bfloat16, genesis.float16], ids=str)
def test_mixed_precision_trains_as_on_the_cpu(dtype: Any) -> None:
    losses = []
    for device in ("cpu", "cuda"):
        model = mlp().to(device)
        x, target = (tensor.to(device) for tensor in classes())
        optimizer, scaler = optim.AdamW(model.parameters(), lr=0.01), amp.GradScaler(device, init_scale=1024.0)
        losses.append([])
        for _ in range(3):
            with amp.autocast(device, dtype):
                output = model(x)
                loss = F.cross_entropy(output, target)
            assert (output.dtype, loss.dtype) == (dtype, genesis.float32)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_an_overflow_skips_the_step() -> None:
    weight = genesis.ones(3, device="cuda").requires_grad_()
    optimizer, scaler = optim.SGD([weight], lr=1.0), amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale((weight * genesis.tensor([1.0, float("inf"), 1.0], device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert scaler.get_scale() == 2.0


def test_a_checkpoint_goes_on_where_training_stopped(tmp_path: Path) -> None:
    model = mlp().to("cuda")
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, classes(), F.cross_entropy, steps=2)
    genesis.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.safetensors")
    expected = train(model, optimizer, classes(), F.cross_entropy, steps=1)

    for device in ("cuda", "cpu"):
        state = genesis.load(tmp_path / "state.safetensors", device=device)
        assert {value.device.type for value in state["model"].values()} == {device}
        restored = mlp().to(device)
        restored.load_state_dict(state["model"])
        again = optim.AdamW(restored.parameters(), lr=0.5)
        again.load_state_dict(state["optimizer"])
        assert train(restored, again, classes(), F.cross_entropy, steps=1) == pytest.approx(expected, rel=1e-5)
        assert_same_state(restored.state_dict(), model.state_dict(), 1e-5)


def test_a_module_moves_with_its_parameters_and_buffers() -> None:
    layer = nn.BatchNorm2d(3)
    layer(genesis.randn(2, 3, 4, 4))
    before = {name: value.tolist() for name, value in layer.state_dict().items()}
    layer.to("cuda")
    assert {value.device.type for value in layer.state_dict().values()} == {"cuda"}
    assert {name: value.tolist() for name, value in layer.state_dict().items()} == before
    assert {value.device.type for value in layer.cpu().state_dict().values()} == {"cpu"}


class _Refuse(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"torch computes {function}")


def test_torch_computes_nothing() -> None:
    cases = [(mlp, classes, F.cross_entropy), (unet, masks, F.binary_cross_entropy_with_logits)]
    for build, data, criterion in cases:
        model = build().to("cuda")
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        on_device = tuple(tensor.to("cuda") for tensor in data())
        with _Refuse():
            train(model, optimizer, on_device, criterion, steps=1)
    with pytest.raises(AssertionError, match="torch computes"), _Refuse():
        torch.ones(1)
