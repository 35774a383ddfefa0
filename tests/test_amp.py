"""autocast and GradScaler beside PyTorch's."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional as F
from genesis.amp import GradScaler, autocast, is_autocast_enabled
from genesis.errors import DTypeError, GraphError


def parameter(*shape: int, seed: int = 0) -> genesis.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return genesis.tensor(values, requires_grad=True)


# --- autocast: what is computed in which dtype ----------------------------------------------------------------------

LOWER = {
    "matmul": (lambda m, x, w: x @ w, (3, 4), (4, 5)),
    "linear": (lambda m, x, w: m.linear(x, w), (3, 4), (5, 4)),
    "conv2d": (lambda m, x, w: m.conv2d(x, w), (2, 3, 5, 5), (4, 3, 3, 3)),
    "conv_transpose2d": (lambda m, x, w: m.conv_transpose2d(x, w), (2, 3, 5, 5), (3, 4, 3, 3)),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", LOWER)
def test_products_in_the_lower_dtype(name: str, dtype: str) -> None:
    function, *shapes = LOWER[name]
    x, w = (parameter(*shape, seed=seed) for seed, shape in enumerate(shapes))
    tx, tw = (torch.tensor(p.numpy(force=True), requires_grad=True) for p in (x, w))
    with autocast("cpu", getattr(genesis, dtype)):
        result = function(F, x, w)
    with torch.autocast("cpu", getattr(torch, dtype)):
        expected = function(torch.nn.functional, tx, tw)
    assert str(result.dtype) == f"genesis.{dtype}"
    assert str(expected.dtype) == f"torch.{dtype}"
    result.float().sum().backward()
    # Rounded operands in float64: without AVX-512, PyTorch's own sums in bfloat16 are rounded on the way.
    tx, tw = (t.detach().to(getattr(torch, dtype)).double().requires_grad_() for t in (tx, tw))
    expected = function(torch.nn.functional, tx, tw)
    expected.sum().backward()
    limit = 2e-2 if dtype == "bfloat16" else 2e-3  # two roundings of that dtype, of sums that may cancel
    for mine, other in ((result, expected), (x.grad, tx.grad), (w.grad, tw.grad)):
        np.testing.assert_allclose(
            mine.float().numpy(force=True), other.detach().float().numpy(), rtol=limit, atol=limit
        )
    assert x.grad.dtype is w.grad.dtype is genesis.float32


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t.softmax(-1),
        lambda t: t.log_softmax(-1),
        lambda t: t.sum(),
        lambda t: t.prod(),
        lambda t: t.cumsum(0),
    ],
    ids=["softmax", "log_softmax", "sum", "prod", "cumsum"],
)
def test_delicate_functions_in_float32(function: Any) -> None:
    x = parameter(4, 4)
    with autocast():
        lower = x @ x
        assert lower.dtype is genesis.bfloat16
        assert function(lower).dtype is genesis.float32


def test_losses_in_float32() -> None:
    x, target = parameter(4, 4), genesis.tensor([0, 1, 2, 3])
    with autocast():
        assert F.cross_entropy(x @ x, target).dtype is genesis.float32
        assert F.mse_loss(x @ x, x).dtype is genesis.float32
        assert F.binary_cross_entropy_with_logits(x @ x, x.sigmoid()).dtype is genesis.float32


def test_a_fused_layer_in_the_lower_dtype() -> None:
    layer = genesis.nn.ConvBNReLU(2, 3, 3)
    with autocast():
        result = layer(genesis.randn(2, 2, 6, 6))
    assert result.dtype is genesis.bfloat16
    result.float().sum().backward()
    assert {parameter.grad.dtype for parameter in layer.parameters()} == {genesis.float32}


def test_the_widest_of_several() -> None:
    x = parameter(2, 2)
    with autocast():
        assert F.cat([x @ x, x]).dtype is genesis.float32
        assert F.cat([x @ x, x @ x]).dtype is genesis.bfloat16


def test_what_is_left_alone() -> None:
    x, wide = parameter(2, 2), genesis.ones(2, 2, dtype=genesis.float64)
    with autocast():
        assert (x + x).dtype is genesis.float32
        assert (wide @ wide).dtype is genesis.float64
        assert (
            genesis.ones(2, 2, dtype=genesis.int64) @ genesis.ones(2, 2, dtype=genesis.int64)
        ).dtype is genesis.int64
    with autocast("cuda"):
        assert (x @ x).dtype is genesis.float32


def test_without_a_device_it_holds_wherever_the_tensors_are(cuda: str) -> None:
    x, on_gpu = genesis.ones(2, 2), genesis.ones(2, 2, device="cuda")
    with autocast():
        assert (x @ x).dtype is genesis.bfloat16
        assert (on_gpu @ on_gpu).dtype is genesis.float16
        assert on_gpu.exp().dtype is genesis.float32
        assert is_autocast_enabled("cpu")
        assert is_autocast_enabled("cuda")
        with autocast("cpu", enabled=False):
            assert not is_autocast_enabled("cpu")
            assert is_autocast_enabled()
            assert (on_gpu @ on_gpu).dtype is genesis.float16
    with autocast(dtype=genesis.bfloat16):
        assert (on_gpu @ on_gpu).dtype is genesis.bfloat16
    with autocast("cuda"):
        assert not is_autocast_enabled("cpu")
        assert (x @ x).dtype is genesis.float32
        assert (on_gpu @ on_gpu).dtype is genesis.float16


def test_blocks_nest() -> None:
    x = parameter(2, 2)
    assert not is_autocast_enabled()
    with autocast():
        with autocast(enabled=False):
            assert not is_autocast_enabled()
            assert (x @ x).dtype is genesis.float32
            with autocast(dtype=genesis.float16):
                assert (x @ x).dtype is genesis.float16
        with autocast("cuda"):
            assert (x @ x).dtype is genesis.bfloat16
        assert is_autocast_enabled()
        assert (x @ x).dtype is genesis.bfloat16
    assert (x @ x).dtype is genesis.float32


def test_an_error_leaves_the_block() -> None:
    with pytest.raises(ZeroDivisionError), autocast():
        _ = 1 / 0
    assert not is_autocast_enabled()


def test_as_a_decorator() -> None:
    @autocast(dtype=genesis.float16)
    def product(x: Any, depth: int = 2) -> Any:
        """A product."""
        return (product(x, depth - 1) if depth else x) @ x

    assert product(parameter(2, 2)).dtype is genesis.float16
    assert product.__doc__ == "A product."
    assert not is_autocast_enabled()
    assert autocast(enabled=False)(lambda x: x @ x)(parameter(2, 2)).dtype is genesis.float32


def test_other_threads_are_not_affected() -> None:
    x, seen = parameter(2, 2), []
    with autocast():
        thread = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert seen == [genesis.float32]


# --- the cache of weights -------------------------------------------------------------------------------------------


def casts_of(run: Any) -> int:
    """How many casts to a 16-bit dtype the function makes."""
    counted = []
    original = F.conversion.Cast.forward
    F.conversion.Cast.forward = staticmethod(lambda *a, **k: counted.append(k["dtype"]) or original(*a, **k))
    try:
        run()
    finally:
        F.conversion.Cast.forward = staticmethod(original)
    return counted.count(genesis.bfloat16)


def test_a_weight_is_cast_once() -> None:
    x, w = genesis.ones(2, 2), parameter(2, 2)

    def run(cache_enabled: bool | None) -> None:
        with autocast(cache_enabled=cache_enabled):
            y = x @ w
            with autocast():
                ((y @ w) @ w).float().sum().backward()

    assert casts_of(lambda: run(None)) == 2
    assert casts_of(lambda: run(False)) == 4
    cached, w.grad = w.grad, None
    run(False)
    twice = genesis.tensor(2.0) * w.grad
    np.testing.assert_allclose(cached.numpy(), twice.numpy(), rtol=1e-2)  # two runs of it, summed in bfloat16


def test_a_cast_without_graph_is_not_used_with_one() -> None:
    x, w = genesis.ones(2, 2), parameter(2, 2)
    with autocast():
        with genesis.no_grad():
            assert not (x @ w).requires_grad
        (x @ w).float().sum().backward()
    assert w.grad is not None


def test_a_weight_that_changed_is_cast_anew() -> None:
    x, w = genesis.ones(1, 1), genesis.ones(1, 1, requires_grad=True)
    with autocast():
        assert (x @ w).item() == 1.0
        with genesis.no_grad():
            w.fill_(3.0)
        assert (x @ w).item() == 3.0
        w.data = genesis.full((1, 1), 5.0)
        assert (x @ w).item() == 5.0


def test_bad_arguments_of_autocast() -> None:
    with pytest.raises(ValueError, match="autocast: argument 'device_type': expected 'cpu', 'cuda' or None, got 'tpu'"):
        autocast("tpu")
    with pytest.raises(DTypeError, match=r"argument 'dtype': expected genesis\.float16 or genesis\.bfloat16"):
        autocast(dtype=genesis.float32)


# --- GradScaler -----------------------------------------------------------------------------------------------------


def scalers(**options: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    ours, theirs = genesis.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizers = genesis.optim.SGD([ours], lr=0.5), torch.optim.SGD([theirs], lr=0.5)
    return ours, theirs, *optimizers, GradScaler("cpu", **options), torch.amp.GradScaler("cpu", **options)


def test_skips_shrinks_and_grows_as_pytorch() -> None:
    ours, theirs, optimizer, other, scaler, reference = scalers(
        init_scale=1024.0, growth_interval=3, growth_factor=4.0, backoff_factor=0.25
    )
    for slope in [1, 1, math.inf, 1, math.nan, 1, 1, 1, 1, -math.inf, 2, 2, 2, 2, 2, 2]:
        for param, opt, scale in ((ours, optimizer, scaler), (theirs, other, reference)):
            opt.zero_grad()
            scale.scale((param * slope).sum()).backward()
            scale.step(opt)
            scale.update()
        assert scaler.get_scale() == reference.get_scale()
        assert ours.tolist() == theirs.tolist()
    assert scaler.state_dict() == reference.state_dict()


def test_unscale_once_then_clip() -> None:
    ours, theirs, optimizer, other, scaler, reference = scalers(init_scale=8.0)
    for param, opt, scale in ((ours, optimizer, scaler), (theirs, other, reference)):
        scale.scale((param * 3).sum()).backward()
        scale.unscale_(opt)
    assert ours.grad.tolist() == theirs.grad.tolist() == [3.0, 3.0]
    genesis.nn.utils.clip_grad_value_([ours], 1.0)
    assert scaler.step(optimizer) is None
    assert ours.tolist() == [0.5, 0.5]


def test_the_calls_out_of_order() -> None:
    ours, _, optimizer, _, scaler, _ = scalers()
    with pytest.raises(GraphError, match=r"GradScaler\.update: no step\(\) or unscale_\(\)"):
        scaler.update()
    with pytest.raises(GraphError, match=r"GradScaler\.step: the optimizer's parameters have no gradients"):
        scaler.step(optimizer)
    scaler.scale(ours.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(GraphError, match=r"GradScaler\.unscale_: called a second time"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(GraphError, match=r"GradScaler\.step: called a second time"):
        scaler.step(optimizer)
    with pytest.raises(GraphError, match=r"GradScaler\.unscale_: called after step\(\)"):
        scaler.unscale_(optimizer)
    with pytest.raises(TypeError, match=r"GradScaler\.step: argument 'closure'"):
        scaler.step(optimizer, closure=lambda: None)
    scaler.update()
    assert ours.tolist() == [0.5, 0.5]


def test_several_optimizers_share_the_scale() -> None:
    good, bad = (genesis.ones(1, requires_grad=True) for _ in range(2))
    first, second = genesis.optim.SGD([good], lr=0.5), genesis.optim.SGD([bad], lr=0.5)
    scaler = GradScaler(init_scale=4.0)
    losses = scaler.scale([good.sum(), (bad * math.inf).sum()])
    for loss, optimizer in zip(losses, (first, second), strict=True):
        loss.backward()
        scaler.step(optimizer)
    scaler.update()
    assert (good.item(), bad.item(), scaler.get_scale()) == (0.5, 1.0, 2.0)


def test_a_16_bit_loss_is_scaled_in_float32() -> None:
    scaled = GradScaler().scale(genesis.tensor(100.0, dtype=genesis.float16))
    assert scaled.dtype is genesis.float32
    assert scaled.item() == 6553600.0


def test_float16_weights_are_refused() -> None:
    param = genesis.ones(1, dtype=genesis.float16, requires_grad=True)
    param.grad = genesis.ones(1, dtype=genesis.float16)
    with pytest.raises(DTypeError, match="expected gradients of float32 weights, got a float16 gradient"):
        GradScaler().unscale_(genesis.optim.SGD([param]))


def test_the_scale_stays_finite() -> None:
    ours, _, optimizer, _, scaler, _ = scalers(init_scale=2.0**127, growth_interval=1)
    ours.grad = genesis.ones(2)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**127
    scaler.update(new_scale=genesis.tensor(16.0))
    assert scaler.get_scale() == 16.0


def test_state_goes_both_ways() -> None:
    *_, scaler, reference = scalers(init_scale=32.0, growth_interval=7)
    new = GradScaler()
    new.load_state_dict(reference.state_dict())
    assert new.state_dict() == scaler.state_dict()
    reference.load_state_dict(GradScaler(init_scale=2.0).state_dict())
    assert reference.get_scale() == 2.0
    with pytest.raises(ValueError, match="expected the state of an enabled scaler, got no"):
        new.load_state_dict({})


def test_not_enabled_passes_everything_on() -> None:
    ours, _, optimizer, _, scaler, _ = scalers(enabled=False)
    loss = ours.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert (ours.tolist(), scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == ([0.5, 0.5], 1.0, {}, False)
    scaler.load_state_dict({})


def test_bad_arguments_of_the_scaler() -> None:
    with pytest.raises(ValueError, match=r"argument 'growth_factor': expected a number > 1, got 1\.0"):
        GradScaler(growth_factor=1.0)
    with pytest.raises(ValueError, match="argument 'backoff_factor'"):
        GradScaler(backoff_factor=1.0)
    with pytest.raises(TypeError, match=r"GradScaler\.scale: argument 'outputs': expected tensors, got int"):
        GradScaler().scale(3)
