"""Winograd's F(2×2, 3×3): a 3×3 convolution with 16 multiplications for four outputs instead of 36.

    Y = Aᵀ [(G w Gᵀ) ⊙ (Bᵀ x B)] A,  summed over the input channels before A

    x is a 4×4 tile of the input, Y a 2×2 tile of the output. Summing over the channels is a matrix product for each of
    the 16 places of a tile; all of them are one grouped 1×1 convolution, which oneDNN runs at its full rate. A and B
    hold only 0, 1 and −1, so nothing is scaled, and sums of C products instead of 9·C round less than the direct way.

Under dilation d the rows t, t + d, t + 2d, … form an image of their own; tiles are taken from each of these.

Source: Lavin & Gray 2016, arXiv:1509.09308, section 4.1.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu import packing

mkldnn = torch.ops.mkldnn

# What else there is to do, in products that take as long; measured on two cores with AVX-512.
_PER_NUMBER = 40  # to transform one number of a tile
_PER_WEIGHT = 15  # to read one number of the transformed weight, of which there are 16 where there were 9
_MOST_OF_DIRECT = 0.85
_MOST_WEIGHTS = 512 * 512  # of more pairs of channels the transformed weight no longer stays in the cache
# What is transformed at once stays in the cache until it is used.
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class WinogradWeight:
    """G w Gᵀ of each pair of channels, packed for the grouped 1×1 convolution, and what a convolution needs to know.

    oneDNN's layout of a weight suits one number of tiles: with another one it may take forty times as long. So the
    shape of the input is fixed, and with it how many tiles are taken at once.
    """

    weight: Tensor
    bias: Tensor | None
    input_shape: Shape
    out_channels: int
    padding: Pair
    dilation: Pair
    at_once: tuple[int, int, int]


def pays(weight: Tensor, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> bool:
    """Whether Winograd's algorithm is faster for this convolution."""
    out_channels, in_channels, *kernel = weight.shape
    if weight.dtype is not torch.float32 or tuple(kernel) != (3, 3) or stride != (1, 1) or groups != 1:
        return False
    pairs = in_channels * out_channels
    if in_channels % 16 or out_channels % 16 or pairs > _MOST_WEIGHTS:
        return False
    tiles = math.prod(_num_tiles(_output_sizes(input_shape, padding, dilation), dilation)) * math.prod(dilation)
    numbers = _PER_NUMBER * (in_channels + out_channels)
    products = 16 * (input_shape[0] * tiles * (pairs + numbers) + _PER_WEIGHT * pairs)
    direct = input_shape[0] * math.prod(map(_num_taps, input_shape[2:], padding, dilation)) * pairs
    return products <= direct * _MOST_OF_DIRECT


def _num_taps(size: int, padding: int, dilation: int) -> int:
    """Along one dimension, how often a weight meets a number and not the padding, which the direct way leaves out."""
    outputs = size + 2 * padding - 2 * dilation
    starts = [tap * dilation - padding for tap in range(3)]
    return sum(max(0, min(size, start + outputs) - max(0, start)) for start in starts)


def pack(weight: Tensor, bias: Tensor | None, input_shape: Shape, padding: Pair, dilation: Pair) -> WinogradWeight:
    out_channels, in_channels = weight.shape[:2]
    g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    tiles = torch.einsum("ir,kcrs,js->ijkc", g, weight.double(), g).to(weight.dtype)
    tiles = tiles.reshape(16 * out_channels, in_channels, 1, 1)
    rows, columns = _num_tiles(_output_sizes(input_shape, padding, dilation), dilation)
    num_columns = columns * dilation[1]
    bytes_each = num_columns * 16 * (in_channels + out_channels) * weight.element_size()
    at_once = _at_once(input_shape[0], rows, dilation[0], bytes_each)
    num_tiles = math.prod(at_once) * num_columns
    packed = packing.pack(tiles, (0, 0), (1, 1), (1, 1), 16, (1, 16 * in_channels, 1, num_tiles))
    if bias is not None:  # A adds place (1, 1) of a tile, and no other, to all four outputs with the factor 1
        places = bias.new_zeros(16, out_channels)
        places[5] = bias
        bias = places.reshape(-1)
    return WinogradWeight(packed, bias, input_shape, out_channels, padding, dilation, at_once)


def _at_once(batch: int, rows: int, down: int, bytes_each: int) -> tuple[int, int, int]:
    """Images, rows of tiles in each, and the images that dilation makes of one: equal parts that stay in the cache."""
    most = max(1, _CHUNK_BYTES // bytes_each)
    phases = _divisor(down, most)
    lines = _divisor(rows, most // phases) if phases == down else 1
    images = _divisor(batch, most // (phases * lines)) if (phases, lines) == (down, rows) else 1
    return images, lines, phases


def _divisor(n: int, most: int) -> int:
    return max(part for part in range(1, n + 1) if n % part == 0 and part <= most)


def convolve(input: Tensor, packed: WinogradWeight) -> Tensor:
    """The convolution of an input (N, C, H, W), channels last in memory; the result is so too."""
    batch, channels = input.shape[:2]
    (down, right), (height, width) = packed.dilation, _output_sizes(input.shape, packed.padding, packed.dilation)
    rows, columns = _num_tiles((height, width), packed.dilation)
    padded = _padded(input.permute(0, 2, 3, 1), packed, 2 * down * (rows + 1), 2 * right * (columns + 1))
    # Two tiles that follow each other share half of their rows: halves[:, t] and halves[:, t + 1] are those of tile t.
    halves = padded.view(batch, rows + 1, 2, down, columns + 1, 2, right, channels)
    output = input.new_empty(batch, rows, 2, down, columns, 2, right, packed.out_channels)
    images, lines, phases = packed.at_once
    for image, line, phase in itertools.product(range(0, batch, images), range(0, rows, lines), range(0, down, phases)):
        part = halves[image : image + images, line : line + lines + 1, :, phase : phase + phases]
        out = output[image : image + images, line : line + lines, :, phase : phase + phases]
        _to_output(_products(_to_tiles(part), packed), out)
    y = output.view(batch, 2 * down * rows, 2 * right * columns, packed.out_channels)
    return y[:, :height, :width].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def _padded(input: Tensor, packed: WinogradWeight, height: int, width: int) -> Tensor:
    """input (N, H, W, C) with its zeros around, up to this size."""
    top, left = packed.padding
    below, right = height - input.shape[1] - top, width - input.shape[2] - left
    return torch.nn.functional.pad(input, (0, 0, left, right, top, below))


def _to_tiles(halves: Tensor) -> Tensor:
    """Bᵀ x B: (N, rows + 1, 2, down, columns + 1, 2, right, C) → (N, rows, down, columns, right, 4, 4, C)."""
    batch, rows, _, down, columns, _, right, channels = halves.shape
    first = halves.new_empty(batch, rows - 1, down, 4, columns, 2, right, channels)
    _combine([halves[:, i // 2 : rows - 1 + i // 2, i % 2] for i in range(4)], first.unbind(3))
    tiles = halves.new_empty(batch, rows - 1, down, columns - 1, right, 4, 4, channels)
    second = tiles.permute(6, 0, 1, 2, 5, 3, 4, 7)
    _combine([first[:, :, :, :, i // 2 : columns - 1 + i // 2, i % 2] for i in range(4)], second.unbind(0))
    return tiles


def _combine(x: list[Tensor], out: tuple[Tensor, ...]) -> None:
    """out = Bᵀ x."""
    torch.sub(x[0], x[2], out=out[0])
    torch.add(x[1], x[2], out=out[1])
    torch.sub(x[2], x[1], out=out[2])
    torch.sub(x[1], x[3], out=out[3])


def _products(tiles: Tensor, packed: WinogradWeight) -> Tensor:
    """The sums over the channels: (…, 4, 4, C) → (…, 4, 4, K)."""
    flat = tiles.view(1, 1, -1, 16 * tiles.shape[-1]).permute(0, 3, 1, 2)
    options: tuple[object, ...] = ((0, 0), (1, 1), (1, 1), 16, "none", [], "")
    sums = mkldnn._convolution_pointwise(flat, packed.weight, packed.bias, *options)
    return sums.permute(0, 2, 3, 1).view(*tiles.shape[:-1], packed.out_channels)


def _to_output(sums: Tensor, output: Tensor) -> None:
    """Aᵀ sums A: (N, rows, down, columns, right, 4, 4, K) → output (N, rows, 2, down, columns, 2, right, K)."""
    shape = sums.shape
    first = sums.new_empty(2, *shape[:5], *shape[6:])
    _reduce(sums.unbind(5), first.unbind(0))
    _reduce(first.unbind(6), output.permute(5, 2, 0, 1, 3, 4, 6, 7).unbind(0))


def _reduce(m: tuple[Tensor, ...], out: tuple[Tensor, ...]) -> None:
    """out = Aᵀ m."""
    torch.add(m[1], m[2], out=out[0]).add_(m[0])
    torch.sub(m[1], m[2], out=out[1]).sub_(m[3])


def _output_sizes(input_shape: Shape, padding: Pair, dilation: Pair) -> Pair:
    height, width = (size + 2 * p - 2 * d for size, p, d in zip(input_shape[2:], padding, dilation, strict=True))
    return height, width


def _num_tiles(output_sizes: Pair, dilation: Pair) -> Pair:
    """Rows and columns of tiles in each of the images that the dilation makes of one."""
    rows, columns = (-(-size // (2 * d)) for size, d in zip(output_sizes, dilation, strict=True))
    return rows, columns
