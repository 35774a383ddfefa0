"""Random small models of everything that people's forwards do: branches, flags, buffers, contexts, random draws, …

Each block takes and gives (N, C, H, W) and can be pickled. `draw(rng)` makes a model of some of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

CHANNELS = 4
ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU6, lambda: nn.Hardtanh(0, 6), nn.Hardtanh, nn.LeakyReLU, lambda: nn.LeakyReLU(-0.2), nn.ELU,
    lambda: nn.ELU(0.3), nn.SiLU, nn.Mish, nn.GELU, lambda: nn.GELU("tanh"), nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid,
    nn.Tanh, nn.PReLU, nn.Softplus,
]  # fmt: skip
FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    F.relu, F.relu6, F.silu, F.mish, F.gelu, F.hardswish, F.elu, torch.sigmoid, torch.tanh, Tensor.sigmoid_,
    Tensor.tanh_, lambda x: F.silu(x, True), lambda x: F.leaky_relu(x, 0.3, inplace=True),
    lambda x: F.leaky_relu_(x, 0.3), lambda x: F.hardtanh(x, 0.0, 6.0, True), lambda x: F.gelu(x, approximate="tanh"),
]  # fmt: skip
BLOCKS: dict[str, type[Block]] = {}


class Block(nn.Module):
    """conv, norm, activation as c, b, r; c2, b2 beside them for those that want two. Subclasses register themselves."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        BLOCKS[cls.__name__] = cls

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.c, self.b, self.r = _conv(rng), _norm(rng), rng.choice([nn.ReLU, rng.choice(ACTIVATIONS)])()
        if hasattr(self.r, "inplace"):
            self.r.inplace = rng.random() < 0.5
        self.c2, self.b2 = _conv(rng), _norm(rng)
        self.flag = rng.random() < 0.5
        self.register_buffer("n", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.r(self.b(self.c(x)))


class GroupNorm(nn.GroupNorm):
    """On contiguous memory: PyTorch 2.13 ends in a segmentation fault in its gradient of channels_last on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous())


def _conv(rng: random.Random) -> nn.Conv2d:
    kernel, padding, dilation = rng.choice([(1, 0, 1), (3, 1, 1), (3, "same", 1), (3, 2, 2)])
    groups = rng.choice([1, 1, 1, 2, CHANNELS])
    bias, mode = rng.random() < 0.4, rng.choice(["zeros"] * 7 + ["reflect"])
    conv = nn.Conv2d(CHANNELS, CHANNELS, kernel, 1, padding, dilation, groups, bias, padding_mode=mode)
    wrapped = rng.random()
    if wrapped < 0.05:
        return parametrizations.weight_norm(conv)
    return parametrizations.spectral_norm(conv) if wrapped < 0.1 else conv


class BatchNormAct(nn.BatchNorm2d):
    """Batch norm and activation in one module, as timm has it."""

    def __init__(self, act: nn.Module, *args: Any) -> None:
        super().__init__(*args)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        average = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            average = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        own = not self.training or self.track_running_stats
        statistics = (self.running_mean, self.running_var) if own else (None, None)
        by_batch = self.training or self.running_mean is None
        x = F.batch_norm(x, *statistics, self.weight, self.bias, by_batch, average, self.eps)
        return self.act(self.drop(x))


class FrozenBatchNorm(nn.Module):
    """Batch norm of buffers, by its formula, as torchvision has it."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(CHANNELS) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, var = (each.reshape(1, -1, 1, 1) for each in self.buffers())
        scale = weight * (var + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


def _norm(rng: random.Random) -> nn.Module:
    if rng.random() < 0.1:
        return GroupNorm(2, CHANNELS)
    if rng.random() < 0.05:
        return FrozenBatchNorm()
    momentum, affine, tracks = rng.choice([0.1, 0.1, 0.3, None]), rng.random() < 0.8, rng.random() < 0.9
    settings = CHANNELS, rng.choice([1e-5, 1e-3]), momentum, affine, tracks
    if rng.random() > 0.15:
        return nn.BatchNorm2d(*settings)
    # Not ReLU: its gradient wants the result, which some blocks change.
    return BatchNormAct(rng.choice([nn.Identity, nn.SiLU, nn.GELU, nn.Hardswish])(), *settings)


class Plain(Block):
    pass


class Functional(Block):
    """An activation by a function or method, chosen at each call, perhaps after a sum."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.chosen = [rng.randrange(len(FUNCTIONS)) for _ in range(2)]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        self.chosen = self.chosen[::-1] if self.flag else self.chosen
        y = self.b(self.c(x))
        return FUNCTIONS[self.chosen[0]](y if mask is None else y + x)


class PaddedConv(nn.Conv2d):
    """Pads by itself, as timm's Conv2dSame."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(F.pad(input, [0, 1, 0, 1]), self.weight, self.bias, padding="same")


class StandardizedConv(nn.Conv2d):
    """Of a standardised weight, as timm's StdConv2d."""

    def forward(self, input: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, CHANNELS, -1), None, None, training=True, eps=1e-3)
        return torch.conv2d(input, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class OddConv(nn.Conv2d):
    """Of which each call does something else."""

    def forward(self, input: Tensor) -> Tensor:
        x = F.conv2d(input, self.weight, None, 1, 1)
        if isinstance(self.bias, Tensor):
            return x + F.conv2d(input, self.weight.flip(0), self.bias, 1, 1)
        return F.relu(x) + input


class Subclasses(Block):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.c, self.c2 = (
            rng.choice([PaddedConv, StandardizedConv, OddConv])(
                CHANNELS, CHANNELS, 3, padding=1, bias=rng.random() < 0.5
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.r(self.c2(self.r(self.b(self.c(x)))))


class WithoutNorm(Block):
    """Convolutions with an activation and no norm, by layers and by functions."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.chosen = [rng.randrange(len(FUNCTIONS)) for _ in range(2)]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        if mask is None:
            y = self.r(self.c(x))
        else:  # PyTorch lets this result change
            y = F.leaky_relu(self.c(x), 0.2)
            y += mask
        return FUNCTIONS[self.chosen[self.flag]](self.c2(y))


class WithoutNormInSequentials(Block):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.s = nn.Sequential(self.c, nn.Identity(), self.r, self.c2, rng.choice(ACTIVATIONS)(), nn.MaxPool2d(3, 1, 1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.s(x) + x if self.flag else self.s(x)


class SumsWithoutNorm(Block):
    """As of residual blocks without norms, or with them before the convolution."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.kind = rng.randrange(4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        if self.kind == 0:
            return F.relu(self.c(x) + x, self.flag)
        if self.kind == 1:  # pre-activation
            x = self.c(self.r(self.b(x))) + x
            return self.c2(torch.sin(x)) + x
        y = self.c(x)
        if self.kind == 2:
            y += x if mask is None else x * mask
            return self.r(y)
        return self.r(self.c2(y) + y)


class WithoutNormShared(Block):
    """Of which something else uses the convolution's result too."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.c(x)
        z = self.r(y) if self.flag or getattr(self.r, "inplace", False) else y.sigmoid() * y
        return z + (y if mask is None else F.silu(y)) + self.b(y)


class NormAct(Block):
    """Of which a sum and another convolution take the result."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.b = BatchNormAct(rng.choice([nn.ReLU(), nn.ReLU(True), nn.LeakyReLU(0.1, True), nn.Tanh()]), CHANNELS)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.b(self.c(x))
        return y + self.b2(self.c2(y))


class Residual(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.r(self.b2(self.c2(F.relu(self.b(self.c(x))))) + x)


class ResidualInPlace(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.b(self.c(x))
        y += x
        return self.r(y)


class BothSides(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return F.relu(self.b(self.c(x)) + self.b2(self.c2(x)))


class OntoTheInput(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        x = x * 1
        x += self.b(self.c(x))
        return self.r(x)


class OptionalMask(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.b(self.c(x))
        if mask is not None:
            y = y * mask
        return self.r(y)


class Flag(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.b(self.c(x))
        return F.relu(y) if self.flag else y


class Counter(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        self.n += 1
        return self.r(self.b(self.c(x))) / self.n


class AssignedBuffer(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.b(self.c(x))
        self.n = 0.9 * self.n + 0.1 * y.detach().mean()
        return self.r(y) + self.n


class Keeps(Block):
    last: Any = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.c(x)
        z = self.b(y)
        self.last = (y if self.flag else z).detach()
        return F.relu(z)


class RandomBranch(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        if torch.rand(1) < 0.5:
            return x
        return self.r(self.b(self.c(x)))


class RandomAfter(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return F.dropout(F.relu(self.b(self.c(x))), 0.5, self.training) + x


class WithoutGradients(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        with torch.no_grad():
            y = F.relu(self.b(self.c(x)))
        return F.relu(self.b2(self.c2(y + x)))


class GradientsBegin(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        with torch.no_grad():
            y = self.c(x)
        y = self.b(y)
        with torch.no_grad():
            z = self.c2(x)
        return F.relu(y) + z


class AutocastOff(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        with torch.autocast("cpu", enabled=False):
            return self.r(self.b(self.c(x.double())))


class AsksForTypes(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.c(x)
        if not isinstance(y, Tensor) or type(y) is int or y.dim() != 4 or y.shape[1] != CHANNELS:
            return x
        y = self.b(y)
        if torch.is_grad_enabled() and self.b.training and y.requires_grad:
            return self.r(y) * 2
        return F.relu(y)


class ConcatenatesLists(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None, others: Any = None) -> Any:
        others = [] if others is None else others
        y = F.relu(self.b(self.c(x)))
        return sum([y, *([x] + others)])


class TwoUsers(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.c(x)
        z = self.b(y)
        return F.relu(z) + y * 0.1 + z.sigmoid()


class SharedLayers(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return F.relu(self.b(self.c(F.relu(self.b(self.c(x))))))


class OneNorm(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        first, second = self.c(x), self.c2(x)
        second = self.b(second)
        first = self.b(first)
        return F.relu(first) + F.relu(second)


class ReadsStatistics(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.b(self.c(x))
        mean = getattr(self.b, "running_mean", None)
        offset = 0 if mean is None else mean.clone().mean()
        return self.r(y) + offset


class Functions(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = F.conv2d(x, self.c.weight, self.c.bias, padding="same", dilation=self.c.dilation, groups=self.c.groups)
        return F.batch_norm(y, None, None, training=True).relu_()


class ChangesItsInput(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        x = x * 1
        with torch.no_grad():
            y = self.c(x)
            x.mul_(1.5)
        return self.r(self.b(y)) + x


class Branches(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.r(self.b(self.c(x)))
        return y if y.detach().mean() > 0.3 else F.relu(self.b2(self.c2(y)))


class Views(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.b(self.c(x))
        y[:, 0] = 0
        first, second = self.c2(x).chunk(2, dim=1)
        return F.relu(y) + torch.cat([second, first], 1)


class Checkpointed(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return checkpoint(self._inner, x, use_reentrant=False, preserve_rng_state=True)

    def _inner(self, x: Tensor) -> Tensor:
        return F.relu(self.b(self.c(x)) + x)


class ChainsInSequential(Block):
    """Whole chains in Sequentials, one within the other, and a layer that chains share."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        act = rng.choice([self.r, nn.ReLU(), rng.choice(ACTIVATIONS)()])
        inner = nn.Sequential(self.c2, self.b2, *[act][: rng.randrange(2)])
        self.s = nn.Sequential(self.c, self.b, self.r, inner, *rng.choice([(), (self.c, self.b, act)]))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.s(x)


class InSequentials(Block):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        layers = [nn.Identity()] if rng.random() < 0.3 else []
        self.s = nn.Sequential(self.c, *layers, nn.Sequential(self.b, *layers, self.r), nn.MaxPool2d(3, 1, 1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.s(x) if mask is None else self.s[:2](x) * mask


class SumInTheParent(Block):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.s = nn.Sequential(self.c, self.b)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return F.relu(self.s(x) + x)


class Hooked(Block):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        where = rng.choice([self.c, self.b, self.r])
        where.register_forward_hook(_halve if rng.random() < 0.5 else _look)


NAMES = tuple(BLOCKS)  # now: a fused model may come with subclasses


def _halve(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 0.5


def _look(module: nn.Module, args: Any, result: Tensor) -> None:
    seen = module.__dict__.setdefault("seen", [])
    seen.append(float(result.detach().sum()) + float(args[0].detach().sum()))


class Model(nn.Module):
    """Blocks one after the other; a mask goes to all."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Conv2d(CHANNELS, 2, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def draw(rng: random.Random, first: str | None = None) -> Model:
    """One to four blocks, in float64, the first of this name; a later block may be an earlier one again."""
    torch.manual_seed(rng.randrange(1000))
    names = [rng.choice(NAMES) for _ in range(rng.randint(1, 4))]
    names[0] = first or names[0]
    blocks: list[Block] = []
    for name in names:
        blocks.append(rng.choice(blocks) if blocks and rng.random() < 0.1 else BLOCKS[name](rng))
    return Model(blocks).double()
