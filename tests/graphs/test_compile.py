"""genesis.compile: a replay gives what the module gives, or the module runs eagerly and says why."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
import genesis.nn.functional as F
from genesis import models, nn, optim
from genesis.errors import DTypeError
from tests.graphs.steps import as_genesis, count_run
from tests.narrow import narrow


class Calls(nn.Module):
    """A module made of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.runs = 0
        self.weight = nn.Parameter(genesis.ones(3))
        self.register_buffer("table", genesis.arange(3.0))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        count_run(self)
        return self.function(self, *args, **kwargs)


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with genesis.no_grad():
        yield


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("unet", (2, 1, 16, 16), {"width": 4}),
        ("resnet18", (1, 3, 64, 64), {"num_classes": 5}),
        ("resnet50", (1, 3, 32, 32), {"num_classes": 5}),
    ],
)
def test_models(name: str, shape: tuple[int, ...], options: dict[str, int]) -> None:
    genesis.manual_seed(0)
    with narrow():
        model = models.create(name, **options).eval()
    compiled = genesis.compile(model)
    for _ in range(4):
        x = genesis.randn(*shape)
        torch.testing.assert_close(compiled(x).to_torch(), model(x).to_torch(), rtol=1e-5, atol=1e-5)
    assert compiled.num_recordings == 1


def test_replays_without_the_forward() -> None:
    module = Calls(lambda self, x: (x * self.weight + self.table).relu()).eval()
    compiled = genesis.compile(module)
    results = [compiled(genesis.full((2, 3), value)) for value in (-1.0, 2.0, -3.0, 4.0)]
    assert module.runs == 2
    assert [y[0].tolist() for y in results] == [[0, 0, 1], [2, 3, 4], [0, 0, 0], [4, 5, 6]]


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: (x, x[0], {"sum": x.sum(), "pair": [x.exp(), None, 3, "three"]}),
        lambda self, x: genesis.cat([x.T, x.T * 2], dim=1).reshape(-1)[1:],
        lambda self, x: x.softmax(-1).topk(2),
        lambda self, x: (x + 1).add_(x).mul_(2),
        lambda self, x: F.linear(x, self.weight[None]).masked_fill(x[:, :1] > 0, 7.0),
        lambda self, x: x.to(genesis.float64).mean(0).to(genesis.bfloat16),
        lambda self, x: genesis.where(x > 0, genesis.tensor([1.0, 2.0, 3.0]), genesis.zeros_like(x)),
    ],
)
def test_results(function: Callable[..., Any]) -> None:
    module = Calls(function).eval()
    compiled = genesis.compile(module)
    for _ in range(4):
        x = genesis.randn(4, 3)
        assert_equal(compiled(x), module(x))
    assert module.runs == 4 + 2


def assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, genesis.Tensor):
        assert got.dtype is expected.dtype
        assert got.stride() == expected.stride()
        assert torch.equal(got.clone().to_torch(), expected.to_torch())  # nothing that got is part of is handed out
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for mine, other in zip(got, expected, strict=True):
            assert_equal(mine, other)
    elif isinstance(expected, dict):
        assert_equal(list(got.items()), list(expected.items()))
    else:
        assert got == expected


@pytest.mark.parametrize("dtype", [genesis.float32, genesis.float64])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 6, 3, groups=2, bias=False),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ConvTranspose2d(4, 6, 2, 2),
        nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, bias=False),
        nn.ConvTranspose2d(4, 6, 3, dilation=2),
        nn.ConvTranspose2d(4, 6, 3, groups=2),
    ],
    ids=repr,
)
def test_constant_weights_are_packed(layer: nn.Module, dtype: genesis.DType) -> None:
    layer = layer.to(dtype).eval()
    compiled = genesis.compile(layer)
    for _ in range(3):
        x = genesis.randn(2, layer.in_channels, 16, 16, dtype=dtype)
        y = compiled(x)
        torch.testing.assert_close(y.to_torch(), layer(x).to_torch(), rtol=1e-5, atol=1e-5)
    assert compiled.num_recordings == 1


def test_views_share_memory_as_in_the_module() -> None:
    compiled = genesis.compile(Calls(lambda self, x: (x[0], x, (y := x * 2), y[1])).eval())
    for _ in range(3):
        x = genesis.ones(2, 3)
        row, same, doubled, part = compiled(x)
        assert same is x
        x.fill_(5.0)
        doubled.fill_(6.0)
        assert (row.tolist(), part.tolist()) == ([5.0] * 3, [6.0] * 3)
        assert row.array.changes is x.array.changes
        assert part.array.changes is doubled.array.changes


def test_random_numbers_are_drawn_anew() -> None:
    compiled = genesis.compile(Calls(lambda self, x: F.dropout(x, 0.5, training=True)).eval())
    x = genesis.ones(1000)
    drawn = [compiled(x).tolist() for _ in range(4)]
    assert drawn[2] != drawn[3]


def test_kinds_of_arguments_have_their_recordings() -> None:
    module = Calls(lambda self, x, scale=1.0, others=(): x * scale + sum(others)).eval()
    compiled = genesis.compile(module)
    x = genesis.ones(2, 2)
    base = genesis.arange(8.0)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}),
        ((x,), {"scale": 2.0}),
        ((genesis.arange(6.0).reshape(2, 3).T,), {}),
        ((x.to(genesis.float64),), {}),
        ((x, 1.0, [x]), {}),
        ((x, 1.0, [genesis.zeros(2, 2)]), {}),
        ((base[:4],), {}),
        ((base[4:],), {}),
    ]
    for _ in range(4):
        for args, kwargs in calls:
            assert_equal(compiled(*args, **kwargs), module(*args, **kwargs))
    assert compiled.num_recordings == len(calls) == compiled.max_recordings
    for _ in range(3):
        compiled(genesis.ones(5))
    assert compiled.num_recordings == compiled.max_recordings


def change_in_place(model: nn.Sequential) -> None:
    model[0].conv.weight.mul_(2)


def change_array(model: nn.Sequential) -> None:
    model[0].norm.running_mean.data = genesis.full((4,), 0.5)


def change_parameter(model: nn.Sequential) -> None:
    model[1].weight = nn.Parameter(genesis.ones(2, 3))


def change_module(model: nn.Sequential) -> None:
    model[1] = nn.Linear(3, 2)


def train(model: nn.Sequential) -> None:
    with genesis.enable_grad():
        model.train()(genesis.ones(2, 1, 3, 3)).sum().backward()
    optim.SGD(model.parameters(), lr=0.1).step()
    model.eval()


@pytest.mark.parametrize("change", [change_in_place, change_array, change_parameter, change_module, train])
def test_changes_are_noticed(change: Callable[[Any], None], caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.ConvBNReLU(1, 4, 3), nn.Linear(3, 2)).eval()
    compiled = genesis.compile(model)
    x = genesis.randn(1, 1, 3, 3)
    for _ in range(3):
        compiled(x)
    change(model)
    with caplog.at_level(logging.INFO, logger="genesis.graphs"):
        for _ in range(3):
            assert_equal(compiled(x), model(x))
    assert "Sequential has changed and is recorded anew" in caplog.text
    assert compiled.num_recordings == 1


OUTSIDE = genesis.ones(3)
TORCH = torch.ones(3)


def put_by_index(self: Calls, x: Any) -> Any:
    x[(self.table[:1] * 0).to(genesis.int64)] = 7.0
    return x * 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda self, x: x * x.sum().item(), "reads values"),
        (lambda self, x: x if x.sum() > 0 else -x, "reads values"),
        (lambda self, x: x[x > 0], "has a result whose shape depends on values"),
        (lambda self, x: genesis.from_torch(TORCH) + x, "uses 'TORCH', a torch.Tensor, which cannot be watched"),
        (lambda self, x: x + x.to_torch()[0, 0].item(), "exports its memory to another library"),
        (lambda self, x: x.clone().data_ptr() and x * 1, "asks where an array lies"),
        (lambda self, x: x.add_(1), "changes an argument, a parameter or a buffer in place"),
        (lambda self, x: x[0].mul_(2), "changes an argument, a parameter or a buffer in place"),
        (put_by_index, "changes an argument, a parameter or a buffer in place"),
        (lambda self, x: x + self.table.add_(1), "changes an argument, a parameter or a buffer in place"),
        (lambda self, x: x + OUTSIDE, r"uses a tensor of shape \(3,\) that is neither an argument nor a parameter"),
        (lambda self, x: F.batch_norm(x, None, None, training=True), "normalizes by the statistics of a batch"),
        (lambda self, x: self.weight, "returns a parameter or buffer"),
        (lambda self, x: self.table[1:], "returns a parameter or buffer, or a view of one"),
        (lambda self, x: {1, 2}, "returns a set"),
    ],
)
def test_refusals(function: Callable[..., Any], reason: str) -> None:
    module, same = Calls(function).eval(), Calls(function).eval()
    compiled = genesis.compile(module)

    def run(value: float) -> None:
        x = genesis.full((2, 3), value)
        expected = same(x.clone())
        assert_equal(compiled(x), expected)

    run(-1.0)
    with pytest.warns(RuntimeWarning, match=f"Calls runs eagerly: it {reason}"):
        run(0.0)
    run(1.0)  # warnings are errors here, so there is no other
    run(2.0)
    assert module.runs == 4
    assert compiled.num_recordings == 0


def test_runs_as_it_stands() -> None:
    module = Calls(lambda self, x: x * self.weight)
    compiled = genesis.compile(module)
    x = genesis.ones(3)

    def runs(calls: int = 3) -> int:
        before = module.runs
        for _ in range(calls):
            compiled(x)
        return module.runs - before

    assert runs() == 3  # training
    module.eval()
    assert runs() == 2
    with genesis.enable_grad():
        assert runs() == 3
        compiled(x).sum().backward()
    assert module.weight.grad is not None
    with genesis.amp.autocast("cpu", genesis.bfloat16):
        assert runs() == 3
    assert runs() == 0
    handle = module.register_forward_hook(lambda *_: None)
    assert runs() == 3
    handle.remove()
    assert runs() <= 2
    assert runs() == 0


def test_other_threads_are_not_recorded() -> None:
    @as_genesis
    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: genesis.ones(2).sum().item())
        thread.start()
        thread.join()

    def forward(self: Calls, x: genesis.Tensor) -> genesis.Tensor:
        elsewhere()
        return x * 2

    module = Calls(forward).eval()
    compiled = genesis.compile(module)
    for _ in range(3):
        assert compiled(genesis.ones(2)).tolist() == [2.0, 2.0]
    assert module.runs == 2


def test_targets_can_be_called() -> None:
    with pytest.raises(DTypeError, match="compile: argument 'target': expected a Module or a function, got int"):
        genesis.compile(3)
