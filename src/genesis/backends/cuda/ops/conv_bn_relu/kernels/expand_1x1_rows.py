"""Loads of the 1×1 expansion's kernels: blocks of rows (pixels), the norm, and mean(u) computed from them.

Numbers of inputs and outputs are multiples of 8.
"""

import triton
import triton.language as tl

from genesis.backends.cuda.ops.conv_bn_relu.kernels.conv_bn_relu import _load_scale


@triton.jit
def _in_eights(number):
    """number, a multiple of 8: rows of as many elements begin where wide loads may."""
    return number // 8 * 8


@triton.jit
def _load_rows(ptr, rows, num_rows, channels, num_channels):
    """ptr[rows, channels], 0 outside."""
    inside = (rows < num_rows)[:, None] & (channels < num_channels)[None, :]
    return tl.load(ptr + rows[:, None] * num_channels + channels[None, :], mask=inside, other=0)


@triton.jit
def _places(block, num_rows, channels, num_channels, BLOCK_M: tl.constexpr, EVEN: tl.constexpr):
    """Offsets of a block of rows, and which of them there are. EVEN: all blocks are whole."""
    first = tl.cast(block, tl.int64) * BLOCK_M
    rows = tl.arange(0, BLOCK_M)
    inside = tl.broadcast_to((channels < num_channels)[None, :], (BLOCK_M, channels.shape[0]))
    if not EVEN:
        inside = inside & (first + rows < num_rows)[:, None]
    return first * num_channels + (rows[:, None] * num_channels + channels[None, :]), inside


@triton.jit
def _load_block(ptr, block, num_rows, channels, num_channels, BLOCK_M: tl.constexpr, EVEN: tl.constexpr):
    """A block of rows, 0 outside."""
    places, inside = _places(block, num_rows, channels, num_channels, BLOCK_M, EVEN)
    return tl.load(ptr + places, mask=inside, other=0)


@triton.jit
def _centred(x, centre, block, num_rows, EVEN: tl.constexpr):
    """A block of x less centre in float32, 0 outside; centre is 0 where there are no channels."""
    d = x.to(tl.float32) - centre[None, :]
    if not EVEN:
        rows = tl.cast(block, tl.int64) * x.shape[0] + tl.arange(0, x.shape[0])
        d = tl.where((rows < num_rows)[:, None], d, 0)
    return d


@triton.jit
def _load_centre(state_ptr, inputs, num_inputs, dtype: tl.constexpr):
    """The input's mean, and as the matrix unit takes it."""
    centre = tl.load(state_ptr + inputs, mask=inputs < num_inputs, other=0)
    return centre, centre.to(dtype)


@triton.jit
def _load_rest(state_ptr, outputs, num_inputs, num_outputs):
    """W·(mean − mean as the matrix unit takes it)."""
    rest_ptr = state_ptr + (1 + num_outputs) * num_inputs
    return tl.load(rest_ptr + outputs, mask=outputs < num_outputs, other=0)


@triton.jit
def _output_mean(weight, short, rest, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """mean(u), by outputs.

    It comes from the same products as the values that it is subtracted from, so that in a channel that does not vary
    nothing is left of their rounding. All rows of these products are alike.
    """
    return tl.max(tl.dot(tl.broadcast_to(short[None, :], (BLOCK_M, BLOCK_C)), tl.trans(weight)), axis=0) + rest


@triton.jit
def _load_affine(inverse_std_ptr, gamma_ptr, beta_ptr, outputs, num_outputs):
    """Scale and shift of what is centred."""
    mask = outputs < num_outputs
    scale = _load_scale(inverse_std_ptr, gamma_ptr, outputs, mask, tl.float32)
    beta = tl.zeros_like(scale)
    if beta_ptr is not None:
        beta += tl.load(beta_ptr + outputs, mask=mask, other=0).to(tl.float32)
    return scale, beta
