"""Every layer that PyTorch has under the same name: settings and the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Make = Callable[[torch.dtype], torch.Tensor]


class Case(NamedTuple):
    """A layer, its arguments, and how its inputs are made; a shape stands for normal numbers."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[tuple[int, ...] | Make, ...]

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"{self.name}({', '.join(arguments)})"


def case(name: str, *args: Any, inputs: Any, **kwargs: Any) -> Case:
    """inputs: one shape or maker, or a list of them."""
    return Case(name, args, kwargs, tuple(inputs) if isinstance(inputs, list) else (inputs,))


def indices(high: int, *shape: int) -> Make:
    return lambda dtype: torch.randint(high, shape)


def places(batch: int, channels: int, count: int) -> Make:
    """Where max pooling found values in windows of 2."""
    return lambda dtype: torch.arange(count) * 2 + torch.randint(2, (batch, channels, count))


def probabilities(*shape: int) -> Make:
    return lambda dtype: torch.rand(shape, dtype=dtype) * 0.98 + 0.01


def signs(*shape: int) -> Make:
    return lambda dtype: torch.randint(2, shape) * 2 - 1


def labels(rows: int, classes: int) -> Make:
    """Some classes of each row in any order, then −1."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        listed = torch.stack([torch.randperm(classes) for _ in range(rows)])
        return listed.masked_fill(torch.arange(classes) >= torch.randint(1, classes, (rows, 1)), -1)

    return make


IMAGES = (2, 4, 7, 6)
SIGNALS = (2, 4, 9)
VOLUMES = (2, 2, 3, 4, 5)

CASES = [
    # linear
    case("Linear", 4, 3, inputs=(5, 4)),
    case("Linear", 4, 3, bias=False, inputs=(2, 5, 4)),
    case("Linear", 4, 3, inputs=(4,)),
    case("Bilinear", 4, 3, 2, inputs=[(5, 4), (5, 3)]),
    case("Bilinear", 4, 3, 2, bias=False, inputs=[(2, 5, 4), (2, 5, 3)]),
    case("Identity", inputs=(2, 3)),
    case("Flatten", inputs=IMAGES),
    case("Flatten", 0, 2, inputs=IMAGES),
    case("Unflatten", 1, (2, 2), inputs=SIGNALS),
    case("Unflatten", -1, (3, 3), inputs=SIGNALS),
    # convolution
    case("Conv1d", 4, 6, 3, inputs=SIGNALS),
    case("Conv1d", 4, 6, 3, 2, 1, 2, 2, False, inputs=SIGNALS),
    case("Conv1d", 4, 6, 4, padding="same", padding_mode="circular", inputs=SIGNALS),
    case("Conv2d", 4, 6, 3, inputs=IMAGES),
    case("Conv2d", 4, 6, (3, 2), (2, 1), (1, 0), bias=False, inputs=IMAGES),
    case("Conv2d", 4, 8, 3, padding=2, dilation=2, groups=4, inputs=IMAGES),
    case("Conv2d", 4, 6, 3, padding="same", inputs=(4, 7, 6)),
    case("Conv2d", 4, 6, 3, padding="valid", inputs=IMAGES),
    case("Conv2d", 4, 6, 3, padding=(1, 2), padding_mode="reflect", inputs=IMAGES),
    case("Conv2d", 4, 6, 3, padding="same", padding_mode="replicate", inputs=IMAGES),
    case("ConvTranspose1d", 4, 6, 3, 2, 1, 1, inputs=SIGNALS),
    case("ConvTranspose2d", 4, 6, 3, 2, inputs=IMAGES),
    case("ConvTranspose2d", 4, 6, (3, 2), (2, 3), (1, 0), (1, 2), 2, False, 2, inputs=IMAGES),
    # norms
    case("BatchNorm1d", 4, inputs=(5, 4)),
    case("BatchNorm1d", 4, 1e-3, 0.3, inputs=SIGNALS),
    case("BatchNorm2d", 4, inputs=IMAGES),
    case("BatchNorm2d", 4, momentum=None, inputs=IMAGES),
    case("BatchNorm2d", 4, affine=False, inputs=IMAGES),
    case("BatchNorm2d", 4, bias=False, inputs=IMAGES),
    case("BatchNorm2d", 4, track_running_stats=False, inputs=IMAGES),
    case("LayerNorm", 6, inputs=IMAGES),
    case("LayerNorm", (7, 6), 1e-3, bias=False, inputs=IMAGES),
    case("LayerNorm", (6,), elementwise_affine=False, inputs=IMAGES),
    case("GroupNorm", 2, 4, inputs=IMAGES),
    case("GroupNorm", 4, 4, affine=False, inputs=SIGNALS),
    case("GroupNorm", 2, 4, bias=False, inputs=SIGNALS),
    case("InstanceNorm1d", 4, inputs=SIGNALS),
    case("InstanceNorm2d", 4, inputs=IMAGES),
    case("InstanceNorm2d", 4, affine=True, track_running_stats=True, inputs=IMAGES),
    case("InstanceNorm2d", 4, affine=True, inputs=(4, 7, 6)),
    case("LocalResponseNorm", 3, 0.5, k=2.0, inputs=IMAGES),
    case("RMSNorm", 6, inputs=IMAGES),
    case("RMSNorm", (7, 6), 1e-3, False, inputs=IMAGES),
    # pooling
    case("MaxPool1d", 2, inputs=SIGNALS),
    case("MaxPool1d", 3, 2, 1, ceil_mode=True, inputs=SIGNALS),
    case("MaxPool2d", 2, inputs=IMAGES),
    case("MaxPool2d", (3, 2), 2, (1, 0), 2, ceil_mode=True, inputs=IMAGES),
    case("AvgPool1d", 2, inputs=SIGNALS),
    case("AvgPool1d", 3, 2, 1, count_include_pad=False, inputs=SIGNALS),
    case("AvgPool2d", 2, inputs=IMAGES),
    case("AvgPool2d", 3, (2, 1), 1, True, False, inputs=IMAGES),
    case("AvgPool2d", 3, divisor_override=5, inputs=IMAGES),
    case("AdaptiveAvgPool2d", 1, inputs=IMAGES),
    case("AdaptiveAvgPool2d", (3, None), inputs=IMAGES),
    case("AdaptiveMaxPool2d", (3, 2), inputs=IMAGES),
    case("AdaptiveAvgPool1d", 4, inputs=SIGNALS),
    case("AdaptiveMaxPool1d", 4, inputs=SIGNALS),
    case("LPPool1d", 3, 2, 1, inputs=probabilities(*SIGNALS)),
    case("LPPool2d", 2, (3, 2), inputs=IMAGES),
    case("MaxUnpool1d", 2, inputs=[(2, 3, 4), places(2, 3, 4)]),
    case("MaxUnpool2d", (1, 2), inputs=[(2, 3, 1, 4), lambda dtype: places(2, 3, 4)(dtype).unsqueeze(2)]),
    # upsampling and padding
    case("Upsample", scale_factor=2, inputs=IMAGES),
    case("Upsample", (9, 11), mode="bilinear", inputs=IMAGES),
    case("Upsample", scale_factor=(1.5, 2), mode="bilinear", align_corners=True, inputs=IMAGES),
    case("PixelShuffle", 2, inputs=IMAGES),
    case("UpsamplingNearest2d", 9, inputs=IMAGES),
    case("UpsamplingBilinear2d", scale_factor=2, inputs=IMAGES),
    case("PixelUnshuffle", 3, inputs=(2, 4, 6, 9)),
    case("ChannelShuffle", 2, inputs=IMAGES),
    case("Unfold", (3, 2), 2, (1, 0), (1, 2), inputs=IMAGES),
    case("Fold", (7, 6), (3, 2), padding=1, stride=2, inputs=(2, 12, 16)),
    case("ZeroPad1d", (1, 2), inputs=SIGNALS),
    case("ZeroPad2d", 2, inputs=IMAGES),
    case("ZeroPad3d", 1, inputs=VOLUMES),
    case("ConstantPad1d", 2, 0.5, inputs=SIGNALS),
    case("ConstantPad2d", (1, 0, 2, 3), 3.5, inputs=IMAGES),
    case("ConstantPad3d", 1, -1.0, inputs=VOLUMES),
    case("ReflectionPad1d", (3, 1), inputs=SIGNALS),
    case("ReflectionPad2d", (1, 2, 3, 0), inputs=IMAGES),
    case("ReflectionPad3d", 1, inputs=VOLUMES),
    case("ReplicationPad1d", 2, inputs=SIGNALS),
    case("ReplicationPad2d", 1, inputs=IMAGES),
    case("ReplicationPad3d", (1, 0, 2, 1, 0, 3), inputs=VOLUMES),
    case("CircularPad1d", (3, 1), inputs=SIGNALS),
    case("CircularPad2d", (1, 2, 3, 0), inputs=IMAGES),
    case("CircularPad3d", 1, inputs=VOLUMES),
    # activations
    case("ReLU", inputs=SIGNALS),
    case("ReLU6", inputs=SIGNALS),
    case("LeakyReLU", 0.2, inputs=SIGNALS),
    case("Hardtanh", -0.5, 0.7, inputs=SIGNALS),
    case("GELU", inputs=SIGNALS),
    case("GELU", "tanh", inputs=SIGNALS),
    case("SiLU", inputs=SIGNALS),
    case("Mish", inputs=SIGNALS),
    case("ELU", 0.7, inputs=SIGNALS),
    case("Sigmoid", inputs=SIGNALS),
    case("Tanh", inputs=SIGNALS),
    case("Softmax", 1, inputs=SIGNALS),
    case("LogSoftmax", dim=-1, inputs=SIGNALS),
    case("Hardswish", inputs=SIGNALS),
    case("Hardsigmoid", inputs=SIGNALS),
    case("Softplus", 2.0, 1.0, inputs=SIGNALS),
    case("CELU", 2.0, inputs=SIGNALS),  # of others, PyTorch rounds the inverse to float32 for the gradient
    case("SELU", inputs=SIGNALS),
    case("PReLU", inputs=SIGNALS),
    case("PReLU", 4, 0.1, inputs=SIGNALS),
    case("RReLU", 0.2, 0.2, inputs=SIGNALS),
    case("Threshold", 0.1, 20, inputs=SIGNALS),
    case("Hardshrink", 0.3, inputs=SIGNALS),
    case("Softshrink", inputs=SIGNALS),
    case("LogSigmoid", inputs=SIGNALS),
    case("Softsign", inputs=SIGNALS),
    case("Tanhshrink", inputs=SIGNALS),
    case("Softmin", 1, inputs=SIGNALS),
    case("Softmax2d", inputs=IMAGES),
    case("GLU", 1, inputs=SIGNALS),
    # dropout that keeps or drops everything; the random ones are tested under a seed
    case("Dropout", 0.0, inputs=SIGNALS),
    case("Dropout", 1.0, inputs=SIGNALS),
    case("Dropout1d", 1.0, inputs=SIGNALS),
    case("Dropout2d", 0.0, inputs=IMAGES),
    case("Dropout3d", 1.0, inputs=VOLUMES),
    case("AlphaDropout", 0.0, inputs=SIGNALS),
    case("FeatureAlphaDropout", 0.0, inputs=IMAGES),
    # embedding
    case("Embedding", 10, 3, inputs=indices(10, 2, 5)),
    case("Embedding", 10, 3, padding_idx=-2, scale_grad_by_freq=True, inputs=indices(10, 20)),
    # attention
    case("MultiheadAttention", 8, 2, inputs=[(5, 3, 8), (6, 3, 8), (6, 3, 8)]),
    case("MultiheadAttention", 8, 4, bias=False, batch_first=True, inputs=[(3, 5, 8), (3, 6, 8), (3, 6, 8)]),
    case("MultiheadAttention", 8, 2, add_bias_kv=True, inputs=[(5, 8), (6, 8), (6, 8)]),
    case("MultiheadAttention", 8, 2, add_zero_attn=True, kdim=6, vdim=4, inputs=[(5, 3, 8), (6, 3, 6), (6, 3, 4)]),
    # transformers, without the dropout that is on by default
    case("TransformerEncoderLayer", 8, 2, 12, 0.0, inputs=(5, 3, 8)),
    case("TransformerEncoderLayer", 8, 2, 12, 0.0, "gelu", 1e-3, True, True, bias=False, inputs=(3, 5, 8)),
    case("TransformerDecoderLayer", 8, 2, 12, 0.0, inputs=[(4, 3, 8), (5, 3, 8)]),
    case("TransformerDecoderLayer", 8, 4, 12, 0.0, "gelu", bias=False, inputs=[(4, 8), (5, 8)]),
    case("Transformer", 8, 2, 1, 2, 12, 0.0, inputs=[(5, 3, 8), (4, 3, 8)]),
    # recurrent
    case("RNN", 4, 3, inputs=(5, 2, 4)),
    case("RNN", 4, 3, 2, "relu", batch_first=True, bidirectional=True, inputs=(2, 5, 4)),
    case("LSTM", 4, 3, inputs=[(5, 2, 4)]),
    case("LSTM", 4, 3, 2, False, bidirectional=True, inputs=(5, 4)),
    case("LSTM", 4, 3, num_layers=2, proj_size=2, batch_first=True, inputs=(2, 5, 4)),
    case("GRU", 4, 3, 3, bidirectional=True, inputs=(5, 2, 4)),
    case("GRU", 4, 3, bias=False, inputs=(1, 2, 4)),
    case("RNNCell", 4, 3, inputs=[(2, 4), (2, 3)]),
    case("RNNCell", 4, 3, nonlinearity="relu", inputs=(4,)),
    case("LSTMCell", 4, 3, inputs=(2, 4)),
    case("GRUCell", 4, 3, False, inputs=[(2, 4), (2, 3)]),
    # losses
    case("CrossEntropyLoss", inputs=[(6, 5), indices(5, 6)]),
    case("CrossEntropyLoss", ignore_index=2, label_smoothing=0.1, inputs=[(2, 5, 3), indices(5, 2, 3)]),
    case("CrossEntropyLoss", reduction="none", inputs=[(2, 5, 3), indices(5, 2, 3)]),
    case("NLLLoss", ignore_index=1, inputs=[(6, 5), indices(5, 6)]),
    case("MSELoss", inputs=[(3, 4), (3, 4)]),
    case("MSELoss", reduction="sum", inputs=[(3, 4), (3, 4)]),
    case("L1Loss", inputs=[(3, 4), (3, 4)]),
    case("SmoothL1Loss", beta=0.5, inputs=[(3, 4), (3, 4)]),
    case("BCELoss", inputs=[probabilities(3, 4), probabilities(3, 4)]),
    case("BCEWithLogitsLoss", inputs=[(3, 4), probabilities(3, 4)]),
    case("KLDivLoss", reduction="batchmean", inputs=[(3, 4), probabilities(3, 4)]),
    case("HuberLoss", "sum", 0.5, inputs=[(3, 4), (3, 4)]),
    case("SoftMarginLoss", inputs=[(3, 4), signs(3, 4)]),
    case("MultiLabelSoftMarginLoss", inputs=[(3, 4), indices(2, 3, 4)]),
    case("PoissonNLLLoss", full=True, inputs=[(3, 4), indices(5, 3, 4)]),
    case("PoissonNLLLoss", False, reduction="none", inputs=[probabilities(3, 4), indices(5, 3, 4)]),
    case("GaussianNLLLoss", inputs=[(3, 4), (3, 4), probabilities(3, 4)]),
    case("GaussianNLLLoss", full=True, reduction="sum", inputs=[(3, 4), (3, 4), probabilities(3, 1)]),
    case("HingeEmbeddingLoss", 0.5, inputs=[(3, 4), signs(3, 4)]),
    case("MarginRankingLoss", 0.2, inputs=[(7,), (7,), signs(7)]),
    case("CosineEmbeddingLoss", 0.1, inputs=[(3, 4), (3, 4), signs(3)]),
    case("TripletMarginLoss", 0.5, swap=True, inputs=[(3, 4), (3, 4), (3, 4)]),
    case("TripletMarginLoss", p=1, reduction="none", inputs=[(3, 4), (3, 4), (3, 4)]),
    case("TripletMarginWithDistanceLoss", margin=0.5, inputs=[(3, 4), (3, 4), (3, 4)]),
    case("MultiMarginLoss", 2, 0.7, inputs=[(3, 4), indices(4, 3)]),
    case("MultiLabelMarginLoss", inputs=[(3, 4), labels(3, 4)]),
    # distances
    case("PairwiseDistance", 1.0, keepdim=True, inputs=[(3, 4), (3, 4)]),
    case("CosineSimilarity", 2, inputs=[SIGNALS, SIGNALS]),
]  # fmt: skip
