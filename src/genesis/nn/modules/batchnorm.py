"""Batch norm: each channel is normalised over the batch in training, by running statistics in eval mode."""

from __future__ import annotations

from genesis import functional as F
from genesis.creation import DeviceLike, empty, ones, tensor, zeros
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["BatchNorm1d", "BatchNorm2d"]


class _NormBase(Module):
    """Settings and state of batch and instance norms."""

    ranks: tuple[int, ...]  # the dimensions that an input may have
    is_synchronized = False  # do statistics come from other processes too?
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: DeviceLike = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        for name, used in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, Parameter(empty(num_features, device=device, dtype=dtype)) if used else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", ones(num_features, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0, device=device) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Reset the running statistics: mean 0, variance 1, no batches counted.

        Example:
            >>> norm = nn.BatchNorm1d(1)
            >>> norm(genesis.tensor([[1.0], [3.0]])).shape, norm.num_batches_tracked.item()
            ((2, 1), 1)
            >>> norm.reset_running_stats()
            >>> norm.running_mean.tolist(), norm.num_batches_tracked.item()
            ([0.0], 0)
        """
        if self.track_running_stats:
            for name, fill in (("running_mean", 0.0), ("running_var", 1.0), ("num_batches_tracked", 0.0)):
                init.constant_(self.get_buffer(name), fill)

    def reset_parameters(self) -> None:
        """Reset the running statistics; weight 1, bias 0.

        Example:
            >>> norm = nn.BatchNorm2d(2)
            >>> norm.reset_parameters()
            >>> norm.weight.tolist(), norm.bias.tolist()
            ([1.0, 1.0], [0.0, 0.0])
        """
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def begin_batch(self) -> tuple[Tensor | None, Tensor | None, bool, float, Tensor | None]:
        """(running mean, running variance, training, momentum) for F.batch_norm, and the counter to increment or None.

        momentum=None averages over all batches so far: the n-th has weight 1/n, so this one is counted here.

        Returns: running mean (C,), running variance (C,), whether to use the batch's statistics, the batch's share, the
            counter.

        Example:
            >>> nn.BatchNorm2d(2, momentum=0.2).begin_batch()[2:]
            (True, 0.2, tensor(0))
        """
        momentum = self.momentum
        try:  # from the registry: an attribute costs a call of Module.__getattr__
            own = self._buffers
            mean, var, num_batches = own["running_mean"], own["running_var"], own["num_batches_tracked"]
        except KeyError:  # something else is there under the name
            mean, var, num_batches = self.running_mean, self.running_var, self.num_batches_tracked
        if not self.training:
            return mean, var, mean is None, 0.0 if momentum is None else momentum, None
        if not self.track_running_stats:
            return None, None, True, 0.0 if momentum is None else momentum, None
        if momentum is None:
            assert num_batches is not None, "running statistics have a counter"
            num_batches.array.add_into(1)
            return mean, var, True, 1.0 / num_batches.item(), None
        return mean, var, True, momentum, num_batches

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in self.ranks:
            expected = f"{' or '.join(map(str, self.ranks))} dimensions"
            raise ShapeError(describe(type(self).__name__, "input", expected, f"shape {input.shape}"))
        mean, var, training, momentum, num_batches = self.begin_batch()
        if num_batches is not None:
            num_batches.array.add_into(1)  # the array: a counter has no place in a graph
        return F.batch_norm(input, mean, var, self.weight, self.bias, training, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """Batch normalization of features or signals, per channel: y = (x − mean) / √(var + eps) · weight + bias.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as in `nn.BatchNorm2d`.
    Shape: (N, C) or (N, C, L) → the same.

    Example:
        >>> [round(y, 3) for y in nn.BatchNorm1d(1)(genesis.tensor([[1.0], [3.0]])).flatten().tolist()]
        [-1.0, 1.0]
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalization of images, per channel: y = (x − mean) / √(var + eps) · weight + bias.

    In training, mean and (biased) variance are those of the batch, and the running statistics move towards them; in
    eval mode they are the running statistics.

    Args:
        num_features: C, number of channels.
        eps: added to the variance, for numerical stability.
        momentum: weight of the new batch in the running statistics; None averages over all batches.
        affine: whether to learn weight and (with bias) bias, one of each per channel.
        track_running_stats: whether to keep running statistics; without, eval mode uses those of the batch too.
        device, dtype: of parameters and buffers.
        bias: whether to learn a bias.
    Shape: (N, C, H, W) → the same.
    Raises: ShapeError: the input has another rank.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167.

    Example:
        >>> norm = nn.BatchNorm2d(3)
        >>> norm(genesis.ones(2, 3, 4, 4)).shape, norm.num_batches_tracked.item()
        ((2, 3, 4, 4), 1)
    """

    ranks = (4,)
