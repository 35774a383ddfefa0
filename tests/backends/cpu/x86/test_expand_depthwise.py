"""Two layers in one job give, bit by bit, what they give one after the other.

python -m tests.backends.cpu.x86.test_expand_depthwise SEEDS tries many.
"""

from __future__ import annotations

import random
import sys

import pytest
import torch

import genesis
from genesis import nn
from genesis.backends.cpu.x86 import expand_depthwise, machine, packed
from genesis.backends.cpu.x86.packed import PackedConv, Plan
from genesis.records import ConvGeometry

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

EACH_PIXEL = ConvGeometry((1, 1), (0, 0), (1, 1), 1)


@pytest.mark.parametrize("kind", ["avx512", "avx2"])
@pytest.mark.parametrize("seed", range(12))
def test_as_apart(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> None:
    if kind == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    monkeypatch.setattr(machine, "vectors", lambda: kind)
    monkeypatch.setattr(expand_depthwise, "pays", lambda *args: True)
    check(seed)


def check(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kernel = draw.choice([1, 3, 3, 5]), draw.choice([1, 2, 3, 5])
    stride = draw.choice([1, 2, 3]), draw.choice([1, 1, 2])
    dilation = draw.choice([1, 1, 2]), draw.choice([1, 1, 3])
    padding = draw.randint(0, kernel[0] + 1), draw.randint(0, kernel[1])
    sizes = [
        max(1, d * (k - 1) + 1 - 2 * p) + draw.choice([1, 2, 9, 20])
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    channels, wide = 16 * draw.randint(1, 13), draw.choice([5, 16, 24, 90, 300])
    x = torch.randn(draw.randint(1, 3), wide, *sizes).contiguous(memory_format=torch.channels_last)
    biases = [torch.randn(channels) if draw.random() < 0.5 else None for _ in range(2)]
    geometry = ConvGeometry(stride, padding, dilation, channels)
    activations = [draw.choice([None, "relu", "relu6"]) for _ in range(2)]
    threads, scratch = torch.get_num_threads(), expand_depthwise._SCRATCH_BYTES
    try:
        torch.set_num_threads(draw.randint(1, 3))
        expand_depthwise._SCRATCH_BYTES = dict.fromkeys(scratch, draw.choice([1, 30, 400]) << 10)
        expand_depthwise.job.cache_clear()
        first = plan(PackedConv(torch.randn(channels, wide, 1, 1), biases[0], EACH_PIXEL), x, activations[0])
        between = first.run(x)
        second = plan(PackedConv(torch.randn(channels, 1, *kernel), biases[1], geometry), between, activations[1])
        expected = second.run(between)
        both = packed.joined(first, second)
        assert both is not None, f"seed {seed}"
        y = both.run(x)
    finally:
        torch.set_num_threads(threads)
        expand_depthwise._SCRATCH_BYTES = scratch
    assert y.stride() == expected.stride()
    assert torch.equal(y, expected), f"seed {seed}"


def plan(conv: PackedConv, x: torch.Tensor, activation: str | None) -> Plan:
    found = conv.plan(x, False, activation)
    assert isinstance(found, Plan)
    return found


def test_what_becomes_one_call() -> None:
    """Not where something else takes the result between, or the second is no depthwise layer."""
    x = genesis.from_torch(torch.randn(2, 16, 24, 24).contiguous(memory_format=torch.channels_last))

    class Block(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            stride = 2 if kind == "plain" else 1
            self.kind = kind
            self.expand = nn.ConvBNReLU(16, 96, 1)
            self.filter = nn.ConvBNReLU(96, 96, 3, stride=stride, padding=1, groups=1 if kind == "dense" else 96)

        def forward(self, x: genesis.Tensor) -> genesis.Tensor:
            wide = self.expand(x)
            y = self.filter(wide)
            return y + wide if self.kind == "used twice" else y

    for kind, num_calls in (("plain", 1), ("used twice", 3), ("dense", 2)):
        block = Block(kind).eval()
        compiled = genesis.compile(block)
        with genesis.no_grad():
            expected = block(x)
            results = [compiled(x) for _ in range(3)]
        assert compiled.report().recordings[0].num_calls == num_calls, kind
        assert all(torch.equal(each.to_torch(), expected.to_torch()) for each in results), kind


if __name__ == "__main__":
    expand_depthwise.pays = lambda *args: True  # type: ignore[assignment]
    for number in range(int(sys.argv[1])):
        check(number)
    print("all right")
