"""What changes between two steps of the loops of fuzz_cuda.py: one function each."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import genesis
import genesis.nn.functional as F
from genesis import growth, nn, optim
from genesis.settings import override, settings
from tests.graphs.fuzz_cuda_loop import Loop, as_drawn, nothing


def another_batch(loop: Loop) -> None:
    loop.batch = 7 - loop.batch


def other_strides(loop: Loop) -> None:
    loop.prepare = as_drawn if loop.prepare is not as_drawn else lambda x: x.T.contiguous().T


def other_alignment(loop: Loop) -> None:
    loop.prepare = as_drawn if loop.prepare is not as_drawn else _shifted


def _shifted(x: genesis.Tensor) -> genesis.Tensor:
    wide = genesis.zeros(x.numel() + 1, device="cuda")
    wide[1:].copy_(x.view(-1))
    return wide[1:].view(x.shape)


def expanded(loop: Loop) -> None:
    loop.prepare = lambda x: x[:1].expand(x.shape)


def other_dtype(loop: Loop) -> None:
    loop.prepare = lambda x: x.half()


def wrong_shape(loop: Loop) -> None:
    loop.prepare = as_drawn if loop.prepare is not as_drawn else lambda x: x[:, 1:]


def infinite(loop: Loop) -> None:
    loop.prepare = as_drawn if loop.prepare is not as_drawn else lambda x: x.clamp(max=0.0) / 0.0


def a_view_of_a_parameter(loop: Loop) -> None:
    loop.prepare = lambda x: loop.model[0].weight.detach()[:3] if x.shape[0] == 3 else x


def an_argument_with_gradient(loop: Loop) -> None:
    loop.argument_requires_grad = not loop.argument_requires_grad


def other_mode(loop: Loop) -> None:
    loop.model.train(not loop.model.training)


def other_mode_of_dropout(loop: Loop) -> None:
    for module in loop.model:
        if isinstance(module, nn.Dropout):
            module.train(not module.training)


def more_dropout(loop: Loop) -> None:
    for module in loop.model:
        if isinstance(module, nn.Dropout):
            module.p = 0.5


def learning_rate(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] *= 0.5


def rate_as_a_tensor(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] = genesis.tensor(float(group["lr"]), dtype=genesis.float64)


def learning_rate_in_place(loop: Loop) -> None:
    rate_as_a_tensor(loop)
    for group in loop.optimizer.param_groups:
        group["lr"].mul_(0.5)


def weight_decay(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["weight_decay"] = 0.1


def no_momentum(loop: Loop) -> None:
    if "nesterov" in loop.optimizer.param_groups[0]:
        loop.optimizer.param_groups[0]["momentum"] = 0.0


def another_group(loop: Loop) -> None:
    params = loop.optimizer.param_groups[0]["params"]
    if len(params) > 1:
        loop.optimizer.add_param_group({"params": [params.pop()], "lr": 0.02})


def replaced_parameter(loop: Loop) -> None:
    last = loop.model[-1]
    last.bias = nn.Parameter(last.bias.detach() * 0.5)
    loop.optimizer.add_param_group({"params": [last.bias], "lr": 0.02})
    loop.average[-1] = genesis.zeros_like(last.bias)


def replaced_array(loop: Loop) -> None:
    loop.model[-1].bias.data = loop.model[-1].bias.detach() + 1


def frozen(loop: Loop) -> None:
    weight = loop.model[-1].weight
    weight.requires_grad_(not weight.requires_grad)


def load_model(loop: Loop) -> None:
    loop.model.load_state_dict({name: value * 0.5 for name, value in loop.model.state_dict().items()})


def load_optimizer(loop: Loop) -> None:
    loop.optimizer.load_state_dict(loop.optimizer.state_dict())


def replaced_state(loop: Loop) -> None:
    """Not by load_state_dict, which makes all of the state anew."""
    for state in loop.optimizer.state.values():
        for key, entry in state.items():
            if key != "step" and isinstance(entry, genesis.Tensor):
                state[key] = entry * 0.5


def replaced_array_of_state(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        for key, entry in state.items():
            if key != "step" and isinstance(entry, genesis.Tensor):
                entry.data = entry * 0.5


def past_setattr(loop: Loop) -> None:
    for module in loop.model:
        if isinstance(module, nn.Dropout):
            vars(module)["p"] = 0.6


def other_order(loop: Loop) -> None:
    """Dropout comes before the layer that was before it."""
    modules = loop.model._modules
    names = list(modules)
    for name in (names[-3], names[-1]):
        modules[name] = modules.pop(name)


def load_scaler(loop: Loop) -> None:
    loop.scaler.load_state_dict({**loop.scaler.state_dict(), "scale": 16.0})


def eager_step(loop: Loop) -> None:
    x = genesis.randn(loop.batch, 6, device="cuda")
    F.cross_entropy(loop.model(x), genesis.zeros(loop.batch, dtype=genesis.int64, device="cuda")).backward()
    loop.optimizer.step()


def grown(loop: Loop) -> None:
    loop.model.train()
    example = genesis.randn(4, 6, device="cuda", dtype=next(loop.model.parameters()).dtype)
    layer = loop.model[0] if isinstance(loop.model[0], nn.Linear) else loop.model[1]
    growth.grow_width(loop.model, layer, factor=1.5, optimizer=loop.optimizer, example=example)
    loop.average = [genesis.zeros_like(param) for param in loop.model.parameters()]


def autocast_around(loop: Loop) -> None:
    around = loop.around
    loop.around = contextlib.nullcontext if around is not contextlib.nullcontext else _bfloat16


@contextlib.contextmanager
def _bfloat16() -> Iterator[None]:
    with genesis.autocast("cuda", dtype=genesis.bfloat16):
        yield


def another_stream(loop: Loop) -> None:
    loop.around = contextlib.nullcontext if loop.around is not contextlib.nullcontext else _on_a_stream


@contextlib.contextmanager
def _on_a_stream() -> Iterator[None]:
    side, here = genesis.cuda.Stream(), genesis.cuda.current_stream()
    side.wait_stream(here)
    with genesis.cuda.stream(side):
        yield
    here.wait_stream(side)


def held_gradients(loop: Loop) -> None:
    loop.held.append([param.grad for param in loop.model.parameters()])


def held_view(loop: Loop) -> None:
    loop.held.append([param.grad.view(-1) for param in loop.model.parameters() if param.grad is not None])


def cleared_gradients(loop: Loop) -> None:
    loop.optimizer.zero_grad()


def own_gradients(loop: Loop) -> None:
    for param in loop.model.parameters():
        param.grad = genesis.ones_like(param)


def changed_parameters(loop: Loop) -> None:
    with genesis.no_grad():
        for param in loop.model.parameters():
            param.mul_(0.9)


def another_number(loop: Loop) -> None:
    loop.factor *= 0.5


def in_a_thread(loop: Loop) -> None:
    loop.thread = not loop.thread


def another_seed(loop: Loop) -> None:
    genesis.manual_seed(7)


def a_hook(loop: Loop) -> None:
    loop.model.register_forward_hook(lambda module, args, output: output * 0.5)


def evaluation(loop: Loop) -> None:
    was = loop.model.training
    with genesis.no_grad():
        loop.model.eval()(genesis.ones(2, 6, device="cuda"))
    loop.model.train(was)


def other_precision(loop: Loop) -> None:
    loop.model.to(genesis.float64 if loop.model[-1].weight.dtype is genesis.float32 else genesis.float32)


def there_and_back(loop: Loop) -> None:
    loop.model.cpu().to("cuda")


def other_strides_of_a_parameter(loop: Loop) -> None:
    for param in loop.model.parameters():
        if param.ndim == 2:
            param.data = param.detach().T.contiguous().T


def other_strides_of_gradients(loop: Loop) -> None:
    for param in loop.model.parameters():
        if param.ndim == 2:
            param.grad = genesis.ones_like(param.detach().T.contiguous()).T


def failing_between(loop: Loop) -> None:
    loop.fails_in = None if loop.fails_in else "step"


def failing_in_forward(loop: Loop) -> None:
    """After batch norm has changed its statistics."""

    def fail(module: nn.Module, args: Any) -> None:
        raise ValueError("in forward")

    handle = loop.model[-1].register_forward_pre_hook(fail)

    def end() -> None:
        handle.remove()
        loop.after = nothing

    loop.after = end


def scheduled(loop: Loop) -> None:
    if any(isinstance(group["lr"], genesis.Tensor) for group in loop.optimizer.param_groups):
        return
    kinds = optim.lr_scheduler
    makers: list[Callable[[], Any]] = [
        lambda: kinds.CosineAnnealingLR(loop.optimizer, 5),
        lambda: kinds.StepLR(loop.optimizer, 2, 0.5),
        lambda: kinds.OneCycleLR(loop.optimizer, 0.1, total_steps=100, cycle_momentum=False),
        lambda: kinds.LinearLR(loop.optimizer, 0.2, total_iters=3),
    ]
    loop.after = makers[len(loop.held) % len(makers)]().step


def plateau(loop: Loop) -> None:
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer, patience=0, factor=0.5)
    loop.after = lambda: scheduler.step(1.0)


def cleared_state(loop: Loop) -> None:
    loop.optimizer.state.clear()


def another_optimizer(loop: Loop) -> None:
    loop.optimizer = optim.AdamW(loop.model.parameters(), lr=0.02)


def maximized(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        if "maximize" in group:
            group["maximize"] = not group["maximize"]


def deterministic(loop: Loop) -> None:
    loop.around = contextlib.nullcontext if loop.around is not contextlib.nullcontext else _not_deterministic


@contextlib.contextmanager
def _not_deterministic() -> Iterator[None]:
    with override(deterministic=not settings.deterministic):
        yield


def without_gradients(loop: Loop) -> None:
    loop.around = contextlib.nullcontext if loop.around is not contextlib.nullcontext else genesis.no_grad


def changed_results(loop: Loop) -> None:
    """Which the next replay must not read, and which it must not write."""

    def change() -> None:
        for leaf in loop.held[-1:]:
            if isinstance(leaf, genesis.Tensor):
                with genesis.no_grad():
                    leaf.add_(1)

    loop.after = change


def forgotten_results(loop: Loop) -> None:
    loop.held.clear()
    gc.collect()


def a_gradient_hook(loop: Loop) -> None:
    loop.model[-1].weight.register_hook(lambda grad: grad * 0.5)


def a_copy_of_the_model(loop: Loop) -> None:
    loop.model = copy.deepcopy(loop.model)
    loop.optimizer.param_groups[0]["params"][:] = list(loop.model.parameters())
    del loop.optimizer.param_groups[1:]
    loop.optimizer.state.clear()


def tied(loop: Loop) -> None:
    last = loop.model[-1]
    if last.in_features == 8 and isinstance(loop.model[0], nn.Linear) and len(loop.model[0].bias) == 8:
        loop.model[0].bias = loop.model[1].bias


def removed_layer(loop: Loop) -> None:
    for name, module in list(loop.model._modules.items()):
        if isinstance(module, nn.Dropout):
            loop.model._modules[name] = nn.Identity()


def other_seed_of_the_generator(loop: Loop) -> None:
    loop.generator.manual_seed(11)


CHANGES: dict[str, Callable[[Loop], None]] = {
    each.__name__: each
    for each in (
        another_batch, other_strides, other_alignment, expanded, other_dtype, wrong_shape, infinite,
        a_view_of_a_parameter, an_argument_with_gradient, other_mode, other_mode_of_dropout, more_dropout,
        learning_rate, rate_as_a_tensor, learning_rate_in_place, weight_decay, no_momentum, another_group,
        replaced_parameter, replaced_array, frozen, load_model, load_optimizer, replaced_state,
        replaced_array_of_state, past_setattr, other_order, load_scaler, eager_step, grown, autocast_around,
        another_stream, held_gradients, held_view, cleared_gradients, own_gradients, changed_parameters,
        another_number, in_a_thread, another_seed, a_hook, evaluation, other_precision, there_and_back,
        other_strides_of_a_parameter, other_strides_of_gradients, failing_between, failing_in_forward,
        scheduled, plateau, cleared_state, another_optimizer, maximized, deterministic, without_gradients,
        changed_results, forgotten_results, a_gradient_hook, a_copy_of_the_model, tied, removed_layer,
        other_seed_of_the_generator,
    )
}  # fmt: skip
