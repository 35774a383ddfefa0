"""The input's gradient of a convolution of few channels (an image), as plain multiply-adds.

With stride s along an axis, position i · s + residue meets the gradient's pixels i + ⌊(residue + padding) / s⌋ − t at
the taps (residue + padding) mod s + t · s. So what all residues of i need is a window of the gradient, which moves on
by a pixel with i, and each residue has its own taps in it: none is zero. The lanes of a warp share the gradient's
channels and keep the window and the weight of theirs in registers; sums over lanes come last. Arrays are NHWC, dense.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen

_SIZES = ["num_rows", "num_strips", "rounds_per_strip", "num_inputs", "out_size", "size"]


@triton.jit
def _window_column(
    row_ptrs, row_mask, row, x, out_size, OUTPUTS: tl.constexpr, LOW_Y: tl.constexpr, HEIGHT: tl.constexpr
):
    """HEIGHT of the gradient's pixels below each other, the first LOW_Y below row; zeros outside of the image."""
    column = ()
    for i in tl.static_range(HEIGHT):
        y = row + LOW_Y + i
        inside = row_mask & ((y >= 0) & (y < out_size[0]))[:, None] & ((x >= 0) & (x < out_size[1]))
        column += (tl.load(row_ptrs + ((LOW_Y + i) * out_size[1] + x) * OUTPUTS, mask=inside, other=0),)
    return column


@triton.jit
def _residue(
    window,
    weights,
    Y: tl.constexpr,
    X: tl.constexpr,
    CHANNEL: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    LOW_Y: tl.constexpr,
    LOW_X: tl.constexpr,
    HEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Σ of the window's pixels times the taps that a residue meets. Y, X: the residue plus the padding."""
    total = tl.zeros((ROWS, BLOCK_K), tl.float32)
    for r in tl.static_range(Y % STRIDE_Y, TAPS_Y, STRIDE_Y):
        for s in tl.static_range(X % STRIDE_X, TAPS_X, STRIDE_X):
            values = window[(X // STRIDE_X - s // STRIDE_X - LOW_X) * HEIGHT + Y // STRIDE_Y - r // STRIDE_Y - LOW_Y]
            total += values * weights[(CHANNEL * TAPS_Y + r) * TAPS_X + s]
    return total


@triton.jit(do_not_specialize=_SIZES)
def _small_c_dgrad_kernel(
    out_ptr,
    grad_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_strips,
    rounds_per_strip,
    num_inputs,
    out_size,
    size,
    OUTPUTS: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    LOW_Y: tl.constexpr,
    LOW_X: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST_RESIDUE: tl.constexpr,
    RESIDUES: tl.constexpr,
    CHANNELS: tl.constexpr,
    STEPS: tl.constexpr,
    AHEAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per ROWS rows of i, counted through all images, and strip of their columns; STEPS pixels a round.

    out (N, size, num_inputs), of which it computes RESIDUES rows of residues; grad (N, out_size, OUTPUTS);
    weight (num_inputs, taps in reverse, OUTPUTS). The window of pixel i begins at pixel i + LOW.
    """
    _follow(PDL)
    rows = tl.program_id(0) // num_strips * ROWS + tl.arange(0, ROWS)
    begin = tl.program_id(0) % num_strips * rounds_per_strip * STEPS
    end = tl.minimum(begin + rounds_per_strip * STEPS, tl.cdiv(size[1], STRIDE_X))
    rows_per_image = tl.cdiv(size[0], STRIDE_Y)
    image = (rows // rows_per_image).to(tl.int64)
    row = rows % rows_per_image
    outputs = tl.arange(0, BLOCK_K)
    output_mask = outputs < OUTPUTS
    row_mask = (rows < num_rows)[:, None] & output_mask[None, :]
    row_ptrs = grad_ptr + ((image * out_size[0] + row) * out_size[1] * OUTPUTS)[:, None] + outputs[None, :]

    # The results of a round as they lie in memory: rows of residues, pixels, channels.
    slots = tl.arange(0, BLOCK_N)
    slot_x = slots // CHANNELS % (STEPS * STRIDE_X)
    slot_y = row[:, None] * STRIDE_Y + (FIRST_RESIDUE + slots // (CHANNELS * STEPS * STRIDE_X))[None, :]
    slot_mask = (rows < num_rows)[:, None] & (slot_y < size[0]) & (slots < RESIDUES * STEPS * STRIDE_X * CHANNELS)
    slot_ptrs = out_ptr + ((image[:, None] * size[0] + slot_y) * size[1] + slot_x[None, :]) * num_inputs
    slot_ptrs += (slots % CHANNELS)[None, :]

    for channel in range(0, num_inputs, CHANNELS):
        weights = ()
        for i in tl.static_range(CHANNELS * TAPS_Y * TAPS_X):
            tap = TAPS_Y * TAPS_X - 1 - i % (TAPS_Y * TAPS_X)
            place = ((channel + i // (TAPS_Y * TAPS_X)) * (TAPS_Y * TAPS_X) + tap) * OUTPUTS
            weights += (tl.load(weight_ptr + place + outputs, mask=output_mask, other=0)[None, :],)
        window = ()
        for i in tl.static_range(WIDTH - 1 + AHEAD):
            x = begin + LOW_X + i
            window += _window_column(row_ptrs, row_mask, row, x, out_size, OUTPUTS, LOW_Y, HEIGHT)
        for first in range(begin, end, STEPS):
            results = tl.zeros((ROWS, BLOCK_N), tl.float32)
            for step in tl.static_range(STEPS):
                x = first + step + LOW_X + WIDTH - 1 + AHEAD
                window += _window_column(row_ptrs, row_mask, row, x, out_size, OUTPUTS, LOW_Y, HEIGHT)
                for i in tl.static_range(RESIDUES * STRIDE_X * CHANNELS):
                    total = _residue(
                        window, weights, FIRST_RESIDUE + i // (STRIDE_X * CHANNELS) + PADDING_Y,
                        i // CHANNELS % STRIDE_X + PADDING_X, i % CHANNELS, TAPS_Y, TAPS_X, STRIDE_Y, STRIDE_X, LOW_Y,
                        LOW_X, HEIGHT, ROWS, BLOCK_K,
                    )  # fmt: skip
                    pixel = i // (STRIDE_X * CHANNELS) * STEPS + step
                    slot = pixel * (STRIDE_X * CHANNELS) + i % (STRIDE_X * CHANNELS)
                    results = tl.where(slots[None, :] == slot, tl.sum(total, axis=1)[:, None], results)
                window = window[HEIGHT:]
            if bias_ptr is not None:
                results += tl.load(bias_ptr + channel + slots % CHANNELS)[None, :]
            mask = slot_mask & (first * STRIDE_X + slot_x < size[1])[None, :]
            tl.store(slot_ptrs + (first * STRIDE_X * num_inputs + channel), results, mask=mask)


def _specimen(bias, **constants):
    stride = constants["STRIDE_Y"]
    operands = (dtypes.float32, dtypes.float32, dtypes.float32, bias)
    sizes = (32 * 224 // stride, 4, 7, 3, (224 // stride, 224 // stride), (224, 224))
    return Specimen(_small_c_dgrad_kernel, (*operands, *sizes), {"OUTPUTS": 64, "BLOCK_K": 64, **constants})


SPECIMENS = [
    _specimen(  # of a stem
        None, TAPS_Y=7, TAPS_X=7, STRIDE_Y=2, STRIDE_X=2, PADDING_Y=3, PADDING_X=3, LOW_Y=-1, LOW_X=-1, HEIGHT=4,
        WIDTH=4, FIRST_RESIDUE=1, RESIDUES=1, CHANNELS=1, STEPS=4, AHEAD=0, ROWS=8, BLOCK_N=8,
    ),
    _specimen(
        dtypes.float32, TAPS_Y=3, TAPS_X=3, STRIDE_Y=1, STRIDE_X=1, PADDING_Y=1, PADDING_X=1, LOW_Y=-1, LOW_X=-1,
        HEIGHT=3, WIDTH=3, FIRST_RESIDUE=0, RESIDUES=1, CHANNELS=3, STEPS=4, AHEAD=1, ROWS=4, BLOCK_N=16,
    ),
]  # fmt: skip
