"""Folds that a compiled graph's op finds again: only while its arguments and their memory are what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import genesis
import genesis.torch
from genesis.torch import graph_ops, known_folds
from genesis.torch.known_folds import KnownFold

Arguments = dict[str, Any]


def arguments() -> Arguments:
    torch.manual_seed(0)
    return {
        "input": torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last), "weight": torch.randn(4, 4, 3, 3),
        "bias": torch.randn(4), "gamma": torch.rand(4) + 0.5, "beta": torch.randn(4), "mean": torch.randn(4),
        "var": torch.rand(4) + 0.5, "residual": None, "eps": 1e-5, "stride": [1, 1], "padding": [1, 1],
        "dilation": [1, 1], "groups": 1, "activation": "relu",
    }  # fmt: skip


def expected(a: Arguments) -> Tensor:
    y = functional.conv2d(a["input"], a["weight"], a["bias"], a["stride"], a["padding"], a["dilation"], a["groups"])
    y = functional.batch_norm(y, a["mean"], a["var"], a["gamma"], a["beta"], eps=a["eps"])
    y = y if a["residual"] is None else y + a["residual"]
    return y if a["activation"] is None else y.relu()


def transpose(a: Arguments) -> None:
    a["weight"].data = a["weight"].data.transpose(0, 1)  # of the same memory


def is_kept(a: Arguments) -> bool:
    return bool(a["weight"].is_contiguous())


def write(a: Arguments) -> None:
    a["weight"].numpy()[1, 2] *= -3  # no version counter tells


def write_beta(a: Arguments) -> None:
    a["beta"].data.add_(1)


CHANGES: dict[str, Callable[[Arguments], object]] = {
    "another weight's memory": lambda a: setattr(a["weight"], "data", torch.randn(4, 4, 3, 3)),
    "its memory in another order": transpose,
    "written by NumPy": write,
    "beta": write_beta,
    "more outputs": lambda a: (
        a.update(weight=torch.randn(8, 4, 3, 3), bias=None, gamma=None, beta=None)
        or a.update(mean=torch.zeros(8), var=torch.ones(8))
    ),
    "no bias": lambda a: a.update(bias=None),
    "no gamma": lambda a: a.update(gamma=None),
    "a residual": lambda a: a.update(residual=torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)),
    "no activation": lambda a: a.update(activation=None),
    "eps": lambda a: a.update(eps=0.5),
    "stride": lambda a: a.update(stride=[2, 2]),
    "padding": lambda a: a.update(padding=[0, 1]),
    "dilation": lambda a: a.update(dilation=[2, 2]),
    "more images": lambda a: a.update(input=torch.randn(3, 4, 6, 6).to(memory_format=torch.channels_last)),
    "row-major images": lambda a: a.update(input=torch.randn(2, 4, 6, 6)),
    "doubles": lambda a: a.update({key: x.double() for key, x in a.items() if isinstance(x, Tensor)}),
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a known fold was used, at each look."""
    found: list[bool] = []
    run = KnownFold.run

    def noted(self: KnownFold, args: Any) -> Tensor | None:
        y = run(self, args)
        found.append(y is not None)
        return y

    monkeypatch.setattr(KnownFold, "run", noted)
    graph_ops._layers.clear()
    return found


def is_used(runs: list[bool], given: Arguments) -> bool:
    """Whether another call takes a known fold."""
    count = runs.count(True)
    torch.ops.genesis.conv_bn_relu_inference(*given.values())
    return runs.count(True) > count


@pytest.mark.parametrize("change", CHANGES)
def test_only_what_it_was_is_taken(runs: list[bool], change: str) -> None:
    given = arguments()
    for _ in range(2):  # and back, where the change is another argument
        first = dict(given)
        for _ in range(5):
            torch.testing.assert_close(torch.ops.genesis.conv_bn_relu_inference(*given.values()), expected(given))
        assert is_used(runs, given) == is_kept(given)
        CHANGES[change](given)
        for _ in range(4):
            y = torch.ops.genesis.conv_bn_relu_inference(*given.values())
            torch.testing.assert_close(y, expected(given))
            assert y.is_contiguous(memory_format=torch.channels_last)
        assert is_used(runs, given) == is_kept(given)
        given = first


def test_precision_is_part_of_it(runs: list[bool]) -> None:
    given = arguments()
    for precision in ("highest", "medium", "highest"):
        with genesis.float32_precision(precision):
            for _ in range(4):
                torch.testing.assert_close(
                    torch.ops.genesis.conv_bn_relu_inference(*given.values()), expected(given), rtol=0.05, atol=0.05
                )
        assert runs[-1]
    assert runs.count(False) == 2  # the first call after a change, which forgets the fold


def test_a_weight_that_changes_keeps_no_fold(runs: list[bool]) -> None:
    given = arguments()
    for _ in range(4):
        torch.ops.genesis.conv_bn_relu_inference(*given.values())
    for _ in range(4):
        given["weight"].data.mul_(1.5)
        torch.testing.assert_close(torch.ops.genesis.conv_bn_relu_inference(*given.values()), expected(given))
        assert graph_ops._layers[given["weight"]].known is None
    assert runs == [True] + [True] * (len(runs) - 2) + [False]  # one look after the first change


def test_few_shapes_are_known() -> None:
    graph_ops._layers.clear()
    given = arguments()
    for height in range(4, 12):
        given["input"] = torch.randn(2, 4, height, 6)
        for _ in range(3):
            torch.testing.assert_close(torch.ops.genesis.conv_bn_relu_inference(*given.values()), expected(given))
    (layer,) = graph_ops._layers.values()
    assert len(layer.known._packed) <= known_folds._MAX_SHAPES
