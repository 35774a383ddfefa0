"""Networks of torchvision, timm, segmentation_models_pytorch and other libraries by name, built without weights.

The packages are not dependencies: what is not installed gives no names. torchvision's wheel is built for CUDA and is
imported beside a CPU build of torch by declaring the two operators that its library would register.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from tests.port import libraries

MOST_PARAMETERS = 60e6
_OF_TIMM = (  # one network or more of each module of timm that has convolutions
    "bat_resnext26ts", "botnet26t_256", "eca_botnext26ts_256", "gcresnet33ts", "halonet26t", "lambda_resnet26t",
    "repvgg_a0", "repvgg_b0", "gernet_s", "mobileone_s0", "resnet51q", "coat_lite_tiny", "convmixer_1024_20_ks9_p14",
    "convnext_atto", "convnextv2_atto", "convnext_nano", "cspresnet50", "cspresnext50", "cspdarknet53", "darknet53",
    "darknetaa53", "cs3darknet_m", "cs3sedarknet_l", "densenet121", "densenetblur121d", "dla34", "dla46_c",
    "dla46x_c", "dla60", "dla60_res2net", "dla60x", "dpn48b", "dpn68", "dpn68b", "edgenext_xx_small",
    "efficientformer_l1", "efficientformerv2_s0", "efficientnet_b0", "efficientnet_lite0", "efficientnet_es",
    "efficientnetv2_rw_t", "tf_efficientnet_b0", "tf_efficientnetv2_b0", "tf_mixnet_s", "mixnet_s", "fbnetc_100",
    "mnasnet_small", "mobilenetv1_100", "mobilenetv2_050", "mobilenetv4_conv_small", "spnasnet_100", "tinynet_e",
    "efficientvit_b0", "efficientvit_m0", "fasternet_t0", "fastvit_t8", "focalnet_tiny_srf", "ghostnet_100",
    "ghostnetv2_100", "hardcorenas_a", "hgnet_tiny", "hgnetv2_b0", "hrnet_w18_small", "hrnet_w18_small_v2",
    "inception_next_atto", "inception_v3", "inception_v4", "inception_resnet_v2", "levit_128s", "mambaout_femto",
    "poolformer_s12", "mobilenetv3_small_050", "mobilenetv3_large_100", "fbnetv3_b", "lcnet_050", "mobilevit_xxs",
    "mobilevitv2_050", "nf_regnet_b0", "nf_resnet50", "nfnet_l0", "eca_nfnet_l0", "nasnetalarge", "pnasnet5large",
    "rdnet_tiny", "regnetx_002", "regnety_002", "regnetz_005", "regnetv_040", "repghostnet_050", "repvit_m0_9",
    "res2net50_26w_4s", "res2next50", "resnest14d", "resnet10t", "resnet14t", "resnet18", "resnet18d", "resnet26t",
    "resnet50", "resnet50d", "resnext50_32x4d", "seresnet50", "seresnext26t_32x4d", "ecaresnet26t", "resnetaa50d",
    "resnetblur18", "resnetv2_50", "resnetv2_18", "resnetv2_50x1_bit", "rexnet_100", "selecsls42b", "legacy_seresnet18",
    "legacy_seresnet50", "legacy_seresnext26_32x4d", "skresnet18", "skresnext50_32x4d", "starnet_s1", "swiftformer_xs",
    "tresnet_m", "vgg11_bn", "visformer_tiny", "vovnet39a", "ese_vovnet19b_dw", "xception41", "legacy_xception",
    "xception65p",
)  # fmt: skip
_IN_BLOCKS = ("bat_resnext26ts", "halonet26t")  # their attention divides the picture into blocks
_ENCODERS = ("resnet18", "efficientnet-b0", "mobilenet_v2", "densenet121", "se_resnet50", "dpn68", "mobileone_s0")
_DECODERS = (
    "Unet",
    "UnetPlusPlus",
    "Linknet",
    "FPN",
    "PSPNet",
    "PAN",
    "MAnet",
    "DeepLabV3",
    "DeepLabV3Plus",
    "UPerNet",
)


class Network(NamedTuple):
    """How to build a network, and the side of the square pictures that it takes."""

    name: str
    build: Callable[[], nn.Module]
    size: int


def networks() -> Iterator[Network]:
    """All that the installed packages have of these lists."""
    if importlib.util.find_spec("torchvision"):
        yield from _of_torchvision()
    if importlib.util.find_spec("timm"):
        yield from _of_timm()
    if importlib.util.find_spec("segmentation_models_pytorch"):
        yield from _of_segmentation_models()
    for network in libraries.networks():
        if network.is_installed:
            yield Network(network.file.replace("/", ":"), network.build, network.size[-1])


def _of_torchvision() -> Iterator[Network]:
    if not torch.cuda.is_available():
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    models = importlib.import_module("torchvision.models")
    for name in models.list_models(module=models):
        if not name.startswith(("vit", "swin", "maxvit", "regnet_y_128gf", "regnet_y_32gf")):
            weights = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
            size = {"alexnet": 96, "inception_v3": 299}.get(name, 64)
            yield Network(f"torchvision:{name}", lambda n=name, w=weights: models.get_model(n, **w), size)
    for name in models.list_models(module=models.segmentation):
        yield Network(f"torchvision:{name}", lambda n=name: models.get_model(n, weights_backbone=None), 64)


def _of_timm() -> Iterator[Network]:
    timm = importlib.import_module("timm")
    known = set(timm.list_models())
    for name in filter(known.__contains__, _OF_TIMM):
        size = timm.get_pretrained_cfg(name)
        fixed = size is not None and size.fixed_input_size
        side = size.input_size[1] if fixed else 256 if name in _IN_BLOCKS else 96
        yield Network(f"timm:{name}", lambda n=name: timm.create_model(n), side)


def _of_segmentation_models() -> Iterator[Network]:
    library = importlib.import_module("segmentation_models_pytorch")
    for index, decoder in enumerate(_DECODERS):
        side = 128 if decoder == "PAN" else 64
        for encoder in (_ENCODERS[index % len(_ENCODERS)], _ENCODERS[(index + 3) % len(_ENCODERS)]):
            if (decoder, encoder) != ("DeepLabV3", "densenet121"):  # which segmentation_models refuses
                yield Network(
                    f"smp:{decoder}-{encoder}",
                    lambda d=decoder, e=encoder: getattr(library, d)(encoder_name=e, encoder_weights=None),
                    side,
                )
