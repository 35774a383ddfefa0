"""Random training loops on CUDA, compiled and eagerly, in which one thing changes between two steps.

    python -m tests.graphs.fuzz_cuda --cases 1000 --seed 0        on the simulated device; --cuda auto: on a GPU
    python -m tests.graphs.fuzz_cuda --cases 1000 --log FILE      goes on where a run with that file was stopped

A loop draws a network, an optimizer and a step; before some of its steps, one of CHANGES is made. Results, parameters,
gradients, buffers, the optimizer's state, the scale and the random numbers that follow must be the eager loop's, bit
for bit, and results that were held must stay as they were. A loop that differs is printed with what repeats it.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from genesis.settings import override
from tests.graphs.fuzz_cuda_changes import CHANGES
from tests.graphs.fuzz_cuda_loop import EAGER, MODELS, OPTIMIZERS, STEPS, Loop, flat

SLOW = 120.0  # seconds after which a loop's stacks are shown, again and again: those of a hang stay the same


# --- cases ------------------------------------------------------------------------------------------------------------
class Case(NamedTuple):
    model: str
    optimizer: str
    step: str
    changes: tuple[str, ...]  # one before each step from the fifth on, or ""


class Outcome(NamedTuple):
    wrong: str
    num_replays: int


def drawn(seed: int) -> Case:
    generator = random.Random(seed)
    names = list(CHANGES)
    first = names[seed % len(names)]  # each of them comes often
    changes = [first, *generator.choices(names, k=2)]
    spread = [part for change in changes for part in (change, *[""] * generator.randint(1, 4))]
    return Case(generator.choice(list(MODELS)), generator.choice(list(OPTIMIZERS)), _step(generator), tuple(spread))


def _step(generator: random.Random) -> str:
    return generator.choice([name for name in STEPS if name not in EAGER] * 3 + list(EAGER))


def history(case: Case, is_compiled: bool) -> tuple[list[list[Any]], int]:
    """What each step leaves behind, and how many were replays."""
    loop = Loop(case.model, case.optimizer, case.step, is_compiled)
    found = [loop.take() for _ in range(4)]
    for change in case.changes:
        if change:
            CHANGES[change](loop)
        found.append(loop.take())
    found.append(flat(loop.held))
    if not is_compiled:
        return found, 0
    return found, loop.step.num_replays


def check(seed: int) -> Outcome:
    case = drawn(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            expected, _ = history(case, False)
            found, num_replays = history(case, True)
        except Exception:
            return Outcome(f"{case}\n{traceback.format_exc()}", 0)
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if not all(map(is_same, mine, theirs)) or len(mine) != len(theirs):
            places = [place for place, pair in enumerate(zip(mine, theirs, strict=False)) if not is_same(*pair)]
            return Outcome(f"{case}\nstep {index} differs at {places}", num_replays)
    return Outcome("", num_replays)


def timed(seed: int) -> Outcome:
    """check(seed); a slow one says whether it computed or waited for a processor that others had."""
    wall, processor = time.monotonic(), time.process_time()
    faulthandler.dump_traceback_later(SLOW, repeat=True)
    try:
        outcome = check(seed)
    finally:
        faulthandler.cancel_dump_traceback_later()
    wall, processor = time.monotonic() - wall, time.process_time() - processor
    if wall > SLOW:
        print(f"seed {seed} took {wall:.0f} s, {processor:.0f} s of them on a processor", flush=True)
    return outcome


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype is not other.dtype or one.shape != other.shape or one.stride() != other.stride():
            return False
        return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
    return bool(one == other) or (one != one and other != other)  # a loss that item() gave may be NaN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--cuda", default="simulated", choices=("simulated", "auto"))
    parser.add_argument("--log", type=Path, help="a line for each seed; those that it has are not run again")
    given = parser.parse_args()
    known = logged(given.log)
    start = time.monotonic()
    with override(cuda=given.cuda):
        for seed in range(given.seed, given.seed + given.cases):
            if time.monotonic() - start > given.seconds:
                break
            if seed in known:
                continue
            outcome = timed(seed)
            known[seed] = Logged(outcome.num_replays, not outcome.wrong)
            if outcome.wrong:
                print(f"python -m tests.graphs.fuzz_cuda --cases 1 --seed {seed}: {outcome.wrong}\n", flush=True)
            if given.log is not None:
                with given.log.open("a") as file:
                    file.write(f"{seed} {known[seed].num_replays} {'same' if known[seed].is_same else 'different'}\n")
            if len(known) % 50 == 0:
                print(f"{len(known)} loops, {time.monotonic() - start:.0f} s, {num_wrong(known)} wrong", flush=True)
    replayed = sum(each.num_replays > 0 for each in known.values())
    print(f"{len(known)} loops, {replayed} of them replayed, {num_wrong(known)} wrong")
    return int(num_wrong(known) > 0)


class Logged(NamedTuple):
    num_replays: int
    is_same: bool


def logged(file: Path | None) -> dict[int, Logged]:
    """The outcomes in a log, by seed."""
    if file is None or not file.exists():
        return {}
    lines = [line.split() for line in file.read_text().splitlines()]
    return {int(seed): Logged(int(num_replays), verdict == "same") for seed, num_replays, verdict in lines}


def num_wrong(known: dict[int, Logged]) -> int:
    return sum(not each.is_same for each in known.values())


if __name__ == "__main__":
    sys.exit(main())
