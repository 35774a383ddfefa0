"""Convolution + batch norm + ReLU on a GPU: Genesis' one op beside PyTorch's layers, all in PyTorch's autograd.

    python benchmarks/bench_fused.py                        training and inference over five shapes, bfloat16, NHWC
    python benchmarks/bench_fused.py --modes default        torch.compile's quick mode only
    python benchmarks/bench_fused.py --bytes                count the bytes that the memory moves by Nsight Compute, too
    python benchmarks/bench_fused.py --families --bytes     only that, of cases that were measured before

Each side is captured in a CUDA graph and replayed in turn; PyTorch runs eager with cudnn.benchmark, and compiled in
each of the modes. Convolution plans are tuned first. The results are compared before they are timed.
"""

from __future__ import annotations

import argparse
import copy
import csv
import io
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gpu_timing
import torch
from harness import RESULTS, Comparison, Work
from torch import nn

import genesis.torch
from genesis.settings import override

BANDWIDTH = 4.3e12  # bytes per second that a copy reaches on an H200


class Shape(NamedTuple):
    """Images (batch, channels, size, size) into filters of kernel × kernel, stride 1."""

    name: str
    batch: int
    channels: int
    size: int
    filters: int
    kernel: int

    @property
    def narrow(self) -> int:
        """Bytes of the input."""
        return 2 * self.batch * self.channels * self.size**2

    @property
    def wide(self) -> int:
        """Bytes of the output."""
        return 2 * self.batch * self.filters * self.size**2


SHAPES = [
    Shape("3x3a", 64, 64, 56, 64, 3),
    Shape("1x1a", 64, 64, 56, 256, 1),
    Shape("3x3b", 64, 128, 28, 128, 3),
    Shape("3x3c", 64, 256, 14, 256, 3),
    Shape("vgg", 64, 256, 56, 256, 3),
]


def least_bytes(shape: Shape, training: bool) -> int:
    """What no implementation can do without: each array read or written once.

    Inference: the input and the output. Training: input, output and its gradient twice, as the norm's gradient needs
    sums over all of it before its first value, the input once more, and its gradient.
    """
    if not training:
        return shape.narrow + shape.wide
    return (shape.narrow + shape.wide) + (2 * shape.wide + shape.narrow + shape.narrow)


def counted_bytes(shape: Shape, training: bool) -> int:
    """What Genesis' passes read and write of the large arrays."""
    x, y = shape.narrow, shape.wide
    if not training:
        return x + y
    if shape.kernel == 1 and shape.filters >= shape.channels:
        bits = y // 16
        return (x + x + y + bits) + (y + bits + x) + (y + bits + x + x)
    forward = (x + y) + y + (y + y)  # convolution, statistics, normalization
    return forward + (y + y) + (y + y + y) + (y + x) + (y + x)  # sums, gradient of the norm, both of the convolution


def main() -> int:
    arguments = parse()
    if arguments.profiled:
        return run_profiled(arguments.profiled)
    comparison = Comparison("bench_fused", **gpu_timing.at_full_speed(tf32=True))
    shapes = [shape for shape in SHAPES if not arguments.only or shape.name in arguments.only]
    with gpu_timing.shared_stream(), override(tune=arguments.tune):
        for family in arguments.families:
            for shape in shapes:
                measure(comparison, shape, family == "training", arguments)
                comparison.keep_others(arguments.out)
                comparison.finish(arguments.out)
    comparison.keep_others(arguments.out)
    rows = {row["case"]: row for row in comparison.rows if row["side"] == "genesis"}
    for shape in shapes if arguments.bytes else []:
        with override(tune=arguments.tune):  # for the store: what ncu runs finds its plans there, and tunes nothing
            training_step(shape)()
        rows[f"training {shape.name}"]["bytes"] = moved = measured_bytes(shape)
        print(f"  {shape.name}: {moved / 1e6:,.0f} MB measured", flush=True)
        comparison.finish(arguments.out)
    comparison.notes = [*speeds(comparison), *table_of_bytes(comparison)]
    comparison.finish(arguments.out)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="SHAPE", help=f"some of {', '.join(names)}")
    families = ["training", "inference"]
    parser.add_argument("--families", nargs="*", choices=families, default=families, metavar="FAMILY", help="or none")
    parser.add_argument("--modes", nargs="*", default=["default", "max-autotune-no-cudagraphs"], metavar="MODE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tune", type=float, default=120, help="seconds for tuning convolutions")
    parser.add_argument("--bytes", action="store_true", help="measure the bytes moved, too")
    parser.add_argument("--profiled", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    return parser.parse_args()


def layers(shape: Shape) -> nn.Sequential:
    torch.manual_seed(0)
    conv = nn.Conv2d(shape.channels, shape.filters, shape.kernel, padding=shape.kernel // 2, bias=False)
    chain = nn.Sequential(conv, nn.BatchNorm2d(shape.filters), nn.ReLU()).cuda().to(memory_format=torch.channels_last)
    chain[0].bfloat16()  # the norm keeps float32, as under autocast
    return chain


def make_call(model: Callable[[Any], Any], parameters: list[Any], shape: Shape, training: bool) -> Callable[[], Any]:
    """One step on data of its own: forward and all gradients, or inference."""
    sizes = (shape.batch, shape.channels, shape.size, shape.size)
    x = torch.randn(sizes, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
    if not training:

        def infer() -> Any:
            with torch.no_grad():
                return model(x)

        return infer
    x.requires_grad_()
    sizes = (shape.batch, shape.filters, shape.size, shape.size)
    grad = torch.randn(sizes, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)

    def step() -> Any:
        y = model(x)
        return y, torch.autograd.grad(y, [x, *parameters], grad)

    return step


def measure(comparison: Comparison, shape: Shape, training: bool, arguments: argparse.Namespace) -> None:
    base = layers(shape).train(training)
    models: dict[str, Any] = {"torch": copy.deepcopy(base)}
    compiled = {f"compile {mode}": torch.compile(copy.deepcopy(base), mode=mode) for mode in arguments.modes}
    models |= compiled | {"genesis": genesis.torch.fuse(copy.deepcopy(base))}
    num_sets = max(1, min(4, round(2e8 / (shape.narrow + shape.wide))))
    sides = {}
    for name, model in models.items():
        torch.manual_seed(1)
        parameters = list(model.parameters())
        sides[name] = [make_call(model, parameters, shape, training) for _ in range(num_sets)]
    compare(shape, sides["torch"][0](), sides["genesis"][0]())
    times = gpu_timing.interleaved(sides, arguments.rounds)
    family = "training" if training else "inference"
    work = Work(counted_bytes(shape, training), bytes_per_second=BANDWIDTH)
    comparison.add(f"{family} {shape.name}", times, family, work)
    least, counted = (f(shape, training) / 1e6 for f in (least_bytes, counted_bytes))
    print(f"    {'bytes counted':<42} {counted:,.0f} MB, {counted / least:.2f} times the least")
    torch._dynamo.reset()


def compare(shape: Shape, expected: Any, actual: Any) -> None:
    """The two sides' results are as near as bfloat16 lets them be."""
    pairs = zip(_flat(expected), _flat(actual), strict=True)
    for index, (theirs, ours) in enumerate(pairs):
        error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
        if not error < 2e-2:
            raise SystemExit(f"{shape.name}: result {index} differs by {error:.1e}")


def _flat(values: Any) -> list[Any]:
    return [x for value in values for x in _flat(value)] if isinstance(values, tuple | list) else [values]


def speeds(comparison: Comparison) -> list[str]:
    """Against the best of PyTorch's sides, which is another one from case to case; lines of Markdown."""
    found: dict[str, list[float]] = {}
    for _, rows in comparison._by_case():
        best = min(row["median_ms"] for side, row in rows.items() if side != "genesis")
        found.setdefault(rows["genesis"]["family"], []).append(best / rows["genesis"]["median_ms"])
    lines = []
    for family, values in found.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        shown = ", ".join(f"{value:.2f}" for value in values)
        lines += ["", f"{family} against PyTorch's best: {mean:.3f}× (geometric mean of {shown})"]
        print(f"  {lines[-1]}")
    return lines


# --- bytes, by Nsight Compute ---
def run_profiled(name: str) -> int:
    """What ncu runs: one training step after the warm-up, in a range of its own."""
    step = training_step(next(shape for shape in SHAPES if shape.name == name))
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return 0


def training_step(shape: Shape) -> Callable[[], Any]:
    model = genesis.torch.fuse(layers(shape).train())
    return make_call(model, list(model.parameters()), shape, training=True)


def measured_bytes(shape: Shape) -> float:
    """Of a training step; what the caches keep from kernel to kernel moves nothing."""
    metrics = "dram__bytes_read.sum,dram__bytes_write.sum"
    options = ["--profile-from-start", "off", "--cache-control", "none", "--csv", "--print-units", "base"]
    script = [sys.executable, __file__, "--profiled", shape.name]
    done = subprocess.run(["ncu", *options, "--metrics", metrics, *script], capture_output=True, text=True, check=False)
    rows = list(csv.DictReader(io.StringIO("\n".join(x for x in done.stdout.splitlines() if x.startswith('"')))))
    if not rows:
        raise SystemExit(f"{shape.name}: no bytes measured: {done.stdout[-300:]} {done.stderr[-300:]}")
    return sum(float(row["Metric Value"].replace(",", "")) for row in rows)


def table_of_bytes(comparison: Comparison) -> list[str]:
    """Lines of Markdown, for the shapes whose bytes were measured."""
    lines = ["", "| MB of a training step | at least | counted | measured |", "|---|---|---|---|"]
    measured = {row["case"]: row["bytes"] for row in comparison.rows if "bytes" in row}
    for shape in SHAPES:
        if f"training {shape.name}" in measured:
            figures = least_bytes(shape, True), counted_bytes(shape, True), measured[f"training {shape.name}"]
            lines.append(f"| {shape.name} | {' | '.join(f'{figure / 1e6:,.0f}' for figure in figures)} |")
    print("\n".join(lines))
    return lines if measured else []


if __name__ == "__main__":
    sys.exit(main())
