"""Group norm and its activation in the input's order of memory, channels first or last, without a copy.

A group that fits into a program's registers is read once (whole_groups.py); a larger one twice, with partial sums in
between.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from genesis.backends.cuda.launch.planned import Run, into_new, planned
from genesis.backends.cuda.launch.reduction_grid import power_of_2, programs
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.activation import fused
from genesis.backends.cuda.ops.norm.kernels import group_norm as kernels
from genesis.backends.cuda.ops.norm.kernels import whole_groups
from genesis.backends.cuda.ops.norm.normalize import contiguous, dense_like, is_wide
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.reduction.launch import accumulator
from genesis.backends.cuda.ops.storage.rows import address
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of

Results = tuple[DeviceArray | None, ...]

_WHOLE = 16384  # lanes of 4 bytes of a group that one program holds
_LEAST_RUN, _SMALL_RUN = 64, 16  # bytes side by side in a whole group; the latter in arrays of at most
_SMALL = 4 << 20  # bytes, where three launches take longer than unused parts of what is read
_TILE = 2048
_LEAST_TILES = 4  # of a split: its partial sums must be few beside what it reads


class _Shape(NamedTuple):
    """A dense array as samples of places and channels, and how far apart in memory those are."""

    num_samples: int
    num_places: int
    num_groups: int
    per_group: int
    place_step: int
    channel_step: int

    @property
    def num_channels(self) -> int:
        return self.num_groups * self.per_group

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Arrange them as the kernels of two passes take them."""
        return self.num_places, self.num_channels, self.place_step, self.channel_step

    def whole(self, x: Layout) -> dict[str, int] | None:
        """The constants of a kernel whose programs hold a group each; None if that is too large, or lies scattered."""
        block_places, block_channels = power_of_2(self.num_places), power_of_2(self.per_group)
        lanes = block_places * block_channels
        run = x.dtype.itemsize * (self.num_places * self.per_group if self.place_step == 1 else self.per_group)
        least_run = _SMALL_RUN if x.size * x.dtype.itemsize <= _SMALL else _LEAST_RUN
        small = run >= min(least_run, x.dtype.itemsize * self.num_channels)
        if not small or lanes * max(x.dtype.itemsize, 4) > _WHOLE * 4:
            return None
        num_warps = min(max(lanes // 1024, 1), 16)
        blocks = {"BLOCK_PLACES": block_places, "BLOCK_CHANNELS": block_channels}
        return {"PER_GROUP": self.per_group, **blocks, "num_warps": num_warps}

    def tile(self) -> dict[str, int]:
        """The constants of a kernel of two passes: the dimension that is innermost in memory fills it first."""
        if self.channel_step == 1:
            channels = _least_waste(self.num_channels, (128, 64, 32))
            return {"BLOCK_PLACES": min(_TILE // channels, power_of_2(self.num_places)), "BLOCK_CHANNELS": channels}
        places = _least_waste(self.num_places, (1024, 512, 256, 128, 64))
        return {"BLOCK_PLACES": places, "BLOCK_CHANNELS": min(_TILE // places, power_of_2(self.num_channels))}


def _least_waste(size: int, blocks: tuple[int, ...]) -> int:
    """The largest of the blocks that leave the fewest lanes idle at the end, within a twentieth.

    >>> _least_waste(320, (128, 64, 32)), _least_waste(96, (128, 64, 32)), _least_waste(20, (128, 64, 32))
    (64, 32, 32)
    """
    idle = {block: -(-size // block) * block / size for block in blocks}
    least = min(idle.values())
    return min(next(block for block in blocks if idle[block] <= least + 0.05), power_of_2(size))


class _Splits(NamedTuple):
    """The shares of a sample's places that a program of the first pass sums up."""

    num_splits: int
    places_per_split: int
    num_programs: int


def _splits(shape: _Shape, tile: dict[str, int], device: int, resident: int) -> _Splits:
    """Return as many as run at once, resident on each multiprocessor: a last wave would run nearly alone."""
    beside = shape.num_samples * -(-shape.num_channels // tile["BLOCK_CHANNELS"])
    num_tiles = -(-shape.num_places // tile["BLOCK_PLACES"])
    wanted = max(1, min(programs(device) * resident // 8 // beside, num_tiles // _LEAST_TILES))
    tiles = -(-num_tiles // wanted)
    num_splits = -(-num_tiles // tiles)
    return _Splits(num_splits, tiles * tile["BLOCK_PLACES"], beside * num_splits)


@functools.lru_cache(4096)
def _shape_of(x: Layout, num_groups: int) -> _Shape | None:
    """None if the array is not dense, or its order of memory is another one."""
    num_samples, num_channels, *rest = x.shape
    num_places = math.prod(rest)
    if not is_dense(x) or (num_samples > 1 and x.strides[0] != num_channels * num_places):
        return None
    if num_channels == 1 or num_places == 1 or x.strides[1] == num_places:
        # One place, or one channel: any order is that of channels first.
        steps = (1, num_places)
    elif x.strides[1] == 1:
        steps = (num_channels, 1)
    else:
        return None
    return _Shape(num_samples, num_places, num_groups, num_channels // num_groups, *steps)


def ordered(x: DeviceArray) -> DeviceArray:
    """x, or a copy of it in row-major order where the kernels cannot walk through x."""
    return x if _shape_of(x._layout or x.layout, 1) is not None else contiguous(x)


@planned
def forward(
    x: Layout, weight: Layout | None, bias: Layout | None, num_groups: int, eps: float, activation: str | None
) -> Run[tuple[DeviceArray, DeviceArray, DeviceArray]]:
    """run(x, weight, bias): y, mean, inverse deviation."""
    shape = _shape_of(x, num_groups)
    assert shape is not None
    y, device = dense_like(x), x.device_index
    statistic = layout_of((shape.num_samples, num_groups), accumulator(x.dtype), device)
    constants = {"COMPUTE": COMPUTE[x.dtype], "WIDE": is_wide(x), **fused.forward(activation, x.dtype)}
    whole = shape.whole(x)
    if whole is not None:
        launch = prepare_raw(
            whole_groups._whole_group_kernel, device, (statistic.size,), (y, statistic, statistic, x, weight, bias),
            *_whole_numbers(shape), eps, **constants, **whole,
        )  # fmt: skip
        return into_new(launch, y, statistic, statistic)  # type: ignore[return-value]
    tile = shape.tile()
    find = _statistics(x, shape, tile, statistic, eps)
    num_blocks = -(-shape.num_places // tile["BLOCK_PLACES"])
    apply = prepare_raw(
        kernels._group_apply_kernel, device, (_num_programs(shape, tile, num_blocks),),
        (y, x, statistic, statistic, weight, bias), *shape.steps, num_blocks, shape.per_group, **constants, **tile,
    )  # fmt: skip

    def run(
        x: DeviceArray, weight: DeviceArray | None, bias: DeviceArray | None
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        stream = streams.current_handle(device)
        mean, inverse_std = find(stream, x)
        result = y.new(stream)
        places = (mean.data_pointer, inverse_std.data_pointer, address(weight), address(bias))
        apply(stream, result.data_pointer, x.data_pointer, *places)
        return result, mean, inverse_std

    return run


def _statistics(
    x: Layout, shape: _Shape, tile: dict[str, int], statistic: Layout, eps: float
) -> Run[tuple[DeviceArray, DeviceArray]]:
    """run(stream, x): mean and inverse deviation."""
    device, splits = x.device_index, _splits(shape, tile, x.device_index, 8)
    width = math.gcd(shape.per_group & -shape.per_group, tile["BLOCK_CHANNELS"])
    part = layout_of((shape.num_samples, splits.num_splits, shape.num_channels // width), statistic.dtype, device)
    first = prepare_raw(
        kernels._group_moments_kernel, device, (splits.num_programs,), (part, part, x), *shape.steps, *splits[:2],
        COMPUTE=COMPUTE[x.dtype], WIDE=is_wide(x), WIDTH=width, **tile,
    )  # fmt: skip
    num_rows, per_group = statistic.size, shape.per_group // width
    block_items = min(power_of_2(splits.num_splits * per_group), _TILE)
    block_rows = min(_TILE // block_items, power_of_2(num_rows), 64)
    last = prepare_raw(
        kernels._group_statistics_kernel, device, (-(-num_rows // block_rows),), (statistic, statistic, part, part),
        num_rows, shape.num_groups, shape.num_places, *splits[:2], per_group, eps, COMPUTE=COMPUTE[statistic.dtype],
        WIDTH=width, BLOCK_ROWS=block_rows, BLOCK_ITEMS=block_items,
    )  # fmt: skip

    def run(stream: int, x: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        mean, inverse_std = statistic.new(stream), statistic.new(stream)
        means, squares = part.new(stream), part.new(stream)
        places = (means.data_pointer, squares.data_pointer)
        first(stream, *places, x.data_pointer)
        last(stream, mean.data_pointer, inverse_std.data_pointer, *places)
        return mean, inverse_std

    return run


@planned
def backward(
    grad: Layout, x: Layout, weight: Layout | None, bias: Layout | None, mean: Layout, inverse_std: Layout,
    needs: tuple[bool, bool, bool], how: tuple[int, str | None],
) -> Run[Results]:  # fmt: skip
    """run(grad, x, weight, bias, mean, inverse_std): gradients of x, weight, bias. how: num_groups, activation."""
    num_groups, activation = how
    shape = _shape_of(x, num_groups)
    assert shape is not None
    whole = shape.whole(x)
    constants = {"COMPUTE": COMPUTE[x.dtype], "WIDE": is_wide(x), **fused.backward(activation, x.dtype)}
    if whole is None:
        return _in_two_passes(grad, x, weight, bias, mean, shape, needs, constants)
    device, grad_input = x.device_index, dense_like(x) if needs[0] else None
    sums = layout_of((shape.num_samples, 2, shape.num_channels), mean.dtype, device) if any(needs[1:]) else None
    launch = prepare_raw(
        whole_groups._whole_group_backward_kernel, device, (mean.size,),
        (grad_input, sums, grad, x, mean, inverse_std, weight, bias), *_whole_numbers(shape), **constants, **whole,
    )  # fmt: skip
    finish = _gradients(x, weight, mean, shape, (False, *needs[1:])) if sums else None

    def run(grad: DeviceArray, x: DeviceArray, *others: DeviceArray | None) -> Results:
        stream = streams.current_handle(device)
        result, partial = (None if each is None else each.new(stream) for each in (grad_input, sums))
        weight, bias, mean, inverse_std = others
        places = [address(each) for each in (mean, inverse_std, weight, bias)]
        launch(stream, address(result), address(partial), grad.data_pointer, x.data_pointer, *places)
        if finish is None:
            return result, None, None
        return result, *finish(stream, partial, inverse_std, weight)[2:]

    return run


def _in_two_passes(
    grad: Layout, x: Layout, weight: Layout | None, bias: Layout | None, mean: Layout, shape: _Shape,
    needs: tuple[bool, bool, bool], constants: dict[str, object],
) -> Run[Results]:  # fmt: skip
    device, tile, grad_input = x.device_index, shape.tile(), dense_like(x)
    splits = _splits(shape, tile, device, 3)
    sums = layout_of((shape.num_samples, splits.num_splits, 2 * shape.num_channels), mean.dtype, device)
    first = prepare_raw(
        kernels._group_sums_kernel, device, (splits.num_programs,), (sums, grad, x, mean, mean, weight, bias),
        *shape.steps, *splits[:2], shape.per_group, **constants, **tile, num_warps=8, maxnreg=80,
    )  # fmt: skip
    finish = _gradients(x, weight, mean, shape, needs)
    num_blocks = -(-shape.num_places // tile["BLOCK_PLACES"])
    apply = prepare_raw(
        kernels._group_apply_backward_kernel, device, (_num_programs(shape, tile, num_blocks),),
        (grad_input, grad, x, mean, mean, weight, bias, mean, mean), *shape.steps, num_blocks, shape.per_group,
        **constants, **tile,
    )  # fmt: skip

    def run(grad: DeviceArray, x: DeviceArray, *others: DeviceArray | None) -> Results:
        stream = streams.current_handle(device)
        weight, bias, mean, inverse_std = others
        known = [address(each) for each in (mean, inverse_std, weight, bias)]
        partial = sums.new(stream)
        first(stream, partial.data_pointer, grad.data_pointer, x.data_pointer, *known)
        if splits.num_splits > 1:
            partial = reduction.sum_in(partial, (1,), False, partial.dtype)
        average, slope, *gradients = finish(stream, partial, inverse_std, weight)
        if not needs[0]:
            return None, *gradients
        result = grad_input.new(stream)
        averages = (address(average), address(slope))
        apply(stream, result.data_pointer, grad.data_pointer, x.data_pointer, *known, *averages)
        return result, *gradients

    return run


def _gradients(
    x: Layout, weight: Layout | None, statistic: Layout, shape: _Shape, needs: tuple[bool, bool, bool]
) -> Run[Results]:
    """run(stream, sums, inverse_std, weight): from each sample's sums the averages of its groups that the input's
    gradient takes, and the gradients of weight and bias."""
    device, wide = x.device_index, statistic.dtype
    gradient = layout_of((shape.num_channels,), x.dtype if weight is None else weight.dtype, device)
    sums = layout_of((shape.num_samples, 2, shape.num_channels), wide, device)
    made = (*(statistic if needs[0] else None,) * 2, *(gradient if need else None for need in needs[1:]))
    members = min(power_of_2(shape.per_group), 256)
    rows = min(max(1024 // members, 1), power_of_2(statistic.size))
    num_programs = -(-statistic.size // rows) if needs[0] else 0
    channels = min(64, power_of_2(shape.num_channels))
    samples = min(32, power_of_2(shape.num_samples))
    num_blocks = -(-shape.num_channels // channels) if any(needs[1:]) else 0
    launch = prepare_raw(
        kernels._group_gradients_kernel, device, (num_programs + num_blocks,), (*made, sums, statistic, weight),
        shape.num_samples, shape.num_groups, shape.per_group, num_programs,
        1.0 / (shape.num_places * shape.per_group), COMPUTE=COMPUTE[wide], BLOCK_ROWS=rows, BLOCK_MEMBERS=members,
        BLOCK_SAMPLES=samples, BLOCK_CHANNELS=channels,
    )  # fmt: skip

    def run(stream: int, sums: DeviceArray, inverse_std: DeviceArray, weight: DeviceArray | None) -> Results:
        results = [None if each is None else each.new(stream) for each in made]
        places = (sums.data_pointer, inverse_std.data_pointer, address(weight))
        launch(stream, *map(address, results), *places)
        return tuple(results)

    return run


def _num_programs(shape: _Shape, tile: dict[str, int], num_blocks: int) -> int:
    return shape.num_samples * num_blocks * -(-shape.num_channels // tile["BLOCK_CHANNELS"])


def _whole_numbers(shape: _Shape) -> tuple[int | float, ...]:
    count = float(shape.num_places * shape.per_group)
    return shape.num_places, shape.num_groups, shape.place_step, shape.channel_step, count
