"""Checkpoints: the log grows a fresh network to the same shape, values and optimizer follow; files that don't fit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import genesis
from genesis import growth, nn, optim
from genesis.errors import CheckpointError, GrowthError
from genesis.tensor import Tensor
from tests.growth.measure import digest, outputs, train
from tests.growth.networks import CASES

Trained = tuple[nn.Module, optim.Optimizer, Tensor]


def fresh() -> Trained:
    case = CASES["original"]
    model = case.build()
    optimizer = optim.Adam(
        [{"params": model[:3].parameters(), "lr": 0.01}, {"params": model[3:].parameters()}], lr=0.02
    )
    return model, optimizer, genesis.randn(case.shape)


@pytest.fixture
def grown() -> Trained:
    genesis.manual_seed(0)
    model, optimizer, x = fresh()
    with growth.transaction(model, optimizer, example=x):
        growth.grow_width(model, ["0", "6"], factor=1.5)
        growth.grow_depth(model, "3", channels=6)
    train(model, optimizer, x)
    growth.prune_branches(model, "1", optimizer=optimizer, example=x)
    growth.grow_branches(model, "6", channels=7, optimizer=optimizer, example=x)
    growth.prune_width(model, "3", factor=0.8, optimizer=optimizer, example=x)
    train(model, optimizer, x)
    return model, optimizer, x


def test_a_fresh_network_grows_to_the_same_and_trains_on_the_same(grown: Trained, tmp_path: Path) -> None:
    model, optimizer, x = grown
    growth.save(tmp_path / "grown.safetensors", model, optimizer, epoch=7, note="half way")
    other, its_optimizer, _ = fresh()
    assert growth.load(tmp_path / "grown.safetensors", other, its_optimizer) == {"epoch": 7, "note": "half way"}
    assert repr(other) == repr(model)
    logs = [[step.record() for step in growth.history(network)] for network in (model, other)]
    assert [(log["operations"], log["deviation"]) for log in logs[0]] == [
        (log["operations"], log["deviation"]) for log in logs[1]
    ]
    for _ in range(2):
        assert train(model, optimizer, x) == train(other, its_optimizer, x)
    assert [a.tolist() for a in outputs(model, x)] == [b.tolist() for b in outputs(other, x)]


def test_the_log_is_plain_and_loads_with_the_state_of_ones_own(grown: Trained, tmp_path: Path) -> None:
    model, optimizer, x = grown
    average = fresh()[0]
    growth.replay(average, growth.history(model).state_dict())
    state = {"model": model.state_dict(), "growth": growth.history(model).state_dict(), "ema": average.state_dict()}
    genesis.save(state, tmp_path / "state.safetensors")
    loaded = genesis.load(tmp_path / "state.safetensors")
    other, its_optimizer, _ = fresh()
    its_average = fresh()[0]
    random_state = genesis.get_rng_state().tolist()
    growth.replay(other, loaded["growth"], its_optimizer, averages=its_average)
    assert genesis.get_rng_state().tolist() == random_state
    other.load_state_dict(loaded["model"])
    its_average.load_state_dict(loaded["ema"])
    its_optimizer.load_state_dict(optimizer.state_dict())
    assert train(model, optimizer, x) == train(other, its_optimizer, x)


def test_growing_goes_on_after_loading(grown: Trained, tmp_path: Path) -> None:
    model, optimizer, x = grown
    growth.save(tmp_path / "a", model, optimizer)
    other, its_optimizer, _ = fresh()
    growth.load(tmp_path / "a", other, its_optimizer)
    with pytest.raises(GrowthError, match="a step whose earlier state is kept"):
        growth.rollback(growth.history(other)[0])
    step = growth.grow_width(other, "0", factor=1.2, optimizer=its_optimizer, example=x)
    assert step.number == 4
    growth.save(tmp_path / "b", other, its_optimizer)
    third, third_optimizer, _ = fresh()
    growth.load(tmp_path / "b", third, third_optimizer)
    assert repr(third) == repr(other)


def test_what_does_not_fit_changes_nothing(grown: Trained, tmp_path: Path) -> None:
    model, optimizer, _ = grown
    growth.save(tmp_path / "grown", model, optimizer)
    growth.save(tmp_path / "bare", model)
    genesis.save(model, tmp_path / "plain")
    other = nn.Sequential(nn.ConvBNReLU(1, 20, 3, padding=1), nn.Flatten(), nn.Linear(20 * 64, 10))
    its_optimizer = optim.Adam(other.parameters())
    before = digest(other, its_optimizer)
    with pytest.raises(GrowthError, match="'where': get_submodule: Sequential has no '6'"):
        growth.load(tmp_path / "grown", other, its_optimizer)
    assert digest(other, its_optimizer) == before
    fine, fine_optimizer, _ = fresh()
    for name in ("bare", "plain"):
        with pytest.raises(
            CheckpointError, match=r"expected a checkpoint of growth\.save with growth, model, optimizer"
        ):
            growth.load(tmp_path / name, fine, fine_optimizer)
    growth.load(tmp_path / "bare", fine)
    again = digest(fine)
    with pytest.raises(GrowthError, match=r"'log, step 0': expected operations among grow_width, .* got 'fly'"):
        growth.replay(fine, {"steps": [{"operations": [{"operation": "fly", "where": "0"}], "example": None}]})
    assert digest(fine) == again
    assert len(growth.history(fine)) == 4


def test_the_values_must_fit_too(grown: Trained, tmp_path: Path) -> None:
    model, _, _ = grown
    values = model.state_dict()
    del values["8.bias"]
    other = fresh()[0]
    before = digest(other)
    for given, said in ((values, "missing key"), ({}, "missing key"), ([1], "state: expected a state, names and")):
        genesis.save({"model": given, "growth": growth.history(model).state_dict(), "more": {}}, tmp_path / "state")
        with pytest.raises(CheckpointError, match=said):
            growth.load(tmp_path / "state", other)
        assert digest(other) == before
        assert len(growth.history(other)) == 0


def step(*operations: Any, example: Any = ([[2, 1, 8, 8], "float32"],), **more: Any) -> Any:
    return {"operations": operations, "example": example, "deviation": 0.0, **more}


@pytest.mark.parametrize(("log", "said"), [
    (None, "argument 'log': expected what history"),
    ({"steps": 3}, "argument 'log': expected what history"),
    ({"steps": [3]}, "argument 'log, step 0': expected operations, an example and a deviation, got no operations"),
    ({"steps": [step(example=5)]}, "got no example"),
    ({"steps": [step(deviation="x")]}, "got no deviation"),
    ({"steps": [step(), step(3)]}, "argument 'log, step 1': expected operations among grow_width, .* got None"),
    ({"steps": [step({"operation": [], "where": "0"})]}, "expected operations among grow_width"),
    ({"steps": [step({"operation": "grow_width", "where": 3})]}, "grow_width, where': expected a name, got 3"),
    ({"steps": [step({"operation": "grow_width", "channels": 10**30})]}, "channels': expected a number of channels"),
    ({"steps": [step({"operation": "grow_width", "channels": True})]}, "channels': expected a number of channels"),
    ({"steps": [step({"operation": "grow_depth", "kernel_size": 3.0})]}, "kernel_size': expected a size, got 3.0"),
    ({"steps": [step({"operation": "grow_width", "optimizer": 1})]}, "optimizer': expected no such argument, got 1"),
    ({"steps": [step({"operation": "prune_branches", "which": ["a"]})]}, "which': expected numbers"),
    ({"steps": [step(example=[[[2**20, 2**20], "float32"]])]}, "expected the shape of an input of at most"),
    ({"steps": [step(example=[[[-1, 3], "float32"]])]}, "expected the shape of an input of at most"),
])  # fmt: skip
def test_a_log_that_is_none_is_refused_before_anything_is_done(log: Any, said: str) -> None:
    model = fresh()[0]
    before = digest(model)
    with pytest.raises(GrowthError, match=said):
        growth.replay(model, log)
    assert digest(model) == before


@pytest.mark.parametrize("operation", [
    {"operation": "grow_width", "where": "0", "channels": 200_000, "new": "zero", "noise": 0.0},
    {"operation": "grow_width", "where": "6", "channels": 200_000, "new": "copy", "noise": 0.0},
    {"operation": "grow_depth", "where": "0", "channels": 2_000_000, "kernel_size": 3},
    {"operation": "grow_depth", "where": "0", "channels": 2, "kernel_size": 10_001},
    {"operation": "grow_depth", "where": "7", "channels": 20_000_000, "kernel_size": 3},
    {"operation": "grow_branches", "where": "0", "channels": 20_000_000, "kernel_size": 3},
    {"operation": "grow_branches", "where": "6", "channels": 20_000_000, "kernel_size": 3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("then", [None, {"operation": "prune_width", "where": "0", "channels": 1, "by": "magnitude"}])
def test_a_log_takes_no_more_than_the_file_holds(operation: Any, then: Any, tmp_path: Path) -> None:
    """Each of these would take gigabytes; it is refused before the first."""
    model = fresh()[0]
    log = {"steps": [step(*([operation] if then is None else [operation, then]))]}
    genesis.save({"model": model.state_dict(), "growth": log, "more": {}}, tmp_path / "state")
    before = digest(model)
    with pytest.raises(
        GrowthError, match=rf"state: replay: the log's {operation['operation']} of . asks for .*, far more"
    ):
        growth.load(tmp_path / "state", model)
    assert digest(model) == before


def test_several_optimizers_and_averages_go_into_one_file(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, list[optim.Optimizer], nn.Module]:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizers = [optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9), optim.Adam(model[2].parameters(), lr=0.1)]
        return model, optimizers, copy.deepcopy(model)

    model, optimizers, average = build()
    x = genesis.randn(2, 3)
    growth.grow_width(model, "0", channels=6, optimizer=optimizers, averages=average, example=x)
    for optimizer in optimizers:
        train(model, optimizer, x)
    growth.save(tmp_path / "grown", model, optimizers, averages=average, epoch=2)
    other, its_optimizers, its_average = build()
    assert growth.load(tmp_path / "grown", other, its_optimizers, averages=its_average) == {"epoch": 2}
    only_model = build()[0]
    growth.load(tmp_path / "grown", only_model)
    pairs = [(other, model), (only_model, model), (its_average, average), *zip(its_optimizers, optimizers, strict=True)]
    for loaded, saved in pairs:
        assert repr(loaded.state_dict()) == repr(saved.state_dict())
    with pytest.raises(CheckpointError, match=r"argument 'optimizer': expected 2, as were saved, got 1"):
        growth.load(tmp_path / "grown", build()[0], its_optimizers[0])


def test_what_has_grown_is_not_grown_again(grown: Trained, tmp_path: Path) -> None:
    model, optimizer, _ = grown
    growth.save(tmp_path / "grown", model, optimizer)
    before = digest(model, optimizer)
    with pytest.raises(CheckpointError, match="'model': expected a freshly built network, got one that has grown"):
        growth.load(tmp_path / "grown", model, optimizer)
    assert digest(model, optimizer) == before


class Buffers(nn.Module):
    """Buffers of every kind, with a value for each channel or none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("saved", genesis.rand(4))
        for name in ("factor", "never"):
            self.register_buffer(name, genesis.rand(4 if name == "factor" else 2), persistent=False)
        self.register_buffer("mask", genesis.rand(4) > 0.3, persistent=False)
        self.register_buffer("counts", genesis.randint(1, 9, (4,)), persistent=False)
        self.register_buffer("bits16", genesis.rand(4).to(genesis.float16), persistent=False)
        self.register_buffer("none", None, persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("shared", self.factor, persistent=False)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x) * self.saved * self.factor + self.counts + self.bits16.to(genesis.float32)
        return self.last(x * self.mask.to(genesis.float32)) + self.never


def test_grown_buffers_that_are_not_persistent_are_kept(tmp_path: Path) -> None:
    genesis.manual_seed(0)
    model, average, x = Buffers(), Buffers(), genesis.randn(5, 3)
    growth.grow_width(model, "first", channels=9, example=x, averages=average, seed=3)
    growth.prune_width(model, "first", channels=6, example=x, averages=average, seed=3)
    with genesis.no_grad():
        model.factor *= 3  # as a network that keeps statistics there
    growth.save(tmp_path / "grown", model, averages=average)
    other, its_average = Buffers(), Buffers()
    own = other.never.tolist()
    growth.load(tmp_path / "grown", other, averages=its_average)
    assert other.never.tolist() == own  # not grown: as the network was built
    assert other.inner.shared is other.factor
    for loaded, saved in ((other, model), (its_average, average)):
        for name in ("saved", "factor", "mask", "counts", "bits16"):
            mine, its = getattr(loaded, name), getattr(saved, name)
            assert (mine.dtype, mine.tolist()) == (its.dtype, its.tolist())
        loaded.never.copy_(saved.never)
        assert loaded.eval()(x).tolist() == saved.eval()(x).tolist()
    growth.grow_width(other, "first", channels=8, example=x)  # and they go on growing


def test_a_file_without_the_buffers_says_so(tmp_path: Path) -> None:
    model, x = Buffers(), genesis.randn(5, 3)
    growth.grow_width(model, "first", channels=9, example=x)
    growth.save(tmp_path / "grown", model)
    state = genesis.load(tmp_path / "grown")
    genesis.save({key: value for key, value in state.items() if key != "buffers"}, tmp_path / "old")
    with pytest.warns(UserWarning, match="the values of the buffer .*, which is not persistent and has grown"):
        growth.load(tmp_path / "old", Buffers())
    state["buffers"][0]["factor"] = genesis.zeros(4)
    genesis.save(state, tmp_path / "other")
    fresh = Buffers()
    before = digest(fresh)
    with pytest.raises(CheckpointError, match=r"buffer factor: expected shape \(9,\), got \(4,\)"):
        growth.load(tmp_path / "other", fresh)
    assert digest(fresh) == before


def operation(name: str, **arguments: Any) -> dict[str, Any]:
    return {"operation": name, "where": "0", **arguments}


@pytest.mark.parametrize(
    ("operations", "example", "message"),
    [
        ([operation("grow_width", channels=200_000)], None, "grow_width of 0 asks for channels of 200,000, far more"),
        ([operation("grow_depth", kernel_size=100_001)], None, "asks for kernel_size of 100,001"),
        ([operation("grow_depth", channels=1000, kernel_size=1001)], [[2, 1, 8, 8], "float32"], "elements, far more"),
        ([operation("grow_width", channels=1000)] * 100_001, None, "100,001 operations for 4 tensors"),
        ([operation("grow_depth")] * 40, None, "40 operations for 4 tensors"),
        ([operation("grow_width", factor=1e9)], None, "grow_width, factor': expected no such argument"),
        ([operation("grow_width", channels="9")], None, "channels': expected a number of channels, got '9'"),
        ([operation("prune_branches", which=[0.5])], None, "which': expected numbers"),
        (
            [operation("grow_width", channels=5)],
            [[1 << 20, 1, 64, 64], "float32"],
            "expected the shape of an input of at",
        ),
    ],
)
def test_a_log_cannot_ask_for_more_than_its_file_has(operations: Any, example: Any, message: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    before = digest(net)
    shapes = [tensor.shape for tensor in net.state_dict().values()]
    log = {"steps": [{"operations": operations, "example": [example] if example else None}]}
    with pytest.raises(GrowthError, match=message):
        growth.replay(net, log, shapes=shapes)
    assert digest(net) == before


def test_what_was_pruned_again_may_have_been_large(tmp_path: Path) -> None:
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), genesis.randn(2, 3)
    growth.grow_width(net, "0", channels=600, example=x)
    growth.prune_width(net, "0", channels=4, example=x)
    growth.save(tmp_path / "net", net)
    fresh = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    growth.load(tmp_path / "net", fresh)
    assert fresh(x).tolist() == net(x).tolist()
