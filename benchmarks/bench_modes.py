"""PyTorch models on a GPU as people run them beside bfloat16 training: inference, float32, half, one image, contiguous.

    python benchmarks/bench_modes.py --processes 7 --seconds 300                    all networks and modes below
    python benchmarks/bench_modes.py --networks resnet50 timm:dpn68:8:224 --modes inference/autocast training/tf32
    python benchmarks/bench_modes.py --networks resnet50:1 --modes inference/half/contiguous
    python benchmarks/bench_modes.py --dry-run                                      no GPU: a tiny network

A mode is inference or training, a precision, and "contiguous" where models and images are not channels_last:

    tf32       float32 whose convolutions round to TF32: PyTorch's default, Genesis' set_float32_precision("high")
    float32    full precision on all sides, Genesis' default
    autocast   to bfloat16;      half, bfloat16    models and images of that type

Inference runs under no_grad; a training step has SGD with momentum.

Sides are loops, timed in turns: "eager" with cuDNN's search, "reduce-overhead" is torch.compile with that mode,
"freezing" is that with Inductor's freezing, which folds norms into convolutions (inference only), "genesis" is
genesis.torch.compile. Each one's distance is that of its results from eager float64's, over their norm.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import gpu_timing
import torch
import turns
from harness import RESULTS, Comparison
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from zoo_networks import TINY, Network, named, spelled

import genesis
import genesis.torch
from genesis.torch import native_steps

PRECISIONS = {
    "tf32": torch.float32, "float32": torch.float32, "autocast": torch.float32, "half": torch.float16,
    "bfloat16": torch.bfloat16,
}  # fmt: skip
_NETWORKS = (
    "resnet50:32", "resnet50:1", "timm:efficientnet_b0:32", "timm:efficientnet_b0:1", "unet:4", "timm:convnext_tiny:16",
    "torchvision:deeplabv3_resnet50:2:512", "timm:regnetx_008:64",
)  # fmt: skip
_MODES = (
    "inference/float32",
    "inference/autocast",
    "inference/half",
    "training/float32",
    "training/float32/contiguous",
)
_PYTORCH = ("eager", "reduce-overhead", "freezing")
_SIDES = (*_PYTORCH, "genesis")
_WARMUP = 8


class Mode(NamedTuple):
    kind: str
    precision: str
    order: str = "channels_last"

    def __str__(self) -> str:
        return "/".join(self if self.order != "channels_last" else self[:2])


def mode(text: str) -> Mode:
    """Raises: ValueError: it is none."""
    found = Mode(*text.split("/"))
    if found.kind not in ("inference", "training") or found.precision not in PRECISIONS:
        raise ValueError(text)
    if found.order not in ("channels_last", "contiguous"):
        raise ValueError(text)
    return found


def main() -> int:
    arguments = parse()
    device = "cpu" if arguments.dry_run else "cuda"
    machine = gpu_timing.at_full_speed(tf32=False) if device == "cuda" else {}
    results = Modes("bench_modes", **machine)
    results.keep_others(arguments.out)
    networks = TINY[:1] if arguments.dry_run else (arguments.networks or list(map(named, _NETWORKS)))
    if arguments.processes > 1:
        num_failed = turns.run(commands(networks, arguments), arguments.processes, arguments.seconds)
        results.keep_others(arguments.out)
        print(results.markdown())
        return min(num_failed, 1)
    turns.inductor_measures_in_turns()
    for each, how in itertools.product(networks, arguments.modes):
        measure(results, each, how, device, arguments)
        torch._dynamo.reset()
        free()
        with turns.alone(arguments.out):
            results.keep_others(arguments.out)
            results.finish(arguments.out)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", type=named, metavar="NAME", help="as bench_zoo takes them")
    parser.add_argument("--modes", nargs="+", type=mode, default=list(map(mode, _MODES)), metavar="MODE")
    parser.add_argument("--sides", nargs="+", choices=_SIDES, default=list(_SIDES), help="only these")
    parser.add_argument("--seconds", type=float, default=240, help="begin no case after that time")
    parser.add_argument("--processes", type=int, default=1, help="that prepare at the same time, and measure in turns")
    parser.add_argument("--calls", type=int, default=100, help="in a row, per measurement")
    parser.add_argument("--rounds", type=int, default=7, help="measurements per side, in turn")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--dry-run", action="store_true", help="a tiny network, without a GPU")
    return parser.parse_args()


def commands(networks: list[Network], arguments: argparse.Namespace) -> Iterator[list[str]]:
    """For each network and mode alone."""
    options = [f"--{name}={getattr(arguments, name)}" for name in ("calls", "rounds", "out")]
    for each, how in itertools.product(networks, arguments.modes):
        case = ["--networks", spelled(each), "--modes", str(how), "--sides", *arguments.sides]
        yield [sys.executable, __file__, *case, *options]


# --- measuring --------------------------------------------------------------------------------------------------------


class Loop:
    """A side of a case: what is called again and again."""

    def __init__(self, side: str, model: nn.Module, images: Tensor, how: Mode) -> None:
        dtype = torch.float64 if side == "float64" else PRECISIONS[how.precision]
        order = getattr(torch, "contiguous_format" if how.order == "contiguous" else how.order)
        began = time.perf_counter()
        self.is_training, self.device = how.kind == "training", images.device.type
        model = copy.deepcopy(model).to(images.device, dtype, memory_format=order).train(self.is_training)
        images = images.to(dtype, memory_format=order)
        self.batches = itertools.cycle([images, images.clone()])  # as each of a data loader is another tensor
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        self.autocasts = how.precision == "autocast" and side != "float64"
        self.model = WAYS.get(side, lambda each: each)(model)
        self.results = [result.clone() for result in self.call()]
        for _ in range(_WARMUP if side in WAYS else 0):
            self.call()
        self.wait()
        self.ready = time.perf_counter() - began

    def call(self) -> list[Tensor]:
        """The outputs; of a training step, its loss."""
        autocast = torch.autocast(self.device, torch.bfloat16) if self.autocasts else nullcontext()
        if not self.is_training:
            with torch.no_grad(), autocast:
                return self.outputs()
        self.optimizer.zero_grad(set_to_none=True)
        with autocast:
            loss = torch.stack([each.float().square().mean() for each in self.outputs()]).sum()
        loss.backward()
        self.optimizer.step()
        return [loss.detach()]

    def outputs(self) -> list[Tensor]:
        return [each for each in tree_leaves(self.model(next(self.batches))) if isinstance(each, Tensor)]

    def milliseconds(self, calls: int) -> float:
        self.wait()
        began = time.perf_counter()
        for _ in range(calls):
            self.call()
        self.wait()
        return (time.perf_counter() - began) / calls * 1e3

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def _frozen(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, options={"triton.cudagraphs": True, "freezing": True})


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "reduce-overhead": lambda model: torch.compile(model, mode="reduce-overhead"),
    "freezing": _frozen,
    "genesis": lambda model: genesis.torch.compile(model),
}


def measure(results: Modes, each: Network, how: Mode, device: str, arguments: argparse.Namespace) -> None:
    """Time the sides in turns; what fails is a row too."""
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = how.precision != "float32"
    genesis.set_float32_precision("high" if how.precision == "tf32" else "highest")
    model, case = each.build(), f"{each.name}, {each.batch} of {each.size}², {how}"
    torch.manual_seed(0)
    images = torch.randn(each.batch, 3, each.size, each.size, device=device)
    exact = Loop("float64", model, images, how).results
    loops: dict[str, Loop] = {}
    errors: dict[str, str] = {}
    for side in arguments.sides:
        if side == "freezing" and how.kind == "training":
            continue
        try:
            loops[side] = Loop(side, model, images, how)
        except Exception as error:  # one side's failure is a result
            errors[side] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            print(f"  {case} {side}: {errors[side]}", flush=True)
        free()
    times: dict[str, list[float]] = {side: [] for side in loops}
    if "genesis" in loops and device == "cuda":
        native_steps.wait()  # for what is compiled in the background
    with turns.measuring():
        for _, side in itertools.product(range(arguments.rounds), loops):
            times[side].append(loops[side].milliseconds(arguments.calls))
    if times:
        results.add(case, times)
    for row in results.rows:
        if row["case"] == case:
            loop = loops[row["side"]]
            row |= {"mode": str(how), "ready_s": round(loop.ready, 1), "distance": _distance(loop.results, exact)}
            print(f"      {row['side']}: distance {row['distance']:.1e}, ready after {row['ready_s']} s", flush=True)
    results.rows += [{"case": case, "side": side, "error": error} for side, error in errors.items()]


def _distance(found: list[Tensor], exact: list[Tensor]) -> float:
    squares = sum(float((a.double() - b).square().sum()) for a, b in zip(found, exact, strict=True))
    return math.sqrt(squares / max(sum(float(b.square().sum()) for b in exact), 1e-300))


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# --- results ----------------------------------------------------------------------------------------------------------


class Modes(Comparison):
    """A row for each network, mode and side."""

    def markdown(self) -> str:
        lines = [f"| case | {' | '.join(_SIDES)} | PyTorch's best / genesis |", f"|---|{'---|' * len(_SIDES)}---|"]
        speeds: dict[str, list[float]] = {}
        for case, rows in self._by_case():
            timed = {side: row["median_ms"] for side, row in rows.items() if "median_ms" in row}
            theirs = [timed[side] for side in _PYTORCH if side in timed]
            speed = min(theirs) / timed["genesis"] if theirs and "genesis" in timed else None
            if speed is not None:
                speeds.setdefault(rows["genesis"]["mode"], []).append(speed)
            cells = [f"{timed[side]:.3g} ms" if side in timed else "" for side in _SIDES]
            lines.append(f"| {case} | {' | '.join(cells)} | {'' if speed is None else f'{speed:.2f}'} |")
        means = [
            f"- {name}: {len(found)} networks, geometric mean {statistics.geometric_mean(found):.2f}, "
            f"least {min(found):.2f}"
            for name, found in speeds.items()
        ]
        errors = [f"- {row['case']}, {row['side']}: {row['error']}" for row in self.rows if "error" in row]
        return self.heading() + "\n".join([*means, "", *lines, "", *errors]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
