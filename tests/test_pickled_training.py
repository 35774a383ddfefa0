"""Copies, pickles and files of a training: its optimizer, schedule and scaler go on in them, in other processes too."""

from __future__ import annotations

import copy
import inspect
import math
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import genesis
from genesis import amp, nn, optim
from genesis.data import DataLoader, TensorDataset
from genesis.optim import lr_scheduler
from genesis.settings import override
from genesis.tensor import Tensor
from tests.copies import WAYS, Copy, equal, learn, plain, ways
from tests.optim.test_lr_scheduler import SCHEDULES


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with override(cuda="simulated"):
        yield request.param


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_a_recurrent_layer_that_has_learned(name: str, tmp_path: Path, device: str) -> None:
    """Its copies, and what was saved of it, learn what it learns, and are moved as it is."""
    layer = getattr(nn, name)(2, 3, bidirectional=True).to(device)
    optimizer = optim.RMSprop(layer.parameters(), momentum=0.9)
    x = genesis.randn(3, 1, 2).to(device)
    for _ in range(2):
        optimizer.zero_grad()
        learn(layer, [x])
        optimizer.step()
    copied = copy.deepcopy(layer)
    fresh = getattr(nn, name)(2, 3, bidirectional=True).to(device)
    genesis.save({"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved")
    saved = genesis.load(tmp_path / "saved")
    fresh.load_state_dict(saved["layer"])
    following = [optimizer, *(optim.RMSprop(each.parameters(), momentum=0.9) for each in (copied, fresh))]
    following[1].load_state_dict(optimizer.state_dict())
    following[2].load_state_dict(saved["optimizer"])
    results = []
    for each, its in zip((layer, copied, fresh), following, strict=True):
        its.zero_grad()
        learn(each, [x])
        its.step()
        each.zero_grad()
        moved = copy.deepcopy(each).to("cpu", genesis.float64)
        assert {(p.device.type, p.dtype) for p in moved.parameters()} == {("cpu", genesis.float64)}
        assert [id(p) for row in moved.all_weights for p in row] == [id(p) for p in moved.parameters()]
        results.append((learn(each, [x]), learn(moved, [x.to("cpu", genesis.float64)]), plain(its.state_dict())))
    assert results[0] == results[1] == results[2]


# --- optimizers, schedules, scalers -----------------------------------------------------------------------------------


def decay(step: int) -> float:
    return 0.9**step


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "LARS": {"lr": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True}, "Adagrad": {"lr_decay": 0.1}, "Adadelta": {"rho": 0.8},
    "Adamax": {}, "NAdam": {"weight_decay": 0.1}, "RAdam": {}, "Rprop": {}, "ASGD": {"t0": 2}, "Adafactor": {},
    "LBFGS": {"line_search_fn": "strong_wolfe", "max_iter": 3},
}  # fmt: skip


def test_every_optimizer_is_there() -> None:
    classes = {
        name for name, kind in vars(optim).items() if inspect.isclass(kind) and issubclass(kind, optim.Optimizer)
    }
    assert classes - {"Optimizer", "Muon"} == set(
        OPTIMIZERS
    )  # Muon takes matrices alone, which these networks have not


def step(net: nn.Module, optimizer: optim.Optimizer, schedule: Any, scaler: Any, seed: int) -> None:
    genesis.manual_seed(seed)
    x = genesis.randn(4, 3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = scaler.scale((net(x) ** 2).mean())
        loss.backward()
        return loss

    if isinstance(optimizer, optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        scaler.step(optimizer)
        scaler.update()
    schedule.step()


def build(name: str) -> tuple[nn.Module, optim.Optimizer]:
    """A network and its optimizer, with two groups of parameters where there can be two."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    groups: Any = [{"params": net[0].parameters(), "lr": 0.01}, {"params": net[3].parameters()}]
    if name == "LBFGS":
        groups = [{"params": [*net[0].parameters(), *net[3].parameters()], "lr": 0.5}]
    return net, getattr(optim, name)(groups, **OPTIMIZERS[name])


@pytest.mark.parametrize("name", OPTIMIZERS)
@ways
def test_a_training_goes_on_in_a_copy_of_all_its_parts(name: str, again: Copy) -> None:
    net, optimizer = build(name)
    training = [net, optimizer, lr_scheduler.LambdaLR(optimizer, decay), amp.GradScaler(init_scale=8.0)]
    for seed in range(3):
        step(*training, seed=seed)
    copied = again(training)
    own = {id(parameter) for parameter in copied[0].parameters()}
    assert all(id(parameter) in own for group in copied[1].param_groups for parameter in group["params"])
    assert copied[2].optimizer is copied[1]
    for seed in range(3, 6):
        step(*training, seed=seed)
        step(*copied, seed=seed)
    assert [p.tolist() for p in copied[0].parameters()] == [p.tolist() for p in net.parameters()]
    for part, its in zip(training[1:], copied[1:], strict=True):
        assert plain(its.state_dict()) == plain(part.state_dict())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_goes_on_from_a_file(name: str, tmp_path: Path) -> None:
    trainings = []
    for _ in range(2):
        net, optimizer = build(name)
        trainings.append(
            [net, optimizer, lr_scheduler.MultiplicativeLR(optimizer, decay), amp.GradScaler(init_scale=8.0)]
        )
    training, fresh = trainings
    for seed in range(3):
        step(*training, seed=seed)
    genesis.save([part.state_dict() for part in training], tmp_path / "saved")
    for part, state in zip(fresh, genesis.load(tmp_path / "saved"), strict=True):
        part.load_state_dict(state)
    for seed in range(3, 6):
        step(*training, seed=seed)
        step(*fresh, seed=seed)
    for part, its in zip(training, fresh, strict=True):
        assert plain(its.state_dict()) == plain(part.state_dict())


# Functions without a name cannot be pickled, in PyTorch either.
NAMED: dict[str, Any] = {
    **SCHEDULES,
    "LambdaLR": lambda m, o: m.LambdaLR(o, decay),
    "LambdaLR each": lambda m, o: m.LambdaLR(o, [decay, math.cos]),
    "MultiplicativeLR": lambda m, o: m.MultiplicativeLR(o, [decay, math.cos]),
    "CyclicLR of a function": lambda m, o: m.CyclicLR(o, 0.1, 1.0, 5, scale_fn=decay, scale_mode="iterations"),
    "SequentialLR": lambda m, o: m.SequentialLR(o, [m.LinearLR(o, 0.1), m.MultiplicativeLR(o, decay)], [7]),
}


def test_every_schedule_is_there() -> None:
    classes = {name for name, kind in vars(lr_scheduler).items() if inspect.isclass(kind)}
    assert classes - {"LRScheduler", "ReduceLROnPlateau"} | {"SWALR"} == {name.partition(" ")[0] for name in NAMED}


@pytest.mark.parametrize("name", NAMED)
@ways
def test_every_schedule(name: str, again: Copy) -> None:
    optimizer = optim.SGD(
        [{"params": [genesis.zeros(1, requires_grad=True)], "lr": r} for r in (0.1, 0.2)], momentum=0.9
    )
    schedule = NAMED[name](lr_scheduler, optimizer)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    copied = again(schedule)
    for _ in range(20):
        schedule.step()
        copied.step()
        assert copied.get_last_lr() == schedule.get_last_lr()
        assert [group["lr"] for group in copied.optimizer.param_groups] == copied.get_last_lr()


@ways
def test_reduce_on_plateau(again: Copy) -> None:
    optimizer = optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, cooldown=1)
    for _ in range(3):
        schedule.step(1.0)
    copied = again(schedule)
    for _ in range(9):
        schedule.step(1.0)
        copied.step(1.0)
        assert copied.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert optimizer.param_groups[0]["lr"] < 0.5


@pytest.mark.parametrize("name", ["get_ema_multi_avg_fn", "get_swa_multi_avg_fn", "get_ema_avg_fn", "get_swa_avg_fn"])
@ways
def test_averages_of_a_model(name: str, again: Copy) -> None:
    made = getattr(optim.swa_utils, name)()
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    averaged = optim.swa_utils.AveragedModel(net, **{"multi_avg_fn" if "multi" in name else "avg_fn": made})
    averaged.update_parameters(net)
    copied = again(averaged)
    for parameter in net.parameters():
        parameter.data.add_(1.0)
    for each in (averaged, copied):
        each.update_parameters(net)
    assert plain(copied.state_dict()) == plain(averaged.state_dict())
    assert plain(copied.module[0].state_dict()) != plain(net[0].state_dict())


def test_sequences_of_schedules() -> None:
    optimizer = optim.SGD([genesis.zeros(1, requires_grad=True)], lr=0.1)
    schedule = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1), lr_scheduler.StepLR(optimizer, 2)], [4]
    )
    for again in WAYS.values():
        copied = again(schedule)
        for _ in range(9):
            copied.optimizer.step()
            copied.step()
        assert copied.get_last_lr() == pytest.approx([0.1 * 0.1**2])


# --- other processes --------------------------------------------------------------------------------------------------


class Squares(TensorDataset):
    """Samples and labels as tensors, for workers that are started anew."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x * x, "y": y, "scalar": genesis.tensor(2.0)}


def train(trainings: list[tuple[nn.Module, optim.Optimizer]], data: TensorDataset, results: Any) -> None:
    """What a started process does: an epoch for all networks, with a worker of its own."""
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    for batch in loader:
        for net, optimizer in trainings:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
            optimizer.step()
    states = [(net, optimizer.state_dict()) for net, optimizer in trainings]
    results.send((states, genesis.tensor(float(len(loader)))))


class Recurrent(nn.Module):
    """Classes from the last states of a network over the rows of images."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(4, 3, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.rows(x[:, 0])
        return h[-1]


def convolutional() -> nn.Module:
    return nn.Sequential(nn.ConvBNReLU(1, 4, 3), nn.Flatten(), nn.Linear(64, 3))


def test_trainings_in_a_process_that_was_spawned() -> None:
    processes = multiprocessing.get_context("spawn")
    genesis.manual_seed(0)
    data = Squares(genesis.randn(8, 1, 4, 4), genesis.arange(8) % 3)
    trainings = []
    for make, optimizer in ((convolutional, optim.AdamW), (Recurrent, optim.NAdam)):
        net = make()
        trainings.append((net, optimizer(net.parameters(), lr=0.01)))
    results, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=train, args=(trainings, data, sender))
    process.start()
    sender.close()  # so that the end of the process ends the wait
    found, count = results.recv()
    process.join()
    assert process.exitcode == 0
    assert (count.shape, count.item()) == ((), 2.0)
    for training, its in zip(trainings, found, strict=True):
        assert_trained(*training, *its, data)


def assert_trained(net: nn.Module, optimizer: optim.Optimizer, trained: nn.Module, state: Any, data: Squares) -> None:
    """The same steps here give the same."""
    for start in (0, 4):
        batch = [data[index] for index in range(start, start + 4)]
        optimizer.zero_grad()
        x, y = (genesis.stack([sample[name] for sample in batch]) for name in ("x", "y"))
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    for value, its in zip(net.state_dict().values(), trained.state_dict().values(), strict=True):
        equal(its, value)
    assert plain(state) == plain(optimizer.state_dict())
    trained.load_state_dict(net.state_dict())
