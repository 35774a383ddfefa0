"""What programs change between the steps of a training loop, for its fuzzer. Each change is made on both sides."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import genesis.torch
from tests.torch.fuzz_loop_sides import KINDS, Side

Change = Callable[[Side, random.Random], None]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__] = function
    return function


def _some(side: Side, rng: random.Random) -> list[Any]:
    parameters = list(side.model.parameters())
    return rng.sample(parameters, rng.randint(1, len(parameters)))


def _layer(side: Side, rng: random.Random) -> nn.Module:
    return rng.choice([x for x in side.model.modules() if not list(x.children())])


# --- how the loop trains ---
@change
def another_optimizer(side: Side, rng: random.Random) -> None:
    side.options.kind, side.options.how = rng.choice(KINDS), rng.choice(("foreach", "loop", "fused"))
    side.renew()


@change
def learning_rates(side: Side, rng: random.Random) -> None:
    for group in side.optimizer.param_groups:
        group["lr"] *= rng.choice((0.0, 0.5, 2.0))
        group["weight_decay"] = rng.choice((0.0, 0.1))


@change
def fewer_parameters(side: Side, rng: random.Random) -> None:
    """Of some the gradients stay, and grow."""
    kept = {id(x) for x in _some(side, rng)}
    for group in side.optimizer.param_groups:
        group["params"] = [x for x in group["params"] if id(x) in kept]


@change
def another_way_to_zero(side: Side, rng: random.Random) -> None:
    side.options.zero = rng.choice(("none", "zeros", "before", "by hand", "never"))


@change
def another_accumulation(side: Side, rng: random.Random) -> None:
    side.options.every = rng.choice((1, 2, 4))


@change
def another_clipping(side: Side, rng: random.Random) -> None:
    side.options.clip = rng.choice(("", "norm", "value"))


@change
def another_scaler(side: Side, rng: random.Random) -> None:
    side.options.scaled = not side.options.scaled
    side.scaler = torch.amp.GradScaler(side.device, init_scale=4.0) if side.options.scaled else None


@change
def autocast_from_now_on(side: Side, rng: random.Random) -> None:
    side.options.autocast = not side.options.autocast


@change
def another_batch_size(side: Side, rng: random.Random) -> None:
    side.options.size = rng.choice((2, 3, 5))


@change
def another_shape(side: Side, rng: random.Random) -> None:
    side.options.shape = rng.choice(((6, 5), (5, 6), (8, 8)))


@change
def another_layout(side: Side, rng: random.Random) -> None:
    side.options.layout = rng.choice(("plain", "channels_last", "strided"))


@change
def what_is_held(side: Side, rng: random.Random) -> None:
    side.options.holds = rng.choice(("", "outputs", "gradients", "losses", "everything"))


@change
def another_loss(side: Side, rng: random.Random) -> None:
    side.options.cross_entropy = not side.options.cross_entropy


# --- parameters ---
@change
def frozen(side: Side, rng: random.Random) -> None:
    for parameter in _some(side, rng):
        parameter.requires_grad_(False)


@change
def frozen_with_gradients_gone(side: Side, rng: random.Random) -> None:
    side.model.body.requires_grad_(False)
    side.model.zero_grad()


@change
def unfrozen(side: Side, rng: random.Random) -> None:
    side.model.requires_grad_(True)


@change
def loaded(side: Side, rng: random.Random) -> None:
    """The first time it is saved only."""
    assigns = rng.random() < 0.3
    if side.saved is not None:
        state = copy.deepcopy(side.saved)
        side.model.load_state_dict(state, assign=assigns)
        if assigns:
            side.renew()
    side.saved = copy.deepcopy(side.model.state_dict())


@change
def saved_and_loaded(side: Side, rng: random.Random) -> None:
    file = io.BytesIO()
    torch.save([side.model.state_dict(), side.optimizer.state_dict()], file)
    file.seek(0)
    model, optimizer = torch.load(file)
    side.model.load_state_dict(model)
    side.optimizer.load_state_dict(optimizer)


@change
def other_data(side: Side, rng: random.Random) -> None:
    for parameter in _some(side, rng):
        parameter.data = parameter.data.clone() * 0.9


@change
def data_in_place(side: Side, rng: random.Random) -> None:
    for parameter in _some(side, rng):
        parameter.data.mul_(0.9)


@change
def swapped_data(side: Side, rng: random.Random) -> None:
    """As averages of weights are swapped in and out."""
    for parameter in _some(side, rng):
        own = parameter.data
        parameter.data = own.clone() * 1.1
        parameter.data = own


@change
def in_place_without_gradients(side: Side, rng: random.Random) -> None:
    with torch.no_grad():
        for parameter in _some(side, rng):
            parameter.add_(0.01).clamp_(-2, 2)


@change
def gradients_by_hand(side: Side, rng: random.Random) -> None:
    for parameter in _some(side, rng):
        way = rng.randrange(4)
        if way == 0 or not parameter.requires_grad:
            parameter.grad = None
        elif way == 1:
            parameter.grad = torch.full_like(parameter, 0.01)
        elif way == 2 and parameter.dim() == 4:
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.channels_last)
        elif parameter.grad is not None:
            parameter.grad.mul_(2)


@change
def another_parameter(side: Side, rng: random.Random) -> None:
    layer = _layer(side, rng)
    for name, parameter in list(layer._parameters.items()):
        if parameter is not None:
            setattr(layer, name, nn.Parameter(parameter.detach().clone() * 0.9))
    side.renew()


@change
def another_layer(side: Side, rng: random.Random) -> None:
    """A head for other classes."""
    head = side.model.head.linear
    torch.manual_seed(rng.randrange(100))
    side.model.head.linear = nn.Linear(head.in_features, rng.choice((2, 3, 4))).to(side.device, side.dtype)
    side.renew()


@change
def another_memory_format(side: Side, rng: random.Random) -> None:
    side.model.to(memory_format=rng.choice((torch.channels_last, torch.contiguous_format)))


@change
def there_and_back(side: Side, rng: random.Random) -> None:
    other = torch.float32 if side.dtype is torch.float64 else torch.float64
    side.model.to(other).to(side.dtype)


# --- modules ---
@change
def frozen_norms(side: Side, rng: random.Random) -> None:
    for module in side.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


@change
def in_training_again(side: Side, rng: random.Random) -> None:
    side.model.eval()
    side.model.train()


@change
def reset_statistics(side: Side, rng: random.Random) -> None:
    for module in side.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()


@change
def other_buffers(side: Side, rng: random.Random) -> None:
    for module in side.model.modules():
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and rng.random() < 0.5:
                module._buffers[name] = buffer.clone()


@change
def buffers_in_place(side: Side, rng: random.Random) -> None:
    for buffer in side.model.buffers():
        buffer.mul_(1 if not buffer.is_floating_point() else 0.9)


# --- hooks ---
def _double(grad: Tensor) -> Tensor:
    return grad * 2


@change
def hooks_of_parameters(side: Side, rng: random.Random) -> None:
    for parameter in _some(side, rng):
        if parameter.requires_grad:
            side.handles.append(parameter.register_hook(_double))


@change
def hooks_after_accumulation(side: Side, rng: random.Random) -> None:
    """As optimizers in the backward have it."""

    def step(parameter: Tensor) -> None:
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.add_(parameter.grad, alpha=-0.001)

    for parameter in _some(side, rng):
        if parameter.requires_grad:
            side.handles.append(parameter.register_post_accumulate_grad_hook(step))


@change
def hook_of_the_model(side: Side, rng: random.Random) -> None:
    def look(module: nn.Module, args: Any, outputs: Any) -> None:
        side.show("hook", outputs)

    side.handles.append(side.model.register_forward_hook(look))


@change
def hook_before_the_model(side: Side, rng: random.Random) -> None:
    side.handles.append(side.model.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,)))


@change
def hook_of_a_layer(side: Side, rng: random.Random) -> None:
    side.handles.append(_layer(side, rng).register_forward_hook(lambda module, args, output: output * 1.5))


@change
def backward_hook_of_the_model(side: Side, rng: random.Random) -> None:
    def look(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        side.show("backward hook", [x for x in grad_output if x is not None])

    side.handles.append(side.model.register_full_backward_hook(look))


@change
def no_more_hooks(side: Side, rng: random.Random) -> None:
    while side.handles:
        side.handles.pop().remove()


# --- copies, and all around ---
@change
def copied(side: Side, rng: random.Random) -> None:
    """The loop goes on with a copy, which is compiled in its turn."""
    side.handles.clear()
    side.model = copy.deepcopy(side.model)
    side.compile()
    side.renew()


@change
def averaged(side: Side, rng: random.Random) -> None:
    """An average from now on, and what it computes."""
    if side.average is None:
        side.average = AveragedModel(side.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    with torch.no_grad():
        side.show("average", side.average.module(side.images(rng.randrange(100))))


@change
def compiled_again(side: Side, rng: random.Random) -> None:
    if side.is_ours:
        if rng.random() < 0.5:
            genesis.torch.unfuse(side.model)
        side.compile()


@change
def reset_dynamo(side: Side, rng: random.Random) -> None:
    if side.is_ours:
        torch._dynamo.reset()


@change
def collected(side: Side, rng: random.Random) -> None:
    gc.collect()
    if side.device == "cuda":
        torch.cuda.empty_cache()


@change
def a_step_elsewhere(side: Side, rng: random.Random) -> None:
    """The loop stops for another model, which is compiled too, and which nothing of ours sees."""
    for index in range(rng.randint(1, 4)):
        with torch.no_grad() if rng.random() < 0.3 else contextlib.nullcontext():
            loss = side.other(side.images(index, shape=(6, 5))).square().mean()
        if loss.requires_grad:
            loss.backward()
    side.show("another model's gradient", [x.grad for x in side.other.parameters() if x.grad is not None])
    side.other.zero_grad()
