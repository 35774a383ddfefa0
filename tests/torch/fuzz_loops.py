"""Train random models in random loops around genesis.torch.compile: `python -m tests.torch.fuzz_loops`.

A case is a model and LOOPS loops of LENGTH steps, in each of which a thing or two change on the way. After each step
the compiled model is compared with the plain one, which goes through the same: outputs, losses, gradients, parameters,
buffers, what hooks saw; at the end of a loop, all that it has held. Then the compiled model's parameters and buffers
are set to the plain one's, so that rounding does not grow. On the CPU the trees of CUDA graphs are simulated; with
--device cuda they are PyTorch's. A failure prints the command that repeats it.

Steps that are documented as errors may be refused, by an error that says so; no step may be silently different.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import gc
import logging
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from genesis.settings import override
from genesis.torch import native_steps, outstanding
from tests.torch.fuzz_loop_backward_steps import STEPS
from tests.torch.fuzz_loop_changes import CHANGES
from tests.torch.fuzz_loop_sides import Side, StopError, draw_options, pair
from tests.torch.fuzz_loop_steps import MAY_REFUSE
from tests.torch.trees import short_steps, simulated

LOOPS, LENGTH = 3, 12
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # float32: that of test_compiling_gpu.py
_NARROW = 0.1  # under autocast, of a tensor's norm
_KINK = 1e-5  # arguments of ReLU nearer to 0 may be on its other side
_KINK_NARROW = 2e-3  # under autocast
_REFUSALS = (
    "modified by an inplace operation", "retain_graph=False", "after another step", "second time", "double backward",
    "differentiated again",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", nargs="?", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="until it ends, in the middle of a case")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--long", action="store_true", help="without short steps: is a failure theirs?")
    parser.add_argument("--say", action="store_true", help="print what the loops do")
    arguments = parser.parse_args()
    native_steps.wait()
    end, counts = time.monotonic() + arguments.seconds, Counter[str]()
    for number in range(arguments.first, arguments.first + arguments.cases):
        if time.monotonic() > end:
            break
        print(f"case {number}", file=sys.stderr, flush=True)  # should the process die
        failure = case(number, arguments.device, counts, not arguments.long, arguments.say, end)
        if failure:
            counts["failures"] += 1
            if not arguments.long and time.monotonic() < end:
                again = case(number, arguments.device, Counter(), short=False, end=end)
                failure += "\nWithout short steps: " + (again.splitlines()[0] if again else "no failure")
            options = " --device cuda" if arguments.device == "cuda" else ""
            print(f"python -m tests.torch.fuzz_loops {number} --cases 1{options}  # {failure}", flush=True)
    print(summary(counts))
    return counts["failures"] != 0


def summary(counts: Counter[str]) -> str:
    return (
        f"{counts['cases']} cases: {counts['failures']} failed; {counts['steps']} steps, {counts['forward']} short "
        f"forwards, {counts['backward']} short backwards, {counts['refusals']} refusals"
    )


def case(
    number: int, device: str, counts: Counter[str], short: bool = True, says: bool = False, end: float = float("inf")
) -> str:
    """What went wrong in a case, if anything, until this time. counts: what is counted of it is added there."""
    rng = random.Random(number)
    torch._dynamo.reset()
    trees = simulated() if device == "cpu" else contextlib.nullcontext()
    precise = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # its limit of recompilations is reached here
    history: list[str] = []
    with trees, precise, override(short_steps=short), short_steps() as ran, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = rng.choice((torch.float32, torch.float64))
        plain, ours = pair(rng, device, dtype)
        one = _Case(plain, ours, history, ran, end)
        history.append(f"{dtype}, {ours.part or 'whole'}: {[type(x).__name__ for x in one.blocks()]}")
        failure = ""
        for _ in range(LOOPS):
            failure = one.loop(rng)
            if failure:
                break
        counts.update(one.counts)
    for side in (plain, ours):
        side.changed.clear()
        side.held.clear()  # with hooks that keep the side: a circle through autograd, which Python cannot collect
    del plain, ours, one, side
    gc.collect()
    if outstanding.any_waits():
        failure = failure or "a pass waits for its backward though nothing is left of the program"
        outstanding._waiting.clear()
    if says or failure:
        print("\n".join(history))
    counts.update(ran)
    counts["cases"] += 1
    return failure


class _Case:
    """A model's two sides."""

    def __init__(self, plain: Side, ours: Side, history: list[str], ran: Counter[str], end: float) -> None:
        self.plain, self.ours, self.history, self.ran, self.end = plain, ours, history, ran, end
        self.counts: Counter[str] = Counter()
        self._nearest = _watch_kinks(plain.model) if plain.dtype is torch.float32 else [1.0]

    def blocks(self) -> list[nn.Module]:
        model: Any = self.plain.model
        return [*model.body, model.head]

    def loop(self, rng: random.Random) -> str:
        options = draw_options(rng, self.plain.dtype is torch.float32)
        self.history.append(f"  loop: {dataclasses.asdict(options)}")
        for side in (self.plain, self.ours):
            side.begin(options)
        changes = {rng.randrange(4, LENGTH): rng.choice(list(CHANGES)) for _ in range(rng.randint(0, 2))}
        steps = {rng.randrange(4, LENGTH): rng.choice(list(STEPS)) for _ in range(rng.randint(0, 2))}
        for index in range(LENGTH):
            if time.monotonic() > self.end:
                return ""
            failure = ""
            if index in changes:
                failure = self._both(changes[index], rng.randrange(10**6))
            failure = failure or self._both(steps.get(index, ""), rng.randrange(10**6))
            if failure:
                return failure
        return self._compare_held()

    def _both(self, name: str, seed: int) -> str:
        """Do a thing on both sides; what differs then."""
        self.history.append(f"    {name or 'train'} {seed}")
        self.counts["steps"] += name not in CHANGES
        self._nearest[0] = 1.0
        before = self.ran["forward"]
        theirs, ours = (_do(side, name, seed) for side in (self.plain, self.ours))
        self.history[-1] += " short" * (self.ran["forward"] - before)
        difference = self._compare_errors(name, theirs, ours)
        is_exact = self._nearest[0] > (_KINK_NARROW if self._is_narrow(name) else _KINK)
        if theirs is None and ours is None and is_exact:
            difference = difference or self._compare(name)
        if difference:
            where = f"{name or 'train'}: {difference}"
            return f"{where}\n{_trace(ours)}" if ours is not None else where
        self._set_alike(theirs is not None or ours is not None or not is_exact)
        return ""

    def _compare_errors(self, name: str, theirs: Exception | None, ours: Exception | None) -> str:
        if ours is None or theirs is not None:
            if ours is None and theirs is not None and _IN_PLACE not in str(theirs) and name not in MAY_REFUSE:
                return f"no error instead of {type(theirs).__name__}: {theirs}"
            return ""  # where both raise, what they had done by then is not compared
        is_known = name == "second_derivatives" or any(text in str(ours) for text in _REFUSALS)
        if name in MAY_REFUSE and is_known:
            self.counts["refusals"] += 1
            return ""
        return f"{type(ours).__name__}: {ours}"

    def _compare(self, name: str) -> str:
        theirs = {**self.plain.seen, **dict(self.plain.state())}
        ours = {**self.ours.seen, **dict(self.ours.state())}
        return self._differences(theirs, ours, self._is_narrow(name))

    def _is_narrow(self, name: str) -> bool:
        return self.plain.dtype is torch.float32 and (name == "other_autocast" or self.plain.options.autocast)

    def _differences(self, theirs: dict[str, Tensor], ours: dict[str, Tensor], is_narrow: bool) -> str:
        if theirs.keys() != ours.keys():
            return f"only on one side: {sorted(theirs.keys() ^ ours.keys())[:5]}"
        tolerance = _NARROW if is_narrow else _TOLERANCE[self.plain.dtype]
        found = [(name, _distance(ours[name], x, tolerance, is_narrow)) for name, x in theirs.items()]
        return ", ".join(f"{name}: {text}" for name, text in found if text)

    def _compare_held(self) -> str:
        """What outputs and losses were, they are; gradients are what PyTorch's are."""
        for (name, theirs, then), (_, ours, _) in zip(self.plain.held, self.ours.held, strict=True):
            if any(x is ours for x in self.ours.changed):
                continue
            if theirs.data_ptr() != then.data_ptr() and not torch.equal(theirs, then):
                continue  # the program itself has changed it
            text = self._differences({name: theirs.detach()}, {name: ours.detach()}, self.plain.dtype is torch.float32)
            if text:
                return f"held: {text}"
        return ""

    def _set_alike(self, are_apart: bool) -> None:
        """are_apart: gradients too, as one side has got farther."""
        for (_, theirs), (_, ours) in zip(self.plain.state(), self.ours.state(), strict=True):
            ours.data.copy_(theirs.data)
        for side in (self.plain, self.ours):
            side.seen.clear()
            side.history.clear()
        if are_apart:
            gc.collect()  # errors hold frames, and these tensors
            self.ours.options = copy.copy(self.plain.options)
            for side in (self.plain, self.ours):
                side.count, side.late, side.average = 0, None, None
                side.held.clear()
                side.changed.clear()
                side.model.train()
                side.model.zero_grad()
                side.other.zero_grad()
                side.renew()


def _do(side: Side, name: str, seed: int) -> Exception | None:
    torch.manual_seed(seed)
    try:
        if name in CHANGES:
            CHANGES[name](side, random.Random(seed))
        elif name:
            STEPS[name](side, seed)
        else:
            side.train(side.images(seed), seed)
    except Exception as error:
        return error
    return None


def _trace(error: Exception) -> str:
    return "" if isinstance(error, StopError) else "".join(traceback.format_exception(error)[-6:])


def _distance(ours: Tensor, theirs: Tensor, tolerance: float, by_norm: bool) -> str:
    """What differs, if anything."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype or ours.device != theirs.device:
        return f"{ours.dtype} {tuple(ours.shape)} instead of {theirs.dtype} {tuple(theirs.shape)}"
    if not theirs.is_floating_point():
        return "" if torch.equal(ours, theirs) or by_norm else "other numbers"
    if by_norm:
        if not torch.equal(ours.isnan(), theirs.isnan()):  # of a model that diverges
            return "other numbers are NaN"
        ours, theirs = (x.double().nan_to_num(0.0, 1e300, -1e300) for x in (ours, theirs))
        distance, norm = (ours - theirs).norm().item(), theirs.norm().item()
        return "" if distance <= tolerance * norm + _NARROW**2 else f"{distance} away, norm {norm}"
    largest = max(1.0, theirs.abs().max().item()) if theirs.numel() else 1.0
    if torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * largest, equal_nan=True):
        return ""
    return f"{(ours - theirs).abs().max().item()} away, of {theirs.abs().max().item()}"


def _watch_kinks(model: nn.Module) -> list[float]:
    """The smallest argument of a ReLU since it was set to 1."""
    nearest = [1.0]

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        nearest[0] = min(nearest[0], args[0].detach().abs().min().item())

    for module in model.modules():
        if isinstance(module, nn.ReLU | nn.LeakyReLU):
            module.register_forward_pre_hook(look)
    return nearest


_IN_PLACE = "modified by an inplace operation"


def parts() -> Iterator[str]:
    """Names of all steps and changes."""
    yield from STEPS
    yield from CHANGES


if __name__ == "__main__":
    sys.exit(main())
