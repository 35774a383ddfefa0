"""Convolutions on a GPU beside PyTorch, in one run and on the same data: forward and both gradients, four precisions.

    python benchmarks/bench_conv.py                                 all, in one go: about ten minutes
    python benchmarks/bench_conv.py --part 1/4 --out folder         a quarter of the cases, on a GPU of its own; then
    python benchmarks/bench_conv.py --merge folder                  the parts as one table
    python benchmarks/bench_conv.py --dry-run                       no GPU: tiny shapes on the simulated device

PyTorch runs in benchmark mode, in NCHW and in channels-last, and the faster one counts; Genesis is tuned for
--budget seconds per case. Times are replays of a captured graph on data that no cache holds; errors are relative L2
distances from float64. The ceiling is what a large matrix product, or a large copy where that takes longer, reached in
the same run: of float32 in `highest`, a third of float16's, since three products of halves replace one. Results are
written after each case: a run that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gpu_timing
import torch
from harness import RESULTS, Comparison, Work

import genesis
from genesis import backends
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.cli.info import versions
from genesis.files import replaced
from genesis.records import ConvGeometry
from genesis.settings import override

NAME = "bench_conv"


class Shape(NamedTuple):
    """N, C, H, W → K output channels by taps × taps."""

    name: str
    input: tuple[int, int, int, int]
    outputs: int
    taps: int
    stride: int
    padding: int

    @property
    def weight(self) -> tuple[int, int, int, int]:
        return (self.outputs, self.input[1], self.taps, self.taps)

    @property
    def output(self) -> tuple[int, int, int, int]:
        rows, columns = ((n + 2 * self.padding - self.taps) // self.stride + 1 for n in self.input[2:])
        return (self.input[0], self.outputs, rows, columns)


SHAPES = (
    Shape("seed", (32, 512, 7, 7), 512, 3, 1, 1),
    Shape("seed-small", (32, 16, 7, 7), 1, 3, 1, 1),
    Shape("stem", (64, 3, 224, 224), 64, 7, 2, 3),
    Shape("1x1a", (64, 64, 56, 56), 256, 1, 1, 0),
    Shape("3x3a", (64, 64, 56, 56), 64, 3, 1, 1),
    Shape("3x3b", (64, 128, 28, 28), 128, 3, 1, 1),
    Shape("3x3c", (64, 256, 14, 14), 256, 3, 1, 1),
    Shape("1x1c", (64, 1024, 14, 14), 256, 1, 1, 0),
    Shape("3x3s2", (64, 256, 28, 28), 256, 3, 2, 1),
    Shape("vgg", (64, 256, 56, 56), 256, 3, 1, 1),
    Shape("unet", (4, 64, 512, 512), 64, 3, 1, 1),
)
DIRECTIONS = ("forward", "input_grad", "weight_grad")
PRECISIONS = {"highest": torch.float32, "high": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ROTATED_BYTES, _MOST_SETS = 200e6, 6


class Case(NamedTuple):
    """One row of the table."""

    shape: Shape
    direction: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.shape.name} {self.direction} {self.precision}"


def main() -> int:
    arguments = parse()
    if arguments.merge:
        return merge(arguments.merge, arguments.out)
    if arguments.dry_run:
        with override(cuda="simulated"):
            return dry_run()
    return run(arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=[shape.name for shape in SHAPES], help="only these shapes")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--part", default="1/1", help="2/4: the second quarter of the cases")
    parser.add_argument("--seconds", type=float, default=530, help="begin no case after that time")
    parser.add_argument("--budget", type=float, default=4, help="seconds of tuning for a case")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="put the parts in a folder together")
    parser.add_argument("--dry-run", action="store_true", help="check every kind of case without a GPU")
    return parser.parse_args()


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Those of this part. A shape's directions go to different parts, and each part gets its share of each direction;
    the precisions stay together, since two of them have their operands and the reference in common."""
    part, parts = map(int, arguments.part.split("/"))
    shapes = [shape for shape in SHAPES if not arguments.shapes or shape.name in arguments.shapes]
    return [
        Case(shape, direction, precision)
        for i, shape in enumerate(shapes)
        for j, direction in enumerate(arguments.directions)
        if (i + j) % parts == part - 1
        for precision in arguments.precisions
    ]


# --- the two sides ----------------------------------------------------------------------------------------------------


class Data:
    """One set of operands, and what each side computes of them."""

    def __init__(self, shape: Shape, direction: str, dtype: torch.dtype, device: str, seed: int) -> None:
        self.shape, self.direction = shape, direction
        torch.manual_seed(seed)
        self.input = torch.randn(shape.input, device=device).to(dtype)
        self.weight = (torch.randn(shape.weight, device=device) / math.sqrt(math.prod(shape.weight[1:]))).to(dtype)
        self.grad = torch.randn(shape.output, device=device).to(dtype)

    def in_order(self, memory_format: torch.memory_format, dtype: torch.dtype | None = None) -> Callable[[], Any]:
        """PyTorch's convolution of these operands, in one memory order."""
        x, w, g = (
            each.to(dtype or each.dtype).contiguous(memory_format=memory_format)
            for each in (self.input, self.weight, self.grad)
        )
        stride, padding = (self.shape.stride,) * 2, (self.shape.padding,) * 2
        if self.direction == "forward":
            return lambda: torch.conv2d(x, w, None, stride, padding)
        wanted = (self.direction == "input_grad", self.direction == "weight_grad", False)
        backward = torch.ops.aten.convolution_backward
        result = wanted.index(True)
        return lambda: backward(g, x, w, None, stride, padding, (1, 1), False, (0, 0), 1, wanted)[result]

    def genesis(self) -> Callable[[], Any]:
        """Genesis' convolution of the same memory, in channels-last."""
        cuda = backends.get("cuda")
        operands = (self.input, self.weight, self.grad)
        x, w, g = (cuda.from_dlpack(each.contiguous(memory_format=torch.channels_last)) for each in operands)
        shape = self.shape
        geometry = ConvGeometry((shape.stride,) * 2, (shape.padding,) * 2, (1, 1), 1)
        if self.direction == "forward":
            return lambda: cuda.conv_forward(x, w, None, geometry)
        if self.direction == "input_grad":
            return lambda: cuda.conv_input_grad(g, w, shape.input, geometry)
        return lambda: cuda.conv_weight_grad(g, x, shape.weight, geometry)


class Operands(NamedTuple):
    """So many sets that no cache holds them, and the first one's result in float64."""

    sets: list[Data]
    expected: torch.Tensor

    @property
    def num_bytes(self) -> int:
        first = self.sets[0]
        return sum(each.numel() * each.element_size() for each in (first.input, first.weight, first.grad))


@functools.lru_cache(maxsize=1)
def operands(shape: Shape, direction: str, dtype: torch.dtype) -> Operands:
    sizes = (math.prod(each) for each in (shape.input, shape.weight, shape.output))
    num_sets = max(1, min(_MOST_SETS, int(_ROTATED_BYTES // (sum(sizes) * dtype.itemsize))))
    sets = [Data(shape, direction, dtype, "cuda", seed) for seed in range(num_sets)]
    torch.backends.cudnn.benchmark = False  # a search would take longer than the one call
    expected = sets[0].in_order(torch.channels_last, torch.float64)()
    torch.backends.cudnn.benchmark = True
    return Operands(sets, expected)


def distance(result: Any, expected: torch.Tensor) -> float:
    """Relative L2, from float64."""
    if not isinstance(result, torch.Tensor):
        result = torch.from_dlpack(result)
    return float((result.double() - expected).norm() / expected.norm())


# --- measuring --------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    torch.backends.cudnn.benchmark = True
    gc.collect()
    gc.freeze()  # each capture collects garbage, and need not look through the libraries for it
    comparison = Comparison(NAME, gpu=torch.cuda.get_device_name(), cuda=torch.version.cuda)
    part, _, parts = arguments.part.partition("/")
    path = arguments.out / (f"{NAME}.part-{part}.json" if parts != "1" else f"{NAME}.json")
    with gpu_timing.shared_stream():
        rates = ceilings()
        comparison.machine.update({name: round(rate / 1e12, 1) for name, rate in rates.items()})
        for case in cases(arguments):
            if time.monotonic() - begin > arguments.seconds:
                print(f"no time for {case.name} and what follows")
                break
            measure(comparison, case, arguments, rates)
            write(path, comparison.machine, comparison.rows)
    print(f"  written to {path}")
    return 0


def ceilings() -> dict[str, float]:
    """Operations per second of large products, and bytes per second of a large copy."""
    found = {}
    for precision, dtype in {"high": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        torch.backends.cuda.matmul.allow_tf32 = True
        x = torch.randn(8192, 8192, device="cuda").to(dtype)
        product = gpu_timing.interleaved({precision: [lambda x=x: x @ x]}, 5, 20)[precision]
        found[precision] = 2 * 8192**3 / min(product) * 1e3
    found["highest"] = found["fp16"] / 3
    memory = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(memory)
    copied = gpu_timing.interleaved({"copy": [lambda: target.copy_(memory)]}, 5, 5)["copy"]
    return {**found, "copy": 2 * memory.numel() / min(copied) * 1e3}


def measure(comparison: Comparison, case: Case, arguments: argparse.Namespace, rates: dict[str, float]) -> None:
    began = time.monotonic()
    torch.backends.cudnn.allow_tf32 = case.precision == "high"
    precision = case.precision if case.precision in ("highest", "high") else "highest"
    given = operands(case.shape, case.direction, PRECISIONS[case.precision])
    sets, expected = given
    with genesis.float32_precision(precision):
        ours = [each.genesis() for each in sets]
        session = plans.Session(arguments.budget)
        plans.begin(session)
        tuning = time.monotonic()
        try:
            result = ours[0]()
        finally:
            plans.end(session)
        tuning = time.monotonic() - tuning
        errors = {"genesis": distance(result, expected)}
        sides = {}
        for name, order in {"torch NCHW": torch.contiguous_format, "torch NHWC": torch.channels_last}.items():
            sides[name] = [each.in_order(order) for each in sets]
            errors[name] = distance(sides[name][0](), expected)
        del result
        times = gpu_timing.interleaved({**sides, "genesis": ours}, arguments.rounds)
        eager = profiled(case, ours[0], sets[0].input)
    best = min(sides, key=lambda name: statistics.median(times[name]))
    flops = 2 * math.prod(case.shape.output) * math.prod(case.shape.weight[1:])
    work = Work(given.num_bytes, flops, rates["copy"], rates[case.precision])
    before = len(comparison.rows)
    comparison.add(case.name, {best: times[best], "genesis": times["genesis"]}, case.precision, work)
    plan = max(plans.all_plans(CONV), key=lambda plan: _is_of(plan.problem, case))
    for row in comparison.rows[before:]:
        row["error"] = errors[row["side"]]
    assert plan.candidate is not None
    comparison.rows[-1].update(
        candidate=plan.candidate.name, origin=plan.origin, channels=case.shape.input[1], eager_ms=round(eager, 6)
    )
    seconds = f"{time.monotonic() - began:.1f} s, {tuning:.1f} of them tuning"
    print(
        f"      {plan.candidate.name}, error {errors['genesis']:.1e}, PyTorch's {errors[best]:.1e}; {seconds}",
        flush=True,
    )


def _is_of(problem: Any, case: Case) -> bool:
    precision = case.precision if case.precision in ("highest", "high") else "highest"
    same = (problem.direction, problem.input_shape, problem.weight_shape, problem.precision)
    dtype = str(PRECISIONS[case.precision]).removeprefix("torch.")
    wanted = (case.direction, case.shape.input, case.shape.weight, precision)
    return bool(same == wanted and problem.dtype.name == dtype)


def profiled(case: Case, call: Callable[[], Any], input: torch.Tensor) -> float:
    """Milliseconds of a call that is launched from the host, one after the other."""
    profiler = genesis.Profiler(iterations=10, device="cuda")
    dtype = getattr(genesis, str(input.dtype).removeprefix("torch."))
    profiler.describe_operation(case.name, case.shape.input, case.shape.weight, case.shape.output, dtype)
    profiler.start()
    for _ in range(profiler.iterations):
        call()
    profiler.stop()
    return profiler.milliseconds


def dry_run() -> int:
    """Every direction and precision, tiny: both sides compute the same."""
    failures = 0
    for direction in DIRECTIONS:
        for precision in PRECISIONS:
            case = Case(Shape("tiny", (2, 16, 6, 6), 8, 3, 2, 1), direction, precision)
            data = Data(case.shape, direction, PRECISIONS[precision], "cpu", 0)
            expected = data.in_order(torch.contiguous_format, torch.float64)()
            with genesis.float32_precision(precision if precision in ("highest", "high") else None):
                error = distance(data.genesis()(), expected)
            failures += error > (1e-2 if precision != "highest" else 1e-6)
            print(f"{case.name}: error {error:.1e}")
    print(f"{failures} differ")
    return int(failures > 0)


# --- results ----------------------------------------------------------------------------------------------------------


def write(path: Path, machine: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """machine may have versions and a date already: parts may be put together elsewhere than they were measured."""
    report = {"benchmark": NAME, "machine": {**versions(), "date": datetime.date.today().isoformat(), **machine}}
    with replaced(path) as temporary:
        temporary.write_text(json.dumps({**report, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown(report["machine"], rows), encoding="utf-8")


def merge(folder: Path, out: Path) -> int:
    paths = sorted(folder.glob(f"{NAME}.part-*.json"))
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not parts:
        print(f"no parts in {folder}")
        return 1
    rows = [row for part in parts for row in part["rows"]]
    position = {shape.name: i for i, shape in enumerate(SHAPES)}
    order = list(PRECISIONS)

    def place(row: dict[str, Any]) -> tuple[int, int, int]:
        shape, direction, precision = row["case"].split()
        return order.index(precision), DIRECTIONS.index(direction), position[shape]

    write(out / f"{NAME}.json", parts[0]["machine"], sorted(rows, key=place))
    num_all = len(SHAPES) * len(DIRECTIONS) * len(PRECISIONS)
    names = ", ".join(path.name for path in paths)
    print(f"{len(rows) // 2} of {num_all} cases, from {names}, written to {out / NAME}.json")
    return 0


def markdown(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """A line per case, and the geometric means by precision and direction over shapes with at least 16 channels."""
    lines = [f"# {NAME}", "", "; ".join(f"{key}: {value}" for key, value in machine.items()), ""]
    lines.append("| case | PyTorch | genesis | speed | of the ceiling | error | PyTorch's | candidate |")
    lines.append("|---|---|---|---|---|---|---|---|")
    speeds: dict[tuple[str, str], list[float]] = {}
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        speed = theirs["median_ms"] / ours["median_ms"]
        times = f"{theirs['median_ms'] * 1e3:.1f} ({theirs['side'].split()[1]}) | {ours['median_ms'] * 1e3:.1f} µs"
        errors = f"{ours['error']:.1e} | {theirs['error']:.1e}"
        share = f"{ours.get('of_ceiling', 0):.0%}"
        lines.append(f"| {ours['case']} | {times} | {speed:.2f}× | {share} | {errors} | {ours['candidate']} |")
        if ours["channels"] >= 16:
            _, direction, precision = ours["case"].split()
            speeds.setdefault((precision, direction), []).append(speed)
    lines += ["", "| precision, direction | geometric mean | least |", "|---|---|---|"]
    for (precision, direction), values in sorted(speeds.items()):
        lines.append(f"| {precision} {direction} | {statistics.geometric_mean(values):.2f}× | {min(values):.2f}× |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
