"""Depthwise convolutions on a GPU: every candidate beside PyTorch and a copy of as many bytes, in one run.

    python benchmarks/bench_depthwise.py                              all that 240 seconds suffice for
    python benchmarks/bench_depthwise.py --shapes convnext-56 --dtypes bf16
    python benchmarks/bench_depthwise.py --dry-run                    no GPU: tiny shapes on the simulated device

A depthwise convolution is bound by memory: the share of a candidate is a copy's time over its own. PyTorch runs in
channels-last and benchmark mode. Times are replays of captured graphs, the sides in turns, on data that no cache holds;
errors are relative L2 distances from float64. The guess is the candidate that computes without tuning. Where the best
has less than 70 % of the copy's speed, all candidates are printed. Results are written after each case.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gpu_timing
import torch
from harness import RESULTS
from harness import interleaved as interleaved_on_host

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import array, streams
from genesis.cli.info import versions
from genesis.errors import CompileError
from genesis.files import replaced
from genesis.settings import override

NAME = "bench_depthwise"
_GOAL = 0.7  # of the copy's speed
_ROTATED_BYTES, _MOST_SETS = 200e6, 8  # of data that a side goes through
_MOST_OF_LIBRARY = 3  # cuDNN's plans


class Shape(NamedTuple):
    """N, C, H, W with taps × taps, as padding keeps the size."""

    name: str
    input: tuple[int, int, int, int]
    taps: int
    stride: int = 1
    dilation: int = 1
    multiplier: int = 1

    def problem(self, direction: str, dtype: dtypes.DType) -> ConvProblem:
        channels, padding = self.input[1], self.dilation * (self.taps // 2)
        weight = (channels * self.multiplier, 1, self.taps, self.taps)
        pairs = ((self.stride,) * 2, (padding,) * 2, (self.dilation,) * 2)
        return ConvProblem(direction, self.input, weight, *pairs, channels, dtype=dtype)


SHAPES = (
    Shape("convnext-56", (64, 96, 56, 56), 7),
    Shape("mobile-112", (128, 32, 112, 112), 3),
    Shape("mobile-56-s2", (128, 144, 56, 56), 3, 2),
    Shape("efficient-14", (128, 240, 14, 14), 5),
    Shape("mobile-7", (128, 960, 7, 7), 3),
    Shape("convnext-14", (64, 384, 14, 14), 7),
    Shape("mobile-28", (128, 192, 28, 28), 3),
    Shape("mobile-14", (128, 576, 14, 14), 3),
    Shape("mobile-112-s2", (128, 96, 112, 112), 3, 2),
    Shape("convnext-28", (64, 192, 28, 28), 7),
    Shape("convnext-7", (64, 768, 7, 7), 7),
    Shape("efficient-28-s2", (128, 240, 28, 28), 5, 2),
    Shape("efficient-7", (128, 1152, 7, 7), 5),
    Shape("mobile3-28-s2", (64, 72, 56, 56), 5, 2),
    Shape("dilated", (8, 256, 64, 64), 3, 1, 12),
    Shape("multiplier", (64, 64, 56, 56), 3, 1, 1, 2),
    Shape("large-kernel", (32, 96, 56, 56), 11),
    Shape("odd", (64, 81, 28, 28), 3),
)
_TINY = (Shape("tiny", (1, 4, 5, 6), 3, 2), Shape("tiny-m", (1, 2, 5, 6), 3, 1, 1, 2))
DTYPES = {"bf16": dtypes.bfloat16, "fp32": dtypes.float32, "fp16": dtypes.float16, "tf32": dtypes.float32}
TF32 = "tf32"
_TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16, "tf32": torch.float32}
DIRECTIONS = (FORWARD, INPUT_GRAD, WEIGHT_GRAD)


class Layer(Protocol):
    """The shape of this benchmark's cases, or of bench_grouped.py's."""

    @property
    def name(self) -> str: ...

    def problem(self, direction: str, dtype: dtypes.DType) -> ConvProblem: ...


class Case(NamedTuple):
    shape: Layer
    direction: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.shape.name} {self.direction} {self.dtype}"

    @property
    def problem(self) -> ConvProblem:
        problem = self.shape.problem(self.direction, DTYPES[self.dtype])
        return dataclasses.replace(problem, precision="high") if self.dtype == TF32 else problem


def main() -> int:
    return run_cases(parser(__doc__, SHAPES, seconds=240).parse_args(), SHAPES, _TINY, run)


def run_cases(
    arguments: argparse.Namespace, shapes: Sequence[Layer], tiny: Sequence[Layer],
    run: Callable[[argparse.Namespace, list[Case], str], int],
) -> int:  # fmt: skip
    """Run the cases that are chosen on the GPU, or the tiny ones on the simulated device."""
    if arguments.dry_run:
        with override(cuda="simulated"):
            return run(arguments, [Case(shape, each, "fp32") for shape in tiny for each in DIRECTIONS], "cpu")
    cases = [
        Case(shape, direction, dtype)
        for shape in shapes
        if not arguments.shapes or shape.name in arguments.shapes
        for dtype in arguments.dtypes
        for direction in arguments.directions
    ]
    with gpu_timing.many_captures():
        return run(arguments, cases, "cuda")


def parser(description: str | None, shapes: Sequence[Layer], seconds: float) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shapes", nargs="+", choices=[shape.name for shape in shapes], help="only these shapes")
    options.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    options.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16", "fp32"])
    options.add_argument("--seconds", type=float, default=seconds, help="begin no case after that time")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    options.add_argument("--dry-run", action="store_true", help="check every kind of case without a GPU")
    return options


def run(arguments: argparse.Namespace, cases: list[Case], device: str) -> int:
    begin, rows, slowest = time.monotonic(), list[dict[str, Any]](), 0.0
    gpu = torch.cuda.get_device_name() if device == "cuda" else "simulated"
    num_builders = max(1, min(os.cpu_count() or 1, 16) - 1)
    print(f"{NAME}: {gpu}")
    with ThreadPoolExecutor(num_builders) as builders:
        for index, case in enumerate(cases):
            began = time.monotonic()
            if began - begin + slowest > arguments.seconds:
                print(f"no time for {case.name} and what follows")
                break
            for ahead in cases[index : index + 3]:  # compiled while others are measured
                compile_ahead(ahead, builders)
            rows.append(measure(case, chosen(case), arguments.rounds, device))
            slowest = max(slowest, time.monotonic() - began)
            if not arguments.dry_run:
                write(arguments.out, gpu, rows)
        builders.shutdown(cancel_futures=True)
    print(table(rows))
    return 0


def write(
    folder: Path, gpu: str, rows: list[dict[str, Any]], benchmark: str = NAME,
    as_table: Callable[[list[dict[str, Any]]], str] | None = None,
) -> None:  # fmt: skip
    about = {"gpu": gpu, "versions": versions(), "date": datetime.date.today().isoformat()}
    folder.mkdir(parents=True, exist_ok=True)
    with replaced(folder / f"{benchmark}.json") as path:
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    with replaced(folder / f"{benchmark}.md") as path:
        head = "; ".join(f"{key}: {value}" for key, value in {"gpu": gpu, **versions(), "date": about["date"]}.items())
        path.write_text(f"# {benchmark}\n\n{head}\n\n{(as_table or table)(rows)}\n", encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| case | copy µs | PyTorch µs | guess µs | best µs | best's share | guess's share | × PyTorch | best |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        best, guess, copy, theirs = (row[each]["us"] for each in ("best", "guess", "copy", "torch"))
        lines.append(
            f"| {row['case']} | {copy:.1f} | {theirs:.1f} | {guess:.1f} | {best:.1f} | {copy / best:.0%} | "
            f"{copy / guess:.0%} | {theirs / best:.2f} | {row['best']['name']} |"
        )
    return "\n".join(lines)


# --- the sides --------------------------------------------------------------------------------------------------------


class Measured(Protocol):
    """A case of this benchmark, or of bench_grouped.py."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def problem(self) -> ConvProblem: ...


class Data:
    """One set of operands: PyTorch's tensors in channels-last, of which Genesis takes the addresses."""

    def __init__(self, case: Measured, device: str, seed: int) -> None:
        self.case, self.problem = case, case.problem
        p, dtype = self.problem, _TORCH[case.dtype]
        torch.manual_seed(seed)

        def make(shape: tuple[int, ...], scale: float = 1) -> torch.Tensor:
            values = (torch.randn(shape, device=device) * scale).to(dtype).contiguous(memory_format=torch.channels_last)
            return (
                values
                if device == "cuda"
                else torch.as_strided(
                    bytes_of(values.numel() * values.itemsize, device).view(dtype), shape, values.stride()
                ).copy_(values)
            )

        self.input, self.grad = make(p.input_shape), make(p.output_shape)
        self.weight = make(p.weight_shape, 1 / math.sqrt(math.prod(p.weight_shape[1:])))
        self.out = make(p.result_shape)
        self.copied = torch.empty(p.bytes // 2, dtype=torch.uint8, device=device)
        self.copy = torch.empty_like(self.copied)

    def torch(
        self, dtype: torch.dtype | None = None, memory_format: torch.memory_format = torch.channels_last
    ) -> Callable[[], torch.Tensor]:
        """The result of the last call is kept: given back to the pool, its memory would hold that of the next set's.

        That memory would then stay in the cache, and never be written to the device's.
        """
        p = self.problem
        operands = (self.input, self.weight, self.grad)
        x, w, g = (each.to(dtype or each.dtype).contiguous(memory_format=memory_format) for each in operands)
        wanted = (p.direction == INPUT_GRAD, p.direction == WEIGHT_GRAD, False)
        options = (p.stride, p.padding, p.dilation, False, (0, 0), p.groups, wanted)
        kept: list[torch.Tensor] = []

        def call() -> torch.Tensor:
            if p.direction == FORWARD:
                result = torch.conv2d(x, w, None, p.stride, p.padding, p.dilation, p.groups)
            else:
                result = torch.ops.aten.convolution_backward(g, x, w, None, *options)[wanted.index(True)]
            kept[:] = [result]
            return result

        return call

    def candidate(self, launch: Callable[..., None], workspace: torch.Tensor) -> Callable[[], None]:
        first = self.input if self.problem.direction == FORWARD else self.grad
        second = self.input if self.problem.direction == WEIGHT_GRAD else self.weight
        addresses = [each.data_ptr() for each in (self.out, first, second)]
        # The call holds the workspace: PyTorch unmaps what is free after cuDNN's benchmarks.
        return lambda: launch(streams.current_handle(0), *addresses, 0, 0, workspace.data_ptr())


def bytes_of(number: int, device: str) -> torch.Tensor:
    """Memory that kernels may be given the address of; without a GPU, the simulated device's."""
    if device == "cuda":
        return torch.empty(number, dtype=torch.uint8, device=device)
    _simulated.append(array.empty((number,), dtypes.uint8))
    return torch.frombuffer((ctypes.c_char * number).from_address(_simulated[-1].data_pointer), dtype=torch.uint8)


_simulated: list[array.DeviceArray] = []
_compiled: set[Case] = set()


def chosen(case: Measured) -> list[Candidate[ConvProblem]]:
    """The guess, all that the tuner would try of ours, and the libraries' first few."""
    guess = next(CONV.candidates(case.problem))
    found = [guess]
    for candidate in CONV.in_turns(case.problem):
        others = sum(each.family == candidate.family for each in found)
        if candidate.name != guess.name and (candidate.family != "cudnn" or others < _MOST_OF_LIBRARY):
            found.append(candidate)
    return found


def compile_ahead(case: Case, builders: ThreadPoolExecutor) -> None:
    """In other threads; only compiled, since loading a kernel would get into a capture."""
    from genesis.backends.cuda.ops.conv.candidates import programs
    from genesis.backends.cuda.ops.conv.candidates.depthwise.candidate import Depthwise
    from genesis.backends.cuda.ops.conv.candidates.depthwise.toeplitz import Toeplitz

    if case in _compiled:
        return
    _compiled.add(case)
    arch = f"sm_{driver.get().properties(0).compute_capability}"
    for candidate in chosen(case):
        if isinstance(candidate, Depthwise | Toeplitz):
            name, macros = candidate.program(case.problem)
            builders.submit(programs.cubin, name, programs.options(macros), arch)


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(
    case: Measured, candidates: list[Candidate[ConvProblem]], rounds: int, device: str, both_layouts: bool = False,
    goal: float = _GOAL,
) -> dict[str, Any]:  # fmt: skip
    """both_layouts: PyTorch in channels-last and in its own layout, whichever is faster. goal: all sides are printed
    where the best has a smaller share of the copy's speed.
    """
    began, problem = time.monotonic(), case.problem
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = case.dtype == TF32
    sets = [Data(case, device, seed) for seed in range(max(1, min(_MOST_SETS, int(_ROTATED_BYTES // problem.bytes))))]
    with torch.backends.cudnn.flags(benchmark=False):  # a search would take longer than the one call
        expected = sets[0].torch(torch.float64)()
    if device == "cuda":
        torch.backends.cudnn.benchmark = True
    sides: dict[str, list[Callable[[], object]]] = {
        "copy": [lambda data=data: data.copy.copy_(data.copied) for data in sets],  # type: ignore[misc]
        "torch": [data.torch() for data in sets],
    }
    errors = {"torch": _distance(sets[0].torch()(), expected)}
    if both_layouts:
        sides["torch nchw"] = [data.torch(memory_format=torch.contiguous_format) for data in sets]
    names: list[str] = []
    for candidate in candidates:
        try:
            launch = candidate.prepare(problem)
            workspace = bytes_of(max(candidate.workspace(problem), 1), device)
        except (KernelError, CompileError) as error:
            print(f"  {case.name}: {candidate.name}: {error}")
            continue
        calls: list[Callable[[], object]] = [data.candidate(launch, workspace) for data in sets]
        sets[0].out.fill_(math.nan)
        calls[0]()
        errors[candidate.name] = _distance(sets[0].out, expected)
        sides[candidate.name] = calls
        names.append(candidate.name)
    times = {name: _microseconds(each) for name, each in _interleaved(sides, rounds, device).items()}
    right = [name for name in names if errors[name] <= CONV.error_bound(problem)]
    wrong = sorted(set(names) - set(right))
    best = min(right or names, key=times.__getitem__)
    figures = {name: {"us": round(us, 2), "error": errors.get(name)} for name, us in times.items()}
    theirs = min((name for name in times if name.startswith("torch")), key=times.__getitem__)
    row: dict[str, Any] = {
        "case": case.name, "bytes": problem.bytes, "copy": figures["copy"],
        "torch": {**figures["torch"], "us": figures[theirs]["us"]},
        "best": {"name": best, **figures[best]}, "guess": {"name": names[0], **figures[names[0]]},
        "share": round(times["copy"] / times[best], 3), "wrong": wrong, "candidates": figures,
    }  # fmt: skip
    _tell(row, times, time.monotonic() - began, goal)
    return row


def _tell(row: dict[str, Any], times: dict[str, float], seconds: float, goal: float) -> None:
    copy, best, guess = row["copy"]["us"], row["best"], row["guess"]
    print(
        f"{row['case']:<36} copy {copy:7.1f}  torch {row['torch']['us']:7.1f}  best {best['us']:7.1f} µs, "
        f"{copy / best['us']:.0%} of the copy ({best['name']}, error {best['error']:.1e}, torch's "
        f"{row['torch']['error']:.1e})  guess {copy / guess['us']:.0%}  [{seconds:.1f} s]",
        flush=True,
    )
    for name in row["wrong"]:
        print(f"    WRONG: {name}: {row['candidates'][name]['error']:.1e}", flush=True)
    if row["share"] < goal:
        for name, us in sorted(times.items(), key=lambda item: item[1]):
            print(f"    {us:8.2f} µs  {copy / us:5.0%}  {name}", flush=True)


def _interleaved(sides: dict[str, list[Callable[[], object]]], rounds: int, device: str) -> dict[str, list[float]]:
    if device == "cpu":
        return interleaved_on_host({name: calls[0] for name, calls in sides.items()}, 1, 1)
    found: dict[str, list[float]] = {}
    for part in _parts(sides):
        found.update(gpu_timing.interleaved(part, rounds, 1.0))
    return found


def _parts(sides: dict[str, list[Callable[[], object]]]) -> Iterator[dict[str, list[Callable[[], object]]]]:
    """Those that take many times as long come apart: the slowest decides how often a graph repeats its call."""
    limit = max(0.15, 8 * gpu_timing.milliseconds(sides["copy"][0]))
    slow = {name for name, calls in sides.items() if gpu_timing.milliseconds(calls[0]) > limit}
    yield {name: calls for name, calls in sides.items() if name not in slow}
    if slow:
        yield {name: sides[name] for name in sides if name in slow}


def _microseconds(milliseconds: list[float]) -> float:
    return statistics.median(milliseconds) * 1e3


def _distance(result: torch.Tensor, expected: torch.Tensor) -> float:
    found = float((result.double() - expected).norm() / expected.norm())
    return found if math.isfinite(found) else math.inf


if __name__ == "__main__":
    sys.exit(main())
