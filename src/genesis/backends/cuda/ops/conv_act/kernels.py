"""The gradient through an activation after a convolution, with that of the convolution's bias, in one pass.

Matrices: rows (pixels) × channels, channels innermost. Each program sums every so-manieth block of rows; the programs'
sums are put together in one order: the same result every time.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.activation.kernels import activation as activations
from genesis.backends.cuda.ops.activation.kernels.fused import _through
from genesis.backends.cuda.ops.conv.kernels.statistics import _folded, _tile
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit(do_not_specialize=["num_rows", "num_channels"])
def _act_backward_kernel(
    partial_ptr, grad_x_ptr, grad_ptr, kept_ptr, num_rows, num_channels,
    BACKWARD: tl.constexpr, NUMBER: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FOLD: tl.constexpr, EVEN: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grad_x = grad · f′(kept); without BACKWARD it is grad, and not stored.

    partial (part, channel), if wanted: each part's Σ grad_x.
    """
    _follow(PDL)
    num_rows, num_columns = _folded(num_rows, num_channels, FOLD, VECTOR)
    index, num_parts = tl.program_id(0), tl.num_programs(0)
    num_blocks = tl.cdiv(num_rows, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    last = index + (num_blocks - 1 - index) // num_parts * num_parts  # backward: the end of grad is in the cache
    for step in tl.range(0, num_blocks - index, num_parts, num_stages=STAGES):
        _, _, _, elements, inside = _tile(last - step, num_rows, num_columns, BLOCK_M, BLOCK_N, EVEN)
        grad = tl.load(grad_ptr + elements, mask=inside, other=0).to(COMPUTE)
        if BACKWARD is not None:
            kept = tl.load(kept_ptr + elements, mask=inside, other=0).to(COMPUTE)
            grad = _through(grad, kept, BACKWARD, NUMBER)
            tl.store(grad_x_ptr + elements, grad.to(grad_x_ptr.dtype.element_ty), mask=inside)
        total += grad
    if partial_ptr is not None:
        tl.store(partial_ptr + index * num_columns + columns, tl.sum(total, axis=0), mask=columns < num_columns)


@triton.jit(do_not_specialize=["num_parts"])
def _bias_grad_kernel(
    grad_bias_ptr, partial_ptr, num_parts, num_channels, PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grad_bias (channel): the parts' sums put together."""
    _follow(PDL)
    parts = tl.arange(0, PARTS)
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < num_channels
    inside = (parts < num_parts)[:, None] & mask[None, :]
    elements = parts[:, None] * num_channels + channels[None, :]
    total = tl.sum(tl.load(partial_ptr + elements, mask=inside, other=0), axis=0)
    tl.store(grad_bias_ptr + channels, total.to(grad_bias_ptr.dtype.element_ty), mask=mask)


def _specimens(dtype):
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    block = {
        "COMPUTE": COMPUTE[dtype],
        "BLOCK_M": 16,
        "BLOCK_N": 64,
        "FOLD": 1,
        "EVEN": False,
        "VECTOR": 8,
        "STAGES": 3,
    }
    through = activations._silu_backward_kernel
    return [
        Specimen(
            _act_backward_kernel, (wide, dtype, dtype, dtype, 3000, 64),
            {**block, "BACKWARD": through, "NUMBER": None},
        ),
        Specimen(
            _act_backward_kernel, (wide, None, dtype, None, 3000, 64), {**block, "BACKWARD": None, "NUMBER": None}
        ),
        Specimen(_bias_grad_kernel, (dtype, wide, 100, 64), {"PARTS": 128, "BLOCK": 8}),
    ]  # fmt: skip


SPECIMENS = [specimen for dtype in (dtypes.float64, dtypes.float32, dtypes.bfloat16) for specimen in _specimens(dtype)]
