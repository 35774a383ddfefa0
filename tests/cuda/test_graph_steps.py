"""CUDA graphs of optimizer steps: options, step counts and the loss scale are read anew in each replay."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import Tensor, nn, optim
from genesis import functional as F
from genesis.amp import GradScaler
from genesis.cuda import CaptureError, Graph, graph
from tests.cuda.capturing import captured

pytestmark = pytest.mark.usefixtures("cuda")

NUM_STEPS = 20
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda params: optim.SGD(params, lr=0.2),
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda params: optim.Adam(params, lr=0.1, weight_decay=1e-2),
    "amsgrad": lambda params: optim.Adam(params, lr=0.1, amsgrad=True),
    "adamw": lambda params: optim.AdamW(params, lr=0.1),
    # These count on the host.
    "nadam": lambda params: optim.NAdam(params, lr=0.1, weight_decay=1e-2, decoupled_weight_decay=True),
    "radam": lambda params: optim.RAdam(params, lr=0.1),  # its sixth step is another one
    "asgd": lambda params: optim.ASGD(params, lr=0.1, t0=3),
}
Batches = list[tuple[Tensor, Tensor]]


class Training:
    """A small classifier, its optimizer of two groups, a scheduler, and their step."""

    def __init__(self, kind: str, scaler: GradScaler | None = None, clip: bool = False) -> None:
        genesis.manual_seed(1)
        self.net = nn.Linear(6, 3).to("cuda")
        groups = [{"params": [self.net.weight]}, {"params": [self.net.bias], "lr": 0.05}]
        self.optimizer, self.scaler, self._clip = OPTIMIZERS[kind](groups), scaler, clip
        self.scheduler = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def __call__(self, x: Tensor, target: Tensor) -> Tensor:
        scaler, optimizer = self.scaler, self.optimizer
        optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), target)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if self._clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss.detach()

    def state(self) -> list[Any]:
        values = [value.tolist() for value in self.net.state_dict().values()]
        states = [self.optimizer.state[p] for p in self.net.parameters() if p in self.optimizer.state]
        return values + [
            entry.tolist() if name != "step" and isinstance(entry, Tensor) else float(entry)
            for state in states
            for name, entry in state.items()
        ]


def batches() -> Batches:
    genesis.manual_seed(7)
    return [(genesis.randn(4, 6, device="cuda"), genesis.randint(0, 3, (4,), device="cuda")) for _ in range(NUM_STEPS)]


def eager(training: Training, batches: Batches) -> list[float]:
    losses = []
    for x, target in batches:
        losses.append(training(x, target).item())
        training.scheduler.step()
    return losses


def replayed(training: Training, batches: Batches, num_eager: int = 0, at: tuple[int, ...] = ()) -> list[float]:
    """The losses; the first steps are eager, and those at `at` too."""
    losses = eager(training, batches[:num_eager])
    x, target = (each.clone() for each in batches[0])
    g, loss = captured(lambda: training(x, target))
    for number, batch in enumerate(batches[num_eager:], num_eager):
        if number in at:
            losses += eager(training, [batch])
            continue
        x.copy_(batch[0])
        target.copy_(batch[1])
        g.replay()
        losses.append(loss.item())
        training.scheduler.step()
    return losses


# --- options and step counts ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "num_eager"), [*((kind, 0) for kind in OPTIMIZERS), ("momentum", 2), ("adam", 2)])
def test_replayed_steps_equal_eager_ones_bit_for_bit(kind: str, num_eager: int) -> None:
    """With a scheduler that changes the learning rates between replays, from the first step on or later."""
    one, other, data = Training(kind), Training(kind), batches()
    assert replayed(other, data, num_eager) == eager(one, data)
    assert other.state() == one.state()


@pytest.mark.parametrize("kind", ["momentum", "adamw", "nadam"])
def test_eager_steps_and_replays_take_turns(kind: str) -> None:
    one, other, data = Training(kind, clip=True), Training(kind, clip=True), batches()[:12]
    assert replayed(other, data, at=(3, 4, 9)) == eager(one, data)
    assert other.state() == one.state()


def test_two_graphs_of_one_optimizer() -> None:
    one, other, data = Training("adam"), Training("adam"), batches()[:8]
    expected = eager(one, [(x[: 2 + number % 2], t[: 2 + number % 2]) for number, (x, t) in enumerate(data)])
    inputs = [(x[:size].clone(), target[:size].clone()) for size in (2, 3) for x, target in data[:1]]
    graphs = [captured(lambda x=x, target=target: other(x, target)) for x, target in inputs]  # type: ignore[misc]
    losses = []
    for number, (x, target) in enumerate(data):
        (x_in, target_in), (g, loss) = inputs[number % 2], graphs[number % 2]
        x_in.copy_(x[: 2 + number % 2])
        target_in.copy_(target[: 2 + number % 2])
        g.replay()
        losses.append(loss.item())
        other.scheduler.step()
    assert losses == expected
    assert other.state() == one.state()


SGD_CHANGES = {"lr": 0.3}, {"momentum": 0.8, "dampening": 0.5}, {"weight_decay": 0.0}, {}
RADAM_CHANGES = {"lr": 1}, {"betas": (0.5, 0.9)}, {"eps": 0.1}, {}, {}, {}, {"betas": (0, 0.9)}


@pytest.mark.parametrize(
    ("make", "all_changes"),
    [
        (lambda params: optim.SGD(params, lr=0.1, momentum=0.5, weight_decay=0.1), SGD_CHANGES),
        (lambda params: optim.RAdam(params, lr=0.1), RADAM_CHANGES),
    ],
)
def test_every_number_may_change(
    make: Callable[[Any], optim.Optimizer], all_changes: tuple[dict[str, object], ...]
) -> None:
    p, expected = (nn.Parameter(genesis.ones(3, device="cuda")) for _ in range(2))
    optimizers = [make([each]) for each in (p, expected)]
    for each in (p, expected):
        each.grad = genesis.full((3,), 0.5, device="cuda")
    g = Graph()
    with graph(g):
        optimizers[0].step()
    for changes in ({}, *all_changes):
        for optimizer in optimizers:
            optimizer.param_groups[0].update(changes)
        g.replay()
        optimizers[1].step()
        assert p.tolist() == expected.tolist()


@pytest.mark.parametrize("make", [optim.Adam, optim.Adamax])
def test_several_steps_in_a_graph(make: Callable[..., optim.Optimizer]) -> None:
    p, expected = (nn.Parameter(genesis.ones(3, device="cuda")) for _ in range(2))
    optimizers = [make([each], lr=0.1) for each in (p, expected)]
    for each in (p, expected):
        each.grad = genesis.full((3,), 0.5, device="cuda")
    g = Graph()
    with graph(g):
        for _ in range(3):
            optimizers[0].step()
            p.grad.mul_(2)
    for _ in range(2):
        g.replay()
        for _ in range(3):
            optimizers[1].step()
            expected.grad.mul_(2)
        assert p.tolist() == expected.tolist()
        assert int(optimizers[0].state[p]["step"]) == int(optimizers[1].state[expected]["step"])


def test_parameters_that_are_counted_apart_are_not_the_graphs() -> None:
    one, other = (nn.Parameter(genesis.ones(3, device="cuda")) for _ in range(2))
    optimizer = optim.Adamax([one, other], lr=0.1)
    one.grad = other.grad = genesis.ones(3, device="cuda")
    g = Graph()
    with graph(g):
        optimizer.step()
    g.replay()
    other.grad = None
    optimizer.step()
    before = one.tolist(), other.tolist(), optimizer.state[one]["step"]
    with pytest.raises(CaptureError, match="Adamax has counted its parameters apart since the capture: capture anew"):
        g.replay()
    assert (one.tolist(), other.tolist(), optimizer.state[one]["step"]) == before


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.Adagrad])
def test_a_tensor_as_learning_rate(make: Callable[..., optim.Optimizer]) -> None:
    p, expected = (nn.Parameter(genesis.ones(3, device="cuda")) for _ in range(2))
    rate = genesis.tensor(0.1)
    optimizers = [make([each], lr=rate, capturable=True, foreach=True) for each in (p, expected)]
    for each in (p, expected):
        each.grad = genesis.full((3,), 0.5, device="cuda")
    g = Graph()
    with graph(g):
        optimizers[0].step()
    for value in (0.1, 0.5, 0.5, 0.25):
        rate.fill_(value)
        g.replay()
        optimizers[1].step()
        assert p.tolist() == expected.tolist()
    on_device = make([p], lr=rate.to("cuda"))
    with pytest.raises(CaptureError, match="waits for the device"), graph(Graph()):
        on_device.step()


def test_replays_write_options_only_when_they_have_changed() -> None:
    p = nn.Parameter(genesis.ones(3, device="cuda"))
    optimizer = optim.Adam([p])
    p.grad = genesis.ones(3, device="cuda")
    g = Graph()
    with graph(g):
        optimizer.step()
    counts = []
    for lr in (1e-3, 1e-3, 1e-2, 1e-2):
        optimizer.param_groups[0]["lr"] = lr
        before = genesis.cuda.memory_stats()["allocation.all.allocated"]
        g.replay()
        counts.append(genesis.cuda.memory_stats()["allocation.all.allocated"] - before)
    assert counts[0] == counts[1] == counts[3] < counts[2]


def test_a_captured_optimizer_is_saved_and_copied() -> None:
    one, other, data = Training("adam"), Training("adam"), batches()[:12]
    eager(one, data[:8])
    replayed(other, data[:8])
    state = other.optimizer.state_dict()
    assert {int(entries["step"]) for entries in state["state"].values()} == {8}
    for copied in (pickle.loads(pickle.dumps(other.optimizer)), copy.deepcopy(other.optimizer)):
        assert {int(entries["step"]) for entries in copied.state.values()} == {8}
    fresh = Training("adam")
    fresh.net.load_state_dict(other.net.state_dict())
    fresh.optimizer.load_state_dict(state)
    fresh.scheduler.load_state_dict(other.scheduler.state_dict())
    assert eager(fresh, data[8:]) == eager(one, data[8:])


# --- what a graph fixes -----------------------------------------------------------------------------------------------
def a_step(optimizer: Callable[[Any], optim.Optimizer]) -> tuple[Graph, optim.Optimizer, nn.Parameter]:
    p = nn.Parameter(genesis.ones(3, device="cuda"))
    p.grad = genesis.ones(3, device="cuda")
    made, g = optimizer([p]), Graph()
    with graph(g):
        made.step()
    return g, made, p


FIXED: dict[str, tuple[Callable[[Any], optim.Optimizer], dict[str, object], str]] = {
    "nesterov": (
        lambda params: optim.SGD(params, lr=0.1, momentum=0.9), {"nesterov": True}, "of SGD .*False → True.*anew"
    ),
    "momentum": (lambda params: optim.SGD(params, lr=0.1), {"momentum": 0.9}, r"of SGD .*0\.0 → 0\.9"),
    "maximize": (optim.Adam, {"maximize": True}, "of Adam .*False → True"),
    "rmsprop": (lambda params: optim.RMSprop(params, lr=0.1, momentum=0.5), {"momentum": 0}, "of RMSprop .*True → Fal"),
    "nadam": (optim.NAdam, {"maximize": True}, r"of NAdam .*\(False → True\)"),
    "lars": (lambda params: optim.LARS(params, lr=0.1), {"lr": 0.2}, r"of LARS .*0\.1 → 0\.2"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_what_a_graph_fixes_may_not_change(name: str) -> None:
    make, changes, message = FIXED[name]
    g, optimizer, p = a_step(make)
    g.replay()
    before = p.tolist()
    optimizer.param_groups[0].update(changes)
    with pytest.raises(CaptureError, match=message):
        g.replay()
    assert p.tolist() == before


def test_a_state_that_was_loaded_is_not_the_graphs() -> None:
    g, optimizer, p = a_step(optim.Adam)
    g.replay()
    before = p.tolist()
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(CaptureError, match="Adam has loaded another state since the capture: capture anew"):
        g.replay()
    assert p.tolist() == before


def test_dampening_needs_a_first_step() -> None:
    with pytest.raises(CaptureError, match=r"SGD\.step: every replay would make a first step"):
        a_step(lambda params: optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1))


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_capture_that_fails_leaves_the_optimizer_as_it_was(kind: str) -> None:
    one, other, data = Training(kind), Training(kind), batches()
    expected = eager(one, data[:6])
    losses = eager(other, data[:3])
    with pytest.raises(ZeroDivisionError):
        captured(lambda: other(*data[0]) / (1 / 0))
    assert losses + eager(other, data[3:6]) == expected
    assert other.state() == one.state()


# --- GradScaler -------------------------------------------------------------------------------------------------------
def scaler() -> GradScaler:
    return GradScaler(init_scale=2.0**10, growth_interval=3)


def overflowing(data: Batches) -> Batches:
    """Some batches give infinite gradients."""
    return [(x * float("inf") if number in (2, 3, 9) else x, target) for number, (x, target) in enumerate(data)]


def same(losses: list[float]) -> list[str]:
    return [repr(loss) for loss in losses]  # NaN equals NaN


@pytest.mark.parametrize(("kind", "clip"), [("sgd", False), ("momentum", True), ("amsgrad", False), ("adamw", True)])
def test_scaled_steps_equal_eager_ones_bit_for_bit(kind: str, clip: bool) -> None:
    """The device skips what overflows, and adapts the scale; nobody waits for it."""
    one, other, data = Training(kind, scaler(), clip), Training(kind, scaler(), clip), overflowing(batches()[:12])
    assert same(replayed(other, data)) == same(eager(one, data))
    assert other.state() == one.state()
    assert one.scaler is not None
    assert other.scaler is not None
    assert other.scaler.state_dict() == one.scaler.state_dict()


def test_scaled_eager_steps_and_replays_take_turns() -> None:
    one, other, data = Training("adam", scaler()), Training("adam", scaler()), overflowing(batches()[:12])
    assert same(replayed(other, data, num_eager=1, at=(2, 5, 6, 10))) == same(eager(one, data))
    assert other.state() == one.state()
    assert one.scaler is not None
    assert other.scaler is not None
    assert other.scaler.get_scale() == one.scaler.get_scale()


def test_replays_take_over_a_scale_that_was_set() -> None:
    training, (x, target) = Training("sgd", scaler()), batches()[0]
    assert training.scaler is not None
    g, _ = captured(lambda: training(x, target))
    training.scaler.load_state_dict(GradScaler(init_scale=16.0, growth_interval=3).state_dict())
    for expected in (16.0, 16.0, 32.0):
        g.replay()
        assert training.scaler.get_scale() == expected
    training.scaler.load_state_dict(GradScaler(growth_factor=3.0).state_dict())
    with pytest.raises(CaptureError, match="the factors of the GradScaler have changed"):
        g.replay()


def test_a_captured_scaler_is_saved_and_copied() -> None:
    training, (x, target) = Training("sgd", GradScaler(init_scale=8.0, growth_interval=1)), batches()[0]
    g, _ = captured(lambda: training(x, target))
    g.replay()
    assert pickle.loads(pickle.dumps(training.scaler)).get_scale() == 16.0
    assert copy.deepcopy(training.scaler).state_dict() == training.scaler.state_dict()  # type: ignore[union-attr]


def test_a_capture_that_fails_leaves_the_scaler_as_it_was() -> None:
    training, (x, target) = Training("sgd", scaler()), batches()[0]
    assert training.scaler is not None

    def interrupted() -> Tensor:
        training.scaler.scale(F.cross_entropy(training.net(x), target)).backward()  # type: ignore[union-attr]
        training.scaler.unscale_(training.optimizer)  # type: ignore[union-attr]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        captured(interrupted)
    training(x, target)
    assert training.scaler.get_scale() == 2.0**10


def test_only_the_gradients_are_captured() -> None:
    """Steps that are eager read the flags and the scale as ever."""
    training, data = Training("adam", scaler()), batches()
    one = Training("adam", scaler())
    expected = eager(one, data[:5])
    x, target = (each.clone() for each in data[0])
    scale, net, optimizer = training.scaler, training.net, training.optimizer
    assert scale is not None

    def gradients() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), target)
        scale.scale(loss).backward()
        return loss.detach()

    g, loss = captured(gradients)
    losses = []
    for batch in data[:5]:
        x.copy_(batch[0])
        target.copy_(batch[1])
        g.replay()
        scale.step(optimizer)
        scale.update()
        losses.append(loss.item())
        training.scheduler.step()
    assert losses == expected
    assert training.state() == one.state()


class OwnStep(optim.SGD):
    """A user's optimizer."""

    def step(self, closure: Any = None) -> Any:
        raise AssertionError("it is not called, nor passed over")


def test_misuse_of_a_scaler_in_a_capture() -> None:
    training, (x, target) = Training("sgd", scaler()), batches()[0]
    scale, lars = training.scaler, optim.LARS([p := nn.Parameter(genesis.ones(3, device="cuda"))], lr=0.1)
    assert scale is not None
    p.grad = genesis.ones(3, device="cuda")
    with graph(Graph()):
        scale.scale(F.cross_entropy(training.net(x), target)).backward()
        with pytest.raises(genesis.errors.GraphError, match="update: no step"):
            scale.update()
        scale.unscale_(training.optimizer)
        with pytest.raises(genesis.errors.GraphError, match="called a second time"):
            scale.unscale_(training.optimizer)
        with pytest.raises(CaptureError, match="no CUDA graph can hold its scaled step"):
            scale.step(lars)
        with pytest.raises(CaptureError, match=r"OwnStep has a step\(\) of its own"):
            scale.step(OwnStep([p], lr=0.1))
        scale.step(training.optimizer)
        scale.update()
    g, _ = captured(lambda: training(x, target))
    g.replay()
    with graph(Graph()):
        x + 1
        with pytest.raises(CaptureError, match="get_scale waits for the device"):
            scale.get_scale()


# --- clipping ---------------------------------------------------------------------------------------------------------
def test_clipping_that_looks_at_the_norm_is_refused() -> None:
    p = nn.Parameter(genesis.ones(3, device="cuda"))
    p.grad = genesis.ones(3, device="cuda")
    with pytest.raises(CaptureError, match="clip_grad_norm_ waits for the device"):
        captured(lambda: nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True))
