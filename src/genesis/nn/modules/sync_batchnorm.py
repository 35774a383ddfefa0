"""SyncBatchNorm: batch norm over the batches of all ranks together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Self

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context, Gradients
from genesis.distributed.group import ProcessGroup, is_initialized, require
from genesis.distributed.transport import ReduceOp
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.fused_synchronized import take_up, wide
from genesis.functional.normalization import check_statistics
from genesis.ndarray import NDArray, ops
from genesis.nn.module import Module
from genesis.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, _BatchNorm
from genesis.tensor import Tensor

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over the batches of all ranks: y = (x − mean) / √(var + eps) · weight + bias.

    In training, the ranks exchange mean, variance and count once in forward, and two sums in backward, for each layer.
    Their batches may differ in size. In eval mode, and without a process group, it is BatchNorm. Within nn.ConvBNReLU,
    it is part of the fused op: the exchange stands between its statistics and the rest.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as in `nn.BatchNorm2d`.
    Shape: (N, C, …) → the same.
    Raises: ShapeError: the input has fewer than 2 dimensions, or more than 5.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
        >>> type(net[1]).__name__, net(genesis.ones(2, 3, 4, 4)).shape
        ('SyncBatchNorm', (2, 8, 2, 2))
    """

    ranks = (2, 3, 4, 5)

    @property
    def is_synchronized(self) -> bool:  # type: ignore[override]  # it stays a plain attribute where speed counts
        """Whether a forward now exchanges statistics.

        Example:
            >>> nn.SyncBatchNorm(2).is_synchronized
            False
        """
        return self.training and is_initialized() and require("SyncBatchNorm").size > 1

    def forward(self, input: Tensor) -> Tensor:
        if not self.is_synchronized:
            return super().forward(input)
        op = "SyncBatchNorm"
        if input.ndim not in self.ranks:
            raise ShapeError(describe(op, "input", "2 to 5 dimensions", f"shape {input.shape}"))
        if not input.dtype.is_floating_point:
            raise DTypeError(describe(op, "input", "a floating dtype", input.dtype))
        shapes = [None if each is None else each.array.shape for each in self._of_channels()]
        check_statistics(op, input.array.shape[1], True, *shapes)
        mean, var, _, momentum, num_batches = self.begin_batch()
        if num_batches is not None:
            num_batches.array.add_into(1)
        running = tuple(None if statistic is None else statistic.array for statistic in (mean, var))
        return SyncBatchNormFunction.apply(
            input, self.weight, self.bias, running=running, momentum=momentum, eps=self.eps, group=require(op)
        )

    def _exchange(self) -> GroupExchange:
        """The way of a fused op's statistics to the other ranks."""
        return GroupExchange(require("SyncBatchNorm"))

    def _of_channels(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        return self.running_mean, self.running_var, self.weight, self.bias

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: ProcessGroup | None = None) -> Module:
        """Replace each BatchNorm1d and BatchNorm2d in a module, which may be one itself; parameters and buffers stay.

        Args:
            module: is changed in place, those of nn.ConvBNReLU too.
            process_group: all ranks.
        Returns: the module, or what takes its place.

        Example:
            >>> nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))
            SyncBatchNorm(2, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
        """
        if not isinstance(module, Module):
            raise DTypeError(describe("convert_sync_batchnorm", "module", "a Module", type(module).__name__))
        made: dict[Module, Module] = {}  # a module that is used twice stays one
        for part in list(module.modules()):
            for name, child in list(part._modules.items()):
                if type(child) in (BatchNorm1d, BatchNorm2d):
                    assert child is not None
                    part._modules[name] = made.setdefault(child, cls._like(child))
        return cls._like(module) if type(module) in (BatchNorm1d, BatchNorm2d) else module

    @classmethod
    def _like(cls, norm: Module) -> Self:
        """A layer with the very parameters, buffers, settings and hooks of a batch norm."""
        new = cls.__new__(cls)
        new.__dict__.update(norm.__dict__)
        return new


class SyncBatchNormFunction(ArrayFunction):
    """With n, mean and var (biased) those of all ranks together (Chan, Golub & LeVeque 1983):

    n = Σ n_r        mean = Σ n_r·mean_r / n        var = Σ n_r·(var_r + (mean_r − mean)²) / n
    """

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, weight: NDArray | None, bias: NDArray | None, *,
        running: tuple[NDArray | None, NDArray | None], momentum: float, eps: float, group: ProcessGroup,
    ) -> NDArray:  # fmt: skip
        kind = wide(x.dtype)
        x_wide = x.to(kind)
        count, mean, var = _joined(x_wide, group)
        scale = None if weight is None else weight.to(kind)
        shift = None if bias is None else bias.to(kind)
        mean_wide, var_wide = mean.to(kind), var.to(kind)
        if x.numel:
            y = ops.batch_norm(x_wide, scale, shift, mean_wide, var_wide, False, 0.0, eps)[0].to(x.dtype)
        else:
            y = x.clone()
        take_up(running, count, mean, var, momentum)
        if any(ctx.needs_input_grad):
            ctx.save(x, weight)
            ctx.mean, ctx.inverse_std = mean_wide, ops.rsqrt(var.add(eps)).to(kind)
            ctx.count, ctx.group = count, group
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, weight = ctx.saved
        kind, inverse_std, mean = wide(x.dtype), ctx.inverse_std, ctx.mean
        channels = mean.shape
        scale = NDArray.full(channels, 1, kind, x.device) if weight is None else weight.to(kind)
        x_wide, grad_wide = x.to(kind), grad.to(kind)
        if x.numel:
            needs = (True, True, True)  # with fixed statistics: what is missing in grad_x follows
            grad_x, of_weight, of_bias = ops.batch_norm_backward(
                grad_wide, x_wide, scale, mean, inverse_std, False, needs
            )
        else:
            grad_x, of_weight, of_bias = x_wide, mean.full_like(0), mean.full_like(0)
        assert grad_x is not None
        assert of_weight is not None
        assert of_bias is not None
        sums = ops.cat([of_weight, of_bias], 0)
        GroupExchange(ctx.group).add_up(sums)
        if ctx.needs_input_grad[0] and x.numel:
            # dx = scale/√… · (g − mean(g) − x̂·mean(g·x̂)), the means over all ranks
            factor = scale.mul(inverse_std).div(ctx.count.to(kind))
            slope = factor.mul(inverse_std).mul(sums.narrow(0, 0, channels[0])).neg()
            shift = slope.mul(mean).add(factor.mul(sums.narrow(0, channels[0], channels[0]))).neg()
            plane = (1, channels[0], *(1,) * (x.ndim - 2))
            grad_x = grad_x.add(x_wide.mul(slope.reshape(plane))).add(shift.reshape(plane))
        return grad_x, of_weight, of_bias


def _joined(x: NDArray, group: ProcessGroup) -> tuple[NDArray, NDArray, NDArray]:
    """Count, mean and biased variance of each channel over all ranks, float64, the same bits on each."""
    channels, dims = x.shape[1], tuple(dim for dim in range(x.ndim) if dim != 1)
    count = x.numel // channels if channels else 0
    if not count:
        nothing = NDArray.full((channels,), 0, dtypes.float64, x.device)
        return GroupExchange(group).join(nothing, nothing, 0)
    return GroupExchange(group).join(ops.mean(x, dims), ops.var(x, dims, 0), count)


class GroupExchange:
    """The statistics of a batch norm over the ranks of a process group: an Exchange."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def join(self, mean: NDArray, var: NDArray, count: int) -> tuple[NDArray, NDArray, NDArray]:
        return _joined_with(self._group, mean, var, count)

    def add_up(self, sums: NDArray) -> None:
        self._group.repeated(functools.partial(_add_up, self._group), [sums])


def _joined_with(group: ProcessGroup, mean: NDArray, var: NDArray, count: int) -> tuple[NDArray, NDArray, NDArray]:
    (channels,) = mean.shape
    own = NDArray.full((2 * channels + 1,), count, dtypes.float64, mean.device)
    own.narrow(0, 0, channels).copy_into(mean)
    own.narrow(0, channels, channels).copy_into(var)
    rows = NDArray.empty((group.size, 2 * channels + 1), dtypes.float64, mean.device)
    group.repeated(functools.partial(_gather, group), [own, rows])
    means, variances = rows.narrow(1, 0, channels), rows.narrow(1, channels, channels)
    counts = rows.narrow(1, 2 * channels, 1)
    total = ops.sum(counts, (0,))
    common = ops.sum(means.mul(counts), (0,)).div(total)
    apart = means.sub(common)
    return total, common, ops.sum(variances.add(apart.mul(apart)).mul(counts), (0,)).div(total)


def _gather(group: ProcessGroup, arrays: Sequence[NDArray]) -> None:
    own, rows = arrays
    parts = [rows.select(0, rank) for rank in range(group.size)]
    call = group.call("SyncBatchNorm", "statistics", checked=False)
    group.transport(own.device).all_gather(call, parts, own).wait()


def _add_up(group: ProcessGroup, arrays: Sequence[NDArray]) -> None:
    (sums,) = arrays
    call = group.call("SyncBatchNorm", "sums", checked=False)
    group.transport(sums.device).all_reduce(call, sums, ReduceOp.SUM).wait()
