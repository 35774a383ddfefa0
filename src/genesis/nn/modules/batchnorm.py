"""Batch norm: each channel is normalised over the batch in training, by running statistics in eval mode."""

from __future__ import annotations

from typing import Any

from genesis import functional as F
from genesis.creation import empty, ones, tensor, zeros
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["BatchNorm1d", "BatchNorm2d"]


class _BatchNorm(Module):
    ranks: tuple[int, ...]  # the dimensions that an input may have

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.register_parameter("weight", Parameter(empty(num_features, **where)) if affine else None)
        self.register_parameter("bias", Parameter(empty(num_features, **where)) if affine and bias else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, **where) if tracked else None)
        self.register_buffer("running_var", ones(num_features, **where) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0, device=device) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget all batches: mean 0, variance 1."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Forget all batches; scale 1, shift 0."""
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def begin_batch(self) -> tuple[Tensor | None, Tensor | None, bool, float, Tensor | None]:
        """What F.batch_norm needs: running mean and variance, training, momentum; and what is to count this batch.

        momentum=None averages over all batches so far: the n-th has weight 1/n. For that it is counted here.
        """
        mean: Any
        num_batches: Any
        momentum = self.momentum
        try:  # from the registry: as attributes, each would be looked for in three, by a call
            own = self._buffers
            mean, var, num_batches = own["running_mean"], own["running_var"], own["num_batches_tracked"]
        except KeyError:  # something else is there under the name
            mean, var, num_batches = self.running_mean, self.running_var, self.num_batches_tracked
        if not self.training:
            return mean, var, mean is None, 0.0 if momentum is None else momentum, None
        if not self.track_running_stats:
            return None, None, True, 0.0 if momentum is None else momentum, None
        if momentum is None:
            num_batches.array.add_into(1)
            return mean, var, True, 1.0 / num_batches.item(), None
        return mean, var, True, momentum, num_batches

    def forward(self, input: Tensor) -> Any:
        if input.ndim not in self.ranks:
            expected = f"{' or '.join(map(str, self.ranks))} dimensions"
            raise ShapeError(describe(type(self).__name__, "input", expected, f"shape {input.shape}"))
        mean, var, training, momentum, num_batches = self.begin_batch()
        if num_batches is not None:
            num_batches.array.add_into(1)  # the array: a counter has no place in a graph
        return F.batch_norm(input, mean, var, self.weight, self.bias, training, momentum, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch norm of (N, C) or (N, C, L); arguments as of BatchNorm2d."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch norm of images, (N, C, H, W).

    Args:
        num_features: C.
        eps: added to the variance.
        momentum: the share of each batch in the running statistics; None averages over all batches.
        affine: learn a scale and (with bias) a shift for each channel.
        track_running_stats: keep running statistics for eval mode; else each batch is its own, in eval mode too.

    Example:
        >>> norm = nn.BatchNorm2d(3)
        >>> norm(genesis.ones(2, 3, 4, 4)).shape, norm.num_batches_tracked.item()
        ((2, 3, 4, 4), 1)
    """

    ranks = (4,)
