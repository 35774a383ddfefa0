"""The launches of conv_bn_relu beside the convolution's own: packed once for layouts, then called with addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from genesis import dtypes
from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.engine.candidate import Parts
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.activation import fused as activations
from genesis.backends.cuda.ops.conv.statistics import STAGES, Joining, Pass, Sums, rows_and_channels, statistics_pass
from genesis.backends.cuda.ops.conv_bn_relu.kernels import conv_bn_relu as kernels
from genesis.backends.cuda.ops.storage.rows import fresh, statistics_dtype
from genesis.backends.cuda.runtime.array import Layout, layout_of
from genesis.records import NormState, SavedConvNorm

Given: TypeAlias = tuple[Layout, Parts]  # statistics that came with a convolution's result


class StatisticsLaunches(NamedTuple):
    """Launches that find mean and inverse deviation in training, on addresses: parts first, unless they came with x."""

    partial: Layout
    statistic: Layout
    sum_up: Callable[[int, int, int], None] | None  # stream, partial, x
    join: RawLaunch  # stream, mean, inverse deviation, running mean and variance, count, partial, momentum

    @classmethod
    def of(cls, x: Layout, given: Given | None, norm: NormState[Layout], eps: float) -> StatisticsLaunches:
        """given: the statistics in parts, where they came with x."""
        device, (num_rows, num_channels) = x.device_index, rows_and_channels(x)
        statistic = layout_of((num_channels,), statistics_dtype(x.dtype), device)
        sum_up = None
        if given is None:
            sums = Sums.over(x)
            partial, parts = layout_of((3, sums.number, num_channels), statistic.dtype, device), sums.parts
            sum_up = statistics_pass(x, partial, sums)
        else:
            partial, parts = given
        joining = Joining.of(parts.number, num_channels)
        join = prepare_raw(
            kernels._training_statistics_kernel, device, joining.grid,
            (statistic, statistic, *norm[2:], partial, 0.0), num_rows,
            parts.number, num_channels, eps, BLOCK_M=parts.rows, FOLD=parts.fold, **joining.constants,
        )  # fmt: skip
        return cls(partial, statistic, sum_up, join)


def passed_layout(y: Layout, activation: str | None) -> Layout | None:
    """Return what the backward needs: one bit per element for ReLU, the values before another activation."""
    if activation != "relu":
        return None if activation is None else fresh(y)
    num_rows, num_channels = rows_and_channels(y)
    return layout_of((num_rows, -(-num_channels // 8)), dtypes.uint8, y.device_index)


def _folds(passed: Layout | None, num_channels: int) -> bool:
    """Whether rows may be taken together: bits of a row begin at a byte."""
    return passed is None or passed.dtype is not dtypes.uint8 or num_channels % 8 == 0


class FinishLaunch(NamedTuple):
    """The pass that normalizes, adds and activates, on addresses."""

    y: Layout
    passed: Layout | None  # passed_layout(), where the backward could not tell
    statistic: Layout
    # stream, y, passed, x, residual, mean, inverse deviation, running mean and variance, gamma, beta
    normalize: RawLaunch

    @classmethod
    def of(
        cls, x: Layout, norm: NormState[Layout], residual: Layout | None, eps: float, activation: str | None
    ) -> FinishLaunch:
        """norm: with running statistics where mean and inverse deviation are to be made of these."""
        gamma, beta, mean, var, _ = norm
        device, (num_rows, num_channels) = x.device_index, rows_and_channels(x)
        statistic = layout_of((num_channels,), statistics_dtype(x.dtype), device)
        y, passed = fresh(x), None if residual is None else passed_layout(x, activation)
        blocks = Pass.over(x, _folds(passed, num_channels))
        normalize = prepare_raw(
            kernels._normalize_kernel, device, blocks.grid,
            (y, passed, x, residual, statistic, statistic, mean, var, gamma, beta), num_rows, num_channels, eps,
            **activations.forward(activation, x.dtype), **blocks.constants,
        )  # fmt: skip
        return cls(y, passed, statistic, normalize)


class BackwardLaunches(NamedTuple):
    """The passes of the backward, but for the convolution's own, on addresses; None for what nobody wants."""

    gradients: tuple[Layout | None, ...]  # of the convolution's output, bias, gamma, beta, residual
    scratch: Layout
    # stream; addresses: first gradient, the others, scratch, grad, passed, x, (mean, inverse deviation, gamma, beta)
    launch: Callable[[int, int, Sequence[int], int, int, int, int, tuple[int, int, int, int]], None]

    @classmethod
    def of(
        cls, grad: Layout, saved: SavedConvNorm[Layout], training: bool, activation: str | None, needs: tuple[bool, ...]
    ) -> BackwardLaunches:
        """saved: with the convolution's output. needs: of input, weight, bias, gamma, beta, residual."""
        _, _, _, gamma, beta, mean, inverse_std, x, passed = saved
        device, (num_rows, num_channels) = x.device_index, rows_and_channels(x)
        activated = activations.backward(activation, x.dtype)
        vectors = (mean, inverse_std, gamma, beta)
        gradients = grad_x, grad_bias, grad_gamma, grad_beta, grad_residual = _gradients(saved, needs)
        sums = layout_of((2, num_channels), statistics_dtype(x.dtype), device)
        folds = _folds(passed, num_channels)
        parts, blocks = Sums.over(x, folds), Pass.over(x, folds)
        joining = Joining.of(parts.number, num_channels)
        sums_wanted = any(needs[2:5]) or (training and grad_x is not None)
        scratch = sums
        if sums_wanted:  # one piece of memory: the sums, and after them those of the parts
            scratch = layout_of((1 + parts.number, 2, num_channels), sums.dtype, device)
            aligned = sums.num_bytes % 16 == 0
            partial = layout_of((2, parts.number, num_channels), sums.dtype, device, aligned=aligned)
            sum_up = prepare_raw(
                kernels._backward_sums_kernel, device, parts.grid,
                (partial, grad_residual, grad, passed, x, *vectors), num_rows, num_channels,
                STAGES=STAGES, **activated, **parts.constants,
            )  # fmt: skip
            join = prepare_raw(
                kernels._parameter_grads_kernel, device, joining.grid,
                (sums, grad_gamma, grad_beta, grad_bias, partial, inverse_std, gamma), parts.number, num_channels,
                TRAINING=training, **joining.constants,
            )  # fmt: skip
        # With the sums came the residual's gradient, which is the gradient before the activation, and so without that.
        is_through = sums_wanted and grad_residual is not None
        residual_left = None if sums_wanted else grad_residual
        last_pass = grad_x is not None or residual_left is not None
        if last_pass:
            sources = (grad_residual, None) if is_through else (grad, passed)
            to_conv = prepare_raw(
                kernels._backward_kernel, device, blocks.grid, (grad_x, residual_left, *sources, x, *vectors, sums),
                num_rows, num_channels, TRAINING=training, **blocks.constants,
                **(activations.backward(None, x.dtype) if is_through else activated),
            )  # fmt: skip
        num_bytes = sums.num_bytes

        def launch(
            stream: int, out_x: int, out: Sequence[int], room: int, grad: int, passed: int, x: int,
            vectors: tuple[int, int, int, int],
        ) -> None:  # fmt: skip
            out_bias, out_gamma, out_beta, out_residual = out
            mean, inverse_std, gamma, beta = vectors
            if sums_wanted:
                pieces = room + num_bytes
                sum_up(stream, pieces, out_residual, grad, passed, x, mean, inverse_std, gamma, beta)
                join(stream, room, out_gamma, out_beta, out_bias, pieces, inverse_std, gamma)
            if last_pass:
                source = out_residual if is_through else grad
                to_conv(stream, out_x, out_residual, source, passed, x, mean, inverse_std, gamma, beta, room)

        return cls(gradients, scratch, launch)


def _gradients(saved: SavedConvNorm[Layout], needs: tuple[bool, ...]) -> tuple[Layout | None, ...]:
    """Layouts of the gradients of the convolution's output, bias, gamma, beta, residual, where they are needed."""
    x = saved.kept
    vectors = [None if like is None else layout_of(like.shape, like.dtype, x.device_index) for like in saved[2:5]]
    wanted = (needs[0] or needs[1], *needs[2:])
    every = (fresh(x), *vectors, fresh(x))
    return tuple([layout if needed else None for layout, needed in zip(every, wanted, strict=True)])
