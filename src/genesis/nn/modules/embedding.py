"""Embedding, and the rotary embedding of positions."""

from __future__ import annotations

from typing import Any, Self

from genesis import dtypes
from genesis import functional as F
from genesis.creation import arange, empty
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["Embedding", "RotaryEmbedding"]


class Embedding(Module):
    """A row of a learned table for each index.

    Args:
        num_embeddings, embedding_dim: rows and columns of the table.
        padding_idx: a row that starts at zero and gets no gradient.
        scale_grad_by_freq: divide gradients by how often their index occurs in the batch.

    Example:
        >>> nn.Embedding(10, 3)(genesis.tensor([[1, 2], [4, 5]])).shape
        (2, 2, 3)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *,
        scale_grad_by_freq: bool = False, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(describe("Embedding", "padding_idx", f"a row of {num_embeddings}", padding_idx))
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.scale_grad_by_freq = scale_grad_by_freq
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from the standard normal distribution."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.array.select(0, self.padding_idx).copy_into(0)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        *,
        scale_grad_by_freq: bool = False,
    ) -> Self:
        """The layer of a given table, (num_embeddings, embedding_dim); it is not learned unless freeze is off."""
        if embeddings.ndim != 2:
            raise ShapeError(describe("from_pretrained", "embeddings", "2 dimensions", embeddings.ndim))
        layer = cls(embeddings.shape[0], embeddings.shape[1], padding_idx, scale_grad_by_freq=scale_grad_by_freq)
        layer.weight = Parameter(embeddings, requires_grad=not freeze)
        return layer

    def forward(self, input: Tensor) -> Any:
        return F.embedding(input, self.weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        text += f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        return text + (f", scale_grad_by_freq={self.scale_grad_by_freq}" if self.scale_grad_by_freq else "")


class RotaryEmbedding(Module):
    """Positions as rotations: pairs (x[i], x[i + dim/2]) are turned by the angle position · base^(−2i/dim).

    Args:
        dim: the last dimension of the input, even.
        base: the slowest pair's wavelength is 2π · base, nearly.
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

    def forward(self, input: Tensor, offset: int = 0) -> Any:
        """(…, L, dim), turned as positions offset … offset + L − 1."""
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
