"""Convolutions in groups of 2 to 128 channels on a GPU: every candidate beside PyTorch's cuDNN and a copy, in one run.

    python benchmarks/bench_grouped.py                              all that 110 seconds suffice for
    python benchmarks/bench_grouped.py --shapes resnext-28 --dtypes bf16 tf32 --variants 9
    python benchmarks/bench_grouped.py --dry-run                    no GPU: tiny shapes on the simulated device

Layers of ResNeXt, RegNet and ShuffleNet, and some that cuDNN has no kernels for, forward and both gradients, in
bfloat16 and in float32 at "highest", or at "high" if asked for (tf32). Kernels are compiled by all cores while others
are measured. PyTorch takes the faster of both layouts. How times, errors and the guess are found, bench_depthwise.py
says.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import bench_depthwise
import torch
from bench_depthwise import Case, Measured, measure, table, write

from genesis import dtypes
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine import builders
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv.candidates.grouped.candidate import Grouped
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.errors import CompileError

NAME = "bench_grouped"
AnyCase = TypeVar("AnyCase", bound=Measured)


class Shape(NamedTuple):
    """N, C, H, W to outputs, with taps × taps, as padding keeps the size."""

    name: str
    input: tuple[int, int, int, int]
    outputs: int
    groups: int
    taps: int = 3
    stride: int = 1

    def problem(self, direction: str, dtype: dtypes.DType) -> ConvProblem:
        weight = (self.outputs, self.input[1] // self.groups, self.taps, self.taps)
        pairs = ((self.stride,) * 2, (self.taps // 2,) * 2)
        return ConvProblem(direction, self.input, weight, *pairs, groups=self.groups, dtype=dtype)


SHAPES = (
    Shape("resnext-28", (64, 256, 28, 28), 256, 32),  # 8 channels a group, as PERFORMANCE.md has it
    Shape("resnext-56", (64, 128, 56, 56), 128, 32),
    Shape("resnext-14", (64, 512, 14, 14), 512, 32),
    Shape("regnet-24", (128, 144, 28, 28), 144, 6),
    Shape("regnet-8", (128, 104, 28, 28), 104, 13),
    Shape("resnext-28-s2", (64, 256, 56, 56), 256, 32, 3, 2),
    Shape("regnet-16", (128, 208, 14, 14), 208, 13),
    Shape("shuffle-1x1", (128, 240, 28, 28), 60, 3, 1),
    Shape("regnet-56", (32, 448, 28, 28), 448, 8),
    Shape("resnext64-28", (32, 512, 28, 28), 512, 64),
    Shape("resnext-7", (64, 1024, 7, 7), 1024, 32),
    Shape("shuffle-1x1-up", (128, 60, 28, 28), 240, 3, 1),
    Shape("resnext64-56", (32, 256, 56, 56), 256, 64),
    Shape("resnext64-14-s2", (32, 1024, 28, 28), 1024, 64, 3, 2),
    Shape("regnet-56-14", (32, 896, 14, 14), 896, 16),
    Shape("regnet-56-56", (32, 224, 56, 56), 224, 4),
    Shape("regnet-56-s2", (32, 448, 56, 56), 448, 8, 3, 2),
    Shape("regnet-56-7", (32, 2016, 7, 7), 2016, 36),
    Shape("nfnet-14", (32, 384, 14, 14), 384, 6),
    Shape("nfnet-28", (32, 128, 28, 28), 128, 2),
    Shape("regnetx-16-s2", (64, 64, 112, 112), 64, 4, 3, 2),
    Shape("regnetx-16-28", (64, 128, 28, 28), 128, 8),
    Shape("regnetx-16-7", (64, 672, 7, 7), 672, 42),
    Shape("few-pixels-4", (16, 960, 7, 7), 960, 240),
    Shape("two-channels", (64, 256, 28, 28), 256, 128, 3, 2),
    Shape("five-taps-16", (64, 96, 56, 56), 96, 6, 5),
    Shape("wide-96", (32, 480, 14, 14), 480, 5),
)
_TINY = (Shape("tiny", (1, 6, 5, 6), 4, 2, 3, 2), Shape("tiny-1x1", (1, 8, 4, 5), 8, 2, 1))


def main() -> int:
    options = bench_depthwise.parser(__doc__, SHAPES, seconds=110)
    options.add_argument("--variants", type=int, default=6, help="of the grouped kernels, in each case (default: 6)")
    return bench_depthwise.run_cases(options.parse_args(), SHAPES, _TINY, run)


def run(arguments: argparse.Namespace, cases: list[Case], device: str) -> int:
    begin, rows, slowest = time.monotonic(), list[dict[str, Any]](), 0.0
    gpu = torch.cuda.get_device_name() if device == "cuda" else "simulated"
    print(f"{NAME}: {gpu}")
    with compiling(device) as jobs:
        waiting = [
            jobs.begin(case.problem, [each for each in chosen(case, arguments.variants) if isinstance(each, Grouped)])
            for case in cases
        ]
        for case, unfinished in zip(cases, waiting, strict=True):
            jobs.finish(unfinished, begin + arguments.seconds)
            began = time.monotonic()
            if began - begin + slowest > arguments.seconds:
                print(f"no time for {case.name} and what follows")
                break
            rows.append(measure(case, chosen(case, arguments.variants), arguments.rounds, device, True))
            slowest = max(slowest, time.monotonic() - began)
            if not arguments.dry_run:
                write(arguments.out, gpu, rows, NAME)
    print(table(rows))
    return 0


def chosen(case: Case, variants: int) -> list[Candidate[ConvProblem]]:
    """The guess, the most promising of the grouped kernels, and all else."""
    found = bench_depthwise.chosen(case)
    ours = [each.name for each in found if isinstance(each, Grouped)][:variants]
    return [each for each in found if not isinstance(each, Grouped) or each.name in ours]


class Jobs:
    """Candidates that are prepared as soon as other processes have compiled their kernels."""

    def __init__(self, built: builders.Builders) -> None:
        self._builders = built

    def begin(self, problem: ConvProblem, candidates: list[Candidate[ConvProblem]]) -> set[str]:
        """The names of those that are not ready yet: it shrinks with time."""
        unfinished = {each.name for each in candidates}
        for each in candidates:
            self._builders.start(functools.partial(_prepare, each, problem, unfinished))
        return unfinished

    def finish(self, unfinished: set[str], deadline: float) -> None:
        while unfinished and time.monotonic() < deadline:
            self._builders.advance(0.05)


def in_time(
    cases: Sequence[AnyCase], chosen: Sequence[list[Candidate[ConvProblem]]], seconds: float, device: str
) -> Iterator[tuple[AnyCase, list[Candidate[ConvProblem]]]]:
    """Cases with their candidates, once these are compiled, while those of the next ones are; none after that time."""
    begin = time.monotonic()
    with compiling(device) as jobs:
        waiting = [
            jobs.begin(case.problem, [each for each in found if not each.is_ready_made])
            for case, found in zip(cases, chosen, strict=True)
        ]
        for case, found, unfinished in zip(cases, chosen, waiting, strict=True):
            jobs.finish(unfinished, begin + seconds)
            if time.monotonic() - begin > seconds:
                print(f"no time for {case.name} and what follows")
                return
            yield case, found


def _prepare(candidate: Candidate[ConvProblem], problem: ConvProblem, unfinished: set[str]) -> None:
    with contextlib.suppress(KernelError, CompileError):  # measure() prints it
        candidate.prepare(problem)
    unfinished.discard(candidate.name)


@contextlib.contextmanager
def compiling(device: str) -> Iterator[Jobs]:
    built = builders.Builders(builders.compilers() if device == "cuda" else None)
    try:
        yield Jobs(built)
    finally:
        built.drop()
        builders.close()


if __name__ == "__main__":
    sys.exit(main())
