"""The convolutions of bench_zoo.py's networks on a GPU, one by one: PyTorch beside Genesis, guessed and tuned.

    python benchmarks/bench_zoo_convs.py --seconds 240              a fair sample: the order is shuffled, always alike
    python benchmarks/bench_zoo_convs.py --seconds 240 --more       go on after what the results have
    python benchmarks/bench_zoo_convs.py --only 256x14x14 --dtypes fp32
    python benchmarks/bench_zoo_convs.py --below 1          again what the results have as slower than PyTorch
    python benchmarks/bench_zoo_convs.py --dtypes tf32      float32 whose operands may be rounded, on both sides
    python benchmarks/bench_zoo_convs.py --odd --dtypes bf16    heads and layers whose channels are no multiple of 8
    python benchmarks/bench_zoo_convs.py --dry-run                  no GPU: tiny shapes on the simulated device

Every distinct convolution of these networks (zoo_convs.json, which zoo_networks.py makes), all directions, bfloat16 and
float32 at "highest", or at "high" if asked for (tf32). PyTorch takes the faster of both layouts, with cuDNN's search,
and TF32 for "high" only. A group of cases at a time has --tune seconds for each of them, shared out as genesis.tune
does it: all cores compile while others are measured, and the next group's first kernels while this one is compared. The
guess is what computes without tuning. How times and errors are found, bench_depthwise.py says; a mean by weight counts
a case as often as it occurs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bench_depthwise
import gpu_timing
import torch
from bench_depthwise import DIRECTIONS, DTYPES, TF32
from harness import RESULTS, Comparison
from zoo_networks import Convolution, stored

from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine import builders, planner, rounds
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.engine.tuner import Contest
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import memory
from genesis.errors import CompileError, OutOfMemoryError
from genesis.settings import override

NAME = "bench_zoo_convs"
GOALS = {"bf16": 1.25, "fp32": 2.5, "tf32": 1.0}  # geometric means
_LEAST = 0.97
_AHEAD = 4  # candidates of each case of the next group
_SEED = 20
_WORST = 15
_WAYS = ("tuned", "guess")


class Case(NamedTuple):
    convolution: Convolution
    direction: str
    dtype: str

    @property
    def name(self) -> str:
        """N x C x H x W * K x R x S, and what is not 1 (padding: not what keeps the size)."""
        c = self.convolution
        taps = c.weight[2:]
        parts = ["x".join(map(str, c.input)), "*", f"{c.weight[0]}x{taps[0]}x{taps[1]}"]
        if max(c.stride) > 1:
            parts.append(f"s{c.stride[0]}")
        if any(p != d * (n // 2) for p, d, n in zip(c.padding, c.dilation, taps, strict=True)):
            parts.append(f"p{c.padding[0]},{c.padding[1]}")
        if max(c.dilation) > 1:
            parts.append(f"d{c.dilation[0]}")
        if c.groups > 1:
            parts.append(f"g{c.groups}")
        return " ".join([*parts, self.direction, self.dtype])

    @property
    def problem(self) -> ConvProblem:
        c = self.convolution
        pairs, precision = (c.stride, c.padding, c.dilation), "high" if self.dtype == TF32 else "highest"
        return ConvProblem(  # type: ignore[misc]
            self.direction, c.input, c.weight, *pairs, c.groups, dtype=DTYPES[self.dtype], precision=precision
        )


# (images, inputs, size, outputs, taps, stride): heads of segmentation and detection, and layers, of odd channels.
_ODD = (
    (4, 256, 64, 21, 1, 1), (8, 64, 160, 21, 1, 1), (4, 256, 128, 19, 1, 1), (2, 48, 128, 150, 1, 1),
    (16, 96, 56, 91, 1, 1), (8, 18, 64, 19, 1, 1), (2, 32, 256, 1, 1, 1), (2, 64, 256, 3, 1, 1), (32, 90, 28, 30, 1, 1),
    (8, 256, 80, 255, 1, 1), (8, 512, 40, 255, 1, 1), (8, 1024, 20, 255, 1, 1), (16, 36, 56, 144, 1, 1),
    (16, 81, 56, 81, 3, 1), (16, 36, 64, 36, 3, 1), (16, 100, 32, 200, 3, 2),
)  # fmt: skip
_TINY = (
    Convolution((1, 8, 5, 6), (8, 8, 3, 3), (2, 2), (1, 1), (1, 1), 1, True, 2, ("tiny",)),
    Convolution((1, 4, 5, 6), (4, 1, 3, 3), (1, 1), (1, 1), (1, 1), 4, False, 3, ("tiny", "small")),
)


def main() -> int:
    arguments = parse()
    if arguments.dry_run:
        if arguments.out == RESULTS:
            arguments.out = Path(tempfile.mkdtemp())  # it is no result
        with override(cuda="simulated"):
            return run(arguments, list(cases(_TINY, ["fp32"], DIRECTIONS)), "cpu")
    found = odd() if arguments.odd else stored()
    chosen = list(cases(found, arguments.dtypes, arguments.directions))
    random.Random(_SEED).shuffle(chosen)
    if arguments.only:
        chosen = [case for case in chosen if arguments.only in case.name]
    with gpu_timing.many_captures():
        return run(arguments, chosen, "cuda")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="cases whose name has that")
    parser.add_argument("--odd", action="store_true", help="convolutions of odd channels, which these networks lack")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--dtypes", nargs="+", choices=list(GOALS), default=["bf16", "fp32"])
    parser.add_argument("--tune", type=float, default=1.0, help="seconds for a case; 0: only the guess")
    parser.add_argument("--group", type=int, default=24, help="cases that are tuned together")
    parser.add_argument("--seconds", type=float, default=240, help="begin no case after that time")
    parser.add_argument("--more", action="store_true", help="leave out what the results have already")
    parser.add_argument("--below", type=float, metavar="SPEED", help="again the results below that, slowest first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--dry-run", action="store_true", help="check every kind of case without a GPU")
    return parser.parse_args()


def odd() -> Iterator[Convolution]:
    for images, inputs, size, outputs, taps, stride in _ODD:
        shapes = (images, inputs, size, size), (outputs, inputs, taps, taps)
        yield Convolution(*shapes, (stride,) * 2, (taps // 2,) * 2, (1, 1), 1, False, 1, ("odd",))


def cases(found: Iterable[Convolution], dtypes: Iterable[str], directions: Iterable[str]) -> Iterator[Case]:
    for convolution in found:
        for dtype in dtypes:
            for direction in directions:
                if direction != INPUT_GRAD or not convolution.of_image:
                    yield Case(convolution, direction, dtype)


# --- measuring --------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace, chosen: list[Case], device: str) -> int:
    begin = time.monotonic()
    machine = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if device == "cuda" else {}
    zoo = Convolutions(f"{NAME}_odd" if arguments.odd else NAME, **machine)
    zoo.keep_others(arguments.out)
    if arguments.more:
        known = {row["case"] for row in zoo.rows}
        chosen = [case for case in chosen if case.name not in known]
    if arguments.below is not None:
        speeds = {row["case"]: _speed(row) for row in zoo.rows}
        chosen = [case for case in chosen if speeds.get(case.name, math.inf) < arguments.below]
        chosen.sort(key=lambda case: speeds[case.name])
    groups = [chosen[i : i + arguments.group] for i in range(0, len(chosen), arguments.group)]
    deadline = begin + arguments.seconds
    compilers = builders.compilers() if device == "cuda" else None
    try:
        for group, following in itertools.pairwise([*groups, []]):
            if time.monotonic() > deadline:
                break
            seconds = min(arguments.tune * len(group), max(0.0, deadline - time.monotonic()) / 2)
            candidates = tuned(group, seconds)
            ahead = builders.Builders(compilers)
            if device == "cuda":
                compile_ahead(ahead, following)
            for case, choice in zip(group, candidates, strict=True):
                if time.monotonic() > deadline:
                    break
                zoo.rows = [row for row in zoo.rows if row["case"] != case.name]
                zoo.rows.append(compared(case, choice, arguments.rounds, device))
                zoo.write(arguments.out)
                ahead.advance(0.0)
            ahead.drop()
            print(zoo.summary(), flush=True)
    finally:
        builders.close()
    zoo.finish(arguments.out)
    print(f"{len(zoo.rows)} cases, {time.monotonic() - begin:.0f} s")
    return 0


Choice = tuple[Candidate[ConvProblem] | None, Candidate[ConvProblem] | None]  # the guess and the tuned one


def tuned(group: Sequence[Case], seconds: float) -> list[Choice]:
    """The candidates to compare."""
    limit = planner.workspace_limit()
    contests = [Contest(CONV, case.problem, limit) for case in group]
    if seconds:
        end = time.monotonic() + seconds
        rounds.share_out(contests, lambda: end, lambda contest: None)
    memory.pool(0).empty_cache()  # the operands: PyTorch has another pool
    winners = [None if contest.outcome is None else contest.outcome.candidate for contest in contests]
    return [(guess(case.problem), winner) for case, winner in zip(group, winners, strict=True)]


def guess(problem: ConvProblem) -> Candidate[ConvProblem] | None:
    """What computes without tuning, once it is built."""
    for candidate in CONV.candidates(problem):
        with contextlib.suppress(KernelError):
            if candidate.workspace(problem) <= planner.workspace_limit():
                return candidate
    return None


def compile_ahead(ahead: builders.Builders, group: Sequence[Case]) -> None:
    """The kernels that tuning asks for first; they are found on the disk."""
    for case in group:
        trials = (each for each in CONV.in_turns(case.problem) if not (each.is_ready_made or each.builds_slowly))
        first = [guess(case.problem), *(each for each, _ in zip(trials, range(_AHEAD), strict=False))]
        for candidate in first:
            if candidate is not None and not candidate.builds_slowly:
                ahead.start(functools.partial(_prepare, candidate, case.problem))


def _prepare(candidate: Candidate[ConvProblem], problem: ConvProblem) -> None:
    with contextlib.suppress(KernelError, CompileError, OutOfMemoryError):  # whoever measures it will say so
        candidate.prepare(problem)


def compared(case: Case, choice: Choice, num_rounds: int, device: str) -> dict[str, Any]:
    """A row: microseconds, speeds over PyTorch, errors; or why there are none."""
    guessed, winner = choice
    candidates = {each.name: each for each in (guessed, winner) if each is not None}
    c = case.convolution
    row: dict[str, Any] = {
        "case": case.name, "dtype": case.dtype, "direction": case.direction, "count": c.count,
        "networks": list(c.networks[:3]),
    }  # fmt: skip
    try:
        found = bench_depthwise.measure(case, list(candidates.values()), num_rounds, device, both_layouts=True)
    except Exception as error:  # a case's failure is a result
        print(f"{case.name}: {type(error).__name__}: {error}", flush=True)
        gc.collect()
        return {**row, "failure": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    theirs, by_name = found["torch"]["us"], found["candidates"]
    row |= {"torch_us": theirs, "copy_us": found["copy"]["us"], "torch_error": found["torch"]["error"]}
    for which, candidate in (("guess", guessed), ("tuned", winner)):
        figures = None if candidate is None else by_name.get(candidate.name)
        if candidate is not None and figures is not None:
            row |= {
                which: candidate.name, f"{which}_us": figures["us"], f"{which}_error": figures["error"],
                f"{which}_speed": round(theirs / figures["us"], 6), f"{which}_wrong": candidate.name in found["wrong"],
            }  # fmt: skip
    return row


# --- results ----------------------------------------------------------------------------------------------------------


class Convolutions(Comparison):
    """A row for each case."""

    def summary(self) -> str:
        """Means and how many are behind, by dtype and direction."""
        lines = [
            f"| dtype, direction | cases | tuned | by weight | goal | below {_LEAST} | guess | below {_LEAST} |",
            "|---" * 8 + "|",
        ]
        for dtype, goal in GOALS.items():
            for direction in (*DIRECTIONS, "all"):
                rows = [r for r in self.rows if r["dtype"] == dtype and direction in (r["direction"], "all")]
                ours, first = ([r for r in rows if f"{which}_speed" in r] for which in ("tuned", "guess"))
                if ours or first:
                    lines.append(
                        f"| {dtype} {direction} | {len(rows)} | {_mean(ours, 'tuned')} | {_mean(ours, 'tuned', True)} "
                        f"| {goal} | {_behind(ours, 'tuned')} | {_mean(first, 'guess')} | {_behind(first, 'guess')} |"
                    )
        return "\n".join(lines)

    def markdown(self) -> str:
        """The means, the slowest of each dtype, and all."""
        lines = [self.summary(), ""]
        for dtype in GOALS:
            timed = [row for row in self.rows if row["dtype"] == dtype and _speed(row) < math.inf]
            if timed:
                lines += [f"Slowest in {dtype}:", "", *_table(sorted(timed, key=_speed)[:_WORST]), ""]
        lines += ["All:", "", *_table(sorted(self.rows, key=_speed)), ""]
        lines += [f"- {row['case']}: {row['failure']}" for row in self.rows if "failure" in row]
        wrong = [row["case"] for row in self.rows if row.get("tuned_wrong") or row.get("guess_wrong")]
        return self.heading() + "\n".join([*lines, f"Less accurate than allowed: {', '.join(wrong) or 'none'}", ""])


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| case | times | networks | PyTorch µs | tuned | guess | copy's share | candidate |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        if "torch_us" in row:
            tuned, guessed = (f"{row[key]:.2f}" if (key := f"{which}_speed") in row else "" for which in _WAYS)
            share = f"{row['copy_us'] / row['torch_us'] * _speed(row):.0%}" if _speed(row) < math.inf else ""
            lines.append(
                f"| {row['case']} | {row['count']} | {', '.join(row['networks'])} | {row['torch_us']:.1f} | {tuned} "
                f"| {guessed} | {share} | {row.get('tuned', row.get('guess', ''))} |"
            )
    return lines


def _speed(row: dict[str, Any]) -> float:
    """Over PyTorch's, tuned if it was."""
    return float(row.get("tuned_speed", row.get("guess_speed", math.inf)))


def _mean(rows: list[dict[str, Any]], which: str, by_weight: bool = False) -> str:
    """Geometric, of the speeds."""
    weights = [row["count"] if by_weight else 1 for row in rows]
    logarithms = [math.log(row[f"{which}_speed"]) for row in rows]
    return f"{math.exp(statistics.fmean(logarithms, weights)):.2f}" if rows else ""


def _behind(rows: list[dict[str, Any]], which: str) -> int:
    return sum(row[f"{which}_speed"] < _LEAST for row in rows)


if __name__ == "__main__":
    sys.exit(main())
