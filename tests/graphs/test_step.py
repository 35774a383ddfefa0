"""genesis.compile of a training step: a replay does what the step does, bit for bit, or the step runs as it stands."""

from __future__ import annotations

import functools
import logging
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import genesis
import genesis.nn.functional as F
from genesis import growth, models, nn, optim
from genesis.errors import GraphError
from genesis.ndarray import neural

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": functools.partial(optim.SGD, lr=0.05),
    "momentum": functools.partial(optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "AdamW": functools.partial(optim.AdamW, lr=0.01),
    "amsgrad": functools.partial(optim.Adam, lr=0.01, amsgrad=True),
    "LARS": functools.partial(optim.LARS, lr=0.1, momentum=0.9),
}


def unet() -> nn.Module:
    return nn.Sequential(models.create("unet", width=4, num_classes=3), nn.Dropout(0.2))


def residual() -> nn.Module:
    """A small ResNet with what a classifier ends in."""
    # The same block twice: its parameters get gradients from two places.
    blocks = [nn.Residual(nn.Sequential(nn.ConvBNReLU(8, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)))] * 2
    tail = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 3)]
    return nn.Sequential(nn.ConvBNReLU(1, 8, 3, stride=2), nn.MaxPool2d(2), *blocks, *tail)


class Training:
    """A model in training, one step after the other, as it stands or compiled. Two of them draw the same numbers."""

    def __init__(self, build: Callable[[], nn.Module], optimizer: str, is_compiled: bool) -> None:
        genesis.manual_seed(0)
        self.model, self.batch = build(), 2
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.runs = 0
        self.step: Any = genesis.compile(self._step) if is_compiled else self._step

    def _step(self, x: genesis.Tensor, target: genesis.Tensor) -> genesis.Tensor:
        count_run(self)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), target)
        loss.backward()
        self.optimizer.step()
        return loss

    def take(self) -> list[Any]:
        """One step, and all that it has left behind."""
        x = genesis.randn(self.batch, 1, 16, 16)
        target = genesis.randint(0, 3, (self.batch, 16, 16) if isinstance(self.model[1], nn.Dropout) else (self.batch,))
        loss = self.step(x, target)
        self.scheduler.step()
        return [loss.item(), genesis.rand(1).item(), *everything(self.model, self.optimizer)]


def count_run(training: Any) -> None:
    """Past the attribute: a step that changes a number that it names is not replayed."""
    vars(training)["runs"] += 1


def everything(model: nn.Module, optimizer: optim.Optimizer) -> list[Any]:
    """Parameters, gradients, buffers and the optimizer's state."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    found = [*model.parameters(), *model.buffers(), *[param.grad for param in (*params, *model.parameters())]]
    for param in params:
        found += optimizer.state.get(param, {}).values()
    return flat(found)


def flat(result: Any) -> list[Any]:
    """The leaves of lists and dictionaries, with copies of the tensors as torch's."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list):
        return [leaf for part in result for leaf in flat(part)]
    return [result.detach().to_torch().clone() if isinstance(result, genesis.Tensor) else result]


def assert_same(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        else:
            assert one == other


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("build", [unet, residual])
def test_bit_for_bit(build: Callable[[], nn.Module], optimizer: str) -> None:
    as_it_stands = list(trained(Training(build, optimizer, False)))
    compiled = Training(build, optimizer, True)
    for mine, theirs in zip(trained(compiled), as_it_stands, strict=True):
        assert_same(mine, theirs)
    assert compiled.runs == 3  # without gradients, with them, recorded
    assert compiled.step.num_recordings == 1


def trained(training: Training, steps: int = 20) -> Iterator[list[Any]]:
    for _ in range(steps):
        yield training.take()


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
    ("change", "runs"),  # runs: how often the step runs as it stands, or to be recorded
    [
        (halve_rate, 3),
        (change_options, 3),
        (without_momentum, 3),
        (evaluate, 3),
        (eval_mode, 5),
        (freeze, 6),
        (smaller_batch, 5),
        (replace_parameter, 6),
        (replace_array, 5),
        (change_values, 3),
        (load_optimizer, 5),
        (clear_gradients, 4),
        (grow, 5),
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


class Regression:
    """A linear model and its parts, for steps of all kinds."""

    def __init__(self) -> None:
        genesis.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.table = genesis.ones(3)
        self.scale, self.label = 1.0, "none"
        self.runs = 0

    def seen(self) -> list[Any]:
        return [*everything(self.model, self.optimizer), self.table.to_torch().clone()]


def descend(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    count_run(r)
    loss = r.model(x).square().mean() * r.scale
    r.optimizer.zero_grad()
    loss.backward()
    r.optimizer.step()
    return loss


def accumulate(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    count_run(r)
    loss = r.model(x).square().mean() / 3
    loss.backward()
    return loss


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
        (descend, 3), (accumulate, 4), (zero_after, 2), (zero_in_place, 3), (clip, 3), (update_buffer, 3),
        (without_a_part, 3), (with_closure, 3),
    ],
)  # fmt: skip
def test_steps(step: Callable[..., Any], runs: int) -> None:
    mine, theirs = Regression(), Regression()
    compiled = genesis.compile(step)
    for number in range(12):
        x = genesis.randn(5, 3)
        assert_same(flat(compiled(mine, x)), flat(step(theirs, x)))
        assert_same(mine.seen(), theirs.seen())
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
    assert r.runs == 3


FACTOR = 1.0


def times_global(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    return descend(r, x * FACTOR)


def set_scale(r: Regression, monkeypatch: pytest.MonkeyPatch) -> None:
    r.scale = 3.0


def set_global(r: Regression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 2.0)


def set_helper(r: Regression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "descend", lambda r, x: accumulate(r, x))


def set_label(r: Regression, monkeypatch: pytest.MonkeyPatch) -> None:
    r.label = "not looked at"


@pytest.mark.parametrize(("change", "runs"), [(set_scale, 5), (set_global, 5), (set_helper, 5), (set_label, 3)])
def test_what_the_step_names(
    change: Callable[[Regression, pytest.MonkeyPatch], None], runs: int, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    mine, theirs = Regression(), Regression()
    compiled = genesis.compile(functools.partial(times_global, mine))
    with caplog.at_level(logging.INFO, logger="genesis.graphs"):
        for number in range(10):
            if number == 5:
                change(mine, monkeypatch)
                change(theirs, monkeypatch)
            x = genesis.randn(5, 3)
            assert_same(flat(compiled(x)), flat(times_global(theirs, x)))
            assert_same(mine.seen(), theirs.seen())
    assert mine.runs == runs
    assert ("has changed and is recorded anew" in caplog.text) == (change is not set_label)


class Hidden:
    table = genesis.ones(3)


def use_hidden_tensor(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    return descend(r, x * Hidden.table)


def read_loss(r: Regression, x: genesis.Tensor) -> float:
    return descend(r, x).item()


def change_argument(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    return descend(r, x.mul_(2))


def without_backward(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    return r.model(x).square().sum()


def count_globally(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    global FACTOR
    FACTOR += 1
    return descend(r, x)


def own_update(r: Regression, x: genesis.Tensor) -> None:
    params = [param.array for param in r.model.parameters()]
    neural.sgd_step(params, params, None, 0.1, 0.0, 0.0, 0.0, False, False, False)


def schedule(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    loss = descend(r, x)
    optim.lr_scheduler.ExponentialLR(r.optimizer, 0.5, last_epoch=-1).step()
    return loss


def hook(r: Regression, x: genesis.Tensor) -> None:
    y = r.model(x)
    y.register_hook(lambda grad: grad * 2)
    y.sum().backward()


def change_rate(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    r.optimizer.param_groups[0]["lr"] *= 0.9
    return descend(r, x)


def change_mode(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    r.model.train(not r.model.training)
    return descend(r, x)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (read_loss, "reads values"),
        (use_hidden_tensor, r"uses a tensor of shape \(3,\) that is neither an argument nor"),
        (change_argument, "changes an argument in place"),
        (without_backward, r"returns a result that backward\(\) has not gone through"),
        (count_globally, "changes 'FACTOR', a name outside of it"),
        (own_update, "takes an optimizer's step"),
        (schedule, "sets learning rates"),
        (hook, "runs hooks of tensors"),
        (change_rate, "changes the options of an optimizer"),
        (change_mode, "changes the parts, modes or arrays of a module"),
    ],
)
def test_refusals(step: Callable[..., Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    mine, theirs = Regression(), Regression()
    compiled = genesis.compile(functools.partial(step, mine))
    warned = []
    for number in range(5):
        x = genesis.full((5, 3), float(number))
        expected = flat(step(theirs, x.clone()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert_same(flat(compiled(x)), expected)
        assert_same(mine.seen(), theirs.seen())
        warned += [str(warning.message) for warning in caught]
    assert len(warned) == 1
    assert re.search(f"genesis.compile: {step.__name__} runs as it stands: it {reason}", warned[0])
    assert compiled.num_recordings == 0


def test_runs_as_it_stands() -> None:
    r = Regression()
    compiled = genesis.compile(functools.partial(descend, r))
    x = genesis.ones(5, 3)

    def runs(calls: int = 2) -> int:
        before = r.runs
        for _ in range(calls):
            compiled(x)
        return r.runs - before

    assert runs(3) == 3
    assert runs() == 0
    layer = r.model[0]
    for register in (
        layer.register_forward_hook,
        layer.weight.register_hook,
        layer.weight.register_post_accumulate_grad_hook,
    ):
        handle = register(lambda *_: None)
        assert runs() == 2
        handle.remove()
        assert runs() == 0
    with genesis.amp.autocast("cpu", genesis.bfloat16):
        assert runs() == 2
    x.requires_grad_()
    assert runs() == 2
    x.requires_grad_(False)
    assert runs() == 0


def test_autocast_and_scaled_losses_inside() -> None:
    def step(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
        with genesis.amp.autocast("cpu", genesis.bfloat16):
            return descend(r, x)

    mine, theirs = Regression(), Regression()
    compiled = genesis.compile(step)
    for _ in range(6):
        x = genesis.randn(5, 3)
        assert_same(flat(compiled(mine, x)), flat(step(theirs, x)))
        assert_same(mine.seen(), theirs.seen())
    assert mine.runs == 3


def test_a_step_that_fails_leaves_what_it_leaves_as_it_stands() -> None:
    histories = []
    for is_compiled in (True, False):
        training = Training(residual, "momentum", is_compiled)
        list(trained(training, 5))
        with pytest.raises(IndexError, match="a target is out of range"):
            training.step(genesis.ones(2, 1, 16, 16), genesis.full((2,), 3, dtype=genesis.int64))
        histories.append([everything(training.model, training.optimizer), *trained(training, 5)])
    for mine, theirs in zip(*histories, strict=True):
        assert_same(mine, theirs)


def test_a_folded_layer_sees_what_a_replay_changed() -> None:
    x = genesis.ones(1, 1, 16, 16)
    histories: list[list[Any]] = []
    for is_compiled in (True, False):
        training = Training(unet, "momentum", is_compiled)
        histories.append([])
        for _ in range(6):
            training.take()
            with genesis.no_grad():
                histories[-1].append(training.model.eval()(x).to_torch().clone())
            training.model.train()
    assert_same(*histories)


def with_teacher(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    with genesis.no_grad():
        target = r.teacher(x[:, None, None]).flatten(1)
    return descend(r, x + target.mean())


def test_packed_weights_are_made_anew_when_they_change() -> None:
    """A frozen network beside the one that learns folds its norms into its weights."""
    mine, theirs = Regression(), Regression()
    for r in (mine, theirs):
        genesis.manual_seed(1)
        r.teacher = nn.ConvBNReLU(1, 2, 3).eval().requires_grad_(False)
    compiled = genesis.compile(with_teacher)
    for number in range(10):
        if number == 5:
            for r in (mine, theirs):
                with genesis.no_grad():
                    r.teacher.conv.weight.mul_(2)
        x = genesis.randn(5, 3)
        assert_same(flat(compiled(mine, x)), flat(with_teacher(theirs, x)))
        assert_same(mine.seen(), theirs.seen())
    assert mine.runs == 5


def test_a_saved_value_that_a_replay_changes_is_noticed() -> None:
    r = Regression()
    compiled = genesis.compile(descend)
    for _ in range(3):
        compiled(r, genesis.ones(5, 3))
    y = r.model[0](genesis.ones(5, 3, requires_grad=True))
    compiled(r, genesis.ones(5, 3))
    assert r.runs == 3
    with pytest.raises(GraphError, match="has been changed in place"):
        y.sum().backward()
