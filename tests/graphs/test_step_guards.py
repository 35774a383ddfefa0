"""genesis.compile of a training step: what a recording depends on, and when the step runs eagerly."""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import nn, optim
from genesis.errors import GraphError
from genesis.ndarray import ops
from genesis.records import SGDOptions
from tests.graphs.steps import (
    Regression,
    Training,
    accumulate,
    assert_same,
    descend,
    everything,
    flat,
    residual,
    take_both,
    trained,
    unet,
)  # fmt: skip

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


@pytest.mark.parametrize(("change", "runs"), [(set_scale, 4), (set_global, 4), (set_helper, 4), (set_label, 2)])
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


def use_hidden_optimizer(r: Regression, x: genesis.Tensor) -> None:
    optimizer = optim.SGD(r.model.parameters(), lr=0.1)
    optimizer.zero_grad()
    r.model(x).sum().backward()
    optimizer.step()


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
    ops.sgd_step(params, params, None, SGDOptions(0.1, 0.0, 0.0, 0.0, False, False), False)


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


def test_a_number_that_counts_steps_is_named_once() -> None:
    r = Regression()
    compiled = genesis.compile(lambda x, number: descend(r, x) * number)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(2 * compiled.most_new):
            compiled(genesis.ones(5, 3), number)
    assert ["pass numbers that vary as tensors" in str(each.message) for each in caught] == [True]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (read_loss, "reads values"),
        (use_hidden_optimizer, "takes the step of an optimizer that it is not seen to use"),
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
    assert re.search(f"genesis.compile: {step.__name__} runs eagerly: it {reason}", warned[0])
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

    assert runs(3) == 2
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
        take_both(compiled, step, mine, theirs)
    assert mine.runs == 2


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
        take_both(compiled, with_teacher, mine, theirs)
    assert mine.runs == 4


def test_a_saved_value_that_a_replay_changes_is_noticed() -> None:
    r = Regression()
    compiled = genesis.compile(descend)
    for _ in range(3):
        compiled(r, genesis.ones(5, 3))
    y = r.model[0](genesis.ones(5, 3, requires_grad=True))
    compiled(r, genesis.ones(5, 3))
    assert r.runs == 2
    with pytest.raises(GraphError, match="has been changed in place"):
        y.sum().backward()
