"""Schedules: when it is time, what the budget allows, what a trial decides; and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

import genesis
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from genesis.growth import Event, Plateau, Point, Schedule
from tests.growth.measure import digest, train

X = genesis.ones(3, 2)


def network() -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def wider(model: nn.Module) -> None:
    growth.grow_width(model, "0", factor=2)


def kinds(events: Sequence[Event]) -> list[tuple[int, str]]:
    return [(event.epoch, event.kind) for event in events]


def test_at_epochs() -> None:
    model, optimizer = network()
    told: list[Event] = []
    schedule = Schedule(
        model, optimizer, [wider, wider], when=growth.at_epochs(2, 3), example=X, on_event=told.append
    )  # fmt: skip
    returned = [schedule.step(0.5, loss=1.0) for _ in range(5)]
    assert [len(events) for events in returned] == [0, 1, 1, 0, 0]
    assert kinds(told) == [(2, "grown"), (3, "grown")]
    assert str(told[0]) == "after epoch 2: grown: grow_width 0 to 8 (33 parameters)"
    assert [point.parameters for point in schedule.curve] == [17, 17, 33, 65, 65]
    assert model[0].out_features == 16


def test_a_plateau_waits_from_the_last_change_on() -> None:
    model, optimizer = network()
    schedule = Schedule(model, optimizer, [wider] * 9, when=Plateau(patience=2, min_delta=0.01), example=X)
    metrics = [0.1, 0.2, 0.3, 0.305, 0.309, 0.2, 0.2, 0.5, 0.4, 0.4]
    for metric in metrics:
        schedule.step(metric)
    assert kinds(schedule.events) == [(5, "grown"), (10, "grown")]


def test_a_plateau_of_a_loss() -> None:
    curve = [Point(i + 1, metric, None, 7) for i, metric in enumerate([3.0, 2.0, 2.0])]
    assert not Plateau(2, "min")(curve[:2])
    assert not Plateau(2, "min")(curve)
    assert Plateau(1, "min")(curve)
    assert Plateau(1, "min")([*curve[:2], Point(3, float("nan"), None, 7)])


def test_beyond_the_budget_nothing_changes_and_the_next_has_its_turn() -> None:
    model, optimizer = network()
    train(model, optimizer, X)
    before = digest(model, optimizer)

    def huge(model: nn.Module) -> None:
        growth.grow_width(model, "0", channels=100)

    schedule = Schedule(
        model, optimizer, [huge, wider, wider], when=lambda curve: True, example=X, max_parameters=40, max_macs=100
    )  # fmt: skip
    schedule.step(0.1)
    assert digest(model, optimizer) == before
    assert schedule.events[0].text == "401 parameters, at most 40"
    schedule.step(0.1)
    schedule.step(0.1)
    assert kinds(schedule.events) == [(1, "over budget"), (2, "grown"), (3, "over budget")]
    tight = Schedule(model, optimizer, [wider], when=lambda curve: True, example=X, max_macs=80)
    tight.step(0.1)
    assert tight.events[0].text == "144 multiplications, at most 80"


def test_what_cannot_be_done_is_an_event_and_nothing_else() -> None:
    model, optimizer = network()
    schedule = Schedule(
        model, optimizer, [lambda net: growth.grow_width(net, "2", factor=2)], when=lambda curve: True, example=X
    )  # fmt: skip
    schedule.step(0.1)
    (event,) = schedule.events
    assert (event.kind, event.text) == (
        "refused", "grow_width: the channels of 2 cannot grow: it is an output of the network",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("metrics", "mode", "kind"),
    [([0.5, 0.4, 0.51], "max", "kept"), ([0.5, 0.4, 0.5], "max", "undone"), ([0.5, 0.6, 0.4], "min", "kept")],
)
def test_a_trial_decides(metrics: list[float], mode: str, kind: str) -> None:
    model, optimizer = network()
    train(model, optimizer, X)
    before = digest(model, optimizer)
    schedule = Schedule(
        model, optimizer, [wider, wider], when=lambda curve: len(curve) == 1, example=X, trial=2, mode=mode
    )  # fmt: skip
    schedule.step(metrics[0])
    train(model, optimizer, X)
    schedule.step(metrics[1])
    train(model, optimizer, X)
    schedule.step(metrics[2])
    assert kinds(schedule.events) == [(1, "grown"), (3, kind)]
    assert (digest(model, optimizer) == before) == (kind == "undone")
    assert len(growth.history(model)) == (0 if kind == "undone" else 1)
    train(model, optimizer, X)


@pytest.mark.parametrize(
    ("metrics", "mode", "said"),
    [
        ([-3.0, -2.0], "max", "best -2 in the trial, -3 before"),
        ([-2.0, -3.0], "min", "best -3 in the trial, -2 before"),
        ([float("nan"), 0.5], "max", "best 0.5 in the trial, none before"),
    ],
)
def test_a_verdict_shows_the_metrics_as_they_were_given(metrics: list[float], mode: str, said: str) -> None:
    model, optimizer = network()
    schedule = Schedule(model, optimizer, [wider], when=lambda curve: True, example=X, trial=1, mode=mode)
    for metric in metrics:
        schedule.step(metric)
    assert [event.kind for event in schedule.events] == ["grown", "kept"]
    assert schedule.events[1].text.endswith(said)


def test_its_state_goes_into_checkpoints(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, optim.Optimizer, Schedule]:
        model, optimizer = network()
        return model, optimizer, Schedule(model, optimizer, [wider, wider], when=growth.at_epochs(1, 3), example=X)

    model, optimizer, schedule = make()
    schedule.step(0.1)
    schedule.step(0.2)
    growth.save(tmp_path / "a", model, optimizer, schedule=schedule.state_dict())
    other, its_optimizer, its_schedule = make()
    its_schedule.load_state_dict(growth.load(tmp_path / "a", other, its_optimizer)["schedule"])
    for each in (schedule, its_schedule):
        each.step(0.3)
    assert its_schedule.events == schedule.events
    assert its_schedule.curve == schedule.curve
    assert {k: v.tolist() for k, v in other.state_dict().items()} == {
        k: v.tolist() for k, v in model.state_dict().items()
    }


def test_messages() -> None:
    with pytest.raises(GrowthError, match="Plateau: argument 'patience': expected at least 1, got 0"):
        Plateau(0)
    with pytest.raises(GrowthError, match="argument 'mode': expected \"max\" or \"min\", got 'best'"):
        Plateau(1, "best")


def test_the_picture(tmp_path: Path) -> None:
    curve = [Point(i, 0.5 + i / 20, 1 / i, 100 * i) for i in range(1, 6)]
    events = [Event(2, "grown", "wider", 200), Event(4, "undone", "wider", 100), Event(4, "refused", "no", 100)]
    growth.picture(tmp_path / "new" / "growth.png", curve, events)
    growth.picture(tmp_path / "new" / "bare.png", [Point(1, 0.5, None, 10)])
    for name in ("growth", "bare"):
        with Image.open(tmp_path / "new" / f"{name}.png") as picture:
            picture.load()
            assert min(picture.size) > 300
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["bare.png", "growth.png"]
