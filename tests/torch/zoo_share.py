"""Count which convolutions of other packages' networks run fused: `python -m tests.torch.zoo_share`.

Each network takes two training steps on small pictures. A line per network, then the totals: the convolutions that are
fused, those among them with their activation, and the same as shares of the convolutions' output; at last what follows
those that are left, the largest share first.
"""

from __future__ import annotations

import argparse
import collections
import copy
import signal
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import genesis.torch
from tests.torch.zoo_networks import MOST_PARAMETERS, Network, networks

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
_ACTIVATED = 2  # parts of a chain from which on it has an activation: convolution, (norm,) activation


class Convolution(NamedTuple):
    """A convolution of a network, the elements of its output, the layers that run with it, or why none does."""

    size: int
    parts: tuple[str, ...]
    reason: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks, or beginnings of their names; default: all")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for one network")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[Convolution] = []
    for network in networks():
        if not arguments.names or network.name.startswith(tuple(arguments.names)):
            convolutions = _within(arguments.timeout, network)
            found += convolutions
            print(f"{network.name:<44}{_line(convolutions)}", flush=True)
    print(f"{'all':<44}{_line(found)}")
    whole = sum(each.size for each in found) or 1
    reasons: collections.Counter[str] = collections.Counter()
    numbers: collections.Counter[str] = collections.Counter()
    for each in found:
        if len(each.parts) == 1:
            reasons[each.reason] += each.size
            numbers[each.reason] += 1
    for reason, size in reasons.most_common():
        print(f"{size / whole:7.2%}  {numbers[reason]:5d}  {reason}")


def _line(convolutions: list[Convolution]) -> str:
    fused = [each for each in convolutions if len(each.parts) > 1]
    ends = [each for each in fused if each.parts[-1] not in ("norm", "add")]
    whole = sum(each.size for each in convolutions) or 1
    shares = [sum(each.size for each in some) / whole for some in (fused, ends)]
    return (
        f"{len(convolutions):5d}  {len(fused):5d} fused ({shares[0]:.1%}), {len(ends):5d} activated ({shares[1]:.1%})"
    )


def _within(seconds: int, network: Network) -> list[Convolution]:
    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return _convolutions(network)
    except Exception as error:
        print(f"{network.name}: {type(error).__name__} {str(error)[:200]}")
        return []
    finally:
        signal.alarm(0)


def _convolutions(network: Network) -> list[Convolution]:
    torch.manual_seed(0)
    model = network.build().train()
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
        return []
    images = torch.randn(2, 3, network.size, network.size)
    sizes = _output_sizes(model, images)
    genesis.torch.fuse(model)
    for _ in range(2):
        loss: Tensor = sum(each.float().sum() for each in tree_leaves(model(images)) if isinstance(each, Tensor))
        loss.backward()
    report = genesis.torch.report(model)
    parts = {each[0]: each for each in report.fused}
    reasons = dict(report.left)
    kinds = {name: module.__dict__["forward"].kinds for name, module in model.named_modules() if _entry(module)}
    return [
        Convolution(
            size,
            ("conv", *kinds[name][1:])
            if name in kinds and name in parts and len(kinds[name]) > 1
            else parts.get(name, (name,))[:1] + (("norm",) if name in parts else ()),
            reasons.get(name, "another kind of convolution"),
        )
        for name, size in sizes.items()
    ]


def _entry(module: nn.Module) -> bool:
    return hasattr(module.__dict__.get("forward"), "kinds")


def _output_sizes(model: nn.Module, images: Tensor) -> dict[str, int]:
    """The elements of each convolution's output, by the names of the convolutions that are called."""
    sizes: dict[str, int] = {}
    probe = copy.deepcopy(model)
    for name, module in probe.named_modules():
        if isinstance(module, _CONVOLUTIONS):
            module.register_forward_hook(lambda _, __, y, name=name: sizes.__setitem__(name, y.numel()))
    with torch.no_grad():
        probe(images)
    return sizes


if __name__ == "__main__":
    main()
