"""Group norm with its activation: both orders of memory, one pass and two, against float64; nothing is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import activations, backends
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.norm import group_norm as module
from genesis.backends.cuda.ops.norm import launch
from genesis.records import SavedGroupNorm
from tests.backends.cuda.ops.test_norm import RELATIVE, check, randn, statistics_dtype, wide

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

CPU = backends.get("cpu")
ALL = (True, True, True)
# Channels of a group that are odd, a power of two, neither; one group, groups of one; one place; one sample; volumes.
SHAPES = {
    "odd": ((2, 9, 5, 7), 3),
    "even": ((2, 20, 6, 6), 2),
    "one group": ((3, 24, 5, 5), 1),
    "instance norm": ((2, 33, 6, 5), 33),
    "one channel": ((2, 1, 6, 5), 1),
    "rows": ((5, 12), 3),
    "one place": ((5, 12, 1, 1), 3),
    "batch 1, splits": ((1, 6, 40, 40), 2),
    "volume": ((2, 8, 3, 4, 5), 4),
}
_ROUNDING = 2.4e-7  # as in tests/conformance/accuracy.py
ORDERS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


def in_order(x: torch.Tensor, order: str) -> torch.Tensor:
    if order == "channels first" or x.ndim < 3:
        return x.contiguous()
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def force(monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    """Have groups of any size read once or twice."""
    monkeypatch.setattr(module, "_WHOLE", 1 << 20 if passes == 1 else 0)
    monkeypatch.setattr(module, "_SMALL_RUN", 0)
    for planned in (module.forward, module.backward):
        plans = planned.__globals__["plans"]
        monkeypatch.setitem(planned.__globals__, "plans", plans)
        plans.clear()


def run(
    cuda: Backend, put: Put, get: Get, x: torch.Tensor, groups: int, activation: str | None, affine: bool = True
) -> None:
    """Compare values, statistics and gradients with the CPU's in float64."""
    dtype, channels = x.dtype, x.shape[1]
    weight = randn(channels, dtype=dtype, seed=1) if affine else None
    bias = randn(channels, dtype=dtype, seed=2) if affine else None
    grad = randn(*x.shape, dtype=dtype, seed=3)
    args = (x, groups, weight, bias, 1e-5, activation)
    y, mean, inverse_std = cuda.group_norm(*map(put, args))
    expected = CPU.group_norm(*wide(args))
    assert y.strides == x.stride()
    check(get(y), expected[0], dtype)
    check(get(mean), expected[1], statistics_dtype(dtype))
    check(get(inverse_std), expected[2], statistics_dtype(dtype))
    ones, none = torch.ones(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    known = CPU.group_norm_backward(
        grad.double(),
        SavedGroupNorm(*wide((x, ones if weight is None else weight, none if bias is None else bias, *expected[1:]))),
        groups, ALL, activation,
    )  # fmt: skip
    for needs in (ALL, (True, False, False), (False, True, False), (False, False, True)):
        saved = SavedGroupNorm(put(x), put(weight), put(bias), mean, inverse_std)
        grads = cuda.group_norm_backward(put(grad), saved, groups, needs, activation)
        assert [each is not None for each in grads] == list(needs)
        for index, found in enumerate(grads):
            if found is not None:
                check(get(found), known[index], dtype, scale=10)
        if grads[0] is not None:
            assert grads[0].strides == x.stride()


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(
    cuda: Backend, put: Put, get: Get, shape: str, order: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, passes)
    sizes, groups = SHAPES[shape]
    run(cuda, put, get, in_order(randn(*sizes) + 3, order), groups, "silu")


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_dtypes(
    cuda: Backend, put: Put, get: Get, dtype: torch.dtype, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, passes)
    x = in_order(randn(2, 12, 6, 5, dtype=dtype), "channels last")
    run(cuda, put, get, x, 4, None)
    run(cuda, put, get, x, 4, None, affine=False)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("activation", activations.NUMBERS)
def test_activations(
    cuda: Backend, put: Put, get: Get, activation: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, passes)
    x = in_order(randn(2, 6, 3, 5), "channels last")
    run(cuda, put, get, x, 2, activation)
    if activation != "hardsigmoid":  # whose derivative PyTorch takes for 1/6 in float32, also in float64
        run(cuda, put, get, x.double(), 2, activation, affine=False)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("passes", [1, 2])
def test_far_from_zero(
    cuda: Backend, put: Put, get: Get, passes: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No farther from float64 than twice PyTorch: a mean 1000 deviations away, and a first value that is an outlier."""
    force(monkeypatch, passes)
    far = randn(1, 8, 24, 24) + 1000
    outlier = randn(1, 8, 24, 24)
    outlier[:, :, 0, 0] = 1e4
    for x in (far, outlier):
        x = in_order(x, order)
        exact = torch.nn.functional.group_norm(x.double(), 4)
        theirs = (torch.nn.functional.group_norm(x.contiguous(), 4).double() - exact).norm()
        y, mean, inverse_std = cuda.group_norm(put(x), 4, None, None, 1e-5)
        assert (get(y).double() - exact).norm() <= max(2 * theirs, _ROUNDING * exact.norm())
        grouped = x.double().reshape(1, 4, -1)
        torch.testing.assert_close(get(mean).double(), grouped.mean(2), rtol=1e-6, atol=0)
        known = (grouped.var(2, correction=0) + 1e-5).rsqrt()
        torch.testing.assert_close(get(inverse_std).double(), known, rtol=1e-6, atol=0)


def test_nothing_is_copied(cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    x = put(in_order(randn(2, 8, 4, 4), "channels last"))
    copies: list[object] = []
    monkeypatch.setattr(launch.storage, "copy", lambda *args: copies.append(args))
    y, mean, inverse_std = cuda.group_norm(x, 2, None, None, 1e-5, "silu")
    cuda.group_norm_backward(y, SavedGroupNorm(x, None, None, mean, inverse_std), 2, ALL, "silu")
    assert not copies


def test_other_orders_are_copied(cuda: Backend, put: Put, get: Get) -> None:
    x = randn(4, 6, 5, 8)
    swapped = x.transpose(0, 2).contiguous().transpose(0, 2)
    y = cuda.group_norm(put(swapped), 3, None, None, 1e-5)[0]
    check(get(y), torch.nn.functional.group_norm(x.double(), 3), torch.float32)


@pytest.mark.parametrize("order", ORDERS)
def test_same_bits_each_time(cuda: Backend, put: Put, get: Get, order: str) -> None:
    x, grad = (put(in_order(randn(2, 8, 32, 32, seed=seed), order)) for seed in (0, 1))
    weight = put(randn(8, seed=2))

    def results() -> list[torch.Tensor]:
        y, mean, inverse_std = cuda.group_norm(x, 2, weight, None, 1e-5, "gelu")
        saved = SavedGroupNorm(x, weight, None, mean, inverse_std)
        grads = cuda.group_norm_backward(grad, saved, 2, ALL, "gelu")
        return [get(each) for each in (y, mean, inverse_std, *grads)]

    assert all(torch.equal(*pair) for pair in zip(results(), results(), strict=True))


# U-Net, ConvNeXt, and planes whose places or channels are no multiple of a tile.
LARGE = [
    ((2, 320, 64, 64), 32), ((4, 640, 32, 32), 32), ((3, 1280, 16, 16), 32), ((2, 1280, 16, 16), 1),
    ((4, 96, 56, 56), 96), ((2, 81, 33, 31), 3), ((1, 1280, 8, 8), 32),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("shape", "groups"), LARGE, ids=str)
def test_large_on_a_gpu(shape: tuple[int, ...], groups: int, order: str, dtype: torch.dtype) -> None:
    """By PyTorch's own float64 on the GPU; no farther than twice its float32 or 16-bit error."""
    import genesis
    import genesis.nn.functional as F

    x = in_order((randn(*shape) + 2).to("cuda", dtype), order)
    weight, bias = (randn(shape[1], seed=seed).to("cuda", dtype) for seed in (1, 2))
    grad = in_order(randn(*shape, seed=3).to("cuda", dtype), order)

    def torchs(to: torch.dtype) -> list[torch.Tensor]:
        leaves = [each.detach().to(to).requires_grad_() for each in (x, weight, bias)]
        y = torch.nn.functional.silu(torch.nn.functional.group_norm(leaves[0], groups, *leaves[1:]))
        return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(to))]

    leaves = [genesis.from_dlpack(each.detach()).requires_grad_() for each in (x, weight, bias)]
    y = F.group_norm_act(leaves[0], groups, *leaves[1:], activation="silu")
    y.backward(genesis.from_dlpack(grad))
    ours = [torch.from_dlpack(each.detach()) for each in (y, *(leaf.grad for leaf in leaves))]
    for found, theirs, exact in zip(ours, torchs(dtype), torchs(torch.float64), strict=True):
        error, known = ((each.double() - exact).norm() for each in (found, theirs))
        assert error <= 2 * known + 1e-7 * exact.norm()
