"""Count which convolutions of other packages' networks run fused: `python -m tests.torch.zoo_share`.

Each network is called once in training mode, with gradients, on small pictures in channels-last; what is fused on CUDA
alone is fused too. A line per network, then the totals: the convolutions that are fused, those among them with an
activation, and both as shares of the elements of all convolutions' outputs; at last the reasons of those that are left
or fused without the activation that follows, the largest share first. A convolution whose result is added to another
one's counts as fused where the sum runs with that one: no pass of its own is left.
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

import genesis.torch
from genesis.activations import NUMBERS
from genesis.torch import bridge
from genesis.torch.entries import ConvEntry
from genesis.torch.reasons import SUMMED
from tests.torch.zoo_networks import MOST_PARAMETERS, Network, networks

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
_ACTIVATIONS = {*NUMBERS, "prelu", "softplus", "hardtanh"}


class Convolution(NamedTuple):
    """A convolution of a network.

    Attributes:
        size: elements of its output.
        kinds: what runs with it, such as ("norm", "relu"); none: reason says why.
        taker: the function that other code calls on the result, "" where none is known.
    """

    size: int
    kinds: tuple[str, ...]
    reason: str
    taker: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks, or beginnings of their names; default: all")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for one network")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bridge.activates = bridge.trains = lambda x: True
    found: list[Convolution] = []
    for network in networks():
        if not arguments.names or network.name.startswith(tuple(arguments.names)):
            convolutions = _within(arguments.timeout, network)
            found += convolutions
            print(f"{network.name:<44}{_line(convolutions)}", flush=True)
    print(f"{'all':<44}{_line(found)}")
    whole = sum(each.size for each in found) or 1
    sizes: collections.Counter[str] = collections.Counter()
    numbers: collections.Counter[str] = collections.Counter()
    for each in found:
        reason = _why_left(each)
        if reason:
            sizes[reason] += each.size
            numbers[reason] += 1
    for reason, size in sizes.most_common():
        print(f"{size / whole:7.2%}  {numbers[reason]:5d}  {reason}")


def _why_left(convolution: Convolution) -> str:
    if not convolution.kinds:
        return convolution.reason
    ends_early = convolution.kinds[-1] in ("norm", "add") and convolution.taker.rstrip("_") in _ACTIVATIONS
    return f"fused without its activation, {convolution.taker}" if ends_early else ""


def _line(convolutions: list[Convolution]) -> str:
    fused = [each for each in convolutions if each.kinds]
    activated = [each for each in fused if each.kinds[-1] not in ("norm", "add", "mul", "bias")]
    whole = sum(each.size for each in convolutions) or 1
    columns = [f"{len(some):5d} {sum(each.size for each in some) / whole:6.1%}" for some in (fused, activated)]
    return f"{len(convolutions):5d}  {columns[0]} fused  {columns[1]} with an activation"


def _within(seconds: int, network: Network) -> list[Convolution]:
    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return _convolutions(network)
    except Exception as error:  # one network's fault is a line of the table
        print(f"{network.name}: {type(error).__name__} {str(error)[:200]}")
        return []
    finally:
        signal.alarm(0)


def _convolutions(network: Network) -> list[Convolution]:
    torch.manual_seed(0)
    model = network.build().train()
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
        return []
    images = torch.randn(2, 3, network.size, network.size).to(memory_format=torch.channels_last)
    sizes = _output_sizes(model, images)
    genesis.torch.fuse(model)
    model(images)
    reasons = dict(genesis.torch.report(model).left)
    found = []
    for name, size in sizes.items():
        entry = model.get_submodule(name).__dict__.get("forward")
        if isinstance(entry, ConvEntry) and name not in reasons:
            found.append(Convolution(size, entry.kinds, "", entry.taker))
        elif reasons.get(name) == SUMMED:
            found.append(Convolution(size, ("add",), "", ""))
        else:
            found.append(Convolution(size, (), reasons.get(name, "another kind of convolution"), ""))
    return found


def _output_sizes(model: nn.Module, images: Tensor) -> dict[str, int]:
    """The elements of each convolution's output, by the names of the convolutions that are called."""
    try:
        return _sizes_within(copy.deepcopy(model).to("meta"), images.to("meta"))
    except Exception:  # code that reads values or makes tensors on the CPU
        return _sizes_within(copy.deepcopy(model), images)


def _sizes_within(probe: nn.Module, images: Tensor) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, module in probe.named_modules():
        if isinstance(module, _CONVOLUTIONS):
            module.register_forward_hook(lambda _, __, y, name=name: sizes.__setitem__(name, y.numel()))
    with torch.no_grad():
        probe(images)
    return sizes


if __name__ == "__main__":
    main()
