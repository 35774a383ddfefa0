"""The input's gradient of a convolution of few channels (an image), as plain multiply-adds.

With stride s along an axis, positions i · s + residue meet the gradient's pixels around i: residue ρ meets pixel
i + δ − t at tap (ρ + padding) mod s + t · s, where δ = ⌊(ρ + padding) / s⌋. So a window of the gradient, which moves on
by one pixel, has what all residues of i need, each with its own taps. The lanes of a warp hold the window's channels,
and the weight of these channels, in registers; sums over lanes come last. Arrays are NHWC, dense.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch import Specimen

_SIZES = ["num_rows", "num_strips", "steps_per_strip", "num_inputs", "out_size", "size"]


@triton.jit
def _window_column(row_ptrs, row, row_mask, x, num_channels, size, LOW_Y: tl.constexpr, HEIGHT: tl.constexpr):
    """HEIGHT pixels below each other, the first LOW_Y below row; zeros outside of the image."""
    column = ()
    for i in tl.static_range(HEIGHT):
        y = row + LOW_Y + i
        inside = row_mask & ((y >= 0) & (y < size[0]))[:, None] & ((x >= 0) & (x < size[1]))
        offset = ((LOW_Y + i) * size[1] + x) * num_channels
        column += (tl.load(row_ptrs + offset, mask=inside, other=0),)
    return column


@triton.jit
def _residue(
    window,
    weights,
    FIRST_WEIGHT: tl.constexpr,
    Y: tl.constexpr,
    X: tl.constexpr,
    LOW_Y: tl.constexpr,
    LOW_X: tl.constexpr,
    HEIGHT: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
):
    """The sum of the taps that the residue meets, of each channel of the gradient. Y, X: the residue plus padding."""
    total = tl.zeros_like(window[0])
    for r in tl.static_range(Y % STRIDE_Y, TAPS_Y, STRIDE_Y):
        for s in tl.static_range(X % STRIDE_X, TAPS_X, STRIDE_X):
            total += window[(X // STRIDE_X - LOW_X - s // STRIDE_X) * HEIGHT + Y // STRIDE_Y - LOW_Y - r // STRIDE_Y] * weights[FIRST_WEIGHT + r * TAPS_X + s]
    return total


@triton.jit(do_not_specialize=_SIZES)
def _few_inputs_grad_kernel(
    out_ptr,
    grad_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_strips,
    steps_per_strip,
    num_inputs,
    num_outputs,
    out_size,
    size,
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
):
    """One program per ROWS rows of i, of all images, and strip of columns: so many rows of residues, all channels.

    out (N, size, num_inputs); grad (N, out_size, num_outputs); weight (num_inputs, taps in reverse, num_outputs).
    """
    rows = tl.program_id(0) // num_strips * ROWS + tl.arange(0, ROWS)
    begin = tl.program_id(0) % num_strips * steps_per_strip * STEPS
    end = tl.minimum(begin + steps_per_strip * STEPS, tl.cdiv(size[1], STRIDE_X))
    rows_per_image = tl.cdiv(size[0], STRIDE_Y)
    image = (rows // rows_per_image).to(tl.int64)
    row = rows % rows_per_image
    outputs = tl.arange(0, BLOCK_K)
    output_mask = outputs < num_outputs
    row_mask = (rows < num_rows)[:, None] & output_mask[None, :]
    row_ptrs = grad_ptr + ((image * out_size[0] + row) * out_size[1] * num_outputs)[:, None] + outputs[None, :]

    # Results of a round, in their order in memory.
    slots = tl.arange(0, BLOCK_N)
    slot_channel = slots % CHANNELS
    slot_x = slots // CHANNELS % (STEPS * STRIDE_X)
    slot_y = row[:, None] * STRIDE_Y + (FIRST_RESIDUE + slots // (CHANNELS * STRIDE_X * STEPS))[None, :]
    slot_mask = (rows < num_rows)[:, None] & (slot_y < size[0]) & (slots < RESIDUES * STEPS * STRIDE_X * CHANNELS)
    slot_ptrs = out_ptr + ((image[:, None] * size[0] + slot_y) * size[1] + slot_x[None, :]) * num_inputs
    slot_ptrs += slot_channel[None, :]

    for channel in range(0, num_inputs, CHANNELS):
        weights = ()
        for i in tl.static_range(CHANNELS * TAPS_Y * TAPS_X):
            tap = TAPS_Y * TAPS_X - 1 - i % (TAPS_Y * TAPS_X)
            place = ((channel + i // (TAPS_Y * TAPS_X)) * (TAPS_Y * TAPS_X) + tap) * num_outputs
            weights += (tl.load(weight_ptr + place + outputs, mask=output_mask, other=0)[None, :],)
        window = ()
        for i in tl.static_range(WIDTH - 1 + AHEAD):
            window += _window_column(
                row_ptrs, row, row_mask, begin + LOW_X + i, num_outputs, out_size, LOW_Y, HEIGHT
            )
        for first in range(begin, end, STEPS):
            results = tl.zeros((ROWS, BLOCK_N), tl.float32)
            for step in tl.static_range(STEPS):
                window += _window_column(
                    row_ptrs, row, row_mask, first + step + LOW_X + WIDTH - 1 + AHEAD, num_outputs, out_size, LOW_Y,
                    HEIGHT,
                )  # fmt: skip
                for i in tl.static_range(RESIDUES * STRIDE_X * CHANNELS):
                    total = _residue(
                        window, weights, i % CHANNELS * TAPS_Y * TAPS_X,
                        FIRST_RESIDUE + i // (CHANNELS * STRIDE_X) + PADDING_Y, i // CHANNELS % STRIDE_X + PADDING_X,
                        LOW_Y, LOW_X, HEIGHT, TAPS_Y, TAPS_X, STRIDE_Y, STRIDE_X,
                    )  # fmt: skip
                    slot = (i // (CHANNELS * STRIDE_X) * STEPS + step) * (CHANNELS * STRIDE_X) + i % (CHANNELS * STRIDE_X)
                    sums = tl.sum(total, axis=1)[:, None]
                    results = tl.where(slots[None, :] == slot, sums, results)
                window = window[HEIGHT:]
            if bias_ptr is not None:
                results += tl.load(bias_ptr + channel + slot_channel)[None, :]
            x = first * STRIDE_X + slot_x
            mask = slot_mask & (x < size[1])[None, :]
            tl.store(slot_ptrs + (first * STRIDE_X * num_inputs + channel), results, mask=mask)
