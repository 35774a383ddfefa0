"""The networks of bench_zoo.py and bench_zoo_convs.py, and the list of their convolutions.

    python benchmarks/zoo_networks.py         write zoo_convs.json anew; needs torchvision, timm and segmentation_models

The order is that of bench_zoo.py: a run that is cut has seen the most different families.
"""

from __future__ import annotations

import collections
import importlib
import inspect
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_networks import UNet

CONVOLUTIONS = Path(__file__).parent / "zoo_convs.json"
_SLOW_TO_INITIALIZE = ("inception_v3", "googlenet")  # by SciPy, for minutes


class Network(NamedTuple):
    """source: the package that has it, or "own"; batch × 3 × size² are its images."""

    name: str
    family: str
    source: str
    batch: int = 32
    size: int = 224

    def build(self) -> nn.Module:
        """Without weights. Raises: ImportError: its package is not installed."""
        if self.source == "own":
            return OWN[self.name]()
        models = torchvision_models()  # which the other two import as well
        if self.source == "smp":
            library = importlib.import_module("segmentation_models_pytorch")
            return library.Unet("efficientnet-b0", encoder_weights=None)
        if self.source == "timm":
            return importlib.import_module("timm").create_model(self.name)
        builder = models.get_model_builder(self.name)
        options = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
        return builder(**options, **({"init_weights": False} if self.name in _SLOW_TO_INITIALIZE else {}))


NETWORKS = (
    Network("resnet50", "ResNet", "torchvision", 64),
    Network("efficientnet_b0", "EfficientNet", "torchvision", 64),
    Network("convnext_tiny", "ConvNeXt", "torchvision"),
    Network("yolo", "YOLO", "own", 16, 320),
    Network("diffusion_unet", "diffusion", "own", 16, 64),
    Network("densenet121", "DenseNet", "torchvision"),
    Network("mobilenet_v3_large", "MobileNetV3", "torchvision", 64),
    Network("regnet_y_8gf", "RegNet", "torchvision"),
    Network("eca_nfnet_l0", "NFNet", "timm"),
    Network("vgg16_bn", "VGG", "torchvision"),
    Network("dla34", "DLA", "timm"),
    Network("ghostnet_100", "GhostNet", "timm", 64),
    Network("repvgg_a0", "RepVGG", "timm", 64),
    Network("mobilenetv4_conv_medium", "MobileNetV4", "timm"),
    Network("legacy_xception", "Xception", "timm"),
    Network("hrnet_w18_small_v2", "HRNet", "timm"),
    Network("efficientnet_v2_s", "EfficientNetV2", "torchvision"),
    Network("convnextv2_nano", "ConvNeXtV2", "timm"),
    Network("unet", "U-Net", "own", 8, 256),
    Network("smp_unet_efficientnet_b0", "segmentation", "smp", 8, 256),
    Network("resnext50_32x4d", "ResNeXt", "torchvision"),
    Network("mobilenet_v2", "MobileNetV2", "torchvision", 64),
    Network("cspdarknet53", "Darknet", "timm"),
    Network("deeplabv3_resnet50", "DeepLab", "torchvision", 4, 512),
    Network("shufflenet_v2_x1_0", "ShuffleNet", "torchvision", 64),
    Network("resnetv2_50", "ResNetV2", "timm"),
    Network("inception_v3", "Inception", "torchvision", 32, 299),
    Network("seresnet50", "SE-ResNet", "timm"),
    Network("res2net50_26w_4s", "Res2Net", "timm"),
    Network("vovnet39a", "VoVNet", "timm"),
    Network("hgnetv2_b0", "HGNet", "timm", 64),
    Network("mobileone_s0", "MobileOne", "timm"),
    Network("darknet53", "Darknet", "timm", 32, 256),
    Network("resnest26d", "ResNeSt", "timm"),
    Network("mnasnet1_0", "MNASNet", "torchvision", 64),
    Network("squeezenet1_1", "SqueezeNet", "torchvision", 64),
    Network("regnet_y_400mf", "RegNet", "torchvision", 64),
    Network("resnet50d", "ResNet", "timm"),
    Network("resnet18", "ResNet", "torchvision", 128),
    Network("resnet101", "ResNet", "torchvision"),
)
TINY = (Network("tiny_unet", "U-Net", "own", 2, 16), Network("tiny_diffusion_unet", "diffusion", "own", 2, 16))


def named(text: str) -> Network:
    """One of these by its name, or any of timm or torchvision; batch, size may follow: "unet:4", "timm:dpn68:64:192".

    Raises: ValueError: it is none of these, of another package, or the batch or the size is no number.
    """
    first, *rest = text.split(":")
    known = _known()
    if first in known:
        network, sizes = known[first], rest
    elif first in ("timm", "torchvision") and rest:
        network, sizes = Network(rest[0], rest[0], first), rest[1:]
    else:
        raise ValueError(text)
    if len(sizes) > 2:
        raise ValueError(text)
    return network._replace(**dict(zip(("batch", "size"), map(int, sizes), strict=False)))


def spelled(network: Network) -> str:
    """What named() reads."""
    known = _known().get(network.name)
    is_known = known is not None and known._replace(batch=network.batch, size=network.size) == network
    return f"{'' if is_known else f'{network.source}:'}{network.name}:{network.batch}:{network.size}"


def _known() -> dict[str, Network]:
    return {network.name: network for network in (*NETWORKS, *TINY)}


def torchvision_models() -> Any:
    """torchvision.models, where its library of operators can't be loaded too: no network here calls them."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _declared[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module("torchvision.models")


_declared: list[torch.library.Library] = []  # its operators go with it


# --- networks that no package of those has ----------------------------------------------------------------------------


def conv_bn_silu(in_channels: int, out_channels: int, taps: int = 1, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, taps, stride, taps // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.SiLU(inplace=True))


class CrossStage(nn.Module):
    """YOLOv8's block: a half goes through residual pairs, and all of their results are concatenated."""

    def __init__(self, in_channels: int, out_channels: int, depth: int, adds: bool = True) -> None:
        super().__init__()
        half = out_channels // 2
        self.first, self.adds = conv_bn_silu(in_channels, out_channels), adds
        pairs = (nn.Sequential(conv_bn_silu(half, half, 3), conv_bn_silu(half, half, 3)) for _ in range(depth))
        self.pairs = nn.ModuleList(pairs)
        self.last = conv_bn_silu((2 + depth) * half, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for pair in self.pairs:
            parts.append(pair(parts[-1]) + parts[-1] if self.adds else pair(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """A one-stage detector's backbone, neck and heads of three scales, as YOLOv8 has them."""

    def __init__(self, width: int = 32, num_outputs: int = 144) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn_silu(3, width, 3, 2), conv_bn_silu(width, 2 * width, 3, 2))
        w = [2 * width, 4 * width, 8 * width, 16 * width]
        self.stage1 = CrossStage(w[0], w[0], 1)
        self.stage2 = nn.Sequential(conv_bn_silu(w[0], w[1], 3, 2), CrossStage(w[1], w[1], 2))
        self.stage3 = nn.Sequential(conv_bn_silu(w[1], w[2], 3, 2), CrossStage(w[2], w[2], 2))
        self.stage4 = nn.Sequential(conv_bn_silu(w[2], w[3], 3, 2), CrossStage(w[3], w[3], 1))
        self.before_pool, self.after_pool = conv_bn_silu(w[3], w[2]), conv_bn_silu(4 * w[2], w[3])
        self.up3, self.up2 = CrossStage(w[3] + w[2], w[2], 1, False), CrossStage(w[2] + w[1], w[1], 1, False)
        self.step3, self.down3 = conv_bn_silu(w[1], w[1], 3, 2), CrossStage(w[1] + w[2], w[2], 1, False)
        self.step4, self.down4 = conv_bn_silu(w[2], w[2], 3, 2), CrossStage(w[2] + w[3], w[3], 1, False)
        self.heads = nn.ModuleList(
            nn.Sequential(conv_bn_silu(each, w[1], 3), conv_bn_silu(w[1], w[1], 3), nn.Conv2d(w[1], num_outputs, 1))
            for each in w[1:]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        fine = self.stage2(self.stage1(self.stem(x)))
        middle = self.stage3(fine)
        pooled = [self.before_pool(self.stage4(middle))]
        for _ in range(3):
            pooled.append(F.max_pool2d(pooled[-1], 5, 1, 2))
        coarse = self.after_pool(torch.cat(pooled, 1))
        middle = self.up3(torch.cat([F.interpolate(coarse, scale_factor=2.0), middle], 1))
        fine = self.up2(torch.cat([F.interpolate(middle, scale_factor=2.0), fine], 1))
        middle = self.down3(torch.cat([self.step3(fine), middle], 1))
        coarse = self.down4(torch.cat([self.step4(middle), coarse], 1))
        return [head(each) for head, each in zip(self.heads, (fine, middle, coarse), strict=True)]


class ResidualBlock(nn.Module):
    """GroupNorm → SiLU → conv, twice; the time's embedding is added between."""

    def __init__(self, in_channels: int, out_channels: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, in_channels), nn.GroupNorm(8, out_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(time, out_channels)
        self.skip = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.flatten(2).mT.unsqueeze(1) for each in self.qkv(self.norm(x)).chunk(3, 1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).squeeze(1).mT.reshape(x.shape))


class DiffusionUNet(nn.Module):
    """A denoiser as of Ho et al. 2020 (arXiv:2006.11239), of noise in an image at a step of each image's own."""

    def __init__(self, width: int = 128, multiples: tuple[int, ...] = (1, 2, 2), depth: int = 2) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, skips = width, [width]
        for level, multiple in enumerate(multiples):
            for _ in range(depth):
                self.down.append(ResidualBlock(channels, multiple * width, time))
                channels = multiple * width
                skips.append(channels)
            if level + 1 < len(multiples):
                self.down.append(nn.Conv2d(channels, channels, 3, 2, 1))
                skips.append(channels)
        blocks = ResidualBlock(channels, channels, time), Attention(channels), ResidualBlock(channels, channels, time)
        self.middle = nn.ModuleList(blocks)
        for level, multiple in reversed(list(enumerate(multiples))):
            for _ in range(depth + 1):
                self.up.append(ResidualBlock(channels + skips.pop(), multiple * width, time))
                channels = multiple * width
            if level:
                self.up.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(len(x), device=x.device)[:, None]
        rates = torch.exp(torch.arange(self.width // 2, device=x.device) * (-math.log(1e4) / (self.width // 2)))
        time = self.embed(torch.cat([torch.sin(steps * rates), torch.cos(steps * rates)], 1))
        x = self.first(x)
        skips = [x]
        for block in self.down:
            x = block(x, time) if isinstance(block, ResidualBlock) else block(x)
            skips.append(x)
        for block in self.middle:
            x = block(x, time) if isinstance(block, ResidualBlock) else block(x)
        for block in self.up:
            if isinstance(block, ResidualBlock):
                x = block(torch.cat([x, skips.pop()], 1), time)
            else:
                x = block(F.interpolate(x, scale_factor=2.0))
        return self.last(F.silu(self.norm(x)))


OWN = {
    "yolo": Yolo,
    "diffusion_unet": DiffusionUNet,
    "unet": lambda: UNet(3, 21, 32, 4),
    "tiny_unet": lambda: UNet(3, 5, 4, 2),
    "tiny_diffusion_unet": lambda: DiffusionUNet(8, (1, 2), 1),
}


# --- their convolutions -----------------------------------------------------------------------------------------------


class Convolution(NamedTuple):
    """One that occurs `count` times in `networks`; the shapes are (N, C, H, W) and (K, C / groups, R, S)."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    of_image: bool  # nobody asks for the gradient of its input
    count: int = 0
    networks: tuple[str, ...] = ()


class _Recorder(TorchDispatchMode):
    """What is computed, whichever layer or function asks for it."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.images, self.found = images, list[Convolution]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            input, weight, _, stride, padding, dilation, transposed, _, groups = args
            if input.ndim == 4 and not transposed:
                shapes, pairs = (tuple(input.shape), tuple(weight.shape)), map(tuple, (stride, padding, dilation))
                self.found.append(Convolution(*shapes, *pairs, groups, input.shape == self.images.shape))
        return func(*args, **(kwargs or {}))


def convolutions_of(network: Network) -> list[Convolution]:
    """Nothing is computed: shapes are all that tensors have on PyTorch's meta device."""
    model = network.build().to("meta")
    with torch.device("meta"):
        images = torch.empty(network.batch, 3, network.size, network.size)
        with _Recorder(images) as recorder:
            model(images)
    return recorder.found


def stored() -> list[Convolution]:
    rows = json.loads(CONVOLUTIONS.read_text(encoding="utf-8"))
    return [Convolution(*(tuple(each) if isinstance(each, list) else each for each in row)) for row in rows]


def main() -> int:
    counts = collections.Counter[Convolution]()
    where = collections.defaultdict[Convolution, dict[str, None]](dict)
    for network in NETWORKS:
        try:
            found = convolutions_of(network)
        except ImportError as error:
            print(f"{network.name}: left out ({error})")
            continue
        counts.update(found)
        for each in found:
            where[each][network.name] = None
        print(f"{network.name:<28}{len(found):4} convolutions", flush=True)
    rows = [each._replace(count=count, networks=tuple(where[each])) for each, count in counts.items()]
    lines = ",\n".join(json.dumps(row) for row in rows)
    CONVOLUTIONS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{sum(counts.values())} convolutions, {len(rows)} of them distinct, written to {CONVOLUTIONS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
