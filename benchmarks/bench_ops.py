"""Ops on a GPU beside PyTorch, in one run and on the same data: kernel times by CUDA-graph replay, and host costs.

    python benchmarks/bench_ops.py                              all, about four minutes
    python benchmarks/bench_ops.py --only matmul attention      these families
    python benchmarks/bench_ops.py --dry-run                    no GPU: every case, tiny, on the simulated device

Each case is compared before it is timed. Speed, the last column, is PyTorch's time over Genesis'. Rates are shown
against what a large copy and large products reached in the same run. float32 is without TF32 on both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_timing
import torch
from harness import RESULTS, Comparison, Work
from op_cases import MEGABYTES, Calls, Case, Setting, cases

import genesis
from genesis import backends, dtypes, nn, optim
from genesis.settings import override

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}  # ‖ours − theirs‖ / ‖theirs‖
ROTATED_BYTES = 200e6  # the data of one case together, so that no cache holds them
MOST_SETS = 8
HOST = "host"
_TUNED, _TUNING = ("matmul", "attention"), 10.0  # families, and seconds for each case


def main() -> int:
    arguments = parse()
    if arguments.dry_run:
        with override(cuda="simulated"):
            failures = dry_run(arguments.only)
    else:
        failures = run(arguments)
    for failure in failures:
        print(f"FAILED  {failure}")
    return int(bool(failures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="FAMILY", help="families, such as matmul or element-wise")
    parser.add_argument("--match", default="", help="only cases whose name has this in it")
    parser.add_argument("--megabytes", nargs="+", type=int, default=MEGABYTES, help="sizes of the memory-bound cases")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=230, help="begin no case after that time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--dry-run", action="store_true", help="check every case without a GPU")
    arguments = parser.parse_args()
    families = list(dict.fromkeys([HOST, *(case.family for case in cases())]))
    for family in arguments.only or ():
        if family not in families:
            parser.error(f"--only: expected some of {', '.join(families)}, got {family!r}")
    return arguments


def run(arguments: argparse.Namespace) -> list[str]:
    """Measure; the failures, if any."""
    begin = time.monotonic()
    comparison = Comparison("bench_ops", **gpu_timing.at_full_speed(tf32=False))
    failures: list[str] = []
    gc.freeze()  # the collection before each capture then has little to look at
    if not arguments.only or HOST in arguments.only:
        measure_host(comparison, arguments.rounds)
    with gpu_timing.shared_stream():
        ceilings = measure_ceilings()
        comparison.machine.update({name: round(value / 1e12, 2) for name, value in ceilings.items()})
        for case in cases(tuple(arguments.megabytes)):
            if (arguments.only and case.family not in arguments.only) or arguments.match not in case.name:
                continue
            if time.monotonic() - begin > arguments.seconds:
                failures.append(f"{case.name} and all after it: out of time after {arguments.seconds:.0f} s")
                break
            try:
                failures += measure(comparison, case, ceilings, arguments.rounds)
            except Exception as error:  # a missing op must not cost the rest of the run
                failures.append(f"{case.name}: {type(error).__name__}: {error}")
    for family, speeds in comparison.speeds("genesis").items():
        mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
        print(f"  {family:<16} {len(speeds):3} cases   geometric mean {mean:.3f}×   least {min(speeds):.3f}×")
    comparison.finish(arguments.out)
    return failures


def measure(comparison: Comparison, case: Case, ceilings: dict[str, float], rounds: int) -> list[str]:
    """Time a case; what is wrong with its results."""
    setting = Setting(tiny=False)
    num_sets = min(MOST_SETS, math.ceil(ROTATED_BYTES / case.num_bytes))
    made = [case.make(setting) for _ in range(num_sets)]
    with tuned(case):
        wrong = [f"{case.name}: {text}" for text in disagreements(made[0], case.dtype)]
    sides = {side: [calls[side] for calls in made] for side in ("torch", "genesis")}
    operations_rate = ceilings.get(f"TFLOP/s {str(case.dtype).removeprefix('torch.')}", 0)
    work = Work(case.num_bytes, case.num_operations, ceilings["TB/s copied"], operations_rate)
    comparison.add(case.name, gpu_timing.interleaved(sides, rounds), case.family, work)
    return wrong


def tuned(case: Case) -> contextlib.AbstractContextManager[object]:
    """Matrix products and attention are measured as they are once a network has been tuned."""
    return genesis.tuning(_TUNING) if case.family in _TUNED else contextlib.nullcontext()


def measure_ceilings() -> dict[str, float]:
    """Bytes per second of a large copy, operations per second of large products, by PyTorch."""
    source, target = torch.randn(2, 2**28, device="cuda")
    times = gpu_timing.interleaved({"copy": [lambda: target.copy_(source)]}, rounds=7)
    found = {"TB/s copied": 2 * source.nbytes / min(times["copy"]) * 1e3}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, y = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        times = gpu_timing.interleaved({"product": [lambda x=x, y=y: x @ y]}, rounds=5)
        found[f"TFLOP/s {str(dtype).removeprefix('torch.')}"] = 2 * 8192**3 / min(times["product"]) * 1e3
    return found


def disagreements(calls: Calls, dtype: torch.dtype) -> list[str]:
    """How the two sides' results differ, if they do by more than the tolerance."""
    theirs, ours = listed(calls["torch"]()), listed(calls["genesis"]())
    if len(theirs) != len(ours):
        return [f"expected {len(theirs)} results, got {len(ours)}"]
    found = []
    for number, (expected, result) in enumerate(zip(theirs, ours, strict=True)):
        mine = result.detach().cpu().to_torch() if expected.device.type == "cpu" else result.detach().to_torch()
        if mine.shape != expected.shape or mine.dtype != expected.dtype:
            wanted, got = ((side.dtype, *side.shape) for side in (expected, mine))
            found.append(f"result {number}: expected {wanted}, got {got}")
            continue
        exact = expected.detach().double()
        distance = ((mine.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()
        if not distance <= TOLERANCE[dtype]:
            found.append(f"result {number}: {distance:.2g} from PyTorch's, expected at most {TOLERANCE[dtype]}")
    return found


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


# --- host costs -------------------------------------------------------------------------------------------------------
def host_cases(setting: Setting) -> dict[str, tuple[int, bool, Calls]]:
    """Name → calls per round, is the device's work part of the time, the calls."""
    backend, float32 = backends.get("cuda"), dtypes.float32
    x, ours = setting.both(torch.ones(16, device=setting.device))

    def allocate() -> None:
        backend.empty((16,), (1,), float32, 0)

    def allocate_torch() -> None:
        torch.empty(16, device=setting.device)

    return {
        "add, 16 elements": (100, False, {"torch": lambda: x + x, "genesis": lambda: ours + ours}),
        "allocate and free": (100, False, {"torch": allocate_torch, "genesis": allocate}),
        "MLP training step": (20, True, mlp_steps(setting)),
    }


def mlp_steps(setting: Setting) -> Calls:
    """784-512-256-10, batch 200, AdamW. Each call is a step and gives the loss."""
    sizes, batch = ((6, 8, 4, 3), 5) if setting.tiny else ((784, 512, 256, 10), 200)

    def layers(kind: Any) -> Any:
        return kind.Sequential(
            kind.Linear(sizes[0], sizes[1]), kind.ReLU(), kind.Linear(sizes[1], sizes[2]), kind.ReLU(),
            kind.Linear(sizes[2], sizes[3]),
        )  # fmt: skip

    torch.manual_seed(0)
    theirs, ours = layers(torch.nn).to(setting.device), layers(nn)
    ours.load_state_dict({name: value.cpu() for name, value in theirs.state_dict().items()})
    ours.to("cuda")
    x, our_x = setting.normal(batch, sizes[0], dtype=torch.float32)
    target, our_target = setting.both(torch.randint(sizes[3], (batch,), device=setting.device))
    criterion, our_criterion = torch.nn.CrossEntropyLoss(), nn.CrossEntropyLoss()

    def step(model: Any, criterion: Any, optimizer: Any, x: Any, target: Any) -> Any:
        loss = criterion(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    their_optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    our_optimizer = optim.AdamW(ours.parameters(), lr=1e-3)
    return {
        "torch": lambda: step(theirs, criterion, their_optimizer, x, target),
        "genesis": lambda: step(ours, our_criterion, our_optimizer, our_x, our_target),
    }


def measure_host(comparison: Comparison, rounds: int) -> None:
    for name, (count, with_device, sides) in host_cases(Setting(tiny=False)).items():
        for side in sides.values():
            for _ in range(10):
                side()
        times: dict[str, list[float]] = {side: [] for side in sides}
        for index in range(2 * rounds):
            for side in list(sides)[:: 1 if index % 2 else -1]:
                times[side].append(host_milliseconds(sides[side], count, with_device))
        comparison.add(name, times, HOST)


def host_milliseconds(call: Callable[[], Any], count: int, with_device: bool) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    if with_device:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


# --- without a GPU ----------------------------------------------------------------------------------------------------
def dry_run(only: list[str] | None = None) -> list[str]:
    """Build every case tiny, run both sides and compare them; what is wrong."""
    setting, failures, count = Setting(tiny=True), [], 0
    for case in cases(MEGABYTES[:1]):
        if not only or case.family in only:
            failures += [f"{case.name}: {text}" for text in disagreements(case.make(setting), case.dtype)]
            count += 1
    if not only or HOST in only:
        for name, (_, _, calls) in host_cases(setting).items():
            for _ in range(2):
                results = {side: call() for side, call in calls.items()}
            if results["torch"] is not None:
                again: Calls = {side: lambda result=result: result for side, result in results.items()}
                failures += [f"{name}: {text}" for text in disagreements(again, torch.float32)]
            count += 1
    print(f"{count} cases on the simulated device beside PyTorch on the CPU, {len(failures)} differ")
    return failures


if __name__ == "__main__":
    sys.exit(main())
