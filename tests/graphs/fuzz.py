"""Random programs that read numbers from random places, compiled and eagerly, while these places change.

    python -m tests.graphs.fuzz --programs 2000 --seed 0

Each program reads a few numbers through chains of containers, objects, closures, descriptors and functions; between
calls one of the links is written to or replaced. A program that differs is printed with the line that repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.graphs.programs import MODEL, STEP, Program, read_blocks, run

_LINKS = list(read_blocks(Path(__file__).with_name("links.txt")).values())
# How a value is read once more: through a function, by name, in a branch or a loop.
_READS: list[Callable[[str], str]] = [
    lambda read: read,
    lambda read: read,
    lambda read: f"(lambda: {read})()",
    lambda read: f"max([{read} for _ in range(2)])",
    lambda read: f"({read} if {read} > 0 else -{read})",
    lambda read: f"sum(v for v in ({read}, 1.0))",
    lambda read: f"float({read})",
]
_NUMBERS = ("2.0", "3", "0.5", "-0.0", "0.0", "-1.5", "True", "1e-3", "7.0")


def program(generator: random.Random) -> Program:
    source, reads, changes = "", [], []
    for branch in range(generator.randint(1, 3)):
        value, links = generator.choice(_NUMBERS), []
        for depth in range(generator.randint(1, 3)):
            link = generator.choice(_LINKS)
            names = {"name": f"x{branch}{depth}", "Name": f"X{branch}{depth}"}
            if link.source.startswith("import numpy"):
                value = f"float({value})"
            source += link.source.format(value=value, **names)
            value = link.read.format(**names)
            links.append((names, link.changes))
        reads.append(generator.choice(_READS)(value))
        for names, writes in links:
            chosen = generator.sample(writes, min(2, len(writes)))
            changes += [write.format(new=generator.choice(_NUMBERS), **names) for write in chosen]
    generator.shuffle(changes)
    on_model = generator.random() < 0.3
    if on_model:  # one of the numbers is an attribute of the module
        changes.append(f"model.own = {generator.choice(_NUMBERS)}")
        reads.append("self.own")
    init = "self.own = 2.0" if on_model else "pass"
    return Program(source, " + ".join(reads), tuple(changes), init)


def check(seed: int) -> tuple[str, bool]:
    """What is wrong with the program of this seed, and whether it was replayed."""
    generator = random.Random(seed)
    made, kind = program(generator), generator.choice((MODEL, STEP))
    outcome = run(made, kind, calls=3, may_fail=True)
    wrong = "" if outcome.compiled == outcome.as_it_stands else "values of before the change"
    if not outcome.num_recordings and not outcome.warned:
        wrong = wrong or "neither recorded nor refused"
    details = f"{kind}\n{made.source}read: {made.read}\nchanges: {made.changes}\nwarned: {outcome.warned}"
    return (f"{wrong}\n{details}" if wrong else ""), outcome.num_recordings > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    wrong, replayed, done, start = 0, 0, 0, time.monotonic()
    for seed in range(given.seed, given.seed + given.programs):
        if time.monotonic() - start > given.seconds:
            break
        fault, was_replayed = check(seed)
        done, replayed = done + 1, replayed + was_replayed
        if fault:
            wrong += 1
            print(f"python -m tests.graphs.fuzz --programs 1 --seed {seed}: {fault}\n")
    print(f"{done} programs, {replayed} of them replayed, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
