"""What people do to a model between two steps: surgery, hooks, modes, casts, averages, pruning, copies, …

An event takes a model and a random stream, changes the model and gives it back (or another in its place). It is played
on the fused and the unfused model with equal streams.
"""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from tests.torch.fuzz_models import CHANNELS, GroupNorm, _halve, _look

Event = Callable[[nn.Module, random.Random], nn.Module]
EVENTS: dict[str, Event] = {}


def event(function: Event) -> Event:
    EVENTS[function.__name__] = function
    return function


def _pick(model: nn.Module, rng: random.Random, *kinds: type[nn.Module]) -> tuple[nn.Module, str, nn.Module] | None:
    """A random layer of these kinds: its parent, its name there, itself."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, kinds)
    ]
    return rng.choice(found) if found else None


def _replace(model: nn.Module, rng: random.Random, kinds: tuple[type[nn.Module], ...], new: Any) -> nn.Module:
    place = _pick(model, rng, *kinds)
    if place is not None:
        parent, name, child = place
        setattr(parent, name, new(child).double().train(child.training))
    return model


class LoRA(nn.Module):
    """A layer with a learned change of rank 1 beside it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.full((CHANNELS, 1, 1), 0.1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x * self.scale


@event
def replace_activation(model: nn.Module, rng: random.Random) -> nn.Module:
    kind = rng.choice([nn.Identity, nn.SiLU, nn.LeakyReLU, nn.ReLU])
    return _replace(model, rng, (nn.ReLU, nn.SiLU), lambda _: kind())


@event
def replace_norm(model: nn.Module, rng: random.Random) -> nn.Module:
    make = rng.choice([lambda: GroupNorm(2, CHANNELS), lambda: nn.BatchNorm2d(CHANNELS, momentum=0.5), nn.Identity])
    return _replace(model, rng, (nn.BatchNorm2d, nn.GroupNorm), lambda _: make())


@event
def replace_conv(model: nn.Module, rng: random.Random) -> nn.Module:
    torch.manual_seed(rng.randrange(100))
    make = rng.choice([lambda c: LoRA(c), lambda _: nn.Conv2d(CHANNELS, CHANNELS, 1), lambda _: nn.Identity()])
    place = _pick(model.blocks, rng, nn.Conv2d)
    if place is not None:
        setattr(place[0], place[1], make(place[2]).double())
    return model


@event
def grow_sequential(model: nn.Module, rng: random.Random) -> nn.Module:
    place = _pick(model, rng, nn.Sequential)
    if place is not None:
        sequential = place[2]
        how = rng.randrange(4)
        if how == 0:
            sequential.append(nn.Tanh())
        elif how == 1:
            sequential.insert(rng.randrange(len(sequential) + 1), nn.Tanh())
        elif how == 2 and len(sequential) > 1:
            del sequential[rng.randrange(len(sequential))]
        else:
            sequential[rng.randrange(len(sequential))] = nn.Sigmoid()
    return model


@event
def hook(model: nn.Module, rng: random.Random) -> nn.Module:
    place = _pick(model, rng, nn.Conv2d, nn.BatchNorm2d, nn.ReLU)
    if place is not None:
        how = rng.randrange(4)
        if how < 2:
            place[2].register_forward_hook(_halve if how else _look)
        elif how == 2:
            place[2].register_forward_pre_hook(_double_input)
        else:
            place[2].register_full_backward_hook(_double_gradient)
    return model


def _double_input(module: nn.Module, args: Any) -> Any:
    return tuple(2 * x for x in args)


def _double_gradient(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return tuple(None if x is None else 2 * x for x in grad_input)


@event
def switch_mode(model: nn.Module, rng: random.Random) -> nn.Module:
    return model.train(rng.random() < 0.5)


@event
def freeze_norm(model: nn.Module, rng: random.Random) -> nn.Module:
    place = _pick(model, rng, nn.BatchNorm2d)
    if place is not None:
        place[2].eval()
    return model


@event
def freeze_parameters(model: nn.Module, rng: random.Random) -> nn.Module:
    for parameter in list(model.parameters())[:: rng.randint(1, 3)]:
        parameter.requires_grad_(rng.random() < 0.5)
    return model


@event
def set_flag(model: nn.Module, rng: random.Random) -> nn.Module:
    rng.choice(list(model.blocks)).flag = rng.random() < 0.5
    return model


@event
def average_by_data(model: nn.Module, rng: random.Random) -> nn.Module:
    for parameter in model.parameters():
        parameter.data.mul_(0.9).add_(0.01)
    return model


@event
def average_statistics_by_data(model: nn.Module, rng: random.Random) -> nn.Module:
    for buffer in model.buffers():
        if buffer.dtype.is_floating_point:
            buffer.data.mul_(0.5).add_(0.2)
    return model


@event
def optimizer_step(model: nn.Module, rng: random.Random) -> nn.Module:
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9).step()
    return model


@event
def replace_data(model: nn.Module, rng: random.Random) -> nn.Module:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone() * 1.1
    return model


@event
def load_state(model: nn.Module, rng: random.Random) -> nn.Module:
    state = {name: value * 0.9 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=rng.random() < 0.5)
    return model


@event
def prune_conv(model: nn.Module, rng: random.Random) -> nn.Module:
    place = _pick(model, rng, nn.Conv2d)
    if place is not None and "weight" in place[2]._parameters:
        prune.l1_unstructured(place[2], "weight", 0.3)
    return model


@event
def parametrize_conv(model: nn.Module, rng: random.Random) -> nn.Module:
    place = _pick(model, rng, nn.Conv2d)
    if place is not None and "weight" in place[2]._parameters:
        torch.manual_seed(rng.randrange(100))
        rng.choice([parametrizations.weight_norm, parametrizations.spectral_norm])(place[2])
    return model


@event
def old_spectral_norm(model: nn.Module, rng: random.Random) -> nn.Module:
    place = _pick(model, rng, nn.Conv2d)
    if place is not None and "weight" in place[2]._parameters:
        torch.manual_seed(rng.randrange(100))
        nn.utils.spectral_norm(place[2])
    return model


@event
def deep_copy(model: nn.Module, rng: random.Random) -> nn.Module:
    return copy.deepcopy(model)


@event
def pickled(model: nn.Module, rng: random.Random) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


@event
def saved(model: nn.Module, rng: random.Random) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@event
def cast_there_and_back(model: nn.Module, rng: random.Random) -> nn.Module:
    return model.float().double()


@event
def cast_a_norm(model: nn.Module, rng: random.Random) -> nn.Module:
    """What this breaks, it breaks on both sides."""
    place = _pick(model, rng, nn.BatchNorm2d)
    if place is not None:
        place[2].float()
    return model


@event
def channels_last(model: nn.Module, rng: random.Random) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


@event
def swap_blocks(model: nn.Module, rng: random.Random) -> nn.Module:
    order = list(model.blocks)
    rng.shuffle(order)
    model.blocks = nn.ModuleList(order)
    return model


@event
def share_a_layer(model: nn.Module, rng: random.Random) -> nn.Module:
    first, second = _pick(model.blocks, rng, nn.Conv2d), _pick(model.blocks, rng, nn.Conv2d)
    if first is not None and second is not None:
        setattr(first[0], first[1], second[2])
    return model
