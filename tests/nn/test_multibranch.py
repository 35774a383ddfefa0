"""MultiBranch: the main path and a fifth of the mean of its branches."""

from __future__ import annotations

import pytest

import genesis
from genesis import nn


def test_the_mean_of_the_branches_is_added_with_its_weight() -> None:
    x = genesis.randn(2, 3, 4, 4)
    main, first, second = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 2, 1)
    projection = nn.Conv2d(2, 4, 1, bias=False)
    block = nn.MultiBranch(main, [first, nn.Branch(second, projection, gate=0.5)], weight=0.3)
    expected = main(x) + 0.3 * (first(x) + 0.5 * projection(second(x))) / 2
    assert (block(x) - expected).abs().max().item() <= 1e-6
    assert "weight=0.3" in repr(block)
    assert set(block.state_dict()) == {
        "main.weight", "main.bias", "branches.0.weight", "branches.0.bias", "branches.1.gate",
        "branches.1.module.weight", "branches.1.module.bias", "branches.1.projection.weight",
    }  # fmt: skip


def test_without_branches_it_is_the_main_path() -> None:
    assert nn.MultiBranch(nn.Identity())(genesis.ones(2)).tolist() == [1.0, 1.0]


def test_a_gate_of_zero_learns_first_and_the_branch_after_it() -> None:
    block = nn.MultiBranch(nn.Identity(), [nn.Branch(nn.Linear(2, 2))])
    for gradient in (False, True):
        block.zero_grad()
        block(genesis.ones(1, 2)).sum().backward()
        branch = block.branches[0]
        assert branch.gate.grad.item() != 0
        assert (branch.module.weight.grad.abs().sum().item() > 0) == gradient
        with genesis.no_grad():
            branch.gate.copy_(branch.gate - 0.1 * branch.gate.grad)


def test_branches_have_dtype_and_device() -> None:
    assert nn.Branch(nn.Identity(), dtype=genesis.float64).gate.dtype is genesis.float64


def test_a_weight_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="MultiBranch: argument 'weight': expected a number above 0, got 0"):
        nn.MultiBranch(nn.Identity(), weight=0)
