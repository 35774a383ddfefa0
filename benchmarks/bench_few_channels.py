"""Convolutions of few channels in bfloat16 on a GPU: kernels of patches beside the best of all others, each direction.

    python benchmarks/bench_few_channels.py                   layers of HRNet, Res2Net, EfficientNetV2, U-Net, YOLO
    python benchmarks/bench_few_channels.py --seconds 60      as many as that suffices for

Times are the tuner's: the median of some runs, each after the caches have been overwritten, launches included. Beside
the patches' trials are the first candidates of each other family, the libraries' among them. Compilers run in threads
while others are measured. A candidate whose error is above the tuner's bound ends the benchmark.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
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
_OTHERS, _MOST_WORKSPACE = 8, 1 << 30  # of each family; bytes

# (inputs, outputs), size, taps, stride, images
CASES = (
    ((18, 18), 56, 3, 1, 32), ((26, 26), 56, 3, 1, 32), ((24, 24), 112, 3, 1, 32), ((32, 32), 128, 3, 1, 8),
    ((32, 32), 256, 3, 1, 2), ((36, 36), 28, 3, 1, 32), ((52, 52), 28, 3, 1, 32), ((72, 72), 14, 3, 1, 32),
    ((32, 64), 128, 3, 1, 8), ((64, 32), 128, 3, 1, 8), ((16, 32), 80, 3, 2, 16), ((18, 36), 56, 3, 2, 32),
    ((24, 48), 112, 3, 2, 32), ((32, 64), 112, 3, 2, 32), ((48, 48), 64, 3, 1, 16), ((16, 16), 112, 3, 1, 32),
    ((8, 16), 224, 3, 1, 8), ((64, 64), 56, 3, 1, 64), ((32, 32), 56, 5, 1, 16), ((64, 64), 28, 5, 1, 16),
    ((12, 24), 96, 3, 1, 16), ((32, 128), 28, 3, 1, 32), ((128, 32), 28, 3, 1, 32),
)  # fmt: skip


def problems() -> list[ConvProblem]:
    return [
        ConvProblem(
            direction, (images, inputs, size, size), (outputs, inputs, taps, taps), (stride, stride),
            (taps // 2, taps // 2), dtype=dtypes.bfloat16,
        )
        for ((inputs, outputs), size, taps, stride, images), direction in itertools.product(
            CASES, (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
        )
    ]  # fmt: skip


def title(problem: ConvProblem) -> str:
    images, inputs, size, _ = problem.input_shape
    outputs, _, taps, _ = problem.weight_shape
    stride = "" if problem.stride == (1, 1) else f", stride {problem.stride[0]}"
    return f"{images}×{inputs}×{size}² → {outputs}, {taps}×{taps}{stride}, {problem.direction}"


def candidates(problem: ConvProblem) -> tuple[list[Candidate[ConvProblem]], list[Candidate[ConvProblem]]]:
    """Of patches, and others."""
    own, others = [], []
    for family in families.FAMILIES:
        if family.prefix.startswith("patch"):
            own += list(family.trials(problem))
        else:
            found = itertools.islice(family.variants(problem), _OTHERS)
            others += [candidate for candidate in found if admissible(candidate, problem)]
    return own, others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="begin no convolution after that time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    arguments = parser.parse_args()
    comparison, began = Comparison(NAME, **gpu_timing.at_full_speed(tf32=True)), time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        waiting = []
        for problem in problems():
            own, others = candidates(problem)
            if own:
                built = [compilers.submit(build, each, problem, _MOST_WORKSPACE) for each in (*others, *own)]
                waiting.append((problem, built))
        for problem, futures in waiting:
            if time.monotonic() - began > arguments.seconds:
                for future in futures:
                    future.cancel()
                continue
            ready = [future.result() for future in futures]  # nothing compiles for it while it is timed
            bench, times = ConvBench(problem), {"others": float("inf"), "patches": float("inf")}
            for each in ready:
                milliseconds = None if each is None else bench.milliseconds(each, float("inf"))
                if each is None or milliseconds is None:
                    continue
                error = bench.error(each)
                if not error <= accuracy.error_bound(problem):
                    raise SystemExit(f"{title(problem)}: {each.candidate.name}: error {error:.1e}")
                side = "patches" if each.candidate.family.startswith("patch") else "others"
                times[side] = min(times[side], milliseconds)
            comparison.add(title(problem), {side: [value] for side, value in times.items()})
    comparison.finish(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
