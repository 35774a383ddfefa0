"""genesis.compile on CUDA: what ordinary steps do is captured, or one warning says what cannot be, and where."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import genesis
from genesis import Tensor, nn, optim
from genesis.nn import functional as F
from genesis.optim import lr_scheduler as schedulers
from genesis.optim import swa_utils
from tests.cuda.test_custom_op import square
from tests.graphs.fuzz_cuda import is_same
from tests.graphs.fuzz_cuda_loop import flat

pytestmark = pytest.mark.usefixtures("cuda")
NUM_STEPS = 5


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    with genesis.settings.override(deterministic=True):
        yield


class Toy:
    """A few weights, an optimizer and a schedule; the step is a method, so that a loop has all it needs."""

    def __init__(self, make: Callable[[Any], optim.Optimizer], habit: Callable[[Toy], object] | None = None) -> None:
        genesis.manual_seed(0)
        self.model = nn.Linear(3, 2, bias=False).to("cuda")
        self.optimizer = make(self.model.parameters())
        self.habit = habit
        self.average = swa_utils.AveragedModel(self.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
        self.generator = genesis.Generator("cuda").manual_seed(1)

    def step(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        if self.habit is not None:
            self.habit(self)
        self.optimizer.step()
        return loss


def losses_and_weights(
    toy: Toy, step: Callable[[Tensor], Tensor], scheduler: Any = None, num_steps: int = NUM_STEPS
) -> list[Any]:
    found: list[Any] = []
    for _ in range(num_steps):
        found.append(step(genesis.randn(2, 3, device="cuda")))
        if scheduler is not None:
            scheduler.step(*[1.0] * isinstance(scheduler, schedulers.ReduceLROnPlateau))
        found += [each.detach().clone() for each in (*toy.model.parameters(), *toy.average.parameters())]
        found += [toy.generator.get_state(), genesis.cuda.get_rng_state()]
    return flat(found)


def compare(
    make: Callable[[], Toy], schedule: Callable[[optim.Optimizer], Any] | None = None, num_steps: int = NUM_STEPS
) -> tuple[int, list[str]]:
    """How many steps were replays, and the warnings; both loops must agree bit for bit."""
    taken, num_replays = [], 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for is_compiled in (False, True):
            toy = make()
            scheduler = None if schedule is None else schedule(toy.optimizer)
            step: Any = genesis.compile(toy.step) if is_compiled else toy.step
            taken.append(losses_and_weights(toy, step, scheduler, num_steps))
            num_replays = step.num_replays if is_compiled else 0
    assert len(taken[0]) == len(taken[1])
    assert all(map(is_same, *taken))
    return num_replays, [str(each.message) for each in warned if "genesis.compile" in str(each.message)]


OPTIMIZERS = sorted(
    name for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer and name != "LBFGS"
)  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str) -> None:
    kind = getattr(optim, name)
    outcome = compare(lambda: Toy(lambda params: kind(params, lr=0.05)), num_steps=7)  # RAdam's sixth is another one
    assert outcome == (5, [])


def test_lbfgs_is_refused_by_name() -> None:
    weight = nn.Parameter(genesis.ones(3, device="cuda"))
    optimizer = optim.LBFGS([weight], lr=0.1, max_iter=2)

    def step(x: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (weight * x).square().sum()
            loss.backward()
            return loss

        return optimizer.step(closure)

    compiled, x = genesis.compile(step), genesis.ones(3, device="cuda")
    with pytest.warns(RuntimeWarning, match="runs eagerly") as warned:
        _ = [compiled(x) for _ in range(4)]
    assert len(warned) == 1
    assert "LBFGS" in str(warned[0].message)


SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "ConstantLR": lambda optimizer: schedulers.ConstantLR(optimizer, total_iters=2),
    "CosineAnnealingLR": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 5),
    "CosineAnnealingWarmRestarts": lambda optimizer: schedulers.CosineAnnealingWarmRestarts(optimizer, 3),
    "CyclicLR": lambda optimizer: schedulers.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2),  # momentum too
    "ExponentialLR": lambda optimizer: schedulers.ExponentialLR(optimizer, 0.9),
    "LambdaLR": lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: 0.9**step),
    "LinearLR": lambda optimizer: schedulers.LinearLR(optimizer, total_iters=3),
    "MultiStepLR": lambda optimizer: schedulers.MultiStepLR(optimizer, [2, 4]),
    "MultiplicativeLR": lambda optimizer: schedulers.MultiplicativeLR(optimizer, lambda step: 0.8),
    "OneCycleLR": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.1, total_steps=20),
    "PolynomialLR": lambda optimizer: schedulers.PolynomialLR(optimizer, 5),
    "ReduceLROnPlateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=1),
    "StepLR": lambda optimizer: schedulers.StepLR(optimizer, 2, 0.5),
    "SWALR": lambda optimizer: swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=3),
    "ChainedScheduler": lambda optimizer: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(optimizer, 0.9), schedulers.LinearLR(optimizer, total_iters=3)]
    ),
    "SequentialLR": lambda optimizer: schedulers.SequentialLR(
        optimizer, [schedulers.LinearLR(optimizer, total_iters=3), schedulers.ExponentialLR(optimizer, 0.9)], [3]
    ),
}  # fmt: skip


def test_every_schedule() -> None:
    """In one test, since each takes a tenth of a second."""
    kinds = {name for name, kind in vars(schedulers).items() if isinstance(kind, type)}
    assert kinds - {"LRScheduler"} <= SCHEDULES.keys()
    for name, schedule in SCHEDULES.items():
        outcome = compare(lambda: Toy(lambda params: optim.SGD(params, lr=0.05, momentum=0.9)), schedule)
        assert outcome == (NUM_STEPS - 2, []), name


def clip_values(toy: Toy) -> None:
    nn.utils.clip_grad_value_(toy.model.parameters(), 0.05)


def move_an_average(toy: Toy) -> None:
    toy.average.update_parameters(toy.model)


def print_something(toy: Toy) -> None:
    print("a step")


def read_a_value(toy: Toy) -> None:
    if toy.model.weight.grad.sum().item() > 1e9:
        raise ValueError


def draw_from_a_generator(toy: Toy) -> None:
    toy.model.weight.grad.mul_(genesis.rand(2, 3, device="cuda", generator=toy.generator))


def recompute_dropout(toy: Toy) -> None:
    """Checkpoints in one another, with numbers of both generators, before and after draws that are not repeated."""

    def dropped(x: Tensor) -> Tensor:
        inner = genesis.utils.checkpoint.checkpoint(F.dropout, x * 2, 0.5)
        return inner * genesis.rand(3, device="cuda") * genesis.rand(3, device="cuda")

    genesis.rand(1, device="cuda")
    x = toy.model.weight * genesis.rand(2, 3, device="cuda", generator=toy.generator)
    value = genesis.utils.checkpoint.checkpoint(dropped, x)
    value = value * F.dropout(value, 0.5)
    value.sum().backward()


def read_the_state(toy: Toy) -> None:
    toy.generator.get_state()


def seed_the_generator(toy: Toy) -> None:
    toy.generator.manual_seed(1)


def move_a_schedule(toy: Toy) -> None:
    toy.optimizer.param_groups[0]["lr"] = toy.optimizer.param_groups[0]["lr"] * 0.9


def use_a_kernel(toy: Toy) -> None:
    toy.model.weight.grad = square(toy.model.weight.grad)


@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        (clip_values, ""),
        (use_a_kernel, ""),
        (move_an_average, ""),
        (print_something, "calls print, which a replay would not"),
        (read_a_value, "reads values"),
        (draw_from_a_generator, ""),
        (recompute_dropout, ""),
        (read_the_state, "reads the state of a random generator"),
        (seed_the_generator, "sets the state of a random generator"),
        (move_a_schedule, "changes the options of an optimizer"),
    ],
)
def test_habits(habit: Callable[[Toy], object], reason: str) -> None:
    num_replays, warned = compare(lambda: Toy(lambda params: optim.SGD(params, lr=0.05), habit))
    if not reason:
        assert (num_replays, warned) == (NUM_STEPS - 2, [])
        return
    assert num_replays == 0
    assert len(warned) == 1
    assert f"it {reason}" in warned[0]
    assert f"{__file__}:" in warned[0]
