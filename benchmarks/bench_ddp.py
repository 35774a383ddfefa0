"""Data parallel training on one host: images per second on 1 and on all GPUs, Genesis beside PyTorch.

    python benchmarks/bench_ddp.py --processes 4                                       within 8 minutes
    python benchmarks/bench_ddp.py --processes 2 --cases resnet50:128 --sides torch compiled --seconds 200
    python benchmarks/bench_ddp.py --processes 2 --device cpu --cases tiny:2 --steps 1 --rounds 1      to try it

Starts torchrun for each case, a network and the batch of a process. Sides take turns: first in all processes, then
"1": in rank 0 alone, without DistributedDataParallel. ddp_loops.py says what a side is. Results are written after every
case. A side that fails, or ends its process, is left out of a second try; so are sides that no time is left for. The
table says why.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import gpu_timing
import torch
import torch.distributed
from ddp_loops import NETWORKS, SIDES, Loop, Place, made
from harness import RESULTS, Comparison

import genesis
from genesis import distributed as dist

PATIENCE = 60.0  # seconds that a collective may take, and a case beyond its time
_SHARE_OF_ONE = 0.25  # of a case's time is for one GPU
_NO_TIME = "no time was left"
_DEFAULT = ("torch", "torch-compile", "torch-genesis", "compiled")  # sides that there is time for
Case = tuple[str, int]  # a network, and the batch of a process

# --- a rank -----------------------------------------------------------------------------------------------------------


class Rank:
    """One process of a case.

    Args:
        record: all write here what happens, a line of JSON for each event.
        until: the end of the time for this case, by time.time().
    """

    def __init__(self, arguments: argparse.Namespace, record: Path, until: float) -> None:
        self.arguments, self.until, self._record = arguments, until, record
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._place = torch.device("cpu")
        on_cuda = arguments.device == "cuda"
        if on_cuda:
            local = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(local)
            genesis.cuda.set_device(local)
            self._place = torch.device("cuda", local)
            gpu_timing.at_full_speed(tf32=True)
        backend, patience = "nccl" if on_cuda else "gloo", timedelta(seconds=PATIENCE)
        place = self._place if on_cuda else None
        torch.distributed.init_process_group(backend, timeout=patience, device_id=place)
        self._control = torch.distributed.new_group(backend="gloo", timeout=timedelta(hours=1))
        dist.init_process_group(backend, timeout=patience)

    def note(self, **event: object) -> None:
        with self._record.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"rank": self.rank, **event}) + "\n")

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"  {text}", flush=True)

    def run(self, network: str, batch: int) -> None:
        """Measure a case."""
        end = self.until
        self.until -= _SHARE_OF_ONE * max(0.0, end - time.time())
        sides = self.measured(network, batch, self.arguments.sides, alone=False)
        self.until = end
        if self.rank == 0:
            self.measured(network, batch, [side for side in sides if side in self.arguments.alone], alone=True)
        self.together(None)

    def measured(self, network: str, batch: int, sides: list[str], alone: bool) -> list[str]:
        """The sides that were measured, in turn."""
        where = "1" if alone else str(self.size)
        loops: dict[str, Loop] = {}
        for side in sides:
            if not self.agreed(time.time() < self.until, alone):
                self.note(side=side, alone=alone, skipped=_NO_TIME)
                continue
            start = time.monotonic()
            with self.at(side, alone):
                loops[side] = made(side, network, batch, Place(self.arguments.device, self._place, not alone))
                self._time(loops[side], side, alone)  # in case that another side ends this process
            self.say(f"{network}, batch {batch}, {side}, {where}: ready after {time.monotonic() - start:.0f} s")
        for index in range(self.arguments.rounds if loops else 0):
            if index > 2 and not self.agreed(time.time() < self.until, alone):
                break
            first = index % len(loops)
            for side in [*list(loops)[first:], *list(loops)[:first]]:
                with self.at(side, alone):
                    self._time(loops[side], side, alone)
        measured = list(loops)
        loops.clear()
        self._free()
        return measured

    @contextmanager
    def at(self, side: str, alone: bool) -> Iterator[None]:
        """A side's work. If it fails, this process ends, and torchrun ends the others, which may wait for it."""
        self.note(side=side, alone=alone, begins=True)
        try:
            yield
        except BaseException as error:
            self.note(side=side, alone=alone, failed=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
        self.note(side=side, alone=alone, ends=True)

    def _time(self, loop: Loop, side: str, alone: bool) -> None:
        milliseconds = loop.milliseconds(self.arguments.steps)
        if self.rank == 0:
            self.note(side=side, alone=alone, milliseconds=milliseconds)

    def agreed(self, value: bool, alone: bool) -> bool:
        """Whether all ranks say so."""
        return value if alone else all(self.together(value))

    def together(self, value: Any) -> list[Any]:
        """The values of all ranks, by a group that no side uses."""
        every: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(every, value, self._control)
        return every

    def _free(self) -> None:
        gc.collect()
        torch._dynamo.reset()
        if self.arguments.device == "cuda":
            genesis.cuda.empty_cache()
            torch.cuda.empty_cache()


def work(arguments: argparse.Namespace) -> int:
    """A rank's part of one case, as torchrun starts it. Returns: the exit status."""
    faulthandler.register(signal.SIGTERM, chain=True)  # a case that is ended by force says where it was
    (case,) = arguments.cases
    Rank(arguments, arguments.record, arguments.until).run(*case)
    dist.destroy_process_group()
    torch.distributed.destroy_process_group()
    return 0


# --- the launcher -----------------------------------------------------------------------------------------------------


class Record:
    """What the ranks of a case have written.

    Attributes:
        times: milliseconds by side, of all processes and ("alone") of 1.
        failed, skipped: sides, and why.
        unfinished: the sides that were at work at the end.
    """

    def __init__(self, path: Path) -> None:
        self.times: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
        self.failed: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        at_work: dict[int, str | None] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for event in map(json.loads, lines):
            side, rank = event["side"], event["rank"]
            if "milliseconds" in event:
                self.times[event["alone"]].setdefault(side, []).append(event["milliseconds"])
            elif "skipped" in event:
                self.skipped[side] = event["skipped"]
            elif "failed" in event:
                self.failed.setdefault(side, f"rank {rank}: {event['failed']}".replace("|", "/"))
            at_work[rank] = side if "begins" in event else None if "ends" in event else at_work.get(rank)
        self.unfinished = sorted({side for side in at_work.values() if side is not None})


def tried(case: Case, arguments: argparse.Namespace, until: float) -> Iterator[Record]:
    """The records of a case: of a first try, and of others without the sides that ended those before."""
    sides = list(arguments.sides)
    while sides:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record"
            status = launched(case, sides, arguments, path, until)
            record = Record(path)
        if status and not record.failed:
            record.failed = dict.fromkeys(record.unfinished, f"its processes ended, or took too long ({status})")
        yield record
        if not record.failed or time.time() > until:
            return
        sides = [side for side in sides if side not in record.failed]


def launched(case: Case, sides: list[str], arguments: argparse.Namespace, record: Path, until: float) -> int:
    """Run the ranks of a case. Returns: torchrun's exit status, which is below 0 if it took too long."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(arguments.processes), __file__, "--cases", ":".join(map(str, case))]
    command += ["--sides", *sides, "--record", str(record), "--until", str(until), "--device", arguments.device]
    command += ["--alone", *arguments.alone, "--steps", str(arguments.steps), "--rounds", str(arguments.rounds)]
    environment = {"OMP_NUM_THREADS": "8", **os.environ} if arguments.device == "cuda" else None
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait(max(0.0, until - time.time()) + arguments.grace)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


class Report:
    """The figures of all cases, written after each."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        machine: dict[str, Any] = {"processes": arguments.processes}
        if arguments.device == "cuda":
            machine |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        self._comparison, self._arguments = Comparison("bench_ddp", **machine), arguments
        columns = f"network | batch a process | side | images/s, 1 | images/s, {arguments.processes} | times one's"
        self._comparison.notes += [f"\n| {columns} |", "|---|---|---|---|---|---|"]

    def add(self, case: Case, records: list[Record]) -> None:
        """Take up a case, of each side what the last try that measured it says, and write."""
        (network, batch), count = case, self._arguments.processes
        speeds: dict[bool, dict[str, float]] = {False: {}, True: {}}
        for alone, where in ((True, "1"), (False, f"all {count}")):
            found: dict[str, list[float]] = {}
            for record in records:
                found |= record.times[alone]
            times = {side: found[side] for side in self._arguments.sides if side in found}
            if not times:
                continue
            name, images = f"{network}, batch {batch} a process, {where}", batch * (1 if alone else count)
            self._comparison.add(name, times)
            for row in self._comparison.rows:
                if row["case"] == name:
                    speeds[alone][row["side"]] = images / row["median_ms"] * 1e3
                    row["images_per_second"] = round(speeds[alone][row["side"]], 1)
        left_out = {side: why for record in records for side, why in (record.failed | record.skipped).items()}
        for side in self._arguments.sides:
            one, every = speeds[True].get(side), speeds[False].get(side)
            scale = f"{every / one:.2f}" if one and every else ""
            cells = [network, str(batch), side, f"{one:,.0f}" if one else "", f"{every:,.0f}" if every else "", scale]
            if side in left_out:
                cells[2] += f" (left out: {left_out[side]})"
            self._comparison.notes.append(f"| {' | '.join(cells)} |")
            print(self._comparison.notes[-1], flush=True)
        self._comparison.finish(self._arguments.out)


def main() -> int:
    arguments = parse()
    if arguments.record is not None:
        return work(arguments)
    report, end = Report(arguments), time.time() + arguments.seconds
    for index, case in enumerate(arguments.cases):
        left = end - time.time()
        until = time.time() + left / (len(arguments.cases) - index)
        print(f"{case[0]}, batch {case[1]}: {left:.0f} s are left", flush=True)
        records: list[Record] = []
        try:
            records += tried(case, arguments, until)
        finally:
            report.add(case, records)
    return 0


def case_of(text: str) -> Case:
    network, _, batch = text.partition(":")
    if network not in NETWORKS or not batch.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a network ({', '.join(NETWORKS)}), ':' and a batch, got {text!r}")
    return network, int(batch)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = [("resnet50", 128), ("resnet50", 32), ("unet", 16)]
    parser.add_argument("--processes", type=int, default=2, help="one for each GPU")
    parser.add_argument("--cases", nargs="*", type=case_of, default=cases, help="network:batch of each process")
    parser.add_argument("--sides", nargs="*", default=_DEFAULT, choices=SIDES)
    parser.add_argument("--alone", nargs="*", default=SIDES, choices=SIDES, help="sides to measure on one GPU as well")
    parser.add_argument("--steps", type=int, default=20, help="in a row, per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=390, help="for all cases; sides may be left out then")
    parser.add_argument("--grace", type=float, default=PATIENCE, help="seconds after which a case is ended by force")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)  # of a rank, which the launcher starts
    parser.add_argument("--until", type=float, default=time.time() + 3600, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
