"""Random sequences of growth operations, each followed by training, saving and loading.

    python -m tests.growth.fuzz --seed 17          one sequence; what a failure prints
    python -m tests.growth.fuzz --count 240        seeds 0 to 239

Seeds below 200 are of the network of 66,410 parameters, which in the end is widened past 94,000; those above are of the
other networks, one after the other.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np

import genesis
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from tests.growth.networks import CASES

NUM_ORIGINAL = 200
OPTIMIZERS = (
    lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    lambda parameters: optim.AdamW(parameters, lr=0.002, amsgrad=True),
)


def check(seed: int) -> None:
    """One random sequence. Raises: AssertionError with the line that repeats it."""
    done: list[str] = []
    try:
        _run(seed, done)
    except Exception as error:
        line = f"python -m tests.growth.fuzz --seed {seed}"
        raise AssertionError(f"{line}\n{chr(10).join(done)}\n{type(error).__name__}: {error}") from error


def _run(seed: int, done: list[str]) -> None:
    draw = random.Random(seed)
    genesis.manual_seed(seed)
    others = sorted(CASES.keys() - {"original"})
    name = "original" if seed < NUM_ORIGINAL else others[seed % len(others)]
    case = CASES[name]
    make_optimizer = OPTIMIZERS[seed % 2]
    model = case.build()
    optimizer = make_optimizer(model.parameters())
    x = genesis.randn(case.shape)
    target = genesis.randn(model(x).shape)
    done.append(f"{name}, {type(optimizer).__name__}")
    _train(model, optimizer, x, target)
    for _ in range(draw.randint(1, 3)):
        _operate(draw, name, model, optimizer, x, done)
        _train(model, optimizer, x, target)
    while name == "original" and sum(parameter.numel() for parameter in model.parameters()) <= 94_000:
        place = draw.choice(("1", "3", "6"))
        growth.grow_width(model, place, factor=1.5, optimizer=optimizer, example=x[:2], seed=seed)
        done.append(repr(growth.history(model)[-1]))
        _train(model, optimizer, x, target)
    _save_and_load(case.build(), make_optimizer, model, optimizer, x, target)


def _operate(
    draw: random.Random, name: str, model: nn.Module, optimizer: optim.Optimizer, x: genesis.Tensor, done: list[str]
) -> None:
    """One random operation. What cannot be done on this network as it now is must be refused, and change nothing."""
    case = CASES[name]
    options = {"optimizer": optimizer, "example": x[:2], "seed": draw.randrange(1000)}
    kind = draw.choice(("wider", "wider", "wider", "deeper", "branch", "narrower", "fewer", "undo"))
    wide = [place for place in case.wide if place in dict(model.named_modules())]
    before = [parameter.shape for parameter in model.parameters()]
    try:
        if kind == "wider":
            new = draw.choice(("copy", "copy", "zero"))
            noise = draw.choice((0.0, 0.0, 0.1))
            factor = draw.choice((1.3, 2.0))
            growth.grow_width(model, draw.choice(wide), factor=factor, new=new, noise=noise, **options)
        elif kind == "deeper":
            growth.grow_depth(model, draw.choice(case.deep), channels=draw.choice((None, 4)), **options)
        elif kind == "branch":
            growth.grow_branches(model, draw.choice(case.branched), channels=draw.choice((None, 3, 7)), **options)
        elif kind == "narrower":
            growth.prune_width(model, draw.choice(wide), factor=0.7, by=draw.choice(("magnitude", "norm")), **options)
        elif kind == "fewer":
            blocks = [place for place, module in model.named_modules() if isinstance(module, nn.MultiBranch)]
            if blocks:
                growth.prune_branches(model, draw.choice(blocks), **options)
        elif len(growth.history(model)):
            growth.rollback(draw.choice(list(growth.history(model))))
        done.append(f"{kind}: {growth.history(model)[-1] if len(growth.history(model)) else 'nothing yet'}")
    except GrowthError as error:
        if not _expected_refusal(str(error)) or [parameter.shape for parameter in model.parameters()] != before:
            raise
        done.append(f"{kind}: refused: {error}")


def _expected_refusal(message: str) -> bool:
    """Whether a random choice may run into this on these networks; anything else is a fault."""
    return any(
        words in message
        for words in (
            "can only grow to a multiple",  # layer norm
            "argument 'channels': expected from",  # nothing left to prune
            "they have no such weights",  # a group without norms
            "argument 'where'",  # an earlier operation has moved or joined the place
        )
    )


def _train(model: nn.Module, optimizer: optim.Optimizer, x: genesis.Tensor, target: genesis.Tensor) -> None:
    model.train()
    difference = model(x) - target
    loss = (difference * difference).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert np.isfinite(loss.item())
    learned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        assert id(parameter) in learned, f"{name} is not learned"
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.shape == parameter.shape
    assert len(learned) == len(list(model.parameters())), "the optimizer holds parameters that the model lost"


def _save_and_load(
    fresh: nn.Module, make_optimizer: object, model: nn.Module, optimizer: optim.Optimizer, x: genesis.Tensor,
    target: genesis.Tensor,
) -> None:  # fmt: skip
    fresh_optimizer = make_optimizer(fresh.parameters())  # type: ignore[operator]
    with tempfile.TemporaryDirectory() as folder:
        growth.save(Path(folder) / "grown.safetensors", model, optimizer)
        growth.load(Path(folder) / "grown.safetensors", fresh, fresh_optimizer)
    for network, its_optimizer in ((model, optimizer), (fresh, fresh_optimizer)):
        _train(network, its_optimizer, x, target)
    mine, its = model.state_dict(), fresh.state_dict()
    assert list(mine) == list(its)
    assert all(np.array_equal(mine[key].numpy(), its[key].numpy()) for key in mine), (
        "training on is not the same after loading"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=240)
    arguments = parser.parse_args()
    for seed in range(arguments.count) if arguments.seed is None else [arguments.seed]:
        check(seed)


if __name__ == "__main__":
    main()
