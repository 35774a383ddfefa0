"""Transactions: all or nothing, bit for bit, whatever fails and wherever; and back to any earlier step."""

from __future__ import annotations

import copy
import gc
import importlib
import logging
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from genesis.growth import edits, preserved
from genesis.tensor import Tensor
from tests.growth.measure import digest, train
from tests.growth.networks import CASES

transaction = importlib.import_module("genesis.growth.transaction")  # the module, not the function

Made = tuple[nn.Module, nn.Module, optim.Optimizer, Tensor]


@pytest.fixture
def made() -> Made:
    """The multi-branch network, trained a little, with an average of it; some of it frozen, gradients waiting."""
    genesis.manual_seed(2)
    case = CASES["original"]
    model, average = case.build(), case.build()
    model[0].requires_grad_(False)
    optimizer = optim.AdamW(
        [{"params": model[:3].parameters(), "lr": 0.01}, {"params": model[3:].parameters()}], lr=0.02
    )
    x = genesis.randn(case.shape)
    train(model, optimizer, x, 2)
    return model, average, optimizer, x


def grow(model: nn.Module) -> None:
    growth.grow_width(model, "1", channels=40)
    growth.grow_branches(model, "1", channels=8)
    growth.grow_depth(model, "3", channels=4)
    growth.prune_width(model, "6", channels=140)
    growth.prune_branches(model, "1")


class BrokenError(Exception):
    pass


def test_a_failure_at_every_write_changes_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises at the k-th array that is given to a parameter, buffer, gradient or average, for every k."""
    model, average, optimizer, x = made
    before, replace = digest(model, optimizer) + digest(average), edits.replace
    failures = 0
    for last in range(1000):
        written: list[int] = []

        def fail(tensor: Tensor, array: Any, last: int = last, written: list[int] = written) -> None:
            if len(written) == last:
                raise BrokenError
            written.append(1)
            replace(tensor, array)

        monkeypatch.setattr(edits, "replace", fail)
        try:
            with growth.transaction(model, optimizer, example=x[:1], averages=average, seed=1):
                growth.grow_width(model, "1", channels=40)
                growth.grow_branches(model, "1", channels=8)
        except BrokenError:
            failures += 1
            assert digest(model, optimizer) + digest(average) == before
            assert len(growth.history(model)) == 0
        else:
            break
    assert failures == len(written) > 30
    assert digest(model, optimizer) + digest(average) != before


OPTIMIZERS: list[Callable[[nn.Module], list[optim.Optimizer]]] = [
    lambda model: [optim.SGD(model.parameters(), lr=0.01, momentum=0.9)],
    lambda model: [optim.Adam(model.parameters(), lr=0.01, amsgrad=True)],
    lambda model: [optim.LARS(model[:3].parameters(), lr=0.01), optim.SGD(model[3:].parameters(), lr=0.01)],
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_failure_at_every_write_of_several_layers(
    make: Callable[[nn.Module], list[optim.Optimizer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that can grow at once, and with each optimizer; raised by the gradients' and the parameters' new arrays."""
    genesis.manual_seed(2)
    model, x = CASES["vgg"].build(), genesis.randn(2, 3, 8, 8)
    optimizers = make(model)
    loss = model(x).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    before, replace = digest(model, *optimizers), edits.replace
    written = 0
    for last in range(1000):
        countdown = iter(range(last))

        def fail(tensor: Tensor, array: Any, countdown: Any = countdown) -> None:
            if next(countdown, None) is None:
                raise BrokenError
            replace(tensor, array)

        monkeypatch.setattr(edits, "replace", fail)
        try:
            growth.grow_width(model, factor=1.5, new="zero" if last % 2 else "copy", optimizer=optimizers, example=x)
        except BrokenError:
            assert digest(model, *optimizers) == before
            written += 1
        else:
            break
    assert written == last > 30
    assert model[0].out_channels == 6


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (edits, "_change_state"),
        (transaction, "channel_map"),
        (preserved, "relative_deviation"),
        (transaction, "trained_outputs_of"),
        (transaction.Transaction, "adopt"),
        (transaction.Transaction, "abandon"),
        (nn.Module, "load_state_dict"),
        (nn.MultiBranch, "forward"),
    ],
)
def test_a_failure_at_every_call_changes_nothing(
    module: Any, name: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, average, optimizer, x = made
    before, original = digest(model, optimizer) + digest(average), getattr(module, name)
    for last in range(0, 200, 3):
        calls: list[int] = []

        def fail(*args: Any, last: int = last, calls: list[int] = calls) -> Any:
            if len(calls) == last:
                raise BrokenError
            calls.append(1)
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            try:
                with growth.transaction(model, optimizer, example=x[:1], averages=average, seed=1):
                    grow(model)
            except (BrokenError, GrowthError, UserWarning) as error:  # a warning where only training fails
                assert "BrokenError" in f"{type(error).__name__}: {error}"  # noqa: PT017
                assert digest(model, optimizer) + digest(average) == before
            else:
                break
    assert last > 0


def test_what_is_trained_inside_is_undone_too(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    model, _, optimizer, x = made
    before = digest(model, optimizer)

    def interrupted() -> None:
        with growth.transaction(model, optimizer, example=x):
            grow(model)
            train(model, optimizer, x, 2)
            raise KeyboardInterrupt

    with caplog.at_level(logging.WARNING, "genesis.growth"), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert digest(model, optimizer) == before
    assert caplog.messages == ["growth undone, nothing has changed: KeyboardInterrupt: "]
    assert growth.history(model).failures == ["KeyboardInterrupt: "]
    train(model, optimizer, x)


def test_back_to_any_step(made: Made) -> None:
    model, _, optimizer, x = made
    operations: list[Callable[[], Any]] = [
        lambda: growth.grow_width(model, "1", channels=40, optimizer=optimizer, example=x),
        lambda: growth.grow_depth(model, "3", optimizer=optimizer, example=x),
        lambda: growth.prune_branches(model, "1", optimizer=optimizer, example=x),
        lambda: growth.grow_branches(model, "6", optimizer=optimizer, example=x),
    ]
    digests = []
    for operation in operations:
        digests.append(digest(model, optimizer))
        operation()
        train(model, optimizer, x)
    steps = list(growth.history(model))
    for number in (3, 1, 0):
        growth.rollback(steps[number])
        assert digest(model, optimizer) == digests[number]
        assert len(growth.history(model)) == number
    with pytest.raises(
        GrowthError, match=r"a step of a network's history, got step 3: grow_branches 6 .* which is undone"
    ):
        growth.rollback(steps[3])
    train(model, optimizer, x)


def test_steps_that_are_forgotten(made: Made) -> None:
    model, _, _, x = made
    kept = growth.grow_width(model, "1", channels=40, example=x)
    lost = growth.grow_width(model, "1", channels=44, example=x, keep=False)
    with pytest.raises(GrowthError, match="a step whose earlier state is kept, got step 1"):
        growth.rollback(lost)
    growth.history(model).forget()
    with pytest.raises(GrowthError, match="a step whose earlier state is kept, got step 0"):
        growth.rollback(kept)


def test_schedulers_are_put_back_where_asked(made: Made) -> None:
    model, _, optimizer, x = made
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with pytest.raises(BrokenError), growth.transaction(model, optimizer, example=x, also=[scheduler]):  # noqa: PT012
        scheduler.step()
        raise BrokenError
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (0, 0.01)


def test_one_transaction_at_a_time(made: Made) -> None:
    model, _, optimizer, x = made
    with growth.transaction(model, optimizer, example=x) as step:
        with pytest.raises(GrowthError, match="one of this model is open already"), growth.transaction(model):
            pass
        with pytest.raises(GrowthError, match="example, optimizer belong to the transaction that is open"):
            growth.grow_width(model, "1", channels=40, optimizer=optimizer, example=x)
        assert growth.grow_width(model, "1", channels=40) is step
    with (
        pytest.raises(GrowthError, match="transaction: argument 'model': expected a Module, got int"),
        growth.transaction(3),
    ):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": 3}, "transaction: argument 'optimizer': expected an Optimizer, or a list of them, got int"),
        ({"averages": [None]}, "argument 'averages': expected a Module, or a list of them, got NoneType"),
        ({"seed": -1}, "transaction: argument 'seed': expected an integer from 0 on, got -1"),
        ({"also": 3}, "argument 'also': expected an object with load_state_dict, or a list of them, got int"),
        (
            {"optimizer": optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)},
            "argument 'optimizer': expected one that learns this model, got one of another model",
        ),
        (
            lambda model: {"optimizer": optim.LBFGS(model.parameters())},
            r"argument 'optimizer': expected one with a state for each parameter \(build another .*, got LBFGS",
        ),
    ],
)
def test_companions_of_the_wrong_kind(options: Any, message: str, made: Made) -> None:
    model, _, _, x = made
    options = options(model) if callable(options) else options
    before = digest(model)
    with pytest.raises(GrowthError, match=message):
        growth.grow_width(model, "1", channels=40, example=x, **options)
    assert digest(model) == before


@pytest.mark.filterwarnings("ignore:grow_width. the example does not run")
def test_buffers_that_repeat_themselves_are_kept() -> None:
    """And the second pass, which looks for what the first did not reach, leaves no traces in them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.unused = nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 2)
            self.register_buffer("places", genesis.arange(3).expand(2, 3))

        def forward(self, x: Tensor) -> Any:
            return self.last(self.first(x))

    model = Net()
    before = digest(model)
    step = growth.grow_width(model, "first", channels=6, example=genesis.ones(2, 2))
    growth.rollback(step)
    assert digest(model) == before


def test_averages_must_be_copies(made: Made) -> None:
    model, _, _, x = made
    other = nn.Sequential(nn.ConvBNReLU(1, 20, 3, padding=1, bias=True), nn.MultiBranch(nn.Identity()))
    before = digest(model)
    with pytest.raises(
        GrowthError, match=r"argument 'averages': expected copies of the network, got one without '1.main"
    ):
        growth.grow_width(model, "1", channels=40, example=x, averages=other)
    assert digest(model) == before


def test_training_between_operations_is_not_taken_for_a_change_of_the_function(made: Made) -> None:
    model, _, optimizer, x = made
    with growth.transaction(model, optimizer, example=x) as step:
        growth.grow_width(model, "1", channels=40)
        train(model, optimizer, x, 3)
        growth.grow_width(model, "3", channels=50)
    assert step.deviation is not None
    assert step.deviation < 1e-5


def test_a_network_whose_outputs_are_not_finite_can_grow(made: Made) -> None:
    model, _, _, x = made
    with genesis.no_grad():
        model[8].weight[0] = float("nan")
    assert growth.grow_width(model, "6", channels=152, example=x).deviation < 1e-5


def test_an_operation_that_failed_half_way_is_not_committed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, optimizer, x = made
    before = digest(model, optimizer)

    def fails(*args: Any) -> None:
        raise RuntimeError("half way")

    monkeypatch.setattr("genesis.growth.width.adjust_settings", fails)

    def catches() -> None:
        with growth.transaction(model, optimizer, example=x):
            with pytest.raises(RuntimeError, match="half way"):
                growth.grow_width(model, "0", factor=2)
            with pytest.raises(GrowthError, match="grow_width of 0 failed half way: this transaction can only be left"):
                growth.grow_width(model, "0", factor=2)

    with pytest.raises(GrowthError, match="transaction: grow_width of 0 failed half way, and its error was caught"):
        catches()
    assert digest(model, optimizer) == before


def test_an_operation_that_was_refused_before_it_began_can_be_caught(made: Made) -> None:
    model, _, optimizer, x = made
    with growth.transaction(model, optimizer, example=x) as step:
        with pytest.raises(GrowthError, match="it is an output of the network"):
            growth.grow_width(model, "8", factor=2)
        growth.grow_width(model, "0", factor=2)
    assert [operation["where"] for operation in step.operations] == ["0"]


def test_copies_know_what_was_done_without_the_state_from_before(made: Made) -> None:
    model, _, optimizer, x = made
    step = growth.grow_width(model, "0", factor=1.5, optimizer=optimizer, example=x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(growth.history(other)) == repr(growth.history(model))
        with pytest.raises(GrowthError, match="a step whose earlier state is kept"):
            growth.rollback(growth.history(other)[0])
    growth.rollback(step)
    assert len(growth.history(model)) == 0


def test_a_model_that_has_grown_goes_when_nobody_holds_it() -> None:
    model = CASES["vgg"].build()
    growth.grow_width(model, "0", channels=7, example=genesis.randn(2, 3, 8, 8))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
