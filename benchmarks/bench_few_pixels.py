"""1×1 convolutions of few pixels on a GPU: every tile of the skinny GEMM beside the best of all others and PyTorch.

    python benchmarks/bench_few_pixels.py                              all that 400 seconds suffice for
    python benchmarks/bench_few_pixels.py --shapes regnet-down classifier --dtypes bf16 --directions forward
    python benchmarks/bench_few_pixels.py --dry-run                    no GPU: tiny shapes on the simulated device

Squeeze-and-excite layers of RegNetY, EfficientNet and MobileNetV3, and classifiers; forward and both gradients,
bfloat16 and float32 at "highest". All sides of each case are printed. Times are replays of captured graphs, the sides
in turns, the second cache warm; the copy of as many bytes shows what a launch alone takes. Other processes compile
first. How errors are found, bench_depthwise.py says; what is further off than the tuner allows is printed as wrong, and
counts for nothing.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from typing import Any, NamedTuple

import bench_depthwise
import torch
from bench_depthwise import Case, measure, write
from bench_grouped import in_time

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import Candidate, admissible
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.candidate import SkinnyGemmFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem

NAME = "bench_few_pixels"
_PREFIX = SkinnyGemmFamily.prefix


class Shape(NamedTuple):
    """Images, inputs and the size of an image, to outputs."""

    name: str
    images: int
    inputs: int
    size: int
    outputs: int

    def problem(self, direction: str, dtype: dtypes.DType) -> ConvProblem:
        input_shape = (self.images, self.inputs, self.size, self.size)
        return ConvProblem(direction, input_shape, (self.outputs, self.inputs, 1, 1), dtype=dtype)


SHAPES = (
    Shape("regnet-down", 64, 440, 1, 110),
    Shape("regnet-up", 64, 110, 1, 440),
    Shape("regnet-32-down", 32, 2016, 1, 224),
    Shape("regnet-32-up", 32, 224, 1, 2016),
    Shape("efficient-up", 8, 48, 1, 1152),
    Shape("efficient-down", 8, 1152, 1, 48),
    Shape("mobile-up", 64, 10, 1, 240),
    Shape("mobile-down", 64, 240, 1, 10),
    Shape("odd", 32, 111, 1, 27),
    Shape("classifier", 1, 2048, 1, 1000),
    Shape("classifier-64", 64, 1280, 1, 1000),
    Shape("seven-1", 1, 896, 7, 224),
    Shape("seven-8", 8, 896, 7, 224),
    Shape("pixels-512", 512, 256, 1, 256),
    Shape("pixels-1024", 1024, 128, 1, 128),
)
_TINY = (Shape("tiny", 3, 10, 1, 6), Shape("tiny-4", 2, 5, 2, 8))


def main() -> int:
    options = bench_depthwise.parser(__doc__, SHAPES, seconds=400)
    options.add_argument("--others", type=int, default=3, help="of each other family, in each case (default: 3)")
    return bench_depthwise.run_cases(options.parse_args(), SHAPES, _TINY, run)


def run(arguments: argparse.Namespace, cases: list[Case], device: str) -> int:
    rows = list[dict[str, Any]]()
    gpu = torch.cuda.get_device_name() if device == "cuda" else "simulated"
    print(f"{NAME}: {gpu}")
    candidates = [chosen(case.problem, arguments.others) for case in cases]
    for case, found in in_time(cases, candidates, arguments.seconds, device):
        rows.append(compared(measure(case, found, arguments.rounds, device, both_layouts=True, goal=math.inf)))
        if not arguments.dry_run:
            write(arguments.out, gpu, rows, NAME, table)
    print(table(rows))
    return 0


def chosen(problem: ConvProblem, others: int) -> list[Candidate[ConvProblem]]:
    """The guess, all tiles of the skinny GEMM that the tuner would try, and the first few of each other family."""
    found = {guess.name: guess for guess in itertools.islice(CONV.candidates(problem), 1)}
    for family in families.FAMILIES:
        own = family.prefix == _PREFIX
        trials = family.trials(problem) if own else family.variants(problem)
        for candidate in itertools.islice(trials, None if own else others):
            if admissible(candidate, problem):
                found.setdefault(candidate.name, candidate)
    return list(found.values())


def compared(row: dict[str, Any]) -> dict[str, Any]:
    """The row, with the fastest of either side whose result is right; None where there is none."""
    figures = row["candidates"]
    right = [name for name in figures if "/" in name and name not in row["wrong"]]
    sides = {
        "ours": [name for name in right if name.startswith(f"{_PREFIX}/")],
        "others": [name for name in right if not name.startswith(f"{_PREFIX}/")],
    }
    for side, names in sides.items():
        fastest = min(names, key=lambda name: figures[name]["us"], default=None)
        row[side] = None if fastest is None else {"name": fastest, **figures[fastest]}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| case | copy µs | PyTorch µs | other µs | ours µs | guess µs | × PyTorch | × other | ours | other |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        copy, theirs, guess = (row[each]["us"] for each in ("copy", "torch", "guess"))
        ours, others = row["ours"], row["others"]
        names = [each["name"] if each else "" for each in (ours, others)]
        us = [f"{each['us']:.2f}" if each else "" for each in (others, ours)]
        gains = [
            f"{theirs / ours['us']:.2f}" if ours else "",
            f"{others['us'] / ours['us']:.2f}" if ours and others else "",
        ]
        cells = [row["case"], f"{copy:.2f}", f"{theirs:.2f}", *us, f"{guess:.2f}", *gains, *names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
