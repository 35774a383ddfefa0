"""Every schedule beside PyTorch's for 60 steps, from the start and from a saved state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis.optim import lr_scheduler

Make = Callable[[Any, Any], Any]  # from a module with schedulers (ours or PyTorch's) and an optimizer


def swa_utils_of(module: Any) -> Any:
    return genesis.optim.swa_utils if module is lr_scheduler else torch.optim.swa_utils


def sequence(module: Any, optimizer: Any) -> Any:
    parts = [
        module.LinearLR(optimizer, 0.1, total_iters=5),
        module.CosineAnnealingLR(optimizer, 20),
        module.MultiStepLR(optimizer, [0, 3, 7], gamma=0.5),
        module.StepLR(optimizer, 4),
        module.LambdaLR(optimizer, lambda step: 1 / (2 + step)),
        module.ExponentialLR(optimizer, 0.8),
    ]
    return module.SequentialLR(optimizer, parts, [5, 25, 35, 45, 52])


SCHEDULES: dict[str, Make] = {
    "StepLR": lambda m, o: m.StepLR(o, 7, gamma=0.3),
    "MultiStepLR": lambda m, o: m.MultiStepLR(o, [4, 9, 9, 30], gamma=0.5),
    "ExponentialLR": lambda m, o: m.ExponentialLR(o, 0.93),
    "CosineAnnealingLR": lambda m, o: m.CosineAnnealingLR(o, 25, eta_min=1e-3),
    "LinearLR": lambda m, o: m.LinearLR(o, 0.01, total_iters=10),
    "LinearLR down": lambda m, o: m.LinearLR(o, 1.0, 0.2, total_iters=30),
    "LambdaLR": lambda m, o: m.LambdaLR(o, lambda step: 0.95**step),
    "LambdaLR each": lambda m, o: m.LambdaLR(o, [lambda step: 0.95**step, lambda step: 1 / (1 + step)]),
    "SequentialLR": sequence,
    "MultiplicativeLR": lambda m, o: m.MultiplicativeLR(o, [lambda step: 0.95, lambda step: 1 - 0.5 / step]),
    "ConstantLR": lambda m, o: m.ConstantLR(o, 0.25, total_iters=14),
    "PolynomialLR": lambda m, o: m.PolynomialLR(o, 40, power=1.5),
    "ChainedScheduler": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.1, 15), m.ExponentialLR(o, 0.9)]),
    "CosineAnnealingWarmRestarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 7, 2, eta_min=1e-3),
    "CyclicLR": lambda m, o: m.CyclicLR(o, 0.1, [0.5, 1.0], 6, 9),
    "CyclicLR triangular2": lambda m, o: m.CyclicLR(o, 0.1, 1.0, 4, mode="triangular2", base_momentum=0.7),
    "CyclicLR exp_range": lambda m, o: m.CyclicLR(o, 0.1, 1.0, 8, mode="exp_range", gamma=0.9, cycle_momentum=False),
    "CyclicLR of a function": lambda m, o: m.CyclicLR(
        o, 0.1, 1.0, 5, scale_fn=lambda x: 0.99**x, scale_mode="iterations"
    ),
    "SWALR": lambda m, o: swa_utils_of(m).SWALR(o, [0.05, 0.5], anneal_epochs=20),
    "SWALR linear": lambda m, o: swa_utils_of(m).SWALR(o, 0.05, anneal_epochs=14, anneal_strategy="linear"),
    "SWALR at once": lambda m, o: swa_utils_of(m).SWALR(o, 0.05, anneal_epochs=0),
    "OneCycleLR": lambda m, o: m.OneCycleLR(o, 0.5, total_steps=61),
    "OneCycleLR options": lambda m, o: m.OneCycleLR(
        o, [0.5, 1.0], epochs=10, steps_per_epoch=7, pct_start=0.4, anneal_strategy="linear", three_phase=True,
        base_momentum=0.8, max_momentum=[0.9, 0.99], div_factor=10, final_div_factor=100.0,
    ),
    "OneCycleLR without momentum": lambda m, o: m.OneCycleLR(o, 0.5, total_steps=80, cycle_momentum=False),
}  # fmt: skip


def optimizers(kind: str = "SGD") -> tuple[Any, Any]:
    options = {"momentum": 0.9} if kind == "SGD" else {}
    ours, theirs = [], []
    for rate in (0.1, 0.02):
        ours.append({"params": [genesis.zeros(1, requires_grad=True)], "lr": rate})
        theirs.append({"params": [torch.zeros(1, requires_grad=True)], "lr": rate})
    return getattr(genesis.optim, kind)(ours, **options), getattr(torch.optim, kind)(theirs, **options)


def same(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for key in mine.keys() & {"lr", "initial_lr", "momentum", "betas"}:
            assert mine[key] == pytest.approx(other[key], rel=1e-12, abs=1e-15), key


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_60_steps_as_pytorch(name: str, kind: str) -> None:
    ours, theirs = optimizers(kind)
    mine, other = SCHEDULES[name](lr_scheduler, ours), SCHEDULES[name](torch.optim.lr_scheduler, theirs)
    same(ours, theirs)
    for _ in range(60):
        mine.step()
        other.step()
        same(ours, theirs)
        assert mine.get_last_lr() == pytest.approx(other.get_last_lr(), rel=1e-12)
        assert getattr(mine, "last_epoch", None) == getattr(other, "last_epoch", None)  # a chain has none


@pytest.mark.parametrize("way", ["to Genesis", "from PyTorch", "to PyTorch"])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_schedule_goes_on_from_a_saved_state(name: str, way: str) -> None:
    ours, theirs = optimizers()
    mine, other = SCHEDULES[name](lr_scheduler, ours), SCHEDULES[name](torch.optim.lr_scheduler, theirs)
    for _ in range(12):
        mine.step()
        other.step()
    if way == "to PyTorch":
        saved, groups = mine.state_dict(), ours.state_dict()
        _, theirs = optimizers()
        other = SCHEDULES[name](torch.optim.lr_scheduler, theirs)
        other.load_state_dict(saved)
        theirs.load_state_dict(groups)
    else:
        saved, groups = (other if way == "from PyTorch" else mine).state_dict(), theirs.state_dict()
        ours, _ = optimizers()
        mine = SCHEDULES[name](lr_scheduler, ours)
        mine.load_state_dict(saved)
        ours.load_state_dict(groups)
    for _ in range(40):
        mine.step()
        other.step()
        same(ours, theirs)


@pytest.mark.parametrize("name", ["StepLR", "CosineAnnealingLR", "LinearLR", "ExponentialLR"])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_schedule_can_start_in_the_middle(name: str) -> None:
    classes = {"StepLR": (5,), "CosineAnnealingLR": (20,), "LinearLR": (0.1,), "ExponentialLR": (0.9,)}
    ours, theirs = optimizers()
    for group in (*ours.param_groups, *theirs.param_groups):
        group["initial_lr"] = 0.3
    mine = getattr(lr_scheduler, name)(ours, *classes[name], last_epoch=3)
    other = getattr(torch.optim.lr_scheduler, name)(theirs, *classes[name], last_epoch=3)
    for _ in range(10):
        same(ours, theirs)
        mine.step()
        other.step()


@pytest.mark.parametrize("outside", ["first", "last"])
def test_sequences_nest(outside: str) -> None:
    """A sequence inside a sequence is the sequence of all parts. (PyTorch's comes a step early, or not at all.)"""
    m = lr_scheduler
    (flat, _), (nested, _) = optimizers(), optimizers()

    def parts(optimizer: Any) -> list[Any]:
        return [m.LinearLR(optimizer, 0.5, total_iters=4), m.CosineAnnealingLR(optimizer, 9), m.StepLR(optimizer, 3)]

    whole = m.SequentialLR(flat, parts(flat), [4, 10])
    a, b, c = parts(nested)
    if outside == "first":
        inner = m.SequentialLR(nested, [a, b], [4])
        outer = m.SequentialLR(nested, [inner, c], [10])
    else:
        inner = m.SequentialLR(nested, [b, c], [6])
        outer = m.SequentialLR(nested, [a, inner], [4])
    for _ in range(20):
        same(nested, flat)
        outer.step()
        whole.step()


@pytest.mark.parametrize("name", [*SCHEDULES, "ReduceLROnPlateau", "ReduceLROnPlateau each"])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_group_that_is_added_later(name: str) -> None:
    """The rates are PyTorch's; where PyTorch's zip() fails, or a key is missing, the error says what to do."""
    low = [0.01, 0.001] if name.endswith("each") else 0.01
    plateau = dict.fromkeys(
        ("ReduceLROnPlateau", "ReduceLROnPlateau each"), lambda m, o: m.ReduceLROnPlateau(o, patience=0, min_lr=low)
    )
    ours, theirs = optimizers()
    make = (SCHEDULES | plateau)[name]
    mine, other = make(lr_scheduler, ours), make(torch.optim.lr_scheduler, theirs)
    metric = (1.0,) if name in plateau else ()
    mine.step(*metric)
    other.step(*metric)
    ours.add_param_group({"params": [genesis.zeros(1, requires_grad=True)], "lr": 0.3})
    theirs.add_param_group({"params": [torch.zeros(1, requires_grad=True)], "lr": 0.3})
    for _ in range(55):
        try:
            other.step(*metric)
        except (ValueError, KeyError, RuntimeError):
            before = repr((mine.state_dict(), ours.param_groups))
            with pytest.raises(ValueError, match=r"expected the 2 parameter groups .*, got 3 groups; make a new"):
                mine.step(*metric)
            assert repr((mine.state_dict(), ours.param_groups)) == before
            return
        mine.step(*metric)
        same(ours, theirs)


METRICS = [5, 4, 3, 3, 3, 3, 2.99999, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, math.nan, 1, 1, 1, 1, 0.1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"mode": "max", "patience": 1, "factor": 0.5},
        {"patience": 1, "cooldown": 3, "threshold": 0.5},
        {"patience": 0, "threshold_mode": "abs", "threshold": 0.5, "min_lr": [0.01, 0.001]},
        {"mode": "max", "patience": 2, "threshold_mode": "abs", "eps": 0.05},
    ],
    ids=str,
)
def test_reduce_on_plateau_as_pytorch(options: dict[str, Any]) -> None:
    ours, theirs = optimizers()
    mine = lr_scheduler.ReduceLROnPlateau(ours, **options)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    for index, metric in enumerate(METRICS * 2):
        mine.step(genesis.tensor(metric, dtype=genesis.float64))
        other.step(metric)
        same(ours, theirs)
        if index == 20:
            resumed = lr_scheduler.ReduceLROnPlateau(ours, **options)
            resumed.load_state_dict(mine.state_dict())
            mine = resumed
    assert mine.get_last_lr() == [group["lr"] for group in ours.param_groups]


def test_reduce_on_plateau_takes_pytorchs_state() -> None:
    ours, theirs = optimizers()
    mine = lr_scheduler.ReduceLROnPlateau(ours, patience=3)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, patience=3)
    for metric in (1.0, 2.0, 2.0):
        other.step(metric)
    mine.load_state_dict(other.state_dict())
    for metric in (2.0, 2.0, 0.5, 2.0):
        mine.step(metric)
        other.step(metric)
        same(ours, theirs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: lr_scheduler.StepLR(3, 1), "StepLR: argument 'optimizer': expected an Optimizer, got int"),
        (lambda o: lr_scheduler.StepLR(o, 0), "StepLR: argument 'step_size': expected an int >= 1, got 0"),
        (lambda o: lr_scheduler.LinearLR(o, 0.0), "argument 'start_factor'"),
        (lambda o: lr_scheduler.LinearLR(o, 0.5, 2.0), "argument 'end_factor'"),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 0), "argument 'T_max'"),
        (lambda o: lr_scheduler.LambdaLR(o, [lambda step: step]), "one for each of 2 groups, got 1 values"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1), "argument 'total_steps': expected an int >= 1, or epochs"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, 10, pct_start=2.0), "argument 'pct_start'"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, 10, anneal_strategy="step"), "expected 'cos' or 'linear'"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=1.0), "argument 'factor'"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, mode="up"), "expected 'min' or 'max', got 'up'"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, threshold_mode="x"), "expected 'rel' or 'abs'"),
        (lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.StepLR(o, 1)], [3]), "one less than there are"),
        (lambda o: lr_scheduler.ConstantLR(o, 0.0), r"ConstantLR: argument 'factor': expected a number in \(0, 1\]"),
        (lambda o: lr_scheduler.PolynomialLR(o, 0), "PolynomialLR: argument 'total_iters': expected an int >= 1"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 0), "argument 'T_0': expected an int >= 1, got 0"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 1, 1.5), "argument 'T_mult': expected an int >= 1"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 1).step(-1), "argument 'epoch': expected a number >= 0"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, mode="square"), "CyclicLR: argument 'mode': expected one of"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, 0), "argument 'step_size_up': expected an int >= 1"),
        (
            lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, modus="x"),
            "argument 'modus': expected an argument of that name",
        ),
        (lambda o: lr_scheduler.ChainedScheduler([]), "ChainedScheduler: argument 'schedulers': expected at least one"),
        (lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ReduceLROnPlateau(o)]), "needs no metric"),
        (lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 1)], optimizers()[0]), "the same optimizer"),
        (lambda o: genesis.optim.swa_utils.SWALR(o, 0.1, -1), "SWALR: argument 'anneal_epochs': expected an int >= 0"),
        (lambda o: genesis.optim.swa_utils.SWALR(o, 0.1, 1, "step"), "argument 'anneal_strategy'"),
        (lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ReduceLROnPlateau(o)], []), "needs no metric"),
        (lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.StepLR(optimizers()[0], 1)], []), "the same optimizer"),
    ],
)
def test_bad_arguments(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(optimizers()[0])


def test_resuming_needs_the_initial_rates() -> None:
    with pytest.raises(KeyError, match=r"'initial_lr'; param_groups\[0\] has none"):
        lr_scheduler.StepLR(optimizers()[0], 1, last_epoch=3)


def test_warm_restarts_go_to_any_time() -> None:
    for longer in (1, 3):
        ours, theirs = optimizers()
        mine = lr_scheduler.CosineAnnealingWarmRestarts(ours, 4, longer)
        other = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(theirs, 4, longer)
        for time in (0.5, 3.9, 4.0, None, 17.25, None, None, 2, None, 60.5):
            mine.step(time)
            other.step(time)
            same(ours, theirs)
            assert mine.last_epoch == other.last_epoch


def test_a_tensor_as_learning_rate() -> None:
    optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=genesis.tensor(0.5))
    schedule = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    schedule.step()
    assert schedule.get_last_lr() == [0.25]
    plateau = lr_scheduler.ReduceLROnPlateau(genesis.optim.SGD([genesis.ones(1)], lr=genesis.tensor(0.5)), patience=0)
    for _ in range(2):
        plateau.step(1.0)
    assert plateau.get_last_lr() == [pytest.approx(0.05)]


def test_one_cycle_ends() -> None:
    schedule = lr_scheduler.OneCycleLR(optimizers()[0], 0.1, total_steps=3)
    for _ in range(3):
        schedule.step()
    with pytest.raises(ValueError, match="step 4 is beyond the cycle's total_steps=3"):
        schedule.step()


def test_one_cycle_needs_a_momentum() -> None:
    class Plain(genesis.optim.Optimizer):
        """An optimizer whose only option is lr."""

    plain = Plain([genesis.zeros(1, requires_grad=True)], {"lr": 0.1})
    with pytest.raises(ValueError, match="argument 'cycle_momentum': expected False"):
        lr_scheduler.OneCycleLR(plain, 0.1, total_steps=3)


def test_a_step_that_fails_has_changed_nothing() -> None:
    parameters = [{"params": [genesis.zeros(1, requires_grad=True)]} for _ in range(2)]
    optimizer = genesis.optim.SGD(parameters, lr=1.0)
    broken: list[int] = []

    def factor(step: int) -> float:
        if broken:
            raise ArithmeticError
        return 1.0

    inner = [lr_scheduler.ExponentialLR(optimizer, 0.5), lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5, factor])]
    schedule = lr_scheduler.SequentialLR(optimizer, inner, [2])
    schedule.step()
    broken.append(1)
    before = repr((schedule.state_dict(), optimizer.param_groups))
    with pytest.raises(ArithmeticError):
        schedule.step()
    assert repr((schedule.state_dict(), optimizer.param_groups)) == before
