"""Convolutions by our own kernels against float64: drawn shapes, layouts and geometries.

python -m tests.backends.cpu.x86.test_packed SEEDS tries many.
"""

from __future__ import annotations

import random
import sys
import threading

import pytest
import torch
from torch.nn import functional as F

import genesis
from genesis import nn
from genesis.backends.cpu import replay
from genesis.backends.cpu.x86 import direct, machine, packed, winograd
from genesis.backends.cpu.x86.packed import PackedConv
from genesis.backends.cpu.x86.problem import split
from genesis.records import ConvGeometry

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

BOUND = 3e-7  # of the result's norm
ACTIVATIONS = {None: lambda y: y, "relu": F.relu, "relu6": F.relu6}


@pytest.fixture(params=["avx512", "avx2"], autouse=True)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds, where this processor has both."""
    if request.param == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    monkeypatch.setattr(machine, "vectors", lambda: request.param)
    return str(request.param)


@pytest.mark.parametrize("kind", ["direct", "Winograd", "depthwise"])
def test_pytorchs_defaults_do_not_matter(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(winograd, "pays", lambda *args: kind == "Winograd")
    x, weight = torch.randn(1, 16, 8, 8), torch.randn(16, 1 if kind == "depthwise" else 16, 3, 3)
    x, geometry = (
        x.contiguous(memory_format=torch.channels_last),
        ConvGeometry((1, 1), (1, 1), (1, 1), 16 // weight.shape[1]),
    )
    expected = F.conv2d(x, weight, None, *geometry)
    winograd._both_sides.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            y = PackedConv(weight, None, geometry)(x, None, None)
    finally:
        torch.set_default_dtype(torch.float32)
    assert y.dtype is torch.float32
    assert float((y - expected).norm() / expected.norm()) < 2 * BOUND


@pytest.mark.parametrize("kind", ["direct", "Winograd", "depthwise"])
@pytest.mark.parametrize("seed", range(12))
def test_conv(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> None:
    monkeypatch.setattr(winograd, "pays", lambda *args: kind == "Winograd")
    if seed % 2:
        monkeypatch.setattr(winograd, "_SHARED_BYTES", 0)  # threads share the weights
    check(kind, seed)


def check(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kernel = (3, 3) if kind == "Winograd" else (draw.choice([1, 2, 3, 5, 7]), draw.choice([1, 2, 3, 5]))
    stride = (1, 1) if kind == "Winograd" else (draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2]))
    dilation = draw.choice([1, 1, 2, 3, 5]), draw.choice([1, 1, 2, 4])
    padding = draw.randint(0, kernel[0]), draw.randint(0, kernel[1])
    channels = draw.randint(1, 90) if kind == "direct" else 16 * draw.randint(1, 10)
    outputs = channels if kind == "depthwise" else 16 * draw.randint(1, 8)
    groups = channels if kind == "depthwise" else 1
    if kind == "direct":
        outputs -= 8 * draw.randint(0, 1) if machine.vectors() == "avx2" else draw.randint(0, 15)
    sizes = [
        max(1, d * (k - 1) + 1 - 2 * p + draw.choice([0, 3, 8, 20]))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    x = torch.randn(draw.randint(1, 3), channels, *sizes)
    weight = torch.randn(outputs, channels // groups, *kernel)
    bias = torch.randn(outputs) if draw.random() < 0.5 else None
    geometry = ConvGeometry(stride, padding, dilation, groups)
    activation = draw.choice([None, "relu", "relu6"])
    before = F.conv2d(x.double(), weight.double(), None if bias is None else bias.double(), *geometry)
    residual = None
    if draw.random() < 0.5:
        residual = torch.randn(before.shape).contiguous(memory_format=torch.channels_last)
        before = before + residual
    exact = ACTIVATIONS[activation](before)
    if kind == "direct" and draw.random() < 0.3:
        x = F.pad(x, (1, 1))[..., 1:-1]  # strides that are nobody's
    else:
        x = x.contiguous(memory_format=torch.channels_last)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(draw.randint(1, 3))
        y = PackedConv(weight, bias, geometry)(x, residual, activation)
    finally:
        torch.set_num_threads(threads)
    assert y.shape == exact.shape
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert (y - exact).norm() <= BOUND * before.norm(), f"{kind}, seed {seed}"


@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_nan_stays(activation: str) -> None:
    x = torch.ones(1, 16, 4, 4).contiguous(memory_format=torch.channels_last)
    x[0, 3, 1, 1] = torch.nan
    weight = torch.ones(16, 16, 3, 3)
    for pays in (False, True):
        conv = PackedConv(weight, None, ConvGeometry((1, 1), (1, 1), (1, 1), 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(winograd, "pays", lambda *args, pays=pays: pays)
            y = conv(x, None, activation)
        assert y[:, :, :3, :3].isnan().all()
        assert pays or not y[:, :, 3].isnan().any()


def test_empty_batch_and_other_shapes() -> None:
    conv = PackedConv(torch.randn(16, 8, 3, 3), None, ConvGeometry((1, 1), (1, 1), (1, 1), 1))
    assert conv(torch.empty(0, 8, 5, 5), None, None).shape == (0, 16, 5, 5)
    for size in range(1, 2 * conv.max_plans):
        assert conv(torch.ones(1, 8, size, 3), None, None).shape == (1, 16, size, 3)
    assert len(conv._plans) == conv.max_plans


def test_our_own_kernels_share_a_weight_among_shapes() -> None:
    layer = nn.ConvBNReLU(16, 32, 3).eval()
    with genesis.no_grad():
        for size in (8, 16, 20):
            layer(genesis.ones(1, 16, size, size))
    assert len({id(packed.packed) for _, _, packed in layer._fused._entries.values()}) == 1


def test_two_python_threads_at_once() -> None:
    torch.manual_seed(0)
    conv = PackedConv(torch.randn(32, 32, 3, 3), None, ConvGeometry((1, 1), (1, 1), (1, 1), 1))
    x = torch.randn(1, 32, 24, 24).contiguous(memory_format=torch.channels_last)
    expected, wrong = conv(x, None, None), []

    def work() -> None:
        wrong.extend(index for index in range(50) if not torch.equal(conv(x, None, None), expected))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_transposed_without_overlap() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 24, 5, 7).contiguous(memory_format=torch.channels_last)
    for kernel in ((2, 2), (3, 1)):
        weight, bias = torch.randn(24, 40, *kernel), torch.randn(40)
        exact = F.conv_transpose2d(x.double(), weight.double(), bias.double(), stride=kernel)
        y = packed.transposed(x, weight, bias).run(x)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert (y - exact).norm() <= BOUND * exact.norm()


@pytest.mark.parametrize("shape", [(1, 300), (7, 300), (2, 3, 300), (300,)])
def test_linear_of_a_recording(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(112, 300), torch.randn(112)
    run = replay.prepare("linear", (x, weight, bias))
    assert run is not None
    exact = F.linear(x.double(), weight.double(), bias.double())
    y = run(x)
    assert y.shape == exact.shape
    assert y.is_contiguous()
    assert (y - exact).norm() <= BOUND * exact.norm()
    assert replay.prepare("linear", (torch.randn(65, 300), weight, bias)) is None
    assert replay.prepare("linear", (x, weight[:8], bias[:8])) is None


def test_unpacked() -> None:
    for shape in ((37, 29, 3, 3), (64, 300, 1, 1)):
        weight = torch.randn(shape)
        widths, parts = [16 * each for each in split(-(-shape[0] // 16), 4)], direct.parts_of(shape)
        assert torch.equal(direct.unpacked(direct.packed(weight, widths, parts), shape, widths, parts), weight)


def test_what_is_supported(vectors: str) -> None:
    assert packed.is_supported(torch.float32, (64, 3, 3, 3), 1)
    assert packed.is_supported(torch.float32, (10, 3, 3, 3), 1) == (vectors == "avx512")
    assert packed.is_supported(torch.float32, (32, 1, 3, 3), 32)
    assert not packed.is_supported(torch.float64, (64, 3, 3, 3), 1)
    assert not packed.is_supported(torch.float32, (64, 32, 3, 3), 2)
    assert not packed.is_supported(torch.float32, (20, 1, 3, 3), 20)


if __name__ == "__main__":
    choose = winograd.pays
    for seed in range(int(sys.argv[1])):
        for kind in ("direct", "Winograd", "depthwise"):
            winograd.pays = lambda *args, kind=kind: kind == "Winograd"
            check(kind, seed)
    print("all right")
