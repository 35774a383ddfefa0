"""Embedding, bags of embeddings, and the rotary embedding of positions."""

from __future__ import annotations

from typing import Self

from genesis import dtypes
from genesis import functional as F
from genesis.creation import DeviceLike, arange, empty
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["Embedding", "EmbeddingBag", "RotaryEmbedding"]


class Embedding(Module):
    """Look up a learned vector for each index.

    Args:
        num_embeddings: V, number of vectors.
        embedding_dim: E, size of each.
        padding_idx: index of a vector that starts at zero and gets no gradient.
        max_norm: each forward first scales down the vectors in use to this norm, where theirs is larger.
        norm_type: the p of that norm.
        scale_grad_by_freq: divide gradients by how often their index occurs in the batch.
        sparse: must be False; gradients are dense.
        _weight: (V, E), the vectors, instead of ones that are drawn; memory is shared.
        _freeze: whether they stay as they are instead of being learned.
        device, dtype: of the parameter.
    Shape: any, of an integer dtype → (*shape, E).
    Parameters: weight (V, E), standard normal at first.
    Raises: ValueError: padding_idx is out of range. ShapeError: _weight has another shape.

    Example:
        >>> nn.Embedding(10, 3)(genesis.tensor([[1, 2], [4, 5]])).shape
        (2, 2, 3)
    """

    weight: Parameter

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
        _weight: Tensor | None = None, _freeze: bool = False, *, device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if sparse:
            raise ValueError(describe("Embedding", "sparse", "False", sparse))
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(describe("Embedding", "padding_idx", f"a row of {num_embeddings}", padding_idx))
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if _weight is not None:
            _require_shape(_weight, (num_embeddings, embedding_dim))
            self.weight = Parameter(_weight, requires_grad=not _freeze)
            return
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype), not _freeze)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from the standard normal distribution.

        Example:
            >>> table = nn.Embedding(4, 2, padding_idx=0)
            >>> table.reset_parameters()
            >>> table.weight[0].tolist()
            [0.0, 0.0]
        """
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.array.select(0, self.padding_idx).copy_into(0)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> Self:  # fmt: skip
        """Create the layer from given vectors; memory is shared.

        Args:
            embeddings: (num_embeddings, embedding_dim), a floating dtype.
            freeze: whether the vectors stay as they are instead of being learned.
            padding_idx: index of a vector that gets no gradient.
            max_norm, norm_type, scale_grad_by_freq, sparse: as in `nn.Embedding`.
        Raises: ShapeError: embeddings has not 2 dimensions.
        Example:
            >>> nn.Embedding.from_pretrained(genesis.tensor([[1.0, 2.0], [3.0, 4.0]]))(genesis.tensor([1])).tolist()
            [[3.0, 4.0]]
        """
        if embeddings.ndim != 2:
            raise ShapeError(describe("from_pretrained", "embeddings", "2 dimensions", embeddings.ndim))
        rows, size = embeddings.shape
        return cls(
            rows, size, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight=embeddings, _freeze=freeze
        )

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        text += f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        return text + _options_text(self)


def _require_shape(weight: Tensor, expected: tuple[int, int]) -> None:
    if tuple(weight.shape) != expected:
        raise ShapeError(describe("Embedding", "_weight", f"shape {expected}", tuple(weight.shape)))


class EmbeddingBag(Module):
    """Look up a learned vector for each index, and reduce those of each bag to one.

    Args:
        num_embeddings: V, number of vectors.
        embedding_dim: E, size of each.
        max_norm, norm_type, scale_grad_by_freq, sparse: as in `nn.Embedding`.
        mode: "mean", "sum" or "max".
        _weight: (V, E), values of the parameter in place of drawn ones.
        include_last_offset: offsets has one more entry, the end of the last bag.
        padding_idx: index of a vector that starts at zero, counts in no bag, and gets no gradient.
        device, dtype: of the parameter.
    Shape: (B, N), or (N,) with offsets (B,) → (B, E); per_sample_weights has the shape of the input.
    Parameters: weight (V, E), standard normal at first.
    Raises: ValueError: padding_idx is out of range.

    Example:
        >>> bags = nn.EmbeddingBag(10, 3, mode="sum")
        >>> bags(genesis.tensor([1, 2, 4, 5]), genesis.tensor([0, 3])).shape
        (2, 3)
    """

    weight: Parameter

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
        include_last_offset: bool = False, padding_idx: int | None = None, device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(describe("EmbeddingBag", "padding_idx", f"a row of {num_embeddings}", padding_idx))
        if sparse:
            raise ValueError(describe("EmbeddingBag", "sparse", "False", sparse))
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.mode, self.include_last_offset = mode, include_last_offset
        if _weight is None:
            self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
            self.reset_parameters()
        else:
            if _weight.shape != (num_embeddings, embedding_dim):
                expected = f"shape {(num_embeddings, embedding_dim)}"
                raise ShapeError(describe("EmbeddingBag", "_weight", expected, _weight.shape))
            self.weight = Parameter(_weight)

    def reset_parameters(self) -> None:
        """Draw the table from the standard normal distribution. See `nn.Embedding.reset_parameters`."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.array.select(0, self.padding_idx).copy_into(0)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
        include_last_offset: bool = False, padding_idx: int | None = None,
    ) -> Self:  # fmt: skip
        """Create the layer from given vectors; memory is shared. See `nn.Embedding.from_pretrained`."""
        if embeddings.ndim != 2:
            raise ShapeError(describe("from_pretrained", "embeddings", "2 dimensions", embeddings.ndim))
        rows, size = embeddings.shape
        layer = cls(
            rows, size, max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset,
            padding_idx,
        )  # fmt: skip
        layer.weight.requires_grad_(not freeze)
        return layer

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
            self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}{_options_text(self)}, mode={self.mode!r}"
        return text + (f", padding_idx={self.padding_idx}" if self.padding_idx is not None else "")


def _options_text(layer: Embedding | EmbeddingBag) -> str:
    text = f", max_norm={layer.max_norm}" if layer.max_norm is not None else ""
    text += f", norm_type={layer.norm_type}" if layer.norm_type != 2 else ""
    return text + (f", scale_grad_by_freq={layer.scale_grad_by_freq}" if layer.scale_grad_by_freq else "")


class RotaryEmbedding(Module):
    """Rotary position embedding: rotates each pair (x[i], x[i + dim/2]) by the angle position · base^(−2i/dim).

    Args:
        dim: size of the input's last dimension, even.
        base: sets the wavelengths, from 2π to nearly 2π · base positions.
    Shape: (…, L, dim), of a floating dtype → the same; angles are computed in float32 at least.
    Raises: ShapeError: dim is odd, or the input does not fit.
    Source: Su et al. 2021, arXiv:2104.09864.

    Example:
        >>> rotary = nn.RotaryEmbedding(4)
        >>> x = genesis.ones(3, 4)
        >>> rotary(x).tolist()[0]
        [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ShapeError(describe("RotaryEmbedding", "dim", "an even number from 2", dim))
        self.dim = dim
        self.base = base

    def forward(self, input: Tensor, offset: int = 0) -> Tensor:
        """Rotate (…, L, dim), whose positions are offset … offset + L − 1."""
        if input.ndim < 2 or input.shape[-1] != self.dim:
            raise ShapeError(describe("RotaryEmbedding", "input", f"shape (…, L, {self.dim})", input.shape))
        # In float32 whatever the input's dtype is: half precision cannot tell long positions apart.
        kind = dtypes.promote(input.dtype, dtypes.float32)
        steps = arange(0, self.dim, 2, dtype=kind, device=input.device)
        positions = arange(offset, offset + input.shape[-2], dtype=kind, device=input.device)
        angles = F.reshape(positions, (-1, 1)) * (self.base ** (steps * (-1.0 / self.dim)))
        cos, sin = F.cos(angles).to(input.dtype), F.sin(angles).to(input.dtype)
        first, second = F.chunk(input, 2, -1)
        return F.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, base={self.base}"
