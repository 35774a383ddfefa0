"""The passes of conv_act's backward beside the convolution's own: packed once for layouts, called with addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.activation import fused
from genesis.backends.cuda.ops.conv.statistics import STAGES, Joining, Sums, rows_and_channels
from genesis.backends.cuda.ops.conv_act import kernels
from genesis.backends.cuda.ops.storage.rows import fresh, statistics_dtype
from genesis.backends.cuda.runtime.array import Layout, layout_of


class BackwardLaunches(NamedTuple):
    """The gradients of the convolution's output and of its bias, on addresses; None for what nobody wants.

    grad_x: None without an activation: it is grad.
    """

    grad_x: Layout | None
    grad_bias: Layout | None
    partial: Layout | None  # scratch memory
    launch: Callable[[int, int, int, int, int, int], None]  # stream, grad_x, grad_bias, partial, grad, kept

    @classmethod
    def of(cls, grad: Layout, kept: Layout | None, activation: str | None, needs_bias: bool) -> BackwardLaunches:
        """grad and kept: in NHWC, and not empty; without an activation there must be a bias."""
        device, (num_rows, num_channels) = grad.device_index, rows_and_channels(grad)
        grad_x, sums = None if kept is None else fresh(kept), Sums.over(grad)
        grad_bias, partial = None, None
        if needs_bias:
            grad_bias = layout_of((num_channels,), grad.dtype, device)
            partial = layout_of((sums.number, num_channels), statistics_dtype(grad.dtype), device)
            joining = Joining.of(sums.number, num_channels)
            join = prepare_raw(
                kernels._bias_grad_kernel, device, joining.grid, (grad_bias, partial), sums.number, num_channels,
                **joining.constants,
            )  # fmt: skip
        pass_through = prepare_raw(
            kernels._act_backward_kernel, device, sums.grid, (partial, grad_x, grad, kept), num_rows, num_channels,
            STAGES=STAGES, **fused.backward_from_kept(activation, grad.dtype), **sums.constants,
        )  # fmt: skip

        def launch(stream: int, out_x: int, out_bias: int, partial: int, grad: int, kept: int) -> None:
            pass_through(stream, partial, out_x, grad, kept)
            if needs_bias:
                join(stream, out_bias, partial)

        return cls(grad_x, grad_bias, partial, launch)
