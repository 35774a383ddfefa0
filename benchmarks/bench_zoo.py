"""Training steps of forty networks of thirty families on a GPU: PyTorch's best mode beside Genesis.

    python benchmarks/bench_zoo.py --seconds 240 --tune 5           as many as that suffices for, of all families first
    python benchmarks/bench_zoo.py --seconds 240 --more             those that the results do not have yet
    python benchmarks/bench_zoo.py --networks resnet50 yolo --compile
    python benchmarks/bench_zoo.py --compile --processes 6          all of them, six at a time; they measure in turns
    python benchmarks/bench_zoo.py --networks densenet121 resnetv2_50 convnext_tiny --without norms biases
    python benchmarks/bench_zoo.py --networks yolo --compile --kernels kernels      what each kernel takes
    python benchmarks/bench_zoo.py --networks timm:dpn68:32:224 torchvision:googlenet --compile --out others   any other
    python benchmarks/bench_zoo.py --networks hrnet_w18_small_v2 --sides genesis torch.compile genesis.torch.compile
    python benchmarks/bench_zoo.py --dry-run                        no GPU: two tiny networks; --compile for those sides

bfloat16 autocast, channels_last, SGD with momentum, images of random numbers, the same weights on each side. "torch" is
eager PyTorch with cuDNN's search, "genesis" is genesis.torch.fuse, tuned for --tune seconds; the whole step of both is
captured in a CUDA graph, or run in a loop if it can't be captured. --compile adds, as loops,
torch.compile(mode="reduce-overhead"), which takes up to a minute for each network, and genesis.torch.compile. Sides are
timed in turns; --sides leaves some out, but cuDNN's search and tuning come first all the same. Memory is what PyTorch's
allocator holds for a side. --without adds fused sides that leave alone batch norms with no convolution before them, or
convolutions that only their bias runs with. What fails stands in the table. Results are written after each network;
packages that are not installed leave their networks out.
"""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gpu_timing
import torch
import torch.nn.functional as F
import turns
from harness import RESULTS, Comparison
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from zoo_networks import NETWORKS, TINY, Network, named, spelled

import genesis
import genesis.torch
from genesis.backends.cuda.engine import planner
from genesis.torch import native_steps
from genesis.torch.entry import FORWARD
from genesis.torch.links import Link, running_alone

WARMUP = 3  # steps before the capture; of a compiled loop more, which records at the second or third
_PROFILED, _MOST_KERNELS = 4, 120  # steps, and lines for each side
_GOAL = 1.3  # geometric mean
_CHAINS = ("norms", "biases")
_COMPILED = {"torch": "torch.compile", "genesis": "genesis.torch.compile"}  # by sides that are captured by hand
_SIDES = (*_COMPILED, *_COMPILED.values())


def main() -> int:
    arguments = parse()
    on_cuda = not arguments.dry_run
    machine = gpu_timing.at_full_speed(tf32=True) if on_cuda else {}
    zoo = Zoo("bench_zoo", **machine)
    zoo.keep_others(arguments.out)
    begin, known = time.monotonic(), {row["case"] for row in zoo.rows}
    networks = arguments.networks or (TINY if arguments.dry_run else NETWORKS)
    networks = [network for network in networks if not (arguments.more and title(network) in known)]
    if arguments.processes > 1:
        num_failed = turns.run(commands(networks, arguments), arguments.processes, arguments.seconds)
        zoo.keep_others(arguments.out)
        print(zoo.summary())
        return min(num_failed, 1)
    turns.inductor_measures_in_turns()
    for network in networks:
        if time.monotonic() - begin > arguments.seconds:
            print(f"no time for {network.name} and what follows")
            break
        try:
            model = network.build()
        except ImportError as error:
            print(f"  {network.name}: left out ({error})")
            continue
        except Exception as error:  # another version of its package may not have it
            zoo.take(network, {}, {}, {"torch": told(error)})
            zoo.add_to(arguments.out)
            continue
        measure(zoo, network, model, arguments)
        torch._dynamo.reset()
        free()
        zoo.add_to(arguments.out)
        if on_cuda and not works():
            print("the device is out of order: no other network can be measured in this process")
            return 1
    print(zoo.summary())
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = f"{', '.join(network.name for network in (*NETWORKS, *TINY))}, or PACKAGE:NAME[:BATCH[:SIZE]]"
    parser.add_argument("--networks", "--only", nargs="+", type=named, metavar="NAME", help=names)
    parser.add_argument("--more", action="store_true", help="leave out what the results have already")
    parser.add_argument("--compile", action="store_true", help="torch.compile and genesis.torch.compile too, as loops")
    parser.add_argument("--sides", nargs="+", choices=_SIDES, help="only these")
    parser.add_argument("--without", nargs="+", choices=_CHAINS, default=[], help="fused sides without such chains too")
    parser.add_argument("--tune", type=float, default=5, help="seconds for a network's convolutions; 0: heuristics")
    parser.add_argument("--seconds", type=float, default=240, help="begin no network after that time")
    parser.add_argument("--processes", type=int, default=1, help="that prepare at the same time, and measure in turns")
    parser.add_argument("--steps", type=int, default=10, help="in a row, per measurement")
    parser.add_argument("--rounds", type=int, default=7, help="measurements per side, in turn")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--kernels", type=Path, metavar="FOLDER", help="write what each kernel takes to files there")
    parser.add_argument("--dry-run", action="store_true", help="check both kinds of networks without a GPU")
    arguments = parser.parse_args()
    arguments.compile = arguments.compile or any("compile" in side for side in arguments.sides or ())
    if arguments.dry_run:
        arguments.without = list(_CHAINS)
    return arguments


def commands(networks: list[Network], arguments: argparse.Namespace) -> Iterator[list[str]]:
    """For each network alone."""
    options = [f"--{name}={getattr(arguments, name)}" for name in ("tune", "steps", "rounds", "out")]
    options += [f"--{name.replace('_', '-')}" for name in ("compile", "dry_run") if getattr(arguments, name)]
    options += ["--without", *arguments.without] if arguments.without else []
    options += ["--sides", *arguments.sides] if arguments.sides else []
    options += [f"--kernels={arguments.kernels}"] if arguments.kernels else []
    for network in networks:
        yield [sys.executable, __file__, "--networks", spelled(network), *options]


def title(network: Network) -> str:
    return f"{network.name}, {network.batch} of {network.size}²"


# --- the sides --------------------------------------------------------------------------------------------------------


def sides(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[nn.Module], Any]]]:
    """By name, what each does with the model. What starts with "torch" is PyTorch's."""
    yield "torch", lambda model: model
    yield "genesis", genesis.torch.fuse
    for chains in arguments.without:
        yield f"genesis without {chains}", without_norms if chains == "norms" else genesis.torch.fuse
    if arguments.compile:
        dry = arguments.dry_run  # then nothing is generated
        how: dict[str, Any] = {"backend": "aot_eager"} if dry else {"mode": "reduce-overhead"}
        ours: dict[str, Any] = {"compiler": "aot_eager"} if dry else {"tune": None}  # what "genesis" tuned is stored
        yield "torch.compile", lambda model: torch.compile(model, **how)
        yield "genesis.torch.compile", lambda model: genesis.torch.compile(model, **ours)


def without_norms(model: nn.Module) -> nn.Module:
    """Fused, but for batch norms that follow no convolution."""
    fused = genesis.torch.fuse(model)
    for module in fused.modules():
        bare = getattr(module.__dict__.get(FORWARD), "bare", None)
        if bare is not None:
            bare.active = False
    return fused


class Step:
    """A side of a network: its training step, captured or called."""

    graph: torch.cuda.CUDAGraph | None = None

    def __init__(
        self, name: str, prepare: Callable[[nn.Module], Any], model: nn.Module, network: Network, arguments: Any
    ) -> None:
        began = time.perf_counter()
        self.name, self.device = name, "cpu" if arguments.dry_run else "cuda"
        free()
        before = reserved()
        model = copy.deepcopy(model).to(self.device, memory_format=torch.channels_last)
        fused = True if self.device == "cuda" else None
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=fused)
        self.model = prepare(model)
        torch.manual_seed(0)
        images = torch.randn(network.batch, 3, network.size, network.size, device=self.device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.arange(network.batch, device=self.device)
        self.failure = ""  # to capture
        is_loop = "compile" in name
        self.wait()  # what follows is on another stream
        if self.device == "cuda":
            with torch.cuda.stream(torch.cuda.current_stream() if is_loop else torch.cuda.Stream()):
                self._warm(arguments.tune if name.startswith("genesis") and not is_loop else 0, 2 * WARMUP)
                if not is_loop:
                    self._capture()
                elif name.startswith("genesis"):
                    native_steps.wait()
        else:
            self._warm(0, 1)
        free()
        self.gigabytes = (reserved() - before) / 1e9
        self.seconds = time.perf_counter() - began

    def _warm(self, tune: float, steps: int) -> None:
        is_loop = "compile" in self.name
        with nullcontext() if is_loop or tune else turns.measuring():  # cuDNN's search; but our kernels are compiled
            self.loss = self.backward().item()  # the first: later ones depend on it, and drift apart
        if tune:
            with turns.measuring(), running_alone():
                genesis.tune(self.backward, budget=tune, progress=lambda *_: None)
        for _ in range(steps):
            self.step()
        self.wait()

    def backward(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16):
            outputs = [each for each in tree_leaves(self.model(self.images)) if isinstance(each, Tensor)]
            parts = [F.cross_entropy(x, self.labels) if x.ndim == 2 else x.float().square().mean() for x in outputs]
        loss = torch.stack(parts).sum()
        loss.backward()
        return loss.detach()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    def _capture(self) -> None:
        planner.settle()
        torch._C._cuda_clearCublasWorkspaces()  # torch.compile gives them back, and the graph must not use such memory
        torch.cuda.empty_cache()  # what the graph needs is its own
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self.step()
        except Exception as error:
            self.failure = told(error)
            return
        self.graph = graph

    def milliseconds(self, steps: int) -> float:
        """A step's, of so many."""
        call = self.step if self.graph is None else self.graph.replay
        self.wait()
        began = time.perf_counter()
        for _ in range(steps):
            call()
        self.wait()
        return (time.perf_counter() - began) / steps * 1e3

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def made(
    name: str, prepare: Callable[[nn.Module], Any], model: nn.Module, network: Network, arguments: argparse.Namespace
) -> Step:
    runs_alone = Link._runs_alone
    if name == "genesis without biases":  # which is asked when another layer takes the convolution's result
        Link._runs_alone = lambda link: False  # type: ignore[method-assign]
    try:
        step = Step(name, prepare, model, network, arguments)
        if step.failure and "without biases" in name:
            raise RuntimeError(f"not captured: {step.failure}")  # a loop would run them after all
        return step
    finally:
        Link._runs_alone = runs_alone  # type: ignore[method-assign]


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(zoo: Zoo, network: Network, model: nn.Module, arguments: argparse.Namespace) -> None:
    """Time the sides of a network in turns; what fails is a row too."""
    steps: dict[str, Step] = {}
    errors: dict[str, str] = {}
    for name, prepare in sides(arguments):
        is_left_out = bool(arguments.sides) and name in _SIDES and name not in arguments.sides
        if is_left_out and (arguments.dry_run or _COMPILED.get(name) not in arguments.sides):
            continue
        try:
            step = made(name, prepare, model, network, arguments)
            if not is_left_out:  # else its search is all that is wanted: it had the GPU to itself
                steps[name] = step
            del step
        except Exception as error:
            if not is_left_out:
                errors[name] = told(error)
            print(f"  {network.name} {name}: {told(error)}", flush=True)
            free()
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    with turns.measuring():
        for index in range(arguments.rounds if names else 0):
            first = index % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(steps[name].milliseconds(arguments.steps))
        if arguments.kernels and not arguments.dry_run:
            write_kernels(arguments.kernels / f"{network.name}.txt", steps)
    zoo.take(network, steps, times, errors)


def write_kernels(path: Path, steps: dict[str, Step]) -> None:
    """Microseconds and launches a step by kernel, the longest first, for each side."""
    lines = []
    for name, step in steps.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            step.milliseconds(_PROFILED)
        taken, launches = collections.Counter[str](), collections.Counter[str]()
        for event in profiler.events() or ():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                taken[event.name] += event.time_range.elapsed_us()
                launches[event.name] += 1
        total, number = taken.total() / _PROFILED, launches.total() / _PROFILED
        lines.append(f"== {name}: {total:.0f} us a step in {number:.0f} launches")
        for kernel, time_us in taken.most_common(_MOST_KERNELS):
            lines.append(f"{time_us / _PROFILED:10.1f} {launches[kernel] / _PROFILED:8.1f}  {kernel[:160]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def figures(step: Step) -> dict[str, Any]:
    """What a row has beside its times."""
    found: dict[str, Any] = {
        "mode": "graph" if step.graph else "loop", "gigabytes": round(step.gigabytes, 3),
        "ready_s": round(step.seconds, 1), "loss": round(step.loss, 5),
    }  # fmt: skip
    if step.failure:
        found["not_captured"] = step.failure
    if step.name.startswith("genesis") and "compile" not in step.name:
        convolutions = {name for name, module in step.model.named_modules() if isinstance(module, nn.Conv2d)}
        report = genesis.torch.report(step.model)
        reasons = collections.Counter(reason for name, reason in report.left if name in convolutions)
        found["fused"] = sum(parts[0] in convolutions for parts in report.fused)
        found |= {"convolutions": len(convolutions), "left": dict(reasons.most_common())}
        found["other_chains"] = len(report.fused) - found["fused"]
    return found


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reserved() -> int:
    return torch.cuda.memory_reserved() if torch.cuda.is_available() else 0


def works() -> bool:
    """Has no kernel failed in a way that ends all others?"""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


# --- results ----------------------------------------------------------------------------------------------------------


class Zoo(Comparison):
    """A row for each network and side; PyTorch's best is the reference."""

    def take(
        self, network: Network, steps: dict[str, Step], times: dict[str, list[float]], errors: dict[str, str]
    ) -> None:
        case = title(network)
        self._measured.add(case)
        theirs = [name for name in times if name.startswith("torch")]
        order = sorted(times, key=lambda name: (name not in theirs, statistics.median(times[name])))
        if order:
            self.add(case, {name: times[name] for name in order}, network.family)
        self.rows = [row for row in self.rows if row["case"] != case or row["side"] in times]
        for row in self.rows:
            if row["case"] == case:
                row.update(figures(steps[row["side"]]))
                print(f"      {row['side']}: {row['mode']}, {row['gigabytes']:.2f} GB, ready after {row['ready_s']} s")
        failed = {"family": network.family, "case": case}
        self.rows += [{**failed, "side": name, "error": error} for name, error in errors.items()]

    def add_to(self, folder: Path) -> None:
        """To the results there, which other processes may be adding to."""
        with turns.alone(folder):
            self.keep_others(folder)
            self.finish(folder)

    def speeds(self, side: str = "genesis") -> dict[str, list[float]]:
        """By network, how many times as fast as PyTorch's best a side is; the faster of Genesis' two by default."""
        found: dict[str, list[float]] = {}
        for case, rows in self._by_case():
            theirs, ours = (_best(rows, beginning) for beginning in ("torch", side))
            if theirs and ours:
                found[case] = [theirs["median_ms"] / ours["median_ms"]]
        return found

    def summary(self) -> str:
        speeds = {case: speed for case, (speed,) in self.speeds().items()}
        if not speeds:
            return "nothing was measured"
        mean = math.exp(statistics.fmean(map(math.log, speeds.values())))
        behind = [f"{case.partition(',')[0]} {speed:.2f}" for case, speed in sorted(speeds.items(), key=_second)]
        behind = behind[: sum(speed < 1 for speed in speeds.values())]
        counted = [row for row in self.rows if row["side"] == "genesis" and "fused" in row]
        fused, all_ = (sum(row[key] for row in counted) for key in ("fused", "convolutions"))
        failed = [f"{row['case'].partition(',')[0]} ({row['side']})" for row in self.rows if "error" in row]
        chains = f"; {fused} of {all_} convolutions fused" if counted else ""
        return "\n".join([
            f"{len(speeds)} networks, geometric mean {mean:.2f} (goal: {_GOAL}){chains}",
            f"{len(behind)} below 1: {', '.join(behind) or 'none'}",
            f"{len(failed)} failed: {', '.join(failed) or 'none'}",
        ])  # fmt: skip

    def markdown(self) -> str:
        names = sorted(dict.fromkeys(row["side"] for row in self.rows), key=lambda name: name not in _COMPILED)
        captured = [name for name in names if name in _COMPILED]
        head = ["network", "family", *(f"{name} ms" for name in names), "speed over PyTorch's best"]
        head += [f"GB, {name}" for name in captured] + ["fused"] * ("genesis" in captured)
        lines, speeds = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], self.speeds()
        for case, rows in self._by_case():
            cells = [case, next(iter(rows.values()))["family"], *(_cell(rows.get(name)) for name in names)]
            cells += [f"{speeds[case][0]:.2f}" if case in speeds else ""]
            cells += [_gigabytes(rows.get(name, {})) for name in captured]
            cells += [_fused(rows.get("genesis", {}))] * ("genesis" in captured)
            lines.append(f"| {' | '.join(cells)} |")
        notes = list(self._notes())
        return self.heading() + "\n".join([*lines, "", *self.summary().split("\n"), "", *notes]) + "\n"

    def _notes(self) -> Iterator[str]:
        for row in self.rows:
            name = f"- {row['case'].partition(',')[0]}, {row['side']}: "
            if "error" in row:
                yield name + row["error"]
            if "not_captured" in row:
                yield f"{name}not captured, {row['not_captured']}"
            if row["side"] == "genesis" and row.get("left"):
                yield name + "left " + "; ".join(f"{count}, as {why}" for why, count in row["left"].items())


def _best(rows: dict[str, dict[str, Any]], beginning: str) -> dict[str, Any] | None:
    timed = [
        row for side, row in rows.items()
        if side.startswith(beginning) and "without" not in side and "median_ms" in row
    ]  # fmt: skip
    return min(timed, key=lambda row: row["median_ms"], default=None)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if "error" in row:
        return "failed"
    return f"{row['median_ms']:.2f}" + (" (loop)" if "not_captured" in row else "")


def _gigabytes(row: dict[str, Any]) -> str:
    return f"{row['gigabytes']:.2f}" if "gigabytes" in row else ""


def _fused(row: dict[str, Any]) -> str:
    return f"{row['fused']} of {row['convolutions']}" if "fused" in row else ""


def _second(item: tuple[str, float]) -> float:
    return item[1]


if __name__ == "__main__":
    sys.exit(main())
