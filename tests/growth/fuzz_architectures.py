"""Random growths of random architectures: what each keeps, its undoing, saving, loading, and training on.

    python -m tests.growth.fuzz_architectures --count 2000        seeds 0 to 1999, over 120 architectures
    python -m tests.growth.fuzz_architectures --seed 17           one of them; what a failure prints

In each run two to four operations at random places, with training between them. An operation that is to keep the
function keeps it, to 10⁻⁷ in float64, in eval mode and in training mode (without dropout, and with the same random
numbers); looking has no effect; going back is bit for bit; a fresh network that is loaded computes the same, bit for
bit, and trains on to the same.
"""

from __future__ import annotations

import argparse
import copy
import logging
import random
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import genesis
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from genesis.growth.passes import outputs_of, trained_outputs_of
from genesis.growth.preserved import relative_deviation
from genesis.tensor import Tensor
from tests.growth.architectures import NUM_DISTINCT, SIZE, build
from tests.growth.measure import digest, train

MOST = 1e-7  # of the largest output; rounding is 1e-16, and a batch norm over few samples makes more of it
OPTIMIZERS = (
    lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    lambda parameters: optim.AdamW(parameters, lr=0.002, amsgrad=True),
    lambda parameters: optim.LARS(parameters, lr=0.01),
    lambda parameters: optim.Adam(parameters, lr=0.002),
)
# What a random choice may run into; anything else is a fault: an output that moved, a network that does not run.
REFUSALS = (
    "argument 'where'", "argument 'channels'", "cannot grow", "cannot go", "can only grow to a multiple",
    "they have no such weights", "argument 'count'",
)  # fmt: skip


def check(seed: int, counts: Counter[str] | None = None) -> None:
    """One run. Raises: AssertionError with the line that repeats it."""
    done: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _run(seed, done, Counter() if counts is None else counts)
    except Exception as error:
        line = f"python -m tests.growth.fuzz_architectures --seed {seed}"
        raise AssertionError(f"{line}\n{chr(10).join(done)}\n{type(error).__name__}: {error}") from error


def _run(seed: int, done: list[str], counts: Counter[str]) -> None:
    draw = random.Random(seed)
    number, make = seed % NUM_DISTINCT, draw.choice(OPTIMIZERS)
    model = build(number)
    genesis.manual_seed(seed)
    optimizer = make(model.parameters())
    x = genesis.randn(4, 2, SIZE, SIZE, dtype=genesis.float64)
    done.append(f"architecture {number}, {type(optimizer).__name__}")
    train(model, optimizer, x)
    average = copy.deepcopy(model) if draw.random() < 0.3 else None
    for _ in range(draw.randint(2, 4)):
        counts[_operate(draw, model, optimizer, average, x, done)] += 1
        _check_fit(model, optimizer)
        assert np.isfinite(train(model, optimizer, x))
    _save_and_load(build(number), make, model, optimizer, x)


def _operate(
    draw: random.Random, model: nn.Module, optimizer: optim.Optimizer, average: nn.Module | None, x: Tensor,
    done: list[str],
) -> str:  # fmt: skip
    """One operation, and going back from it at times. Gives what kind it was."""
    options = {"optimizer": optimizer, "example": x[:2], "seed": draw.randrange(1000), "averages": average}
    options = {name: value for name, value in options.items() if value is not None}
    kind = draw.choice(("wider", "wider", "zero", "all", "deeper", "branch", "narrower", "fewer"))
    names = [name for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)]
    place = draw.choice(names)
    outputs = outputs_of(model, (x,)), trained_outputs_of(model, (x,)).outputs
    before = digest(model, optimizer), genesis.get_rng_state().tolist()
    done.append(f"{kind} {place}, seed {options['seed']}")
    try:
        if kind in ("wider", "zero"):
            new = "zero" if kind == "zero" else "copy"
            step = growth.grow_width(model, place, factor=draw.choice((1.3, 2.0)), new=new, **options)
        elif kind == "all":
            step = growth.grow_width(model, factor=2, **options)
        elif kind == "deeper":
            step = growth.grow_depth(model, place, channels=draw.choice((None, 4)), **options)
        elif kind == "branch":
            step = growth.grow_branches(model, place, channels=draw.choice((None, 3, 7)), **options)
        elif kind == "narrower":
            step = growth.prune_width(model, place, factor=0.7, **options)
        else:
            blocks = [name for name, module in model.named_modules() if isinstance(module, nn.MultiBranch)]
            step = growth.prune_branches(model, draw.choice(blocks or [place]), **options)
    except GrowthError as error:
        if not any(words in str(error) for words in REFUSALS):
            raise
        if before != (digest(model, optimizer), genesis.get_rng_state().tolist()):
            raise AssertionError(f"refused, but something has changed: {error}") from error
        return "refused"
    if kind not in ("narrower", "fewer"):
        after = outputs_of(model, (x,)), trained_outputs_of(model, (x,)).outputs
        for mode, old, new_outputs in zip(("eval", "training"), outputs, after, strict=True):
            deviation = relative_deviation(old, new_outputs)
            assert deviation <= MOST, f"{step}: the outputs in {mode} mode moved by {deviation:.1e}"
    if average is not None:
        assert [p.shape for p in average.parameters()] == [p.shape for p in model.parameters()]
    if draw.random() < 0.25:
        train(model, optimizer, x)
        growth.rollback(step)
        assert digest(model, optimizer) == before[0], "not what it was, after rollback"
        return f"{kind}, undone"
    return kind


def _check_fit(model: nn.Module, optimizer: optim.Optimizer) -> None:
    learned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert set(map(id, learned)) == set(map(id, model.parameters())), "the optimizer learns other parameters"
    assert len(learned) == len(set(map(id, learned)))
    for parameter, entries in optimizer.state.items():
        assert all(value.shape == parameter.shape for value in entries.values() if isinstance(value, Tensor))


def _save_and_load(fresh: nn.Module, make: object, model: nn.Module, optimizer: optim.Optimizer, x: Tensor) -> None:
    its_optimizer = make(fresh.parameters())  # type: ignore[operator]
    with tempfile.TemporaryDirectory() as folder:
        growth.save(Path(folder) / "grown.safetensors", model, optimizer)
        growth.load(Path(folder) / "grown.safetensors", fresh, its_optimizer)
    assert repr(fresh) == repr(model)
    for _ in range(2):
        tensors = [[*network.named_parameters(), *network.named_buffers()] for network in (model, fresh)]
        assert [name for name, _ in tensors[0]] == [name for name, _ in tensors[1]]
        for (name, mine), (_, its) in zip(*tensors, strict=True):
            same = mine.shape == its.shape and np.array_equal(mine.array.bits(), its.array.bits())
            assert same, f"{name} is not the same after loading"
        losses = []
        for network, learner in ((model, optimizer), (fresh, its_optimizer)):
            genesis.manual_seed(1)
            losses.append(train(network, learner, x))
        assert losses[0] == losses[1], "training on is not the same after loading"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=240)
    arguments = parser.parse_args()
    logging.getLogger("genesis.growth").setLevel(logging.ERROR)
    seeds = range(arguments.first, arguments.first + arguments.count) if arguments.seed is None else [arguments.seed]
    counts: Counter[str] = Counter()
    for seed in seeds:
        check(seed, counts)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
