"""How far the outputs of each network move by each operation, in eval and in training mode: docs/growth.md's table.

    python -m tests.growth.deviations [name ...] [--device cuda]

Beside them how far the network was from its own outputs in float64 before: the rounding that it lives with. Each
network has been trained for two steps before, each operation is measured by itself.
"""

from __future__ import annotations

import argparse
import copy
from typing import NamedTuple

import genesis
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from genesis.tensor import Tensor
from tests.growth.measure import deviations, outputs, train
from tests.growth.networks import CASES, LARGE, Case


class Row(NamedTuple):
    """max |Δ output| / max |output|, the worst of a network's operations, in eval and in training mode."""

    grown: tuple[float, float]
    rounding: tuple[float, float]


def measure(case: Case, device: str = "cpu", num_samples: int = 16, with_rounding: bool = True) -> Row:
    """Every operation at every place of the case, one after the other.

    with_rounding: also how far its outputs are from those in float64; else 0.
    """
    genesis.manual_seed(1)
    model, x = case.build().to(device), genesis.randn(num_samples, *case.shape[1:], device=device)
    optimizer = optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    train(model, optimizer, x, 2)
    grown = rounding = (0.0, 0.0)
    operations = [(growth.grow_width, place, {"factor": 1.5, "new": "copy"}) for place in case.wide]
    operations += [(growth.grow_width, place, {"factor": 1.5, "new": "zero"}) for place in case.wide]
    operations += [(growth.grow_depth, place, {}) for place in case.deep]
    operations += [(growth.grow_branches, place, {"channels": 3}) for place in case.branched]
    for operation, place, options in operations:
        before = outputs(model, x)
        if with_rounding:
            rounding = _worst(rounding, deviations(_exact(model, x), before))
        try:
            operation(model, place, optimizer=optimizer, example=x[:2], **options)
        except GrowthError as error:
            if "can only grow to a multiple" not in str(error):  # under a layer norm
                raise
            operation(model, place, factor=2, optimizer=optimizer, example=x[:2])
        grown = _worst(grown, deviations(before, outputs(model, x)))
    return Row(grown, rounding)


def _exact(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return outputs(copy.deepcopy(model).double(), x.double())


def _worst(one: tuple[float, float], other: list[float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    cases = {**CASES, **LARGE}
    print("| network | eval | training | from float64: eval | training |\n|---|---|---|---|---|")
    for name in arguments.names or cases:
        row = measure(cases[name], arguments.device)
        figures = " | ".join(f"{value:.1e}" for pair in row for value in pair)
        print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
