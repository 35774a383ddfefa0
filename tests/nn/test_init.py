"""Initialisers against PyTorch's: the same numbers under the same seed; their distributions; their refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import ShapeError
from tests.draws import FUSED, needs_equal_draws

CASES: list[tuple[str, dict[str, Any]]] = [
    ("uniform_", {}),
    ("uniform_", {"a": 0.2, "b": 1.7}),
    ("normal_", {}),
    ("normal_", {"mean": 1.3, "std": 0.7}),
    ("trunc_normal_", {}),
    ("trunc_normal_", {"mean": 0.5, "std": 2.0, "a": -1.0, "b": 3.0}),
    ("trunc_normal_", {"std": 1.0, "a": 1.0, "b": 2.0}),  # a tail: the other way of drawing
    ("constant_", {"val": 0.3}),
    ("ones_", {}),
    ("zeros_", {}),
    ("xavier_uniform_", {}),
    ("xavier_normal_", {"gain": 2.0}),
    ("kaiming_uniform_", {}),
    ("kaiming_uniform_", {"a": 0.1, "mode": "fan_out"}),
    ("kaiming_normal_", {"nonlinearity": "relu"}),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "tanh"}),
    ("dirac_", {}),
    ("dirac_", {"groups": 2}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=str)
def test_the_same_numbers_as_pytorch(name: str, kwargs: dict[str, Any], dtype: str) -> None:
    shape = (6, 5, 3, 2)
    torch.manual_seed(3)
    expected = getattr(torch.nn.init, name)(torch.empty(shape, dtype=getattr(torch, dtype)), **kwargs)
    genesis.manual_seed(3)
    ours = genesis.empty(shape, dtype=getattr(genesis, dtype))
    assert getattr(nn.init, name)(ours, **kwargs) is ours
    if dtype == "float32" and (FUSED or "uniform" not in name):
        assert torch.equal(ours.to_torch(), expected)
    else:  # one of the two rounds once, the other twice
        near = 4e-16 if dtype == "float64" else 1.2e-7
        torch.testing.assert_close(ours.to_torch(), expected, rtol=near, atol=near)


@pytest.mark.parametrize("name", [pytest.param("uniform_", marks=needs_equal_draws), "normal_"])
def test_weights_of_several_pieces(name: str) -> None:
    """They are scaled a piece at a time: the last one is smaller here."""
    torch.manual_seed(3)
    expected = getattr(torch.nn.init, name)(torch.empty(600, 500), 0.2, 1.7)
    genesis.manual_seed(3)
    assert torch.equal(getattr(nn.init, name)(genesis.empty(600, 500), 0.2, 1.7).to_torch(), expected)


def test_channels_last_weights_get_the_same_numbers() -> None:
    genesis.manual_seed(0)
    plain = nn.init.normal_(genesis.empty(4, 3, 5, 5))
    genesis.manual_seed(0)
    last = nn.init.normal_(genesis.empty(4, 3, 5, 5, memory_format="channels_last"))
    assert last.stride() == (75, 1, 15, 3)
    assert last.tolist() == plain.tolist()


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2)])
def test_eye(shape: tuple[int, int]) -> None:
    assert nn.init.eye_(genesis.empty(shape)).tolist() == torch.eye(*shape).tolist()


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 3, 2, 2), (2, 4, 3, 3, 3)])
def test_dirac_of_other_ranks(shape: tuple[int, ...]) -> None:
    assert nn.init.dirac_(genesis.empty(shape)).tolist() == torch.nn.init.dirac_(torch.empty(shape)).tolist()


def test_parameters_can_be_initialised_and_stay_leaves() -> None:
    parameter = nn.Parameter(genesis.zeros(3))
    assert nn.init.ones_(parameter) is parameter
    assert parameter.is_leaf
    assert parameter.requires_grad
    assert parameter.tolist() == [1.0, 1.0, 1.0]


def test_empty_weights_are_left_alone() -> None:
    assert nn.init.kaiming_uniform_(genesis.empty(0, 3)).shape == (0, 3)
    assert nn.init.kaiming_normal_(genesis.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    "name", ["linear", "conv2d", "conv_transpose1d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]
)
def test_gain(name: str) -> None:
    assert nn.init.calculate_gain(name) == torch.nn.init.calculate_gain(name)


def test_gain_of_a_slope_and_refusals() -> None:
    assert nn.init.calculate_gain("leaky_relu", 0.2) == math.sqrt(2 / 1.04)
    with pytest.raises(ValueError, match="'param': expected a number, got True"):
        nn.init.calculate_gain("leaky_relu", True)
    with pytest.raises(ValueError, match=r"'nonlinearity': expected one of linear, .*, got 'swish'"):
        nn.init.calculate_gain("swish")


def test_refusals() -> None:
    with pytest.raises(ShapeError, match="xavier_uniform_: argument 'tensor': expected at least 2 dimensions, got 1"):
        nn.init.xavier_uniform_(genesis.empty(3))
    with pytest.raises(ValueError, match="'mode': expected \"fan_in\" or \"fan_out\", got 'fan'"):
        nn.init.kaiming_normal_(genesis.empty(3, 3), mode="fan")
    with pytest.raises(ShapeError, match="eye_: argument 'tensor': expected 2 dimensions, got 3"):
        nn.init.eye_(genesis.empty(1, 1, 1))
    with pytest.raises(ShapeError, match="dirac_: argument 'tensor': expected 3, 4 or 5 dimensions, got 2"):
        nn.init.dirac_(genesis.empty(1, 1))
    with pytest.raises(ShapeError, match="dirac_: argument 'groups': expected a divisor of 3, got 2"):
        nn.init.dirac_(genesis.empty(3, 1, 1), groups=2)
    with pytest.warns(UserWarning, match="the mean 9.0 is more than two deviations"):
        nn.init.trunc_normal_(genesis.empty(3), mean=9.0, a=6.0, b=6.5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2), (70, 40), (4, 3, 2, 2), (1, 1)], ids=str)
def test_orthogonal(shape: tuple[int, ...], dtype: str) -> None:
    torch.manual_seed(3)
    expected = torch.nn.init.orthogonal_(torch.empty(shape, dtype=getattr(torch, dtype)), 1.5)
    genesis.manual_seed(3)
    ours = genesis.empty(shape, dtype=getattr(genesis, dtype))
    assert nn.init.orthogonal_(ours, 1.5) is ours
    limit = {"float32": 1e-5, "float64": 1e-12}[dtype]
    torch.testing.assert_close(ours.to_torch(), expected, rtol=limit, atol=limit)


def test_orthogonal_on_a_cuda_device(cuda: str) -> None:
    weight = nn.init.orthogonal_(genesis.empty(6, 4, device="cuda"))
    torch.testing.assert_close((weight.t() @ weight).cpu().to_torch(), torch.eye(4))


def test_sparse() -> None:
    torch.manual_seed(3)
    expected = torch.nn.init.sparse_(torch.empty(7, 5), 0.4, 0.5)
    genesis.manual_seed(3)
    assert torch.equal(nn.init.sparse_(genesis.empty(7, 5), 0.4, 0.5).to_torch(), expected)


DRAWING = ["uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
           "kaiming_normal_", "orthogonal_"]  # fmt: skip


@pytest.mark.parametrize("name", DRAWING)
def test_a_generator_of_ones_own(name: str) -> None:
    expected = getattr(torch.nn.init, name)(torch.empty(5, 4), generator=torch.Generator().manual_seed(5))
    before = genesis.get_rng_state().tolist()
    ours = getattr(nn.init, name)(genesis.empty(5, 4), generator=genesis.Generator().manual_seed(5))
    torch.testing.assert_close(ours.to_torch(), expected)
    assert genesis.get_rng_state().tolist() == before


OLD_NAMES = ["uniform", "normal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal",
             "orthogonal", "eye"]  # fmt: skip


@pytest.mark.parametrize("name", OLD_NAMES)
def test_old_names(name: str) -> None:
    genesis.manual_seed(0)
    expected = getattr(nn.init, f"{name}_")(genesis.empty(3, 4)).tolist()
    genesis.manual_seed(0)
    with pytest.warns(FutureWarning, match=f"nn.init.{name} is the old name of nn.init.{name}_"):
        assert getattr(nn.init, name)(genesis.empty(3, 4)).tolist() == expected


def test_refusals_of_matrices() -> None:
    with pytest.raises(ShapeError, match="orthogonal_: argument 'tensor': expected at least 2 dimensions, got 1"):
        nn.init.orthogonal_(genesis.empty(3))
    with pytest.raises(ShapeError, match="sparse_: argument 'tensor': expected 2 dimensions, got 3"):
        nn.init.sparse_(genesis.empty(3, 2, 2), 0.5)
    with pytest.raises(ValueError, match=r"sparse_: argument 'sparsity': expected a number in \[0, 1\], got 1.5"):
        nn.init.sparse_(genesis.empty(3, 2), 1.5)
    with pytest.raises(ValueError, match="'mode': expected \"fan_in\" or \"fan_out\", got 'both'"):
        nn.init._calculate_correct_fan(genesis.empty(3, 2), "both")
