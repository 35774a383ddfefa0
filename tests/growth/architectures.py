"""Networks drawn at random from the ways in which channels are wired: the number says which."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.tensor import Tensor

NUM_DISTINCT = 120
SIZE = 6  # of the planes that they take

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU, nn.Hardswish)


class Residual(nn.Module):
    """x + inner(x); in training, whole samples of the inner part may be left out (stochastic depth)."""

    def __init__(self, inner: nn.Module, drop: float = 0.0) -> None:
        super().__init__()
        self.inner, self.drop = inner, drop

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        if self.training and self.drop:
            y = y * (genesis.rand(x.shape[0], 1, 1, 1, dtype=x.dtype) >= self.drop).to(x.dtype) / (1 - self.drop)
        return x + y


class Concat(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Any:
        return genesis.cat([x, *[part(x) for part in self.parts]], dim=1)


class Twice(nn.Module):
    """One module, used on its own output too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(F.relu(self.inner(x)))


class Squeeze(nn.Module):
    """Channels scaled by what their means say."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, 2), nn.Linear(2, channels)

    def forward(self, x: Tensor) -> Any:
        scale = F.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * scale.unsqueeze(2).unsqueeze(3)


class Scaled(nn.Module):
    """A learned factor per channel, and a buffer per channel that may not be saved."""

    def __init__(self, channels: int, persistent: bool) -> None:
        super().__init__()
        self.factor = nn.Parameter(genesis.rand(1, channels, 1, 1) + 0.5)
        self.register_buffer("offset", genesis.rand(channels, 1, 1), persistent=persistent)

    def forward(self, x: Tensor) -> Any:
        return x * self.factor + self.offset


class OnlyInTraining(nn.Module):
    """A branch that runs in training only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.main, self.extra = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        y = self.main(x)
        return y + 0.1 * self.extra(x) if self.training else y


class Attention(nn.Module):
    """Pixels attend to each other; their channels cannot grow."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        rows = self.norm(x.flatten(2).transpose(1, 2))
        y, _ = self.attention(rows, rows, rows, need_weights=False)
        return x + y.transpose(1, 2).reshape(x.shape)


class Network(nn.Module):
    """Blocks, a head, and maybe an auxiliary head that counts in training only."""

    def __init__(self, body: nn.Module, head: nn.Module, aux: nn.Module | None) -> None:
        super().__init__()
        self.body, self.head, self.aux = body, head, aux

    def forward(self, x: Tensor) -> Any:
        x = self.body(x)
        y = self.head(x)
        return y + 0.3 * self.aux(x.mean((2, 3))) if self.training and self.aux is not None else y


def build(number: int) -> nn.Module:
    """The network of this number, in float64: what growth changes shows, and rounding does not. It is the same each
    time, values and all."""
    draw = random.Random(number)
    genesis.manual_seed(number)
    channels = draw.choice((4, 6, 8))
    blocks: list[nn.Module] = [nn.Conv2d(2, channels, 3, padding=1), *_norm(draw, channels)]
    for _ in range(draw.randint(1, 4)):
        block, channels = _block(draw, channels)
        blocks.append(block)
    body = nn.Sequential(*blocks)
    aux = nn.Linear(channels, 3) if draw.random() < 0.4 else None
    return Network(body, _head(draw, channels, _plane(body)), aux).double()


def _plane(body: nn.Module) -> int:
    with genesis.no_grad():
        return body.eval()(genesis.zeros(2, 2, SIZE, SIZE)).shape[2]


def _norm(draw: random.Random, channels: int) -> list[nn.Module]:
    kind = draw.choice(("none", "batch", "group", "instance", "batch"))
    norms: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(channels), "group": lambda: nn.GroupNorm(2, channels),
        "instance": lambda: nn.InstanceNorm2d(channels, affine=True),
    }  # fmt: skip
    return ([] if kind == "none" else [norms[kind]()]) + [draw.choice(ACTIVATIONS)()]


def _conv(draw: random.Random, channels: int, out: int, kernel_size: int = 3) -> nn.Module:
    padding = kernel_size // 2
    return nn.Sequential(nn.Conv2d(channels, out, kernel_size, padding=padding), *_norm(draw, out))


def _block(draw: random.Random, channels: int) -> tuple[nn.Module, int]:
    """One more block, and how many channels it gives."""
    kind = draw.choice(list(BLOCKS))
    block = BLOCKS[kind](draw, channels)
    return block if isinstance(block, tuple) else (block, channels)


def _inner(draw: random.Random, channels: int) -> nn.Module:
    inner = draw.choice((4, 6))
    last = nn.Conv2d(inner, channels, 1)
    return nn.Sequential(_conv(draw, channels, inner), last)


def _depthwise(draw: random.Random, channels: int) -> tuple[nn.Module, int]:
    out = draw.choice((4, 6, 8))
    first = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return nn.Sequential(first, *_norm(draw, channels), nn.Conv2d(channels, out, 1)), out


def _branches(draw: random.Random, channels: int) -> nn.Module:
    parts = [nn.Branch(nn.Conv2d(channels, 3, 1), nn.Conv2d(3, channels, 1), gate=0.5)]
    return nn.MultiBranch(nn.ConvBNReLU(channels, channels, 3, padding=1), parts)


BLOCKS: dict[str, Callable[[random.Random, int], Any]] = {
    "plain": lambda draw, c: (_conv(draw, c, out := draw.choice((4, 6, 8)), draw.choice((1, 3))), out),
    "residual": lambda draw, c: Residual(_inner(draw, c)),
    "stochastic depth": lambda draw, c: Residual(_inner(draw, c), drop=0.5),
    "concat": lambda draw, c: (Concat(_conv(draw, c, 4), nn.Conv2d(c, 2, 1)), c + 6),
    "depthwise": _depthwise,
    "grouped": lambda draw, c: nn.Sequential(nn.Conv2d(c, c, 3, padding=1, groups=2), nn.GroupNorm(2, c), nn.ReLU()),
    "twice": lambda draw, c: Twice(nn.Conv2d(c, c, 3, padding=1)),
    "squeeze": lambda draw, c: Squeeze(c),
    "scaled": lambda draw, c: nn.Sequential(Scaled(c, draw.random() < 0.3), nn.ReLU()),
    "only in training": lambda draw, c: OnlyInTraining(c),
    "attention": lambda draw, c: Attention(c),
    "branches": _branches,
    "dropout": lambda draw, c: nn.Sequential(_conv(draw, c, c), draw.choice((nn.Dropout, nn.Dropout2d))(0.3)),
    "pooled": lambda draw, c: nn.Sequential(_conv(draw, c, c), draw.choice((nn.MaxPool2d, nn.AvgPool2d))(2, 1)),
    "transposed": lambda draw, c: (nn.Sequential(nn.ConvTranspose2d(c, 4, 3, padding=1), nn.ReLU()), 4),
    "shuffled": lambda draw, c: (nn.Sequential(nn.Conv2d(c, 16, 2, stride=2), nn.PixelShuffle(2), nn.ReLU()), 4),
}


def _head(draw: random.Random, channels: int, plane: int) -> nn.Module:
    kind = draw.choice(("pooled", "flat", "flat", "layer norm", "rms norm", "batch norm"))
    start: list[nn.Module] = [nn.Flatten()]
    features = channels * plane * plane
    if kind == "pooled":
        start, features = [nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten()], channels
    norms: dict[str, Callable[[], nn.Module]] = {
        "layer norm": lambda: nn.LayerNorm(6), "rms norm": lambda: nn.RMSNorm(6),
        "batch norm": lambda: nn.BatchNorm1d(6),
    }  # fmt: skip
    norm = [norms[kind]()] if kind in norms else []
    hidden = [nn.Linear(features, 6), *norm, draw.choice(ACTIVATIONS)()] if norm or draw.random() < 0.5 else []
    return nn.Sequential(*start, *hidden, nn.Linear(6 if hidden else features, 3))
