"""Convolutions of few channels on a GPU: kernels of patches beside the best of all others, each direction.

    python benchmarks/bench_few_channels.py                   layers of HRNet, Res2Net, EfficientNetV2, U-Net, YOLO
    python benchmarks/bench_few_channels.py --float32         in float32, all bits of which count; first layers, too
    python benchmarks/bench_few_channels.py --first-layers    in bfloat16, of images: the stem's kernels
    python benchmarks/bench_few_channels.py --seconds 60      as many as that suffices for

Times are the tuner's: the median of some runs, each after the caches have been overwritten, launches included. Beside
the patches' trials, or the stem's, are the first candidates of each other family, the libraries' among them. All are
compiled before the first is timed: compilers in threads would delay its launches. A candidate of patches or the stem's
whose error is above the tuner's bound ends the benchmark.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_timing
from harness import RESULTS, Comparison

from genesis import dtypes
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.engine.candidate import Candidate, admissible
from genesis.backends.cuda.ops.conv import accuracy, families
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem

NAME = "bench_few_channels"
DIRECTIONS = (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
_MOST_WORKSPACE = 1 << 30  # bytes

# (inputs, outputs), size, taps, stride, images
CASES = (
    ((18, 18), 56, 3, 1, 32), ((26, 26), 56, 3, 1, 32), ((24, 24), 112, 3, 1, 32), ((32, 32), 128, 3, 1, 8),
    ((32, 32), 256, 3, 1, 2), ((36, 36), 28, 3, 1, 32), ((52, 52), 28, 3, 1, 32), ((72, 72), 14, 3, 1, 32),
    ((32, 64), 128, 3, 1, 8), ((64, 32), 128, 3, 1, 8), ((16, 32), 80, 3, 2, 16), ((18, 36), 56, 3, 2, 32),
    ((24, 48), 112, 3, 2, 32), ((32, 64), 112, 3, 2, 32), ((48, 48), 64, 3, 1, 16), ((16, 16), 112, 3, 1, 32),
    ((8, 16), 224, 3, 1, 8), ((64, 64), 56, 3, 1, 64), ((32, 32), 56, 5, 1, 16), ((64, 64), 28, 5, 1, 16),
    ((12, 24), 96, 3, 1, 16), ((32, 128), 28, 3, 1, 32), ((128, 32), 28, 3, 1, 32),
)  # fmt: skip
CASES_FLOAT32 = (
    ((3, 64), 224, 3, 2, 64), ((3, 32), 256, 3, 1, 32), ((3, 24), 224, 3, 2, 64), ((3, 64), 224, 7, 2, 32),
    ((18, 18), 56, 3, 1, 32), ((32, 32), 112, 3, 1, 32), ((18, 36), 56, 3, 2, 32), ((36, 36), 28, 3, 1, 32),
    ((48, 48), 56, 1, 1, 32), ((24, 144), 64, 1, 1, 8), ((240, 40), 28, 1, 1, 64), ((40, 240), 28, 1, 1, 64),
    ((64, 32), 56, 1, 1, 64), ((16, 24), 56, 1, 1, 64), ((24, 36), 56, 1, 1, 64), ((40, 60), 28, 1, 1, 64),
    ((64, 64), 56, 1, 1, 32), ((64, 256), 56, 1, 1, 32), ((96, 24), 56, 1, 1, 64), ((18, 32), 56, 1, 1, 32),
    ((64, 64), 56, 3, 1, 32), ((32, 64), 128, 3, 1, 8), ((72, 36), 14, 1, 1, 32), ((8, 16), 113, 2, 1, 64),
    ((16, 32), 112, 3, 2, 32), ((48, 12), 56, 1, 1, 64), ((32, 32), 7, 3, 1, 32), ((144, 18), 7, 1, 1, 32),
    ((18, 72), 28, 3, 2, 32), ((72, 144), 14, 3, 2, 32), ((36, 72), 28, 3, 2, 32), ((48, 96), 56, 1, 2, 32),
    ((24, 96), 56, 3, 2, 32), ((18, 144), 28, 3, 2, 32),
)  # fmt: skip
CASES_FIRST = (
    ((3, 64), 224, 7, 2, 128), ((3, 64), 224, 7, 2, 32), ((3, 32), 224, 3, 2, 64), ((3, 16), 224, 3, 2, 64),
    ((3, 24), 224, 3, 2, 64), ((3, 48), 224, 3, 2, 64), ((3, 64), 224, 3, 2, 64), ((3, 64), 224, 3, 1, 64),
    ((3, 64), 512, 3, 1, 8), ((3, 32), 320, 3, 1, 16), ((3, 64), 512, 7, 2, 8), ((3, 32), 299, 3, 2, 32),
    ((3, 64), 32, 3, 1, 256), ((3, 64), 64, 3, 1, 128), ((4, 128), 64, 3, 1, 16), ((1, 32), 28, 3, 1, 256),
    ((3, 64), 64, 4, 2, 128), ((3, 32), 224, 5, 2, 64), ((6, 64), 256, 3, 1, 8), ((3, 96), 224, 7, 2, 64),
)  # fmt: skip


def problems(dtype: dtypes.DType, directions: Sequence[str], of_first_layers: bool) -> list[ConvProblem]:
    cases = CASES_FIRST if of_first_layers else CASES_FLOAT32 if dtype is dtypes.float32 else CASES
    return [
        ConvProblem(
            direction, (images, inputs, size, size), (outputs, inputs, taps, taps), (stride, stride),
            (taps // 2, taps // 2), dtype=dtype,
        )
        for ((inputs, outputs), size, taps, stride, images), direction in itertools.product(
            cases, directions
        )
    ]  # fmt: skip


def title(problem: ConvProblem) -> str:
    images, inputs, size, _ = problem.input_shape
    outputs, _, taps, _ = problem.weight_shape
    stride = "" if problem.stride == (1, 1) else f", stride {problem.stride[0]}"
    return f"{images}×{inputs}×{size}² → {outputs}, {taps}×{taps}{stride}, {problem.direction}"


def candidates(
    problem: ConvProblem, prefix: str, most: int
) -> tuple[list[Candidate[ConvProblem]], list[Candidate[ConvProblem]]]:
    """Of families whose name begins so, and of each other family so many."""
    own, others = [], []
    for family in families.FAMILIES:
        if family.prefix.startswith(prefix):
            own += list(family.trials(problem))
        else:
            found = itertools.islice(family.variants(problem), most)
            others += [candidate for candidate in found if admissible(candidate, problem)]
    return own, others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--float32", action="store_true", help="not bfloat16")
    parser.add_argument("--first-layers", action="store_true", help="of images, in bfloat16")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--others", type=int, default=8, help="candidates of each other family")
    parser.add_argument("--seconds", type=float, default=900, help="begin no convolution after that time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    arguments = parser.parse_args()
    name, dtype = (f"{NAME}_float32", dtypes.float32) if arguments.float32 else (NAME, dtypes.bfloat16)
    side_of_own, prefix = "patches", "patch"
    if arguments.first_layers:
        name, side_of_own, prefix = f"{NAME}_first_layers", "stem", "stem"
    comparison, began = Comparison(name, **gpu_timing.at_full_speed(tf32=True)), time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        waiting = []
        for problem in problems(dtype, arguments.directions, arguments.first_layers):
            own, others = candidates(problem, prefix, arguments.others)
            if own:
                built = [compilers.submit(build, each, problem, _MOST_WORKSPACE) for each in (*others, *own)]
                waiting.append((problem, built))
        compiled = [(problem, [future.result() for future in futures]) for problem, futures in waiting]
        for problem, ready in compiled:
            if time.monotonic() - began > arguments.seconds:
                break
            bench, times, fastest = ConvBench(problem), {"others": math.inf, side_of_own: math.inf}, {}
            for each in ready:
                milliseconds = None if each is None else bench.milliseconds(each, math.inf)
                if each is None or milliseconds is None:
                    continue
                error = bench.error(each)
                side = side_of_own if each.candidate.family.startswith(prefix) else "others"
                if not error <= accuracy.error_bound(problem):
                    if side == side_of_own:
                        raise SystemExit(f"{title(problem)}: {each.candidate.name}: error {error:.1e}")
                    continue
                if milliseconds < times[side]:
                    times[side], fastest[side] = milliseconds, each.candidate.name
            print(title(problem), *(f"{times[side] * 1e3:.1f} µs {name}" for side, name in fastest.items()), sep=" | ")
            comparison.add(title(problem), {side: [value] for side, value in times.items() if value < math.inf})
    comparison.finish(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
