"""Random small models for the fuzzer of training loops: blocks, and heads with outputs of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS, CLASSES = 4, 3
BLOCKS: list[type[nn.Module]] = []
HEADS: list[type[nn.Module]] = []


class Model(nn.Module):
    """A body of blocks, and a head."""

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        torch.manual_seed(rng.randrange(10**6))
        self.stem = ConvNorm(rng, smooth, 3)
        self.body = nn.Sequential(*[rng.choice(BLOCKS)(rng, smooth) for _ in range(rng.randint(1, 3))])
        self.head = rng.choice(HEADS)(rng, smooth)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(self.stem(x)))


def block(kind: type[nn.Module]) -> type[nn.Module]:
    BLOCKS.append(kind)
    return kind


def head(kind: type[nn.Module]) -> type[nn.Module]:
    HEADS.append(kind)
    return kind


def activation(rng: random.Random, smooth: bool) -> nn.Module:
    """smooth: one whose derivative does not jump."""
    kinds: list[Callable[[], nn.Module]] = [nn.SiLU, nn.GELU, nn.Tanh]
    if not smooth:
        kinds = [nn.ReLU, nn.ReLU, lambda: nn.ReLU(inplace=True), lambda: nn.LeakyReLU(0.1), nn.SiLU]
    return rng.choice(kinds)()


# --- blocks: images with CHANNELS channels, to such ---
@block
class ConvNorm(nn.Module):
    def __init__(self, rng: random.Random, smooth: bool, channels: int = CHANNELS) -> None:
        super().__init__()
        groups = rng.choice((1, 1, CHANNELS)) if channels == CHANNELS else 1
        size = rng.choice((1, 3))
        self.conv = nn.Conv2d(channels, CHANNELS, size, padding=size // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(CHANNELS, momentum=0.1 if rng.random() < 0.98 else None, affine=rng.random() < 0.9)
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


BLOCKS += [ConvNorm] * 2


@block
class Residual(nn.Module):
    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.first = ConvNorm(rng, smooth)
        self.conv, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(self.first(x))) + x)


@block
class Conv(nn.Module):
    """Without a norm."""

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=rng.random() < 0.7)
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


@block
class Tokens(nn.Module):
    """Layer norm and a linear layer over the channels, which are moved to the end and back."""

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.act(self.linear(self.norm(tokens)))
        return tokens.transpose(1, 2).reshape(x.shape)


class Average(nn.AvgPool2d):
    """In eager code it pads by itself: up to 2.13, the gradient of PyTorch's kernel on CUDA is wrong for channels-last
    images (https://github.com/pytorch/pytorch/issues/188344), and compiled code would be compared with that."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().forward(x)
        return F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1)


@block
class Pool(nn.Module):
    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.pool = Average(3, 1, 1) if smooth or rng.random() < 0.5 else nn.MaxPool2d(3, 1, 1)
        self.norm = nn.GroupNorm(2, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.pool(x))


@block
class Gate(nn.Module):
    """Parameters without dimensions, of one element, frozen, and one that nothing reads."""

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.gate, self.shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(1, CHANNELS, 1, 1))
        self.frozen = nn.Parameter(torch.rand(CHANNELS, 1, 1), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate.sigmoid() + self.shift * self.frozen


@block
class Shared(nn.Module):
    """A layer that is called twice, and a parameter that two layers share."""

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.other = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.other.weight = self.conv.weight
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.act(self.conv(self.conv(x))))


@block
class Seen(nn.Module):
    """Buffers that the forward changes: in place, and by another tensor in its place."""

    seen: Tensor
    mean: Tensor

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(CHANNELS, 1, 1))
        self.register_buffer("scale", torch.full((1,), 1.5), persistent=False)
        self.in_place = rng.random() < 0.7

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(1)
            now = x.detach().mean((0, 2, 3), keepdim=False).view(CHANNELS, 1, 1).to(self.mean.dtype)
            if self.in_place:
                self.mean.lerp_(now, 0.1)
            else:
                self.mean = 0.9 * self.mean + 0.1 * now
        return (x - self.mean) * self.scale  # type: ignore[operator]


@block
class Noise(nn.Module):
    """Random numbers are drawn, and come to nothing: compiled ones are others."""

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.drop, self.conv = nn.Dropout(0.5), nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + 0 * self.drop(x)


@block
class Break(nn.Module):
    """Two graphs."""

    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.breaks = rng.random() < 0.3

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.tanh(x)


# --- heads ---
@head
class Logits(nn.Module):
    def __init__(self, rng: random.Random, smooth: bool) -> None:
        super().__init__()
        self.linear, self.aux = nn.Linear(CHANNELS, CLASSES), nn.Linear(CHANNELS, 2)

    def logits(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))

    def forward(self, x: Tensor) -> Any:
        return self.logits(x)


HEADS += [Logits] * 5  # the usual one comes more often


@head
class Map(Logits):
    """An image comes out."""

    def forward(self, x: Tensor) -> Any:
        return F.conv2d(x, self.linear.weight[:, :, None, None], self.linear.bias)


@head
class Tuple(Logits):
    def forward(self, x: Tensor) -> Any:
        return self.logits(x), x


HEADS.append(Map)


@head
class Dict(Logits):
    def forward(self, x: Tensor) -> Any:
        pooled = x.mean((2, 3))
        return {"logits": self.linear(pooled), "more": [self.aux(pooled).tanh(), pooled.square().sum()]}


@head
class Loss(Logits):
    """The model computes its own loss."""

    def forward(self, x: Tensor) -> Any:
        return self.logits(x).square().mean()


@head
class WithoutGradients(Logits):
    """Outputs that need none."""

    def forward(self, x: Tensor) -> Any:
        logits = self.logits(x)
        return logits, logits.argmax(1), x.detach().amax(), 3


@head
class Views(Logits):
    """Outputs that are others, or views of others."""

    def forward(self, x: Tensor) -> Any:
        logits = self.logits(x)
        return logits, logits, logits.view(-1), x.flatten(1)


@head
class Turned(Logits):
    """Outputs whose strides are not in order."""

    def forward(self, x: Tensor) -> Any:
        return self.logits(x).t(), (x * 2).permute(2, 0, 3, 1)


@head
class Parameters(Logits):
    """A parameter comes out."""

    def forward(self, x: Tensor) -> Any:
        return self.logits(x), self.aux.weight, self.linear.weight * 2
