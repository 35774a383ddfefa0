"""Group norm with SiLU, instance, layer and RMS norm: Genesis' kernels, PyTorch's, and a copy of the same bytes.

    python benchmarks/bench_norms.py                      # 120 s on a GPU; writes results/bench_norms.{json,md}
    python benchmarks/bench_norms.py --only "unet-64 b8"  # cases whose name contains this
    python benchmarks/bench_norms.py --dry-run            # each kind of case on the CPU: the sides agree

All sides of a case run interleaved, as replays of CUDA graphs, over sets of data that no cache holds. The copy reads
and writes as many bytes as the op must: x and y forward; grad, x and grad_input backward.
"""

from __future__ import annotations

import argparse
import datetime
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
from harness import RESULTS
from harness import interleaved as interleaved_on_host
from torch._functorch import config as functorch_config
from torch.nn import functional as F

from genesis.cli.info import versions
from genesis.files import replaced
from genesis.records import SavedGroupNorm
from genesis.torch.bridge import call

NAME = "bench_norms"
_ROTATED_BYTES, _MOST_SETS = 200e6, 8
Call = Callable[[], object]
SIDES = {
    "genesis": torch.channels_last,
    "genesis nchw": torch.contiguous_format,
    "eager": torch.channels_last,
    "eager nchw": torch.contiguous_format,
    "compile": torch.channels_last,
    "compile nchw": torch.contiguous_format,
}  # the order of memory of images


class Norm(NamedTuple):
    """A shape; images are normalized in groups of channels, rows over their last dimension."""

    name: str
    kind: str  # group | layer | rms
    shape: tuple[int, ...]
    groups: int = 0
    activation: str | None = None

    def torch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if self.kind == "group":
            y = F.group_norm(x, self.groups, weight, bias)
            return y if self.activation is None else F.silu(y)
        if self.kind == "layer":
            return F.layer_norm(x, x.shape[-1:], weight, bias)
        return F.rms_norm(x, x.shape[-1:], weight, 1e-5)

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        if self.kind == "group":
            return call("group_norm", x, self.groups, weight, bias, 1e-5, self.activation)
        args = (weight, bias) if self.kind == "layer" else (weight,)
        return call(f"{self.kind}_norm", x, 1, *args, 1e-5)

    def backward(
        self, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, saved: Any
    ) -> Any:
        if self.kind == "group":
            needs = (True, True, True)
            record = SavedGroupNorm(x, weight, bias, *saved)
            return call("group_norm_backward", grad, record, self.groups, needs, self.activation)
        needs = (True,) * (3 if self.kind == "layer" else 2)
        return call(f"{self.kind}_norm_backward", grad, x, 1, weight, *saved, needs)


def _unet(batch: int, size: int, channels: int) -> Norm:
    return Norm(f"unet-{size} b{batch} c{channels}", "group", (batch, channels, size, size), 32, "silu")


NORMS = (
    _unet(8, 64, 320), _unet(2, 64, 320), _unet(8, 32, 640), _unet(16, 16, 1280), _unet(2, 16, 1280),
    Norm("convnext-56", "layer", (64, 56, 56, 96)), Norm("gpt-768", "layer", (16384, 768)),
    Norm("llama-4096", "rms", (8192, 4096)),
    Norm("instance-56", "group", (64, 96, 56, 56), 96), Norm("one group", "group", (8, 256, 56, 56), 1, "silu"),
    _unet(16, 64, 320), _unet(4, 64, 640), _unet(2, 32, 640), _unet(16, 32, 1280), _unet(1, 32, 640),
    Norm("convnext-28", "layer", (64, 28, 28, 192)), Norm("convnext-14", "layer", (64, 14, 14, 384)),
    Norm("convnext-7", "layer", (64, 7, 7, 768)), Norm("odd", "group", (8, 81, 63, 63), 3, "silu"),
    Norm("rows-2048", "layer", (8192, 2048)), Norm("rows-1000", "layer", (8192, 1000)),
    Norm("instance-28", "group", (16, 256, 28, 28), 256), Norm("bert-1024", "layer", (16384, 1024)),
)  # fmt: skip
_TINY = (
    Norm("tiny group", "group", (2, 6, 4, 5), 3, "silu"), Norm("tiny instance", "group", (2, 6, 4, 5), 6),
    Norm("tiny layer", "layer", (6, 5)), Norm("tiny rms", "rms", (6, 5)),
)  # fmt: skip
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}


def main() -> int:
    arguments = parse()
    if arguments.dry_run:
        return run(arguments, _TINY, "cpu")
    functorch_config.donated_buffer = False  # a backward is measured again and again
    with gpu_timing.shared_stream():
        return run(arguments, [norm for norm in NORMS if (arguments.only or "") in norm.name], "cuda")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16", "fp32"])
    parser.add_argument("--seconds", type=float, default=120, help="begin no case after that time")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--dry-run", action="store_true", help="check each kind of case on the CPU")
    return parser.parse_args()


def run(arguments: argparse.Namespace, norms: Any, device: str) -> int:
    begin, rows, slowest = time.monotonic(), list[dict[str, Any]](), 0.0
    gpu = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(f"{NAME}: {gpu}")
    dtypes = ["fp32"] if arguments.dry_run else arguments.dtypes
    for norm, dtype in ((norm, dtype) for dtype in dtypes for norm in norms):
        began = time.monotonic()
        if began - begin + slowest > arguments.seconds:
            print(f"no time for {norm.name} {dtype} and what follows")
            break
        rows += measure(norm, dtype, arguments, device)
        slowest = max(slowest, time.monotonic() - began)
        torch.compiler.reset()
        if not arguments.dry_run:
            write(arguments.out, gpu, rows)
    print(table(rows))
    return int(any(row["error"] > 1e-5 for row in rows)) if arguments.dry_run else 0


def write(folder: Path, gpu: str, rows: list[dict[str, Any]]) -> None:
    about = {"gpu": gpu, "versions": versions(), "date": datetime.date.today().isoformat()}
    folder.mkdir(parents=True, exist_ok=True)
    with replaced(folder / f"{NAME}.json") as path:
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    with replaced(folder / f"{NAME}.md") as path:
        head = "; ".join(f"{key}: {value}" for key, value in {"gpu": gpu, **versions(), "date": about["date"]}.items())
        path.write_text(f"# {NAME}\n\n{head}\n\n{table(rows)}\n", encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> str:
    """Microseconds of each side; NHWC where an order is not named, rows as they are."""
    lines = [
        "| case | copy | " + " | ".join(SIDES) + " | share of the copy's speed | × best of PyTorch |",
        "|---|---|" + "---|" * (len(SIDES) + 2),
    ]
    for row in rows:
        times = " | ".join(f"{row['us'][side]:.1f}" if side in row["us"] else "" for side in SIDES)
        copy = row["us"]["copy"]
        lines.append(f"| {row['case']} | {copy:.1f} | {times} | {row['share']:.0%} | {row['times']:.2f} |")
    return "\n".join(lines)


# --- measuring --------------------------------------------------------------------------------------------------------
def measure(norm: Norm, dtype: str, arguments: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    num_bytes = math.prod(norm.shape) * DTYPES[dtype].itemsize
    num_sets = max(1, min(_MOST_SETS, int(_ROTATED_BYTES // num_bytes)))
    wanted = [side for side in SIDES if norm.kind == "group" or "nchw" not in side]
    wanted = [side for side in wanted if not ((arguments.no_compile or device == "cpu") and "compile" in side)]
    forward: dict[str, list[Call]] = {"copy": _copies(2 * num_bytes, num_sets, device)}
    backward: dict[str, list[Call]] = {"copy": _copies(3 * num_bytes, num_sets, device)}
    for side in wanted:
        made = [_calls(norm, side, DTYPES[dtype], device, seed) for seed in range(num_sets)]
        forward[side], backward[side] = [pair[0] for pair in made], [pair[1] for pair in made]
    return [_row(f"{norm.name} {dtype} {direction}", sides, arguments.rounds, device)
            for direction, sides in (("forward", forward), ("backward", backward))]  # fmt: skip


def _copies(num_bytes: int, num_sets: int, device: str) -> list[Call]:
    pairs = [torch.empty(2, num_bytes // 2, dtype=torch.uint8, device=device) for _ in range(num_sets)]
    return [lambda pair=pair: pair[0].copy_(pair[1]) for pair in pairs]  # type: ignore[misc]


def _calls(norm: Norm, side: str, dtype: torch.dtype, device: str, seed: int) -> tuple[Call, Call]:
    """The forward, and the backward for the gradients of x, weight and bias."""
    generator = torch.Generator(device).manual_seed(seed)
    order = SIDES[side] if len(norm.shape) == 4 and norm.kind == "group" else torch.contiguous_format

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    x, grad = (make(*norm.shape).contiguous(memory_format=order) for _ in range(2))
    channels = norm.shape[1 if norm.kind == "group" else -1]
    weight, bias = make(channels), make(channels)
    if side.startswith("genesis"):
        saved = norm.forward(x, weight, bias)[1:]
        return lambda: norm.forward(x, weight, bias)[0], lambda: norm.backward(grad, x, weight, bias, saved)
    run = torch.compile(norm.torch, dynamic=False) if "compile" in side else norm.torch
    leaves = [each.requires_grad_() for each in ([x, weight] if norm.kind == "rms" else [x, weight, bias])]
    y = run(x, weight, bias)

    def without_grad() -> torch.Tensor:
        with torch.no_grad():
            return run(x, weight, bias)

    return without_grad, lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True)


def _row(case: str, sides: dict[str, list[Call]], rounds: int, device: str) -> dict[str, Any]:
    ours, theirs = (_flat(sides[side][0]()) for side in ("genesis", "eager"))
    error = max(float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True))
    if device == "cpu":
        times = interleaved_on_host({name: calls[0] for name, calls in sides.items()}, 1, 1)
    else:
        times = gpu_timing.interleaved(sides, rounds, 1.0)
    us = {name: round(statistics.median(each) * 1e3, 2) for name, each in times.items()}
    best = min(value for name, value in us.items() if name.startswith(("eager", "compile")))
    row = {
        "case": case, "us": us, "share": round(us["copy"] / us["genesis"], 3), "times": round(best / us["genesis"], 3),
        "error": error,
    }  # fmt: skip
    print(f"{case:<36} {row['share']:.0%} of the copy, {row['times']:.2f} × PyTorch's best  {us}", flush=True)
    return row


def _flat(results: Any) -> list[torch.Tensor]:
    tensors = results if isinstance(results, tuple | list) else (results,)
    return [each.detach().double() for each in tensors if each is not None]


if __name__ == "__main__":
    sys.exit(main())
