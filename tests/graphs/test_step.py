"""genesis.compile of a training step: a replay does what the step does, bit for bit."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import growth, nn, optim
from genesis.nn import functional as F
from tests.graphs.steps import (
    OPTIMIZERS,
    Regression,
    Training,
    accumulate,
    assert_same,
    count_run,
    descend,
    residual,
    take_both,
    trained,
    unet,
)  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("build", [unet, residual])
def test_bit_for_bit(build: Callable[[], nn.Module], optimizer: str) -> None:
    as_it_stands = list(trained(Training(build, optimizer, False)))
    compiled = Training(build, optimizer, True)
    for mine, theirs in zip(trained(compiled), as_it_stands, strict=True):
        assert_same(mine, theirs)
    assert compiled.runs == 2  # the second is recorded
    assert compiled.step.num_recordings == 1


def test_draws_from_a_generator_and_in_a_checkpoint() -> None:
    """Nothing is drawn twice, and the generators stand afterwards where the eager step leaves them."""

    def step(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
        noise = genesis.rand(*x.shape, generator=r.scale) + genesis.rand(*x.shape)
        checkpointed = genesis.utils.checkpoint.checkpoint(lambda x: F.dropout(r.model(x), 0.5), x * noise)
        loss = (checkpointed * genesis.empty(1).normal_(generator=r.scale)).square().mean()
        loss.backward()
        r.optimizer.step()
        return loss

    histories = []
    for run in (genesis.compile(step), step):
        genesis.manual_seed(0)
        r: Any = Regression()
        r.scale = genesis.Generator().manual_seed(1)
        taken = [run(r, genesis.ones(2, 3)).item() for _ in range(5)]
        states = [genesis.get_rng_state().tolist(), r.scale.get_state().tolist()]
        if run is not step:
            assert run.num_replays == 3
        histories.append([taken, states, *[param.tolist() for param in r.model.parameters()]])
    assert histories[0] == histories[1]


def halve_rate(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] /= 2


def change_options(training: Training) -> None:
    training.optimizer.param_groups[0]["weight_decay"] = 0.1
    training.optimizer.param_groups[0]["momentum"] = 0.5


def without_momentum(training: Training) -> None:
    training.optimizer.param_groups[0].update(momentum=0, nesterov=False)


def evaluate(training: Training) -> None:
    with genesis.no_grad():
        training.model.eval()(genesis.ones(1, 1, 16, 16))
    training.model.train()


def eval_mode(training: Training) -> None:
    training.model.eval()


def freeze(training: Training) -> None:
    training.model[0].conv.weight.requires_grad_(False)


def smaller_batch(training: Training) -> None:
    training.batch = 3


def replace_parameter(training: Training) -> None:
    training.model[-1].weight = nn.Parameter(training.model[-1].weight.detach() * 0.5)
    training.optimizer.add_param_group({"params": training.model[-1].weight, "lr": 0.02})
    training.scheduler = optim.lr_scheduler.StepLR(training.optimizer, 2)


def replace_array(training: Training) -> None:
    training.model[-1].bias.data = training.model[-1].bias.detach() + 1


def change_values(training: Training) -> None:
    training.model.load_state_dict({name: value * 0.5 for name, value in training.model.state_dict().items()})


def load_optimizer(training: Training) -> None:
    training.optimizer.load_state_dict(training.optimizer.state_dict())


def clear_gradients(training: Training) -> None:
    training.optimizer.zero_grad()


def grow(training: Training) -> None:
    example = genesis.ones(2, 1, 16, 16)
    growth.grow_width(training.model, training.model[0], factor=1.5, optimizer=training.optimizer, example=example)


@pytest.mark.parametrize(
    ("change", "runs"),  # runs: how often the step runs eagerly, or to be recorded
    [
        (halve_rate, 2),
        (change_options, 2),
        (without_momentum, 2),
        (evaluate, 2),
        (eval_mode, 4),
        (freeze, 4),
        (smaller_batch, 4),
        (replace_parameter, 4),
        (replace_array, 4),
        (change_values, 2),
        (load_optimizer, 4),
        (clear_gradients, 3),
        (grow, 4),
    ],
)
def test_changes_between_steps(change: Callable[[Training], None], runs: int) -> None:
    histories = []
    for is_compiled in (False, True):
        training = Training(residual, "momentum", is_compiled)
        histories.append([*trained(training, 6)])
        change(training)
        histories[-1] += trained(training, 10)
    for mine, theirs in zip(*histories, strict=True):
        assert_same(mine, theirs)
    assert training.runs == runs


def zero_after(r: Regression, x: genesis.Tensor) -> None:
    count_run(r)
    r.model(x).square().mean().backward()
    r.optimizer.step()
    r.optimizer.zero_grad()


def zero_in_place(r: Regression, x: genesis.Tensor) -> dict[str, Any]:
    count_run(r)
    loss = r.model(x).square().mean()
    r.optimizer.zero_grad(set_to_none=False)
    loss.backward()
    r.optimizer.step()
    return {"loss": loss, "more": [loss * 2, None, 3]}


def clip(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    count_run(r)
    r.optimizer.zero_grad()
    r.model(x).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(r.model.parameters(), 0.1)
    r.optimizer.step()
    return norm


def update_buffer(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    loss = descend(r, x * r.table)
    with genesis.no_grad():
        r.table.mul_(0.9).add_(x.mean(0) * 0.1)
    return loss


def without_a_part(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    r.model[0].requires_grad_(False)
    return descend(r, x)


def with_closure(r: Regression, x: genesis.Tensor) -> Any:
    def closure() -> genesis.Tensor:
        return accumulate(r, x)

    r.optimizer.zero_grad()
    return r.optimizer.step(closure)


@pytest.mark.parametrize(
    ("step", "runs"),
    [
        (descend, 2), (accumulate, 4), (zero_after, 2), (zero_in_place, 2), (clip, 2), (update_buffer, 2),
        (without_a_part, 2), (with_closure, 2),
    ],
)  # fmt: skip
def test_steps(step: Callable[..., Any], runs: int) -> None:
    mine, theirs = Regression(), Regression()
    compiled = genesis.compile(step)
    for number in range(12):
        take_both(compiled, step, mine, theirs)
        if step is accumulate and number % 3 == 2:
            for regression in (mine, theirs):
                regression.optimizer.step()
                regression.optimizer.zero_grad()
    assert (mine.runs, theirs.runs) == (runs, 12)


def test_gradients_of_before_are_let_go_of() -> None:
    r = Regression()
    compiled = genesis.compile(functools.partial(descend, r))
    alive: list[list[bool]] = []
    for _ in range(6):
        handles = [weakref.ref(param.grad.array.handle) for param in r.model.parameters() if param.grad is not None]
        compiled(genesis.ones(5, 3))
        alive.append([handle() is not None for handle in handles])
    assert alive == [[], *[[False] * 6] * 5]
    assert r.runs == 2
