"""Model files of torchvision, timm and segmentation_models: a network of each, small, and the size of its input."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple

_CLASSES = {"num_classes": 5}


class Network(NamedTuple):
    """A network of a model file: where its constructor is, its arguments, and the size of the input."""

    file: str
    module: str
    constructor: str
    arguments: dict[str, Any]
    size: tuple[int, ...]

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module.partition(".")[0]) is not None

    def build(self) -> Any:
        """Build it, on whatever torch the package has now."""
        return getattr(importlib.import_module(self.module), self.constructor)(**self.arguments)


_TORCHVISION = {  # file: constructor, side of the square input
    "alexnet": ("alexnet", 64), "convnext": ("convnext_tiny", 64), "densenet": ("densenet121", 64),
    "efficientnet": ("efficientnet_b0", 64), "googlenet": ("googlenet", 64), "inception": ("inception_v3", 96),
    "maxvit": ("maxvit_t", 224), "mnasnet": ("mnasnet0_5", 64), "mobilenetv2": ("mobilenet_v2", 64),
    "mobilenetv3": ("mobilenet_v3_small", 64), "regnet": ("regnet_y_400mf", 64), "resnet": ("resnet18", 64),
    "shufflenetv2": ("shufflenet_v2_x0_5", 64), "squeezenet": ("squeezenet1_1", 64),
    "swin_transformer": ("swin_v2_t", 64), "vgg": ("vgg11_bn", 64), "vision_transformer": ("vit_b_32", 224),
}  # fmt: skip
_TORCHVISION_SEGMENTATION = {
    "fcn": "fcn_resnet50", "deeplabv3": "deeplabv3_mobilenet_v3_large", "lraspp": "lraspp_mobilenet_v3_large",
}  # fmt: skip
_OWN = {
    "vgg": {"init_weights": False},
    "inception": {"init_weights": False, "aux_logits": False},
    "googlenet": {"init_weights": False},
}

_TIMM = {  # file: network, side, further arguments
    "beit": ("beit_base_patch16_224", 64, {"img_size": 64, "depth": 2}),
    "byoanet": ("eca_botnext26ts_256", 256, {}),
    "byobnet": ("test_byobnet", 64, {}),
    "cait": ("cait_xxs24_224", 64, {"img_size": 64, "depth": 3}),
    "coat": ("coat_lite_tiny", 64, {"img_size": 64}),
    "convit": ("convit_tiny", 64, {"img_size": 64}),
    "convmixer": ("convmixer_768_32", 32, {}),
    "convnext": ("test_convnext", 64, {}),
    "cpubone": ("cpubone_nano", 64, {}),
    "crossvit": ("crossvit_tiny_240", 240, {}),
    "csatv2": ("csatv2", 128, {}),
    "cspnet": ("cs3darknet_focus_s", 64, {}),
    "cspnext": ("cspnext_tiny", 64, {}),
    "davit": ("davit_tiny", 64, {}),
    "deepseek_vit": ("deepseek_vit_412m", 56, {"depth": 2}),
    "deit": ("deit_tiny_patch16_224", 64, {"img_size": 64}),
    "densenet": ("densenet121", 64, {}),
    "dla": ("dla46_c", 64, {}),
    "dpn": ("dpn48b", 64, {}),
    "edgenext": ("edgenext_xx_small", 64, {}),
    "efficientformer": ("efficientformer_l1", 224, {}),
    "efficientformer_v2": ("efficientformerv2_s0", 224, {}),
    "efficientnet": ("test_efficientnet", 64, {}),
    "efficientvim": ("efficientvim_m1", 64, {}),
    "efficientvit_mit": ("efficientvit_b0", 64, {}),
    "efficientvit_msra": ("efficientvit_m0", 224, {}),
    "eva": ("vit_tiny_patch16_dinov3_qkvb", 64, {"img_size": 64}),
    "fasternet": ("fasternet_t0", 64, {}),
    "fastvit": ("fastvit_t8", 64, {}),
    "focalnet": ("focalnet_tiny_srf", 64, {}),
    "gcvit": ("gcvit_xxtiny", 224, {}),
    "gemma4_vit": ("gemma4_vit_167m", 96, {"depth": 2}),
    "ghostnet": ("ghostnet_050", 64, {}),
    "hardcorenas": ("hardcorenas_a", 64, {}),
    "hgnet": ("hgnetv2_b0", 64, {}),
    "hiera": ("hiera_tiny_224", 224, {}),
    "hieradet_sam2": ("sam2_hiera_tiny", 224, {}),
    "hrnet": ("hrnet_w18_small", 64, {}),
    "iformer": ("iformer_t", 64, {}),
    "inception_next": ("inception_next_atto", 64, {}),
    "inception_resnet_v2": ("inception_resnet_v2", 96, {}),
    "inception_v3": ("inception_v3", 96, {}),
    "inception_v4": ("inception_v4", 96, {}),
    "lcnetv2": ("lcnetv2_small", 64, {}),
    "levit": ("levit_128s", 224, {}),
    "lowformer": ("lowformer_b0", 64, {}),
    "mambaout": ("test_mambaout", 64, {}),
    "maxxvit": ("test_coatnet", 160, {}),
    "metaformer": ("poolformer_s12", 64, {}),
    "mlp_mixer": ("gmlp_ti16_224", 64, {"img_size": 64}),
    "mobilenetv3": ("mobilenetv3_small_050", 64, {}),
    "mobilenetv5": ("mobilenetv5_base", 64, {}),
    "mobilevit": ("mobilevit_xxs", 64, {}),
    "mvitv2": ("mvitv2_tiny", 64, {"img_size": 64}),
    "naflexvit": ("naflexvit_base_patch16_siglip", 64, {"depth": 2}),
    "nasnet": ("nasnetalarge", 96, {}),
    "nest": ("nest_tiny", 64, {"img_size": 64}),
    "nextvit": ("nextvit_small", 64, {}),
    "nfnet": ("test_nfnet", 64, {}),
    "pit": ("pit_ti_224", 224, {}),
    "pnasnet": ("pnasnet5large", 96, {}),
    "pvt_v2": ("pvt_v2_b0", 64, {}),
    "qwen3_vit": ("qwen3_vit_88m", 64, {"depth": 2}),
    "rdnet": ("rdnet_tiny", 64, {}),
    "regnet": ("regnetx_002", 64, {}),
    "repghost": ("repghostnet_050", 64, {}),
    "repvit": ("repvit_m1", 64, {}),
    "res2net": ("res2net50_14w_8s", 64, {}),
    "resnest": ("resnest14d", 64, {}),
    "resnet": ("test_resnet", 64, {}),
    "resnetv2": ("resnetv2_50", 64, {}),
    "rexnet": ("rexnet_100", 64, {}),
    "selecsls": ("selecsls42", 64, {}),
    "senet": ("legacy_seresnet18", 64, {}),
    "sequencer": ("sequencer2d_s", 64, {"img_size": 64}),
    "shvit": ("shvit_s1", 128, {}),
    "sknet": ("skresnet18", 64, {}),
    "starnet": ("starnet_s050", 64, {}),
    "swiftformer": ("swiftformer_xs", 224, {}),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 64, {"img_size": 64, "window_size": 4}),
    "swin_transformer_v2": ("swinv2_tiny_window8_256", 64, {"img_size": 64, "window_size": 4}),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 64, {"img_size": 64, "window_size": 4}),
    "tiny_vit": ("tiny_vit_5m_224", 224, {}),
    "tnt": ("tnt_s_legacy_patch16_224", 64, {"img_size": 64}),
    "tresnet": ("tresnet_m", 64, {}),
    "twins": ("twins_svt_small", 64, {"img_size": 64}),
    "vgg": ("vgg11", 64, {}),
    "visformer": ("visformer_tiny", 64, {"img_size": 64}),
    "vision_transformer": ("test_vit", 64, {"img_size": 64}),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 64, {"img_size": 64}),
    "vision_transformer_relpos": ("test_vit_relpos", 64, {"img_size": 64}),
    "vision_transformer_sam": ("samvit_base_patch16_224", 64, {"img_size": 64, "depth": 2}),
    "vitamin": ("vitamin_small_224", 64, {"img_size": 64}),
    "volo": ("volo_d1_224", 64, {"img_size": 64}),
    "vovnet": ("ese_vovnet19b_slim_dw", 64, {}),
    "xception": ("xception", 96, {}),
    "xception_aligned": ("xception41p", 64, {}),
    "xcit": ("xcit_nano_12_p8_224", 64, {"img_size": 64}),
}

_DECODERS = (
    "Unet", "UnetPlusPlus", "Linknet", "FPN", "PSPNet", "PAN", "MAnet", "DeepLabV3", "DeepLabV3Plus", "UPerNet",
    "Segformer",
)  # fmt: skip
_ENCODERS = {  # file of encoders: one of them
    "densenet": "densenet121", "dpn": "dpn68", "efficientnet": "efficientnet-b0", "mix_transformer": "mit_b0",
    "inceptionresnetv2": "inceptionresnetv2", "inceptionv4": "inceptionv4", "mobilenet": "mobilenet_v2",
    "mobileone": "mobileone_s0", "resnet": "resnet18", "senet": "se_resnet50",
    "timm_efficientnet": "timm-efficientnet-b0", "timm_sknet": "timm-skresnet18",
    "timm_universal": "tu-mobilenetv3_small_050", "vgg": "vgg11_bn", "xception": "xception",
}  # fmt: skip


def _networks() -> Iterator[Network]:
    for file, (name, side) in _TORCHVISION.items():
        own = _OWN.get(file, {})
        yield Network(f"torchvision/{file}", "torchvision.models", name, _CLASSES | own, (2, 3, side, side))
    for file, name in _TORCHVISION_SEGMENTATION.items():
        own = {"weights_backbone": None, **_CLASSES}
        yield Network(f"torchvision/segmentation/{file}", "torchvision.models.segmentation", name, own, (2, 3, 64, 64))
    for file, (name, side, further) in _TIMM.items():
        own = {"model_name": name, **_CLASSES, **further}
        yield Network(f"timm/{file}", "timm", "create_model", own, (2, 3, side, side))
    package, own = "segmentation_models_pytorch", {"encoder_weights": None, "classes": 2}
    for name in _DECODERS:
        size = (2, 3, 64, 64) if name != "PAN" else (2, 3, 128, 128)
        yield Network(f"{package}/decoders/{name.lower()}", package, name, {"encoder_name": "resnet18", **own}, size)
    dpt = {"encoder_name": "tu-vit_tiny_patch16_224", "dynamic_img_size": True, **own}
    yield Network(f"{package}/decoders/dpt", package, "DPT", dpt, (2, 3, 64, 64))
    for file, name in _ENCODERS.items():
        yield Network(f"{package}/encoders/{file}", package, "Unet", {"encoder_name": name, **own}, (2, 3, 64, 64))


NETWORKS = tuple(_networks())
