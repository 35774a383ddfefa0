"""Random networks for the fuzzer of the export: convolutional ones, and ones of sequences."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.tensor import Tensor

NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d)
FUSED = (
    "relu",
    "relu6",
    "silu",
    "gelu",
    "gelu_tanh",
    "hardswish",
    "hardsigmoid",
    "sigmoid",
    "tanh",
    "mish",
    "leaky_relu(0.2)",
)
ImagePart = Callable[[random.Random, int], tuple[nn.Module, int]]  # channels → the part, and its channels


class Drawn(NamedTuple):
    """A network, its example, and the sizes that vary."""

    model: nn.Module
    example: Tensor
    dynamic: dict[int, str]


class Step(nn.Module):
    """A function of a tensor, and of layers that it calls."""

    def __init__(self, name: str, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.name, self.function, self.layers = name, function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)

    def extra_repr(self) -> str:
        return self.name


def draw(rng: random.Random) -> Drawn:
    genesis.manual_seed(rng.randrange(2**31))
    return draw_images(rng) if rng.random() < 0.65 else draw_sequences(rng)


# --- images -----------------------------------------------------------------------------------------------------------


def draw_images(rng: random.Random) -> Drawn:
    channels, size = rng.choice((1, 3, 4)), rng.choice((16, 24, 32))
    parts, now, used = list[nn.Module](), channels, list[ImagePart]()
    for _ in range(rng.randint(2, 5)):
        choices = [part for part in IMAGE_PARTS if part not in ENLARGING or not any(made in ENLARGING for made in used)]
        used.append(rng.choice(choices))
        part, now = used[-1](rng, now)
        parts.append(part)
    if rng.random() < 0.4:  # of positive numbers, and few: a mean near 0 amplifies rounding, as long sums do
        parts += [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(now, rng.randint(1, 6))]
    model = varied(nn.Sequential(*parts), rng)
    dynamic = rng.choice(({}, {0: "batch"}, {0: "batch", 2: "height", 3: "width"}))
    return Drawn(model, genesis.randn(rng.randint(1, 2), channels, size, size + rng.choice((0, 8))), dynamic)


def varied(model: nn.Module, rng: random.Random) -> nn.Module:
    """With running statistics, scales and shifts unlike a new network's."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.copy_(genesis.randn(module.num_features) * 0.1)
            module.running_var.copy_(genesis.rand(module.num_features) + 0.5)
        if isinstance(module, NORMS):
            module.eps = 0.1  # so that the norm of nearly equal numbers does not amplify rounding
        weight = getattr(module, "weight", None)
        if isinstance(module, NORMS) and isinstance(weight, Tensor):
            with genesis.no_grad():
                weight.copy_(genesis.rand(*weight.shape) + rng.choice((0.5, -0.5)))
    return model


def activation(rng: random.Random) -> nn.Module:
    kinds: list[Callable[[], nn.Module]] = [
        nn.ReLU, lambda: nn.ReLU(inplace=True), nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.GELU,
        lambda: nn.GELU(approximate="tanh"), nn.Sigmoid, nn.Tanh, nn.ELU, nn.Softplus, nn.Mish, nn.Identity,
        lambda: nn.Hardtanh(-0.5, 0.7), lambda: nn.Dropout(0.3), nn.CELU, nn.SELU, nn.LogSigmoid, nn.Softsign,
        lambda: nn.Softshrink(0.05), nn.PReLU,
    ]  # fmt: skip
    return rng.choice(kinds)()


def norm(rng: random.Random, channels: int) -> nn.Module:
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.BatchNorm2d(channels), lambda: nn.BatchNorm2d(channels), nn.Identity,
        lambda: nn.BatchNorm2d(channels, affine=False),
        lambda: nn.GroupNorm(2 if channels % 2 == 0 else 1, channels),
        lambda: nn.GroupNorm(rng.choice((1, channels)), channels, affine=rng.random() < 0.5),
        lambda: nn.GroupNormAct(2 if channels % 2 == 0 else 1, channels, activation=rng.choice(FUSED)),
        lambda: nn.InstanceNorm2d(channels, affine=rng.random() < 0.5),
    ]  # fmt: skip
    return rng.choice(kinds)()


def conv(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    kernel, dilation = rng.choice((1, 2, 3, (3, 1), (1, 5))), rng.choice((1, 1, 2))
    groups = rng.choice([n for n in (1, 1, 2, channels) if channels % n == 0])
    after = groups * rng.randint(1, 8 // min(8, groups))
    padding = rng.choice((0, 1, 2, "same"))
    stride = 1 if padding == "same" else rng.choice((1, 1, 2, (1, 2)))
    made = nn.Conv2d(channels, after, kernel, stride, padding, dilation, groups, bias=rng.random() < 0.5)  # type: ignore[arg-type]
    return nn.Sequential(nn.ReplicationPad2d(2), made, norm(rng, after), activation(rng)), after


def fused_conv(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    after = rng.randint(1, 8)
    groups = rng.choice([n for n in (1, channels) if after % n == 0])
    options: dict[str, Any] = {"padding": 1, "groups": groups, "activation": rng.choice((*FUSED, "relu", None))}
    return nn.ConvBNReLU(channels, after, rng.choice((1, 3)), **options), after


def separable(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    """Expanded, convolved by channel, gated, and projected; a norm of that, nearly constant, would amplify rounding."""
    wide, after = channels * rng.choice((1, 2, 4)), rng.randint(1, 8)
    kernel, stride = rng.choice((3, 5)), rng.choice((1, 1, 2))
    depthwise = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=rng.random() < 0.3)
    gate, _ = squeeze_and_excite(rng, wide)
    return nn.Sequential(
        nn.Conv2d(channels, wide, 1, bias=False), norm(rng, wide), activation(rng), depthwise, norm(rng, wide),
        activation(rng), gate, nn.Conv2d(wide, after, 1),
    ), after  # fmt: skip


def attention(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    """Attention between the pixels, or along the rows."""
    heads = rng.choice([n for n in (1, 2, 4) if channels % n == 0])
    layer = nn.MultiheadAttention(channels, heads, batch_first=True, bias=rng.random() < 0.5)
    half = nn.AvgPool2d(4)

    def between(x: Tensor, layer: nn.Module, half: nn.Module) -> Tensor:
        small = half(x)
        tokens = small.flatten(2).transpose(1, 2)
        seen = layer(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(small.shape)
        return x + F.interpolate(seen, size=x.shape[2:])

    def along(x: Tensor, layer: nn.Module, half: nn.Module) -> Tensor:
        n, c, h, w = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(n * h, w, c)
        return x + layer(rows, rows, rows)[0].reshape(n, h, w, c).permute(0, 3, 1, 2)

    name, function = rng.choice((("attention", between), ("rows", along)))
    return Step(name, function, layer, half), channels


def residual(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), norm(rng, channels), activation(rng))
    layers = [body, nn.ConvBNReLU(channels, channels, 3, padding=1)]

    def added(x: Tensor, inner: nn.Module, outer: Any) -> Tensor:
        return outer(inner(x), residual=x)  # type: ignore[no-any-return]

    return (Step("residual", added, *layers) if rng.random() < 0.5 else nn.Residual(body)), channels


def transposed(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    groups = rng.choice([n for n in (1, 1, channels) if channels % n == 0])
    after, stride = groups * rng.randint(1, 8 // min(8, groups)), rng.choice((1, 2))
    extra = rng.randrange(stride)
    made = nn.ConvTranspose2d(channels, after, rng.choice((2, 3)), stride, rng.choice((0, 1)), extra, groups)
    return nn.Sequential(made, activation(rng)), after


def squeeze_and_excite(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    gate = nn.Sequential(nn.Conv2d(channels, 2, 1), activation(rng), nn.Conv2d(2, channels, 1))
    squash = rng.choice((F.sigmoid, F.hardsigmoid))
    return Step("excite", lambda x, gate: x * squash(gate(x.mean((2, 3), keepdim=True))), gate), channels


def branches(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    left, right = nn.Conv2d(channels, 3, 1), nn.Conv2d(channels, 2, 3, padding=1)
    return Step("branches", lambda x, left, right: genesis.cat([left(x), x, right(x)], 1), left, right), channels + 5


def resized(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    mode = rng.choice(("nearest", "bilinear", "bicubic", "nearest-exact"))
    corners = rng.random() < 0.5 if mode == "bilinear" else None
    factor = rng.choice((2, 0.5, 1.5))
    how: dict[str, Any] = {"mode": mode, "align_corners": corners}
    if rng.random() < 0.5:
        # Corners that stay in place make the other places round, by 1e-5 of a steep slope.
        smooth = nn.AvgPool2d(3, 1, 1) if corners else nn.Identity()
        enlarged = Step(f"by {factor}", lambda x, smooth: F.interpolate(smooth(x), scale_factor=factor, **how), smooth)
        return enlarged, channels
    half = nn.MaxPool2d(2)
    return Step("as before", lambda x, half: x + F.interpolate(half(x), size=x.shape[2:], **how), half), channels


def pooled(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    kernel, stride, padding = rng.choice((2, 3)), rng.choice((1, 2)), rng.choice((0, 1))
    ceil = rng.random() < 0.3
    divisor = rng.choice((None, None, 3))
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil),
        lambda: nn.AvgPool2d(kernel, stride, padding, ceil, divisor_override=divisor),
        lambda: nn.LPPool2d(2, kernel, stride, ceil),
        lambda: nn.AvgPool2d(kernel, stride, padding, ceil, count_include_pad=rng.random() < 0.5),
    ]  # fmt: skip
    return nn.Sequential(nn.ZeroPad2d(1), rng.choice(kinds)()), channels


def rearranged(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    def shuffled(x: Tensor) -> Tensor:
        first, second = x.chunk(2, 1) if channels > 1 else (x, x)
        return genesis.cat([second, first], 1)

    def written(x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0] = y[:, -1] * 2
        y[:, :, 1:3].add_(1).relu_()
        return y

    def attended(x: Tensor) -> Tensor:
        flat = x.flatten(2)
        return ((flat @ flat.transpose(1, 2) / flat.shape[2]).softmax(-1) @ flat).reshape(x.shape)

    def padded(x: Tensor) -> Tensor:
        return F.pad(F.pad(x, (1, 1, 2, 0), mode="reflect"), (0, 1), value=0.5)

    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "shuffled": shuffled, "written": written, "attended": attended, "padded": padded,
        "flipped": lambda x: x.flip(3) + x.roll(1, 2), "centred": lambda x: x - x.amax(1, keepdim=True),
        "where": lambda x: genesis.where(x > 0, x, x.abs() / 2), "even": lambda x: x[..., ::2, 1:],
        "sums": lambda x: x.cumsum(2) / 8, "powers": lambda x: (x.abs() + 0.5) ** 1.5,
        "standard": lambda x: (x - x.mean((1, 2, 3), keepdim=True)) / (x.std((1, 2, 3), keepdim=True) + 1),
        "folded": lambda x: F.pixel_shuffle(F.pixel_unshuffle(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), 2), 2),
        "shuffle": lambda x: F.channel_shuffle(x, 2) if channels % 2 == 0 else x, "cropped": lambda x: x[:, :, 1:, :-2],
        "highest": lambda x: x.cummax(1)[0] + x.topk(1, 1)[0], "unit": lambda x: F.normalize(x + 2, dim=1),
        "gated": lambda x: F.glu(genesis.cat([x, x.flip(1)], 1), 1),
        "dense": lambda x: x + genesis.einsum("nchw,ncxw->nhx", x, x).mean() / 100,
        "unfolded": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1) / 9,
        "clamped": lambda x: x.clamp(-1, 1).neg().exp(), "normed": lambda x: x / (x.norm(dim=1, keepdim=True) + 1),
    }  # fmt: skip
    if rng.random() < 0.15:
        more = nn.Conv2d(channels, 4 * channels, 1)
        return nn.Sequential(more, nn.PixelShuffle(2), nn.MaxPool2d(2)), channels
    after = 2 if channels == 1 else channels
    name = rng.choice(list(functions))
    return Step(name, functions[name]), after if name == "shuffled" else channels


ENLARGING: tuple[ImagePart, ...] = (transposed, resized)
IMAGE_PARTS: tuple[ImagePart, ...] = (
    conv, conv, fused_conv, fused_conv, separable, residual, transposed, squeeze_and_excite, branches, resized, pooled,
    rearranged, rearranged, attention,
)  # fmt: skip


# --- sequences --------------------------------------------------------------------------------------------------------


def draw_sequences(rng: random.Random) -> Drawn:
    heads = rng.choice((1, 2, 4))
    width = heads * rng.choice((4, 6, 8))
    parts: list[nn.Module] = [rng.choice(SEQUENCE_PARTS)(rng, width, heads) for _ in range(rng.randint(1, 4))]
    length, dynamic = rng.randint(5, 9), rng.choice(({}, {0: "batch"}, {0: "batch", 1: "length"}))
    if rng.random() < 0.4:  # of tokens
        example = genesis.randint(0, 11, (2, length))
        parts = [nn.Embedding(11, width), *parts, nn.Linear(width, 11)]
    else:
        example = genesis.randn(2, length, width)
    return Drawn(varied(nn.Sequential(*parts), rng), example, dynamic)


def sequence_norm(rng: random.Random, width: int) -> nn.Module:
    return rng.choice((nn.LayerNorm, nn.RMSNorm, lambda size: nn.LayerNorm(size, elementwise_affine=False)))(width)  # type: ignore[operator,no-any-return]


def feed_forward(rng: random.Random, width: int, heads: int) -> nn.Module:
    plain = nn.Sequential(nn.Linear(width, 2 * width), activation(rng), nn.Linear(2 * width, width))
    inner = nn.FeedForwardSwiGLU(width) if rng.random() < 0.5 else plain
    return nn.Residual(nn.Sequential(sequence_norm(rng, width), inner))


def rotary_attention(rng: random.Random, width: int, heads: int) -> nn.Module:
    turn, is_causal = nn.RotaryEmbedding(width // heads), rng.random() < 0.5

    def attend(x: Tensor, norm: nn.Module, project: nn.Module, turn: nn.Module) -> Tensor:
        n, length, _ = x.shape
        split = project(norm(x)).reshape(n, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        mixed = F.scaled_dot_product_attention(turn(query), turn(key), value, is_causal=is_causal)
        return x + mixed.transpose(1, 2).reshape(n, length, width)

    return Step("rotary attention", attend, sequence_norm(rng, width), nn.Linear(width, 3 * width), turn)


def multihead(rng: random.Random, width: int, heads: int) -> nn.Module:
    def attend(x: Tensor, attention: nn.Module) -> Tensor:
        mask = genesis.ones(x.shape[1], x.shape[1]).triu(1) > 0
        mixed: Tensor = attention(x, x, x, attn_mask=mask)[0]
        return x + mixed

    return Step("multihead", attend, nn.MultiheadAttention(width, heads, batch_first=True))


def convolved(rng: random.Random, width: int, heads: int) -> nn.Module:
    layer = nn.Conv1d(width, width, 3, padding=1, groups=rng.choice((1, width)))
    return Step("convolved", lambda x, conv: x + conv(x.transpose(1, 2)).transpose(1, 2).relu(), layer)


def mixed(rng: random.Random, width: int, heads: int) -> nn.Module:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "heads": lambda x: genesis.einsum("nld,nmd->nlm", x, x).softmax(-1) @ x,
        "last": lambda x: x + x[:, -1:].tanh(), "ordered": lambda x: x.sort(1)[0],
        "best": lambda x: x * (x > x.topk(2, 1)[0][:, 1:]).float(), "sums": lambda x: x.cumsum(1) / 8,
        "shifted": lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1] + x, "logs": lambda x: x - x.logsumexp(-1, keepdim=True),
        "chosen": lambda x: x.gather(1, x.argmax(1, keepdim=True)) - x, "tiled": lambda x: x.repeat(1, 2, 1)[:, ::2],
    }  # fmt: skip
    name = rng.choice(list(functions))
    return Step(name, functions[name])


SEQUENCE_PARTS = (feed_forward, rotary_attention, rotary_attention, multihead, convolved, mixed)
