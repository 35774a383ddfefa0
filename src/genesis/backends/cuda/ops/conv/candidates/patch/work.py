"""How the pixels of a problem are shared out in tiles: what each kernel of patches says of its own."""

from __future__ import annotations

import abc
import dataclasses
import math
from functools import cached_property
from typing import Protocol, Self

from genesis.backends.contract import Pair
from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.shapes import Shape, numel


class AnyTile(Protocol):
    """A block's share of the pixels: rows × columns; and how many blocks the grid has for each multiprocessor."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @classmethod
    def named(cls, name: str) -> Self | None: ...


@dataclasses.dataclass(frozen=True)
class AnyWork(abc.ABC):
    """A tile of a problem: what it needs, and how much of it there is."""

    problem: ConvProblem
    tile: AnyTile

    @abc.abstractmethod
    def is_possible(self) -> bool:
        """Does the kernel have such a tile, and fit a multiprocessor?"""

    @property
    @abc.abstractmethod
    def seconds(self) -> float:
        """A guess: the time of products, shared memory and copies, and memory's beside it."""

    @property
    @abc.abstractmethod
    def num_threads(self) -> int: ...

    @property
    @abc.abstractmethod
    def shared_memory(self) -> int:
        """Bytes."""

    @property
    @abc.abstractmethod
    def num_slices(self) -> int:
        """Blocks side by side that have all channels."""

    @property
    @abc.abstractmethod
    def read_shape(self) -> Shape:
        """(N, C, H, W) of the images whose pixels the taps meet."""

    @property
    @abc.abstractmethod
    def images_shape(self) -> Shape:
        """(N, C, H, W) of the images whose pixels are shared out."""

    @property
    @abc.abstractmethod
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""

    @property
    def stride(self) -> Pair:
        return self.problem.stride

    @property
    def padding(self) -> Pair:
        return self.problem.padding

    @property
    def taps(self) -> Pair:
        """Rows and columns of the taps that a result meets."""
        return self.problem.weight_shape[2], self.problem.weight_shape[3]

    @property
    def tap_macros(self) -> dict[str, int]:
        """Macros of the taps, and of where they lie."""
        p, taps, stride, padding = self.problem, self.taps, self.stride, self.padding
        return {
            "TAPS_Y": taps[0], "TAPS_X": taps[1], "STRIDE_Y": stride[0], "STRIDE_X": stride[1],
            "PADDING_Y": padding[0], "PADDING_X": padding[1], "DILATION_Y": p.dilation[0], "DILATION_X": p.dilation[1],
            "TILE_Y": self.tile.rows, "TILE_X": self.tile.columns,
        }  # fmt: skip

    @property
    def geometry(self) -> dict[str, int]:
        """The numbers that the kernel takes, but for the slices."""
        (_, _, height, width), (_, _, out_height, out_width) = self.read_shape, self.images_shape
        _, bands, strips = self.cover
        return {
            "iterations": self.iterations, "num_units": self.num_tiles, "strips": strips, "bands": bands,
            "height": height, "width": width, "out_height": out_height, "out_width": out_width,
        }  # fmt: skip

    @cached_property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of the pixels that a tile's taps meet."""
        height, width = (
            (size - 1) * step + (taps - 1) * dilation + 1
            for size, step, taps, dilation in zip(
                (self.tile.rows, self.tile.columns), self.stride, self.taps, self.problem.dilation, strict=True
            )
        )
        return height, width

    @property
    def chunks(self) -> int:
        """Groups of 16 pixels of a tile, as tensor cores take them."""
        return self.tile.rows // 2 * self.tile.columns // 8

    @cached_property
    def cover(self) -> tuple[int, int, int]:
        """Images, tiles in a column and in a row."""
        images, _, height, width = self.images_shape
        return images, -(-height // self.tile.rows), -(-width // self.tile.columns)

    @cached_property
    def num_tiles(self) -> int:
        return math.prod(self.cover)

    @cached_property
    def iterations(self) -> int:
        """Tiles of a block, one after the other."""
        processors = driver.get().properties(self.problem.device).multiprocessor_count
        return -(-self.num_tiles // max(1, self.tile.blocks * processors // self.num_slices))

    @property
    def parts(self) -> int:
        """Blocks that share the tiles."""
        return -(-self.num_tiles // self.iterations)

    @property
    def grid(self) -> int:
        return self.parts * self.num_slices


class ForwardWork(AnyWork):
    """The work of a forward, or of an input's gradient, which is one over the gradient."""

    @property
    def channels(self) -> int:
        """The number of channels that are summed."""
        return self.problem.first_shape[1]

    @property
    def stride(self) -> Pair:
        return (1, 1) if self.problem.direction == INPUT_GRAD else self.problem.stride

    @property
    def padding(self) -> Pair:
        p = self.problem
        if p.direction != INPUT_GRAD:
            return p.padding
        y, x = (d * (n - 1) - pad for d, n, pad in zip(p.dilation, p.weight_shape[2:], p.padding, strict=True))
        return y, x

    @property
    def read_shape(self) -> Shape:
        return self.problem.first_shape

    @property
    def images_shape(self) -> Shape:
        return self.problem.result_shape

    @property
    def geometry(self) -> dict[str, int]:
        return super().geometry | {"slices": self.num_slices}

    @property
    def common_macros(self) -> dict[str, int]:
        p = self.problem
        return self.tap_macros | {
            "CHANNELS": self.channels, "OUTPUTS": p.result_shape[1], "GRANULE": shape.granule(p, self.channels),
            "INPUT_GRAD": int(p.direction == INPUT_GRAD), "BIAS": int(p.bias), "RESIDUAL": int(p.residual),
            "RELU": int(p.activation == "relu"),
        }  # fmt: skip


class ChannelTile(AnyTile, Protocol):
    """It also has a share of the channels."""

    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class WeightGradWork(AnyWork):
    """The work of a weight's gradient: blocks share the pixels of the gradient, and each has a part of the result."""

    tile: ChannelTile

    @property
    def read_shape(self) -> Shape:
        return self.problem.input_shape

    @property
    def images_shape(self) -> Shape:
        return self.problem.output_shape

    @property
    def slices(self) -> tuple[int, int]:
        """Blocks side by side that have all outputs, and all inputs."""
        outputs, inputs = self.problem.weight_shape[:2]
        return -(-outputs // self.tile.outputs), -(-inputs // self.tile.inputs)

    @cached_property
    def num_slices(self) -> int:
        return math.prod(self.slices)

    @property
    def geometry(self) -> dict[str, int]:
        outputs, inputs = self.slices
        return super().geometry | {"slices_outputs": outputs, "slices_inputs": inputs}

    @property
    def workspace(self) -> int:
        """Bytes of the parts."""
        return self.parts * numel(self.problem.weight_shape) * 4

    @cached_property
    def granules(self) -> tuple[int, int]:
        """Bytes that are copied at once: of the gradient, of the input."""
        (outputs, inputs, *_), tile = self.problem.weight_shape, self.tile
        of_grad, of_input = (
            shape.granule(self.problem, *each) for each in ((outputs, tile.outputs), (inputs, tile.inputs))
        )
        return of_grad, of_input

    @cached_property
    def units(self) -> int:
        """The units of 16 bytes that a tile takes in shared memory."""
        of_grad, of_input = (shape.pitch(self.problem, n) for n in (self.tile.outputs, self.tile.inputs))
        pixels = self.tile.rows * self.tile.columns
        return pixels * of_grad + math.prod(self.patch) * of_input + 2 * shape.SLACK

    @property
    def copies(self) -> float:
        """The number of copies of a tile."""
        (of_grad, of_input), tile, size = self.granules, self.tile, self.problem.dtype.itemsize
        pixels = tile.rows * tile.columns
        return (pixels * tile.outputs / of_grad + math.prod(self.patch) * tile.inputs / of_input) * size

    def slowest(self, work: float, num_threads: int, resident: int) -> float:
        """Seconds of so much work, in clocks of a multiprocessor; or memory's; and of adding up the parts."""
        p, tile = self.problem, self.tile
        pixels, patch = tile.rows * tile.columns, math.prod(self.patch)
        compute = work / shape.CLOCK / shape.busy(p, self.grid, num_threads, resident)
        halo = (pixels * tile.outputs + patch * tile.inputs) / (pixels * (tile.outputs + tile.inputs))
        joined = 2 * self.workspace / shape.JOINED_PER_SECOND
        return max(compute, p.bytes * halo / shape.BYTES_PER_SECOND) + joined + 3e-6

    @property
    def common_macros(self) -> dict[str, int]:
        (outputs, inputs, *_), (of_grad, of_input) = self.problem.weight_shape, self.granules
        return self.tap_macros | {
            "OUTPUTS": outputs, "INPUTS": inputs, "BLOCK_OUTPUTS": self.tile.outputs, "BLOCK_INPUTS": self.tile.inputs,
            "GRAD_GRANULE": of_grad, "INPUT_GRANULE": of_input,
        }  # fmt: skip
