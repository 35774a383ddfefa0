"""Interrupts at random moments of everything that changes a network or its optimizer: all of it happens, or nothing.

    python -m tests.growth.interrupt --count 300                  an exception at a random line of Genesis, by a tracer
    python -m tests.growth.interrupt --count 300 --signals        real signals at random times, up to three in a row
    python -m tests.growth.interrupt --seed 17 [--signals]        one of them; what a failure prints

After each: model, optimizer, history, files, the modes of the thread and the random generators are all as before or all
as after; signal handlers stand where they stood; a training step works, and so does the same change.

A tracer can raise in two places where Python itself never does: on the way from the last instruction of a with block
into __exit__, and on the first line of __exit__. These are left out; signals that arrive at the first instruction of
__exit__ are held there.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dis
import functools
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import genesis
from genesis import growth, nn, optim
from genesis.autograd import modes
from genesis.growth.passes import RandomStates
from genesis.growth.transaction import current
from genesis.tensor import Tensor
from tests.growth.measure import train

SOURCE = str(Path(genesis.__file__).parent)
Act = Callable[[], Any]


class InterruptError(BaseException):
    """As KeyboardInterrupt; nobody's handler for errors catches it."""


class Net(nn.Module):
    """Small, with what growth must carry along: branches, norms, a buffer that is not saved, an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvBNReLU(1, 4, 3, padding=1),
            nn.MultiBranch(nn.ConvBNReLU(4, 4, 3, padding=1), [nn.Branch(nn.Conv2d(4, 4, 1), gate=0.5)]),
            nn.AdaptiveAvgPool2d((1, 1)),
            nn.Flatten(),
        )
        self.head, self.aux = nn.Linear(4, 3), nn.Linear(4, 3)
        self.register_buffer("scale", genesis.rand(4), persistent=False)

    def forward(self, x: Tensor) -> Any:
        x = self.body(x) * self.scale
        return self.head(x) + self.aux(x) if self.training else self.head(x)


class World:
    """A network in training, with all that goes along."""

    def __init__(self, folder: Path) -> None:
        genesis.manual_seed(3)
        self.folder, self.model, self.average = folder, Net(), Net()
        groups = [{"params": self.model.body.parameters(), "lr": 0.01}, {"params": self.model.head.parameters()}]
        groups.append({"params": self.model.aux.parameters()})
        self.optimizer = optim.AdamW(groups, lr=0.02, amsgrad=True)
        self.scheduler = optim.lr_scheduler.SequentialLR(
            self.optimizer,
            [optim.lr_scheduler.LinearLR(self.optimizer, 0.5), optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)],
            [2],
        )
        self.x = genesis.randn(2, 1, 4, 4)
        self.options: dict[str, Any] = {
            "optimizer": self.optimizer, "example": self.x, "averages": self.average, "also": self.scheduler, "seed": 5,
        }  # fmt: skip
        train(self.model, self.optimizer, self.x, 2)

    def state(self) -> list[Any]:
        """All of it as plain values, in parts that may change one by one only where an action says so."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        states = {
            names[id(parameter)]: {key: _plain(value) for key, value in entries.items()}
            for parameter, entries in self.optimizer.state.items()
        }
        groups = [
            {key: [names[id(p)] for p in value] if key == "params" else value for key, value in group.items()}
            for group in self.optimizer.param_groups
        ]
        files = {path.name: path.read_bytes() for path in sorted(self.folder.glob("*.safetensors"))}
        networks = [
            (repr(network), [(name, _plain(t), t.requires_grad) for name, t in _tensors(network)],
             [(name, module.training, len(module._forward_hooks)) for name, module in network.named_modules()])
            for network in (self.model, self.average)
        ]  # fmt: skip
        log = [(step.number, repr(step.record())) for step in growth.history(self.model)]
        schedule = copy.deepcopy(self.scheduler.state_dict())
        return [
            networks,
            states,
            groups,
            log,
            schedule,
            files,
            dict(vars(modes.state)),
            RandomStates(self.model).states,
        ]

    def check(self) -> None:
        """What holds in every state: everything fits together, and training goes on."""
        assert current(self.model) is None
        for parameter, entries in self.optimizer.state.items():
            shapes = {value.shape for value in entries.values() if isinstance(value, Tensor)}
            assert shapes <= {parameter.shape}
        assert np.isfinite(train(self.model, self.optimizer, self.x))


def _tensors(network: nn.Module) -> list[tuple[str, Tensor]]:
    return [*network.named_parameters(), *network.named_buffers()]


def _plain(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.shape, value.array.strides, str(value.dtype), value.array.bits().tobytes()


# --- what is interrupted ----------------------------------------------------------------------------------------------


def _wider(world: World) -> Act:
    return lambda: growth.grow_width(world.model, "body.0", channels=6, **world.options)


def _pruned(world: World) -> Act:
    return lambda: growth.prune_width(world.model, "body.0", channels=3, **world.options)


def _deeper(world: World) -> Act:
    return lambda: growth.grow_depth(world.model, "body.1", **world.options)


def _branched(world: World) -> Act:
    return lambda: growth.grow_branches(world.model, "body.1", channels=3, **world.options)


def _fewer(world: World) -> Act:
    return lambda: growth.prune_branches(world.model, "body.1", **world.options)


def _block(world: World) -> Act:
    def act() -> None:
        with growth.transaction(world.model, **world.options):
            growth.grow_width(world.model, "body.0", factor=1.5)
            train(world.model, world.optimizer, world.x)
            world.scheduler.step()
            growth.grow_branches(world.model, "body.1")

    return act


def _failing_block(world: World) -> Act:
    """Ends where it began, by way of being undone."""

    def act() -> None:
        with contextlib.suppress(ArithmeticError), growth.transaction(world.model, **world.options):
            growth.grow_width(world.model, "body.0", factor=1.5)
            train(world.model, world.optimizer, world.x)
            raise ArithmeticError

    return act


def _rollback(world: World) -> Act:
    step = growth.grow_width(world.model, "body.0", channels=6, **world.options)
    train(world.model, world.optimizer, world.x)
    world.scheduler.step()
    growth.grow_branches(world.model, "body.1", **world.options)
    train(world.model, world.optimizer, world.x)

    def act() -> None:
        if step in growth.history(world.model).steps:
            growth.rollback(step)

    return act


def _grown(world: World) -> World:
    other = World(world.folder)
    growth.grow_width(other.model, "body.0", channels=6, **other.options)
    growth.grow_branches(other.model, "body.1", **other.options)
    train(other.model, other.optimizer, other.x)
    return other


def _growth_save(world: World) -> Act:
    path = world.folder / "grown.safetensors"
    growth.save(path, world.model, world.optimizer, averages=world.average)
    train(world.model, world.optimizer, world.x)
    return lambda: growth.save(path, world.model, world.optimizer, averages=world.average)


def _growth_load(world: World) -> Act:
    path, other = world.folder / "grown.safetensors", _grown(world)
    growth.save(path, other.model, other.optimizer, averages=other.average)

    def act() -> None:
        if not len(growth.history(world.model)):
            growth.load(path, world.model, world.optimizer, averages=world.average)

    return act


def _load_state_dict(world: World) -> Act:
    path = world.folder / "model.safetensors"
    genesis.save(world.model, path)
    train(world.model, world.optimizer, world.x, 2)
    return lambda: world.model.load(path)


def _load_optimizer(world: World) -> Act:
    saved = copy.deepcopy(world.optimizer.state_dict())
    train(world.model, world.optimizer, world.x)
    return lambda: world.optimizer.load_state_dict(saved)


def _schedule(world: World) -> Act:
    return world.scheduler.step


def _load_schedule(world: World) -> Act:
    saved = copy.deepcopy(world.scheduler.state_dict())
    for _ in range(3):
        world.scheduler.step()
    return lambda: world.scheduler.load_state_dict(saved)


def _step(world: World) -> Act:
    world.model.train()(world.x).square().mean().backward()
    return world.optimizer.step


ACTIONS: dict[str, Callable[[World], Act]] = {
    "grow_width": _wider, "prune_width": _pruned, "grow_depth": _deeper, "grow_branches": _branched,
    "prune_branches": _fewer, "transaction": _block, "failing transaction": _failing_block, "rollback": _rollback,
    "growth.save": _growth_save, "growth.load": _growth_load, "load_state_dict": _load_state_dict,
    "Optimizer.load_state_dict": _load_optimizer, "LRScheduler.step": _schedule,
    "LRScheduler.load_state_dict": _load_schedule, "Optimizer.step": _step,
}  # fmt: skip


# --- how it is interrupted --------------------------------------------------------------------------------------------


class Tracer:
    """Notes the lines of Genesis that run, and raises when one of them is about to run for the n-th time, from 0."""

    def __init__(self, line: str = "", number: int = 0) -> None:
        self.line, self.number = line, number
        self.source = SOURCE + line.rpartition(":")[0]  # no other file's lines are followed: each would be a call
        self.counts: Counter[str] = Counter()
        self.events: list[tuple[str, int]] = []

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.source):
            return None
        if event == "line" and frame.f_lasti not in _leaving(frame.f_code):
            line = f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_lineno}"
            number = self.counts[line]
            if (line, number) == (self.line, self.number):
                raise InterruptError
            self.counts[line] += 1
            self.events.append((line, number))
        return self


@functools.cache
def _leaving(code: CodeType) -> frozenset[int]:
    """Where a with block is left, and the first line of __exit__: see above."""
    instructions = list(dis.get_instructions(code))
    ops = [instruction.opname for instruction in instructions]
    found = set()
    for i, instruction in enumerate(instructions):
        nones = [(following.opname, following.argval) for following in instructions[i : i + 3]]
        if nones == [("LOAD_CONST", None)] * 3 or ops[i : i + 2] == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
            found.add(instruction.offset)
    if code.co_name == "__exit__":
        first = min(line for _, line in dis.findlinestarts(code) if line and line > code.co_firstlineno)
        found |= {offset for offset, line in dis.findlinestarts(code) if line == first}
    return frozenset(found)


@contextlib.contextmanager
def _traced(tracer: Tracer) -> Iterator[None]:
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(None)


def _raise(signum: int, frame: Any) -> None:
    raise InterruptError


class Result:
    """Which actions were interrupted, and what was left: all old, or all new."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def __str__(self) -> str:
        lines = [f"{name:28} {self.counts[name, 'old']:5} old {self.counts[name, 'new']:5} new" for name in ACTIONS]
        return "\n".join([*lines, f"{sum(self.counts.values())} in all"])


def check(seed: int, with_signals: bool, result: Result) -> None:
    """One interrupt. Raises: AssertionError with the line that repeats it (signals come at other moments, then)."""
    draw = random.Random(seed)
    name = draw.choice(list(ACTIONS))
    where = ""
    try:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            # The same once without an interrupt: how long it takes, and what it leaves.
            whole = World(Path(first))
            act, counting = ACTIONS[name](whole), Tracer()
            began = time.perf_counter()
            with contextlib.nullcontext() if with_signals else _traced(counting):
                act()
            seconds, new = time.perf_counter() - began, whole.state()
            world = World(Path(second))
            act = ACTIONS[name](world)
            old = world.state()
            if with_signals:
                interrupted = _by_signals(act, draw, seconds)
            else:
                where = draw.choice(list(counting.counts))  # those that run once count as much as those that often do
                interrupted = _by_tracer(act, Tracer(where, draw.randrange(counting.counts[where])))
            found = world.state()
            _compare(name, found, old, new)
            result.counts[name, "new" if found == new else "old"] += interrupted
            world.check()
            if found == old:
                act()
                world.check()
    except Exception as error:
        line = f"python -m tests.growth.interrupt --seed {seed}{' --signals' * with_signals}"
        raise AssertionError(f"{line}\n{name} {where}\n{type(error).__name__}: {error}") from error


def check_last_lines(name: str, count: int) -> None:
    """An exception at each of the last lines that an action runs, one after the other."""
    for tracing in (contextlib.nullcontext(), _traced(counting := Tracer())):  # without, it fills caches
        with tempfile.TemporaryDirectory() as folder:
            whole = World(Path(folder))
            act = ACTIONS[name](whole)
            with tracing:
                act()
            new = whole.state()
    num_interrupted = 0
    for line, number in counting.events[-count:]:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder))
            act = ACTIONS[name](world)
            old = world.state()
            num_interrupted += _by_tracer(act, Tracer(line, number))
            _compare(name, world.state(), old, new)
    assert num_interrupted > count // 2


def _by_tracer(act: Act, tracer: Tracer) -> bool:
    try:
        with _traced(tracer):
            act()
    except InterruptError:
        return True
    return False


def _by_signals(act: Act, draw: random.Random, seconds: float) -> bool:
    """Up to three signals, the second and third close behind, as of someone who is impatient."""
    burst = draw.choice((1, 2, 3))
    arrived = [0]

    def arrive(signum: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code is _by_signals.__code__:
            return  # not in what is to be interrupted
        arrived[0] += 1
        if arrived[0] < burst:
            signal.setitimer(signal.ITIMER_REAL, draw.choice((1e-5, 1e-4, 1e-3)))
        raise InterruptError

    before = signal.signal(signal.SIGALRM, arrive)
    interrupted = False
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, draw.random() * seconds))
        act()
    except InterruptError:
        interrupted = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert signal.getsignal(signal.SIGALRM) is arrive, "another handler stands there"
    signal.signal(signal.SIGALRM, before)
    return interrupted


def _compare(name: str, found: list[Any], old: list[Any], new: list[Any]) -> None:
    parts = ("networks", "optimizer state", "groups", "history", "scheduler", "files", "modes", "random generators")
    if name == "Optimizer.step":  # parameter by parameter, each with its own state
        for which in range(len(found[0][0][1])):
            key = found[0][0][1][which][0]
            pairs = [(state[0][0][1][which], state[1].get(key)) for state in (found, old, new)]
            assert pairs[0] in pairs[1:], f"{key} and its state are neither old nor new"
        return
    differing = [part for part, a, b in zip(parts, found, old, strict=True) if a != b]
    assert not differing or found == new, f"half way: {', '.join(differing)} changed, but not as they should"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--signals", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.count) if arguments.seed is None else [arguments.seed]
    logging.getLogger("genesis.growth").setLevel(logging.ERROR)
    result = Result()
    for seed in seeds:
        check(seed, arguments.signals, result)
    print(result)


if __name__ == "__main__":
    main()
