"""Transformers: encoder and decoder layers, and stacks of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TypedDict, Unpack

from genesis import functional as F
from genesis.creation import DeviceLike, full
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.modules.attention import MultiheadAttention
from genesis.nn.modules.container import ModuleList
from genesis.nn.modules.dropout import Dropout
from genesis.nn.modules.linear import Linear
from genesis.nn.modules.normalization import LayerNorm
from genesis.tensor import Tensor

__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip

# Sizes: N batch, S source, T target, E d_model.

Activation = str | Callable[[Tensor], Tensor]


class Options(TypedDict, total=False):
    """Further options of the layers."""

    bias: bool
    device: DeviceLike
    dtype: DType | None


class Settings(Options, total=False):
    """Options that a Transformer hands to its layers, and modules that replace its stacks."""

    custom_encoder: Module | None
    custom_decoder: Module | None
    layer_norm_eps: float
    batch_first: bool
    norm_first: bool


class Causal(TypedDict, total=False):
    """Flags that say which masks of a Transformer are causal."""

    src_is_causal: bool | None
    tgt_is_causal: bool | None
    memory_is_causal: bool


class _Layer(Module):
    """Self-attention and a feed-forward network, which encoder and decoder layers share."""

    _NUM_NORMS = 2

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__()
        bias, place = options.get("bias", True), _place(options)
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **place
        )
        if self._NUM_NORMS == 3:
            self.multihead_attn = MultiheadAttention(
                d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **place
            )
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **place)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **place)
        self.norm_first = norm_first
        for number in range(1, self._NUM_NORMS + 1):
            setattr(self, f"norm{number}", LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **place))
        for number in range(1, self._NUM_NORMS + 1):
            setattr(self, f"dropout{number}", Dropout(dropout))
        self.activation = _activation(type(self).__name__, activation)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def _residual(self, x: Tensor, number: int, block: Callable[[Tensor], Tensor]) -> Tensor:
        """x + dropout(block(x)), with the norm before the block or after the sum."""
        norm: LayerNorm = getattr(self, f"norm{number}")
        dropout: Dropout = getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + dropout(block(norm(x)))
        return norm(x + dropout(block(x)))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each with a residual connection and layer norm.

    Args:
        d_model: E, feature size.
        nhead: number of attention heads, which divides E.
        dim_feedforward: feature size inside the feed-forward network.
        dropout: dropout probability of attention weights and blocks, in training.
        activation: "relu" | "gelu" | a function of a tensor.
        layer_norm_eps: eps of the norms.
        batch_first: inputs and outputs are (N, S, E) instead of (S, N, E).
        norm_first: norms come before the blocks instead of after the sums.
        options: bias=False for linear maps and norms without biases; device and dtype of the parameters.
    Raises: ShapeError: E is no multiple of nhead. ValueError: another activation.
    Source: Vaswani et al. 2017, arXiv:1706.03762; norm_first: Xiong et al. 2020, arXiv:2002.04745.

    Example:
        >>> nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)(genesis.ones(1, 5, 8)).shape
        (1, 5, 8)
    """

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Encode a sequence.

        Args:
            src: (S, N, E), (N, S, E) with batch_first, or (S, E).
            src_mask: (S, S) or (N · heads, S, S); bool, True excludes the key, or floating, added to the scores.
            src_key_padding_mask: (N, S) or (S,), alike.
            is_causal: says that src_mask is causal.
        Returns: the shape of src.
        """
        attend = _attention(self.self_attn, src_mask, src_key_padding_mask, is_causal)
        return self._residual(self._residual(src, 1, attend), 2, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's output, and a feed-forward network, each with residual and norm.

    Args:
        d_model, nhead, dim_feedforward, dropout, activation: as in `nn.TransformerEncoderLayer`.
        layer_norm_eps, batch_first, norm_first, options: as in `nn.TransformerEncoderLayer`.
    Raises: ShapeError: E is no multiple of nhead. ValueError: another activation.
    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
        >>> layer(genesis.ones(1, 3, 8), genesis.ones(1, 5, 8)).shape
        (1, 3, 8)
    """

    _NUM_NORMS = 3

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Decode a sequence.

        Args:
            tgt: (T, N, E), (N, T, E) with batch_first, or (T, E).
            memory: (S, N, E), alike: the encoder's output.
            tgt_mask, memory_mask: (T, T) and (T, S), as src_mask of the encoder layer.
            tgt_key_padding_mask, memory_key_padding_mask: (N, T) and (N, S), alike.
            tgt_is_causal, memory_is_causal: say that the masks are causal.
        Returns: the shape of tgt.
        """
        attend = _attention(self.self_attn, tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        look = _attention(self.multihead_attn, memory_mask, memory_key_padding_mask, memory_is_causal, memory)
        return self._residual(self._residual(self._residual(tgt, 1, attend), 2, look), 3, self._feed_forward)


class TransformerEncoder(Module):
    """A stack of encoder layers.

    Args:
        encoder_layer: is copied num_layers times.
        num_layers: number of layers.
        norm: follows the last layer; None: nothing does.
        enable_nested_tensor, mask_check: without effect: Genesis has no nested tensors.

    Example:
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), num_layers=2)
        >>> encoder(genesis.ones(5, 1, 8)).shape
        (5, 1, 8)
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        output = src
        for layer in self.layers:
            output = layer(output, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return output if self.norm is None else self.norm(output)


class TransformerDecoder(Module):
    """A stack of decoder layers.

    Args:
        decoder_layer: is copied num_layers times.
        num_layers: number of layers.
        norm: follows the last layer; None: nothing does.

    Example:
        >>> decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), num_layers=2)
        >>> decoder(genesis.ones(3, 1, 8), genesis.ones(5, 1, 8)).shape
        (3, 1, 8)
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        output = tgt
        for layer in self.layers:
            output = layer(
                output, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return output if self.norm is None else self.norm(output)


class Transformer(Module):
    """An encoder and a decoder, as in "Attention is all you need".

    Args:
        d_model: E, feature size.
        nhead: number of attention heads.
        num_encoder_layers, num_decoder_layers: numbers of layers.
        dim_feedforward, dropout, activation: as in `nn.TransformerEncoderLayer`.
        settings: layer_norm_eps, batch_first, norm_first, bias, device and dtype of the layers; custom_encoder and
            custom_decoder replace the stacks.
    Raises: ShapeError: E is no multiple of nhead; src and tgt do not fit each other.
    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> model = nn.Transformer(8, 2, 1, 1, 16)
        >>> model(genesis.ones(5, 1, 8), genesis.ones(3, 1, 8)).shape
        (3, 1, 8)
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = F.relu,
        **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__()
        eps, bias, place = settings.get("layer_norm_eps", 1e-5), settings.get("bias", True), _place(settings)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, settings.get("batch_first", False)

        def layer(kind: type[_Layer]) -> _Layer:
            norm_first = settings.get("norm_first", False)
            return kind(
                d_model, nhead, dim_feedforward, dropout, activation, eps, self.batch_first, norm_first, bias=bias,
                **place,
            )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=eps, bias=bias, **place)

        encoder, decoder = settings.get("custom_encoder"), settings.get("custom_decoder")
        if encoder is None:
            encoder = TransformerEncoder(layer(TransformerEncoderLayer), num_encoder_layers, norm())
        if decoder is None:
            decoder = TransformerDecoder(layer(TransformerDecoderLayer), num_decoder_layers, norm())
        self.encoder, self.decoder = encoder, decoder
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        **causal: Unpack[Causal],
    ) -> Tensor:  # fmt: skip
        """Encode src, and decode tgt with it.

        Args:
            src: (S, N, E), (N, S, E) with batch_first, or (S, E).
            tgt: (T, N, E), alike.
            src_mask, tgt_mask, memory_mask: (S, S), (T, T) and (T, S), as the layers take them.
            src_key_padding_mask, tgt_key_padding_mask, memory_key_padding_mask: (N, S), (N, T) and (N, S), alike.
            causal: src_is_causal, tgt_is_causal and memory_is_causal say which masks are causal.
        Returns: the shape of tgt.
        Raises: ShapeError: src and tgt do not fit each other.
        """
        batch = 0 if self.batch_first else 1
        if src.ndim != tgt.ndim or (src.ndim == 3 and src.shape[batch] != tgt.shape[batch]):
            raise ShapeError(describe("Transformer", "tgt", f"a batch as that of src, {src.shape}", tgt.shape))
        for name, x in (("src", src), ("tgt", tgt)):
            if x.shape[-1] != self.d_model:
                raise ShapeError(describe("Transformer", name, f"{self.d_model} features", x.shape[-1]))
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=causal.get("src_is_causal")
        )
        output: Tensor = self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=causal.get("tgt_is_causal"),
            memory_is_causal=causal.get("memory_is_causal", False),
        )  # fmt: skip
        return output

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: DeviceLike = None, dtype: DType | None = None) -> Tensor:
        """A causal mask: 0 up to the diagonal, −∞ above it.

        Args:
            sz: T, length of the sequence.
            device, dtype: of the mask.
        Returns: (T, T), floating.

        Example:
            >>> nn.Transformer.generate_square_subsequent_mask(2).tolist()
            [[0.0, -inf], [0.0, 0.0]]
        """
        return F.triu(full((sz, sz), -math.inf, dtype=dtype, device=device), 1)


class _Place(TypedDict):
    device: DeviceLike
    dtype: DType | None


def _place(options: Options) -> _Place:
    return {"device": options.get("device"), "dtype": options.get("dtype")}


def _activation(op: str, activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    named: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
    if activation not in named:
        raise ValueError(describe(op, "activation", '"relu", "gelu" or a function', repr(activation)))
    return named[activation]


def _attention(
    attention: MultiheadAttention, mask: Tensor | None, padding: Tensor | None, is_causal: bool,
    memory: Tensor | None = None,
) -> Callable[[Tensor], Tensor]:  # fmt: skip
    """The block that attends from x to memory, or to x itself."""

    def attend(x: Tensor) -> Tensor:
        keys = x if memory is None else memory
        output, _ = attention(
            x, keys, keys, key_padding_mask=padding, need_weights=False, attn_mask=mask, is_causal=is_causal
        )
        return output

    return attend
