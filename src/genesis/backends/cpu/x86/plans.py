"""The choice of an algorithm, and its job, which layers alike share whatever their weights are."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from genesis.backends.cpu.x86 import choices, depthwise, direct, winograd
from genesis.backends.cpu.x86.direct import Options
from genesis.backends.cpu.x86.driver import Job
from genesis.backends.cpu.x86.problem import Problem, split


class Planned(NamedTuple):
    """by_tiles: its weights are those of Winograd's algorithm."""

    job: Job
    by_tiles: bool = False
    scratch_bytes: int = 0


def guess(problem: Problem, wide: bool, num_threads: int) -> str:
    """The algorithm of ours that is expected to be the fastest; the result is not empty."""
    if problem.geometry.groups != 1:
        return choices.DEPTHWISE
    if winograd.is_supported(problem, wide) and winograd.pays(problem, wide, num_threads):
        return choices.TILES
    by_weights = math.prod(problem.weight_shape) > math.prod(problem.input_shape)
    return choices.WEIGHTS if by_weights else choices.PIXELS


@functools.lru_cache(256)
def planned(problem: Problem, wide: bool, num_threads: int, algorithm: str, summands: int = direct.SUMMANDS) -> Planned:
    """By an algorithm of ours; summands: of a sum in a register of direct convolution."""
    if algorithm == choices.DEPTHWISE:
        return Planned(depthwise.job(problem, wide, num_threads))
    widths = widths_of(problem.weight_shape[0], wide)
    if algorithm == choices.TILES:
        planner = winograd.Winograd(problem, wide, num_threads, widths)
        return Planned(planner.job(), True, planner.scratch_bytes)
    options = Options(wide, num_threads, algorithm == choices.WEIGHTS)
    return Planned(direct.Direct(problem, options, widths, direct.parts_of(problem.weight_shape, summands)).job())


def widths_of(out_channels: int, wide: bool) -> list[int]:
    """The blocks of channels of the result, in vectors."""
    return split(-(-out_channels // (16 if wide else 8)), 4 if wide else 2)
