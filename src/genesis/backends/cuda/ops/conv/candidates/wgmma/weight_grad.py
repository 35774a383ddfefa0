"""The weight's gradient on Hopper (weight_grad.cu): float32 and 16-bit types."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Launch
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import Axis, forward_axis
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.dtypes import DType
from genesis.shapes import numel

if TYPE_CHECKING:
    from genesis.backends.cuda.driver.tensor_maps import Box, Pixels

_SOURCE = Path(__file__).with_suffix(".cu")
_TERMS = 64  # BK
_REACH = 8  # pixels at most between the first and the last tap of a window
_CHANNELS_APART = {dtypes.float32: 4, dtypes.float16: 8, dtypes.bfloat16: 8}  # 16 bytes, as the copy engine wants
_LEAST_CHANNELS = 16  # of a group; with fewer, most of a tile is empty
_LEAST_STEPS, _MOST_STEPS = 6, 128  # of a split: each ends with an addition in float32
# Of a split of 16-bit types, which is one chain of tensor cores' sums: they cut off, and drift in one direction. On an
# H200, 3136 steps were 2.3e-4 off; rounded to float16, which alone comes to 2.1e-4, 1.3e-4 may be.
_LONGEST_CHAIN = 1024
_MOST_BYTES = 256 << 20  # of partial sums
# Microseconds, as candidates for the convolutions of benchmarks/zoo_convs.json took in 16 bits on an H200: of a
# step with 64 columns, a block of 64 rows multiplied or 64 lines loaded; of 64 × 64 sums stored; of all else.
_MULTIPLIED, _LOADED, _STORED, _LAUNCHED, _FINISHED = 0.074, 0.104, 0.54, 0.8, 4.0
_BYTES_READ, _BYTES_OF_SUMS = 4e6, 3e6  # in a microsecond


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the kernel is compiled: the macros of its source."""

    columns: int
    stages: int
    consumers: int = 2
    products: int = 1  # of float32
    alternate: bool = False  # consumers have the same rows and take the pixels of every other stage
    taps: int = 1  # of a row that a tile computes
    windows: int = 1  # of the input that they read
    tap_rows: int = 1  # of those taps, another one for each consumer
    grouped: bool = False

    @property
    def rows(self) -> int:
        return 64 * self.sharers // self.tap_rows

    @property
    def sharers(self) -> int:
        """Consumers of one stage."""
        return 1 if self.alternate else self.consumers

    def cubin(self, dtype: DType) -> bytes:
        macros = {
            "BN": self.columns, "STAGES": self.stages, "CONSUMERS": self.consumers,
            "SPLIT": int(dtype is dtypes.float32), "ALTERNATE": int(self.alternate), "PRODUCTS": self.products,
            "TAPS": self.taps, "WINDOWS": self.windows, "TAP_ROWS": self.tap_rows,
            "GROUPED": int(self.grouped),
            "KIND": '"bf16"' if dtype is dtypes.bfloat16 else '"f16"',
        }  # fmt: skip
        return hopper.cubin("conv_wgmma_weight_grad", _SOURCE, tuple(macros.items()))

    def shared_memory(self, dtype: DType) -> int:
        # Tiles begin at multiples of 1024.
        pixels = self.tap_rows * self.windows * (_TERMS if self.taps == 1 else _TERMS + _REACH)
        return self.stages * (self.rows * _TERMS + self.columns * pixels) * dtype.itemsize + 1024

    def threads(self, dtype: DType) -> int:
        """One warpgroup loads, in float32 one splits, the others multiply."""
        return 128 * (self.consumers + (2 if dtype is dtypes.float32 else 1))


_SPLIT_SHAPES = (
    Shape(128, 3, products=3), Shape(64, 4, products=3), Shape(64, 6, products=3, alternate=True),
    Shape(64, 4, products=3, taps=3), Shape(64, 6, products=3, alternate=True, taps=3),
    Shape(64, 3, products=3, taps=3, windows=2), Shape(64, 4, products=3, alternate=True, taps=3, windows=2),
)  # fmt: skip
_ROUNDED_SHAPES = tuple(dataclasses.replace(shape, products=1) for shape in _SPLIT_SHAPES)
_PLAIN_SHAPES = (
    Shape(256, 4), Shape(128, 5, 3), Shape(128, 6), Shape(64, 8), Shape(64, 5, 4),
    Shape(64, 8, taps=3), Shape(64, 6, 3, taps=3), Shape(64, 6, 3, taps=3, tap_rows=3),
    Shape(64, 6, taps=3, windows=2), Shape(64, 5, 3, taps=3, windows=2),
)  # fmt: skip


def shapes(problem: ConvProblem) -> tuple[Shape, ...]:
    choice: tuple[Shape, ...] = _PLAIN_SHAPES
    if problem.dtype is dtypes.float32:
        choice = _SPLIT_SHAPES if problem.precision == "highest" else _ROUNDED_SHAPES
    windows, tap_rows = _windows(problem), problem.weight_shape[2]
    return tuple(
        dataclasses.replace(shape, grouped=problem.groups > 1)
        for shape in choice
        if shape.taps == 1
        or (windows is not None and windows.num_windows == shape.windows and tap_rows % shape.tap_rows == 0)
    )


class _Windows(NamedTuple):
    """How the three taps of a row read the input together."""

    num_windows: int  # where there are two, the middle tap has the second
    shift: int  # pixels between the first two taps of a window, in steps of the stride
    width: int  # of the lines: of the gradient, and zeros behind it


def _windows(problem: ConvProblem) -> _Windows | None:
    """None: a row has another number of taps, or they meet no common pixels."""
    p = problem
    taps, stride, dilation, padding = (each[-1] for each in (p.weight_shape, p.stride, p.dilation, p.padding))
    if taps != 3 or 2 * dilation % stride:
        return None
    together = dilation % stride == 0
    shift = (dilation if together else 2 * dilation) // stride
    reach = 2 * shift if together else shift  # of the last tap of a window
    out_width, in_width = p.output_shape[3], p.input_shape[3]
    # What the last taps find behind the line's end is the padding on the left of the next line, where that is enough.
    width = max(out_width, -(-(in_width + padding) // stride), out_width + reach - -(-padding // stride))
    windows = _Windows(1 if together else 2, shift, min(width, out_width + reach))
    fits = reach <= _REACH and hopper.is_within_reach(_lines(problem, windows), in_width)
    return windows if fits else None


def _lines(problem: ConvProblem, windows: _Windows) -> Axis:
    """The columns as windows are read."""
    return _axes(problem)[1]._replace(out_size=windows.width)


def weight_grads(prefix: str, problem: ConvProblem) -> list[WgmmaWeightGrad]:
    """The candidates for a problem, the best guess first."""
    if not _is_supported(problem):
        return []
    choice = [
        WgmmaWeightGrad(prefix, shape, splits, hopper.arithmetic(problem))
        for shape in shapes(problem)
        for splits in _worthwhile_splits(problem, shape)
    ]
    return sorted(choice, key=lambda candidate: candidate.estimate(problem))


class WgmmaWeightGrad(Candidate[ConvProblem]):
    """One shape of the kernel, and in how many parts the pixels are summed."""

    def __init__(self, prefix: str, shape: Shape, splits: int, arithmetic: str) -> None:
        self.shape, self.splits, self.arithmetic = shape, splits, arithmetic
        self.num_sums = splits * shape.consumers // shape.sharers  # of each result
        columns = f"{shape.columns}{f'*{shape.taps * shape.tap_rows}' if shape.taps > 1 else ''}"
        tile = f"{shape.rows}x{columns} stages {shape.stages}{' rounded' if arithmetic != FULL else ''}"
        self.name = f"{prefix}/weight_grad {tile} splits {splits}"

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem)

    def estimate(self, problem: ConvProblem) -> float:
        """A guess at the time: microseconds in 16 bits, steps of a tile of 64 columns in float32."""
        rounds = -(-_num_tiles(problem, self.shape) * self.splits // hopper.processors(problem))
        shape, columns = self.shape, self.shape.columns / 64
        products, lines = shape.sharers * columns * shape.taps, shape.rows / 64
        lines += columns * shape.windows * shape.tap_rows
        steps, num_bytes = _num_steps(problem, shape) / self.splits, self.workspace(problem)
        if problem.dtype is dtypes.float32:
            return rounds * (products + lines) * (steps + 3) + num_bytes / 2**20
        compute = rounds * (math.ceil(steps) * max(_MULTIPLIED * products, _LOADED * lines) + _STORED * products)
        finish = _FINISHED + num_bytes / _BYTES_OF_SUMS if num_bytes else 0
        return _LAUNCHED + max(compute, problem.bytes / _BYTES_READ) + finish

    def workspace(self, problem: ConvProblem) -> int:
        return self.num_sums * 4 * numel(problem.weight_shape) if self.num_sums > 1 else 0

    def prepare(self, problem: ConvProblem) -> Launch:
        return self.prepare_view(problem)

    def prepare_view(self, problem: ConvProblem, view: hopper.View | None = None) -> Launch:
        """The launch on an input that is dense, or lies in memory as view says."""
        from genesis.backends.cuda.driver.tensor_maps import MapKernel

        p, shape = problem, self.shape
        grad, pixels, geometry = _geometry(p, shape, self.splits)
        if view is not None:
            pixels = pixels._replace(shape=(*pixels.shape[:3], view.num_channels), strides=view.strides)
        kernel = MapKernel(p.device, "conv_wgmma_weight_grad", shape.cubin(p.dtype), shape.shared_memory(p.dtype))
        grid = min(_num_tiles(p, shape) * self.splits, hopper.processors(p))
        packed = hopper.geometry(_SOURCE).pack(**geometry)
        launch = kernel.prepare(grid, shape.threads(p.dtype), (grad, pixels), 1, packed)
        if self.num_sums == 1:
            return lambda stream, out, grad, x, *_: launch(stream, grad, x, out)
        finish = finisher(p, self.num_sums)

        def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
            launch(stream, grad, x, workspace)
            finish(stream, out, workspace, 0, 0)

        return run


def _is_supported(problem: ConvProblem) -> bool:
    p = problem
    outputs, inputs = p.weight_shape[0] // p.groups, p.weight_shape[1]
    return (
        p.direction == WEIGHT_GRAD
        and p.dtype in _CHANNELS_APART
        and p.alignment == 16
        and p.weight_shape[0] % _CHANNELS_APART[p.dtype] == 0
        and inputs % _CHANNELS_APART[p.dtype] == 0
        and min(outputs, inputs) >= _LEAST_CHANNELS
        and p.num_terms > 0
        and hopper.is_accurate(p, p.num_terms)
        and max(p.num_terms, numel(p.input_shape) // p.input_shape[1]) < 2**30
        and hopper.is_available(p.device)
        and all(hopper.is_within_reach(axis, size) for axis, size in zip(_axes(p), p.input_shape[2:], strict=True))
    )


def _axes(problem: ConvProblem) -> list[Axis]:
    p = problem
    along = zip(p.input_shape[2:], p.weight_shape[2:], p.stride, p.padding, p.dilation, strict=True)
    return [forward_axis(*each) for each in along]


def _geometry(problem: ConvProblem, shape: Shape, splits: int) -> tuple[Box | Pixels, Pixels, dict[str, int]]:
    """(the gradient's map, the input's, the members of the kernel's structure Geometry)."""
    from genesis.backends.cuda.driver.tensor_maps import Box, Pixels

    p = problem
    (outputs, _, *taps), (images, inputs, height, width) = p.weight_shape, p.input_shape
    axes, num_pixels, in_window, shift = _axes(p), _num_pixels(p, shape), _TERMS, 0
    loaded = 128 // p.dtype.itemsize
    grad: Box | Pixels = Box(p.dtype, (1, num_pixels, outputs), (1, _TERMS, loaded))
    if p.is_flat:  # one row of all pixels
        images, height, width = 1, 1, num_pixels
        axes = [axis._replace(out_size=size) for axis, size in zip(axes, (height, width), strict=True)]
    windows = _windows(p) if shape.taps > 1 else None
    if windows is not None:
        axes[1], in_window, shift = _lines(p, windows), _TERMS + _REACH, windows.shift
        results = (images, p.output_shape[2], p.output_shape[3], outputs)
        grad = Pixels(p.dtype, results, (0, 0), (0, windows.width - p.output_shape[3]), (1, 1), _TERMS, loaded)
    (low_y, high_y), (low_x, high_x) = map(hopper.bounds, axes, (height, width))
    input = Pixels(
        p.dtype, (images, height, width, inputs), (low_y, low_x), (high_y, high_x), p.stride, in_window, loaded
    )
    geometry = {
        "num_groups": p.groups, "num_outputs": outputs // p.groups, "num_inputs": inputs // p.groups,
        "num_pixels": num_pixels,
        "out_height": axes[0].out_size, "out_width": axes[1].out_size,
        "step_y": p.stride[0], "step_x": p.stride[1], "low_y": low_y, "low_x": low_x,
        "taps_y": taps[0], "taps_x": taps[1], "spread_y": p.dilation[0], "spread_x": p.dilation[1],
        "num_splits": splits, "true_width": p.output_shape[3], "shift": shift,
    }  # fmt: skip
    return grad, input, geometry


def _num_pixels(problem: ConvProblem, shape: Shape) -> int:
    """Pixels of the gradient, as they are read."""
    windows = _windows(problem) if shape.taps > 1 else None
    return numel(problem.output_shape[::2]) * (windows.width if windows is not None else problem.output_shape[3])


def _num_steps(problem: ConvProblem, shape: Shape) -> int:
    return -(-_num_pixels(problem, shape) // _TERMS)


def _num_tiles(problem: ConvProblem, shape: Shape) -> int:
    outputs, inputs, *taps = problem.weight_shape
    of_group = -(-outputs // problem.groups // shape.rows) * -(-inputs // shape.columns)
    return problem.groups * of_group * math.prod(taps) // (shape.taps * shape.tap_rows)


def _worthwhile_splits(problem: ConvProblem, shape: Shape) -> list[int]:
    """Splits for one to four rounds of all multiprocessors; more where a split's sums would be rounded or cut off too
    often."""
    tiles, processors, steps = _num_tiles(problem, shape), hopper.processors(problem), _num_steps(problem, shape)
    room = max(1, _MOST_BYTES // (4 * numel(problem.weight_shape)))
    is_chain = problem.dtype is not dtypes.float32
    longest = _MOST_STEPS if shape.products == 3 else _LONGEST_CHAIN if is_chain else steps
    least = min(-(-steps // longest), room)
    most = min(steps // _LEAST_STEPS, room)
    first = -(-least * tiles // processors)
    wanted = {rounds * processors // tiles for rounds in range(first, first + 4)}
    return sorted({least, *(max(least, min(splits, most)) for splits in wanted)})
