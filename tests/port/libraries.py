"""Networks of further libraries, small: pytorchcv, efficientnet_pytorch, monai, kornia and transformers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

PACKAGES = ("pytorchcv", "efficientnet_pytorch", "monai", "kornia", "transformers", "einops")


class Network(NamedTuple):
    """A network of a library: how it is built, on whatever torch the library has then, and the size of the input."""

    file: str
    make: Callable[[Any], Any]
    size: tuple[int, ...]

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.file.partition("/")[0]) is not None

    def build(self) -> Any:
        """Build it from the library, which is imported now."""
        return self.make(importlib.import_module(self.file.partition("/")[0]))


def networks() -> Iterator[Network]:
    """All networks, whether their library is installed or not."""
    for name in (*_PYTORCHCV, *_PYTORCHCV_SIDES):
        side = _PYTORCHCV_SIDES.get(name, 64)
        yield Network(f"pytorchcv/{name}", lambda _, n=name, s=side: _pytorchcv(n, s), (2, 3, side, side))
    for name in ("efficientnet-b0", "efficientnet-b1"):
        yield Network(
            f"efficientnet_pytorch/{name}",
            lambda library, name=name: library.EfficientNet.from_name(
                name, image_size=64, num_classes=5, drop_connect_rate=0.0
            ),
            (2, 3, 64, 64),
        )
    for name, arguments in _MONAI.items():
        yield Network(f"monai/{name}", lambda _, n=name, a=arguments: _monai(n, a), (2, 3, 64, 64))
    for name, (module, arguments) in _KORNIA.items():
        yield Network(f"kornia/{name}", lambda _, m=module, n=name, a=arguments: _of(m, n, a), (2, 3, 64, 64))
    for name, (config, arguments) in _TRANSFORMERS.items():
        yield Network(
            f"transformers/{name}",
            lambda library, n=name, c=config, a=arguments: getattr(library, n)(getattr(library, c)(**a)),
            (2, 3, 64, 64),
        )


def _of(module: str, name: str, arguments: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(module), name)(**arguments)


def _pytorchcv(name: str, side: int) -> Any:
    """A network of pytorchcv; its last pooling, of 7x7 pixels, made for the picture."""
    network = _of("pytorchcv.model_provider", name, {})
    pool = getattr(getattr(network, "features", None), "final_pool", None)
    if side in (64, 128) and getattr(pool, "kernel_size", None) == 7:
        pool.kernel_size = pool.stride = side // 32
    return network


def _monai(name: str, arguments: dict[str, Any]) -> Any:
    return _of("monai.networks.nets", name, arguments)


# One network of each file of pytorchcv that takes a picture: the side of the picture, if not 64. Batch norm of two
# pixels, as tresnet_m has it at 64 and sknet50 at any size, amplifies a rounding of float64 to 1e-5, in PyTorch too.
_PYTORCHCV_SIDES = {
    "darknet_tiny": 224, "densenet40_k12_bc_cifar10": 32, "dpn68": 224, "fractalnet_cifar10": 32,
    "lffd20x5s320v2_widerface": 128, "msdnet22_cifar10": 32, "nin_cifar10": 32, "preresnet20_cifar10": 32,
    "pyramidnet110_a48_cifar10": 32, "resdropresnet20_cifar10": 32, "resnet20_cifar10": 32,
    "resnext20_32x2d_cifar10": 32, "rir_cifar10": 32, "ror3_56_cifar10": 32, "scnet50": 128, "seresnet20_cifar10":
    32, "shakedropresnet20_cifar10": 32, "shakeshakeresnet20_2x16d_cifar10": 32, "sinet_cityscapes": 128,
    "tresnet_m": 128, "squeezenet_v1_1": 224, "xdensenet40_2_k24_bc_cifar10": 32,
}  # fmt: skip
_PYTORCHCV = (
    "airnet50_1x64d_r16", "airnext50_32x4d_r2", "bam_resnet18", "bninception", "cbam_resnet18",
    "centernet_resnet18_voc", "cgnet_cityscapes", "channelnet", "condensenet74_c8_g8", "ctxnet_cityscapes",
    "dabnet_cityscapes", "darknet53", "darts", "densenet121", "diapreresnet10", "diaresnet10", "dicenet_wd5",
    "diracnet18v2", "dla46xc", "edanet_cityscapes", "efficientnet_b0", "efficientnet_edge_small_b", "enet_cityscapes",
    "erfnet_cityscapes", "esnet_cityscapes", "espcnet_cityscapes", "espnetv2_wd2", "fbnet_cb", "fdmobilenet_wd4",
    "fishnet99", "fpenet_cityscapes", "ghostnet", "hardnet39ds", "hrnet_w18_small_v1", "ibnb_resnet50",
    "ibn_densenet121", "ibn_resnet50", "ibn_resnext50_32x4d", "igcv3_wd4", "isqrtcovresnet18", "lednet_cityscapes",
    "linknet_cityscapes", "lwopenpose2d_mobilenet_cmupan_coco", "menet108_8x1_g3", "mixnet_s", "mnasnet_small",
    "mobilenet_wd4", "mobilenetb_wd4", "mobilenetv2b_wd4", "mobilenetv3_small_w7d20", "nasnet_4a1056",
    "octresnet10_ad2", "peleenet", "preresnet18_wd4", "proxylessnas_mobile", "regnetx002", "resattnet56",
    "resnestabc14", "resnet18_wd4", "resneta10", "resnetd50b", "resnext14_32x2d", "senet16", "sepreresnet10",
    "seresnet10", "seresnext50_32x4d", "sharesnet18", "shufflenet_g1_wd4", "shufflenetv2_wd2", "shufflenetv2b_wd2",
    "simplepose_resnet18_coco", "simplepose_mobile_mobilenetv3_small_w1_coco", "sparsenet121", "spnasnet",
    "sqnet_cityscapes", "sqnxt23_w1", "unet_cityscapes", "vovnet27s", "xdensenet121_2",
)  # fmt: skip
_FLAT: dict[str, Any] = {"spatial_dims": 2, "in_channels": 3, "out_channels": 2}
_MONAI: dict[str, dict[str, Any]] = {
    "UNet": {**_FLAT, "channels": (4, 8, 16), "strides": (2, 2), "num_res_units": 2},
    "BasicUNet": {**_FLAT, "features": (8, 8, 16, 16, 32, 8)},
    "BasicUNetPlusPlus": {**_FLAT, "features": (8, 8, 16, 16, 32, 8)},
    "AttentionUnet": {**_FLAT, "channels": (4, 8, 16), "strides": (2, 2)},
    "AutoEncoder": {**_FLAT, "channels": (4, 8, 16), "strides": (2, 2, 2)},
    "DynUNet": {
        **_FLAT, "kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2),
        "norm_name": "batch", "filters": (8, 16, 32), "res_block": True, "deep_supervision": True,
        "deep_supr_num": 1,
    },
    "FlexibleUNet": {"in_channels": 3, "out_channels": 2, "backbone": "efficientnet-b0"},
    "HighResNet": {"spatial_dims": 2, "in_channels": 3, "out_channels": 2, "norm_type": "batch"},
    "ResNet": {
        "block": "basic", "layers": (1, 1, 1, 1), "block_inplanes": (8, 16, 32, 64), "spatial_dims": 2,
        "n_input_channels": 3, "num_classes": 5,
    },
    "DenseNet121": {**_FLAT, "init_features": 16, "growth_rate": 8},
    "EfficientNetBN": {
        "model_name": "efficientnet-b0", "spatial_dims": 2, "in_channels": 3, "num_classes": 5, "pretrained": False,
    },
    "SegResNet": {"spatial_dims": 2, "in_channels": 3, "out_channels": 2, "init_filters": 8, "norm": "batch"},
    "SegResNetDS": {"spatial_dims": 2, "in_channels": 3, "out_channels": 2, "init_filters": 8, "norm": "batch"},
    "SEResNet50": {"spatial_dims": 2, "in_channels": 3, "num_classes": 5},
    "UNETR": {
        **_FLAT, "img_size": 64, "feature_size": 8, "hidden_size": 24, "mlp_dim": 48, "num_heads": 2,
        "norm_name": "batch",
    },
    "SwinUNETR": {**_FLAT, "feature_size": 12, "norm_name": "batch"},
    "ViT": {
        "in_channels": 3, "img_size": 64, "patch_size": 16, "hidden_size": 24, "mlp_dim": 48, "num_layers": 2,
        "num_heads": 2, "classification": True, "spatial_dims": 2,
    },
    "VarAutoEncoder": {
        "spatial_dims": 2, "in_shape": (3, 64, 64), "out_channels": 3, "latent_size": 4, "channels": (4, 8),
        "strides": (2, 2),
    },
    "PatchDiscriminator": {"spatial_dims": 2, "in_channels": 3, "channels": 8, "num_layers_d": 2},
    "MedNeXtS": {"spatial_dims": 2, "in_channels": 3, "out_channels": 2},
    "Quicknat": {"num_classes": 3, "num_channels": 3, "num_filters": 8},
    "VQVAE": {
        "spatial_dims": 2, "in_channels": 3, "out_channels": 3, "channels": (8, 8), "num_res_channels": (8, 8),
        "num_res_layers": 1, "num_embeddings": 8, "embedding_dim": 4,
        "downsample_parameters": ((2, 4, 1, 1),) * 2, "upsample_parameters": ((2, 4, 1, 1, 0),) * 2,
    },
}  # fmt: skip
_KORNIA: dict[str, tuple[str, dict[str, Any]]] = {
    "DexiNed": ("kornia.models.dexined", {"pretrained": False}),
    "RRDBNet": (
        "kornia.models.rrdbnet",
        {"num_in_ch": 3, "num_out_ch": 3, "num_block": 1, "num_feat": 16, "num_grow_ch": 8},
    ),
    "MobileViT": ("kornia.models.vit_mobile", {"mode": "xxs"}),
    "VisionTransformer": ("kornia.models.vit", {"image_size": 64, "depth": 2, "embed_dim": 24, "num_heads": 2}),
}
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}
_VIT = {
    "image_size": 64, "patch_size": 16, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48,
}  # fmt: skip
_TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNetForImageClassification": (
        "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "layer_type": "basic"},
    ),
    "ConvNextForImageClassification": ("ConvNextConfig", {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}),
    "ConvNextV2ForImageClassification": (
        "ConvNextV2Config", {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2},
    ),
    "RegNetForImageClassification": (
        "RegNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 8, "layer_type": "y"},
    ),
    "MobileNetV1ForImageClassification": ("MobileNetV1Config", {"depth_multiplier": 0.25}),
    "MobileNetV2ForImageClassification": ("MobileNetV2Config", {"depth_multiplier": 0.35}),
    "MobileNetV2ForSemanticSegmentation": ("MobileNetV2Config", {"depth_multiplier": 0.35}),
    "MobileViTForImageClassification": ("MobileViTConfig", {"image_size": 64, "num_hidden_layers": 1}),
    "MobileViTV2ForImageClassification": ("MobileViTV2Config", {"image_size": 64, "width_multiplier": 0.5}),
    "EfficientNetForImageClassification": ("EfficientNetConfig", {"image_size": 64}),
    "SegformerForSemanticSegmentation": (
        "SegformerConfig", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
    ),
    "SwinForImageClassification": ("SwinConfig", _SWIN),
    "Swinv2ForImageClassification": ("Swinv2Config", _SWIN),
    "ViTForImageClassification": ("ViTConfig", _VIT),
    "DeiTForImageClassification": ("DeiTConfig", _VIT),
    "BeitForImageClassification": ("BeitConfig", _VIT),
    "Dinov2ForImageClassification": ("Dinov2Config", {**_VIT, "use_swiglu_ffn": True}),
    "ViTMAEForPreTraining": (
        "ViTMAEConfig",
        {**_VIT, "decoder_hidden_size": 24, "decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1,
         "decoder_intermediate_size": 24},
    ),
    "PoolFormerForImageClassification": (
        "PoolFormerConfig", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    ),
    "PvtForImageClassification": (
        "PvtConfig", {"image_size": 64, "hidden_sizes": [8, 16, 20, 16], "depths": [1, 1, 1, 1]},
    ),
    "CvtForImageClassification": ("CvtConfig", {"embed_dim": [8, 12, 24], "depth": [1, 1, 1]}),
    "LevitForImageClassification": (
        "LevitConfig",
        {"image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
         "key_dim": [8, 8, 8]},
    ),
    "BitForImageClassification": (
        "BitConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_groups": 4},
    ),
    "FocalNetForImageClassification": ("FocalNetConfig", {"image_size": 64, "embed_dim": 8, "depths": [1, 1, 1, 1]}),
    "DPTForSemanticSegmentation": (
        "DPTConfig",
        {**_VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "fusion_hidden_size": 16,
         "neck_hidden_sizes": [8, 8, 16, 16], "num_labels": 3},
    ),
    "UperNetForSemanticSegmentation": ("UperNetConfig", {"hidden_size": 16, "auxiliary_channels": 8, "num_labels": 3}),
    "HieraForImageClassification": (
        "HieraConfig", {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1], "num_heads": [1, 1, 1],
        "query_stride": [2, 2], "num_query_pool": 1, "masked_unit_size": [8, 8]},
    ),
    "DetrForObjectDetection": (
        "DetrConfig",
        {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "num_queries": 4,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_labels": 3},
    ),
    "YolosForObjectDetection": ("YolosConfig", {**_VIT, "image_size": [64, 64], "num_detection_tokens": 4}),
    "Swin2SRForImageSuperResolution": (
        "Swin2SRConfig", {"image_size": 64, "embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    ),
    "GLPNForDepthEstimation": (
        "GLPNConfig", {"hidden_sizes": [8, 8, 20, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
    ),
}  # fmt: skip
