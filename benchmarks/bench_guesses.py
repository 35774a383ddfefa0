"""What computes a convolution without tuning, beside the first candidates of each family: random problems on a GPU.

    python benchmarks/bench_guesses.py                              all that 200 seconds suffice for
    python benchmarks/bench_guesses.py --kinds groups --dtypes tf32 --problems 100 --seed 7
    python benchmarks/bench_guesses.py --dry-run                    no GPU: tiny problems on the simulated device

The guess is the first candidate that can be built. The others are the first few of each family, not all that the tuner
would try: the question is whether another order of families would be better. Kernels are compiled by all cores while
others are measured; times are those of replays of a CUDA graph. What PyTorch takes, bench_zoo_convs.py says.

Kinds: "dense", "odd" channels, "few" channels, "pointwise" (1×1), "groups" of 2 to 128 channels, "depthwise".
"""

from __future__ import annotations

import argparse
import collections
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import bench_depthwise
import gpu_timing
import torch
from bench_depthwise import DIRECTIONS
from bench_grouped import in_time
from bench_zoo_convs import Case
from harness import RESULTS
from harness import interleaved as interleaved_on_host
from zoo_networks import Convolution

from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.errors import CompileError
from genesis.settings import override

NAME = "bench_guesses"
_DTYPES = ("bf16", "tf32", "fp32")
_MOST = collections.defaultdict(lambda: 1, {"cudnn": 3, "cublaslt": 2, "grouped": 3, "wgmma": 2, "implicit_gemm": 2})
_BEHIND = 1.15  # times as long as the best
_WORST = 25
_FEWEST_FLOPS, _MOST_FLOPS = 2e7, 4e10
_SIZES = (7, 14, 20, 28, 56, 112)
_IMAGES = (1, 2, 8, 16, 32, 64)


def main() -> int:
    arguments = parse()
    if arguments.dry_run:
        with override(cuda="simulated"):
            return run(arguments, list(_tiny()), "cpu")
    with gpu_timing.many_captures():
        return run(arguments, list(drawn(arguments)), "cuda")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(_KINDS), default=list(_KINDS))
    parser.add_argument("--dtypes", nargs="+", choices=_DTYPES, default=list(_DTYPES))
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--problems", type=int, default=600, help="how many to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=200, help="begin no case after that time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--dry-run", action="store_true", help="check every kind of case without a GPU")
    return parser.parse_args()


# --- the problems -----------------------------------------------------------------------------------------------------


def drawn(arguments: argparse.Namespace) -> Iterator[Case]:
    chance = random.Random(arguments.seed)
    while arguments.problems > 0:
        arguments.problems -= 1
        yield Case(
            _drawn(_KINDS[chance.choice(arguments.kinds)], chance), chance.choice(arguments.directions),
            chance.choice(arguments.dtypes),
        )  # fmt: skip


def _drawn(kind: Callable[[random.Random], tuple[int, int, int, int]], chance: random.Random) -> Convolution:
    """One that costs a network enough to matter, and this benchmark little enough."""
    while True:
        inputs, outputs, groups, taps = kind(chance)
        images, size, stride = chance.choice(_IMAGES), chance.choice(_SIZES), chance.choice((1, 1, 1, 2))
        found = _convolution(images, inputs, size, outputs, groups, taps, stride)
        flops = 2 * images * outputs * (size // stride) ** 2 * inputs // groups * taps**2
        if _FEWEST_FLOPS <= flops <= _MOST_FLOPS:
            return found


def _convolution(images: int, inputs: int, size: int, outputs: int, groups: int, taps: int, stride: int) -> Convolution:
    weight = (outputs, inputs // groups, taps, taps)
    pairs = ((stride,) * 2, (taps // 2,) * 2, (1, 1))
    return Convolution((images, inputs, size, size), weight, *pairs, groups, False, 1, ())


def _dense(chance: random.Random) -> tuple[int, int, int, int]:
    """Inputs, outputs, groups, taps."""
    return _multiple(chance, 8, 1024), _multiple(chance, 8, 1024), 1, chance.choice((3, 3, 3, 5, 7))


def _odd(chance: random.Random) -> tuple[int, int, int, int]:
    return chance.randint(9, 400), chance.choice((chance.randint(9, 400), 255, 91, 21, 18)), 1, chance.choice((1, 3, 3))


def _few(chance: random.Random) -> tuple[int, int, int, int]:
    channels = chance.randint(1, 16), _multiple(chance, 4, 64)
    return (*chance.choice((channels, channels[::-1])), 1, chance.choice((1, 3, 3, 4, 5, 7)))


def _pointwise(chance: random.Random) -> tuple[int, int, int, int]:
    return _multiple(chance, 8, 2048), _multiple(chance, 8, 2048), 1, 1


def _groups(chance: random.Random) -> tuple[int, int, int, int]:
    width = chance.choice((2, 4, 8, 16, 32, 64, 128, chance.randint(2, 128)))
    groups = chance.randint(2, max(2, 1024 // width))
    outputs = chance.choice((width, width, 2 * width))
    return groups * width, groups * outputs, groups, chance.choice((1, 3, 3, 3, 5))


def _depthwise(chance: random.Random) -> tuple[int, int, int, int]:
    channels = chance.choice((_multiple(chance, 8, 1152), chance.randint(8, 600)))
    return channels, channels * chance.choice((1, 1, 1, 2)), channels, chance.choice((3, 3, 5, 7))


def _multiple(chance: random.Random, step: int, most: int) -> int:
    """As many small ones as large ones, by their logarithm."""
    return max(step, round(math.exp(chance.uniform(math.log(step), math.log(most))) / step) * step)


_KINDS = {
    "dense": _dense, "odd": _odd, "few": _few, "pointwise": _pointwise, "groups": _groups, "depthwise": _depthwise,
}  # fmt: skip


def _tiny() -> Iterator[Case]:
    for sizes in ((1, 8, 5, 8, 1, 3, 2), (1, 6, 4, 6, 3, 1, 1)):
        for direction in DIRECTIONS:
            yield Case(_convolution(*sizes), direction, "fp32")


# --- measuring --------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace, cases: Sequence[Case], device: str) -> int:
    rows = list[dict[str, Any]]()
    gpu = torch.cuda.get_device_name() if device == "cuda" else "simulated"
    out = Path(tempfile.mkdtemp()) if arguments.dry_run and arguments.out == RESULTS else arguments.out
    chosen = [list(first_of_families(case.problem)) for case in cases]
    for case, found in in_time(cases, chosen, arguments.seconds, device):
        row = measured(case, found, arguments.rounds, device)
        if row is not None:
            rows.append(row)
            print(_line(row), flush=True)
    if rows:
        bench_depthwise.write(out, gpu, rows, NAME, table)
    print(table(rows))
    return 0 if rows else 1


def first_of_families(problem: ConvProblem) -> Iterator[Candidate[ConvProblem]]:
    """The first few of each family, in the order in which they would be guessed."""
    seen: collections.Counter[str] = collections.Counter()
    for candidate in CONV.candidates(problem):
        seen[candidate.family] += 1
        if seen[candidate.family] <= _MOST[candidate.family]:
            yield candidate


def measured(
    case: Case, candidates: Sequence[Candidate[ConvProblem]], rounds: int, device: str
) -> dict[str, Any] | None:
    """A row; None where nothing can be built. The first of those that can be is the guess."""
    problem, data = case.problem, bench_depthwise.Data(case, device, 0)
    sides: dict[str, list[Callable[[], object]]] = {}
    for candidate in candidates:
        try:
            launch = candidate.prepare(problem)
            workspace = bench_depthwise.bytes_of(max(candidate.workspace(problem), 1), device)
        except (KernelError, CompileError):
            continue
        sides[candidate.name] = [data.candidate(launch, workspace)]
    if not sides:
        return None
    found = _timed(sides, rounds, device)
    times = {name: round(statistics.median(found[name]) * 1e3, 2) for name in sides}
    guess, best = next(iter(sides)), min(times, key=times.__getitem__)
    return {
        "case": case.name, "direction": case.direction, "dtype": case.dtype, "guess": [guess, times[guess]],
        "best": [best, times[best]], "candidates": times,
    }  # fmt: skip


def _timed(sides: dict[str, list[Callable[[], object]]], rounds: int, device: str) -> Mapping[str, list[float]]:
    """Slow ones apart: the slowest decides how often a graph repeats its call."""
    if device == "cpu":
        return interleaved_on_host({name: calls[0] for name, calls in sides.items()}, 1, 1)
    once = {name: gpu_timing.milliseconds(calls[0]) for name, calls in sides.items()}
    slow = [name for name in sides if once[name] > max(0.1, 4 * min(once.values()))]
    found: dict[str, list[float]] = {}
    for names in ([name for name in sides if name not in slow], slow):
        if names:
            found.update(gpu_timing.interleaved({name: sides[name] for name in names}, rounds, 0.5))
    return found


# --- results ----------------------------------------------------------------------------------------------------------


def _ratio(row: Mapping[str, Any]) -> float:
    return float(row["guess"][1]) / float(row["best"][1])


def _line(row: Mapping[str, Any]) -> str:
    (guess, slow), (best, fast) = row["guess"], row["best"]
    return f"{row['case']:<58} {slow:9.1f} {guess.partition(' ')[0]:<28} {fast:9.1f} {best.partition(' ')[0]}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """How far guesses are behind, and where most."""
    lines = [
        "| dtype | direction | problems | guess / best, geometric mean | more than 15 % behind |",
        "|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["dtype"], row["direction"]), []).append(_ratio(row))
    for (dtype, direction), ratios in sorted(groups.items()):
        behind = sum(each > _BEHIND for each in ratios)
        mean = statistics.geometric_mean(ratios)
        lines.append(f"| {dtype} | {direction} | {len(ratios)} | {mean:.2f} | {behind} |")
    lines += ["", "| furthest behind | guess µs | | best µs | | times |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=_ratio, reverse=True)[:_WORST]:
        (guess, slow), (best, fast) = row["guess"], row["best"]
        lines.append(f"| {row['case']} | {slow:.1f} | {guess} | {fast:.1f} | {best} | {_ratio(row):.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
