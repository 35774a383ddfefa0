"""genesis.gradient, beyond the samples of PyTorch's op database: the order of dimensions, both ends, and messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import genesis


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize("kind", ["one", "each", "coordinates"])
def test_derivatives_along_chosen_dimensions(kind: str, edge_order: int) -> None:
    torch.manual_seed(0)
    x, dims = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True), (2, 0)
    at = [torch.rand(x.shape[dim], dtype=torch.float64).cumsum(0) for dim in dims]
    theirs: Any = {"one": 0.7, "each": [0.3, 1.5], "coordinates": at}[kind]
    ours = [genesis.from_torch(each) for each in at] if kind == "coordinates" else theirs
    mine = genesis.from_torch(x.detach()).requires_grad_()
    found = genesis.gradient(mine, spacing=ours, dim=dims, edge_order=edge_order)
    wanted = torch.gradient(x, spacing=theirs, dim=dims, edge_order=edge_order)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.detach().to_torch(), b.detach(), rtol=1e-10, atol=1e-10)
    (found[0].square().sum() + found[1].square().sum()).backward()
    (wanted[0].square().sum() + wanted[1].square().sum()).backward()
    assert mine.grad is not None
    torch.testing.assert_close(mine.grad.to_torch(), x.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_order": 3}, "argument 'edge_order': expected 1 or 2, got 3"),
        ({"dim": 1, "edge_order": 2}, "argument 'input': expected more than 2 elements in dimension 1, got 2"),
        ({"spacing": [1.0]}, "argument 'spacing': expected a number, or a sequence of 2, one a dimension, got 1"),
        (
            {"spacing": genesis.ones(3), "dim": 0},
            "expected a number, or a sequence of 1, one a dimension, got a tensor",
        ),
        ({"spacing": [genesis.ones(2)], "dim": 0}, r"expected coordinates of shape \(3,\), got \(2,\)"),
        ({"dim": (0, 0)}, "expected distinct dimensions"),
    ],
)
def test_messages(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"gradient: .*{message}"):
        genesis.gradient(genesis.ones(3, 2), **options)


def test_bool_is_refused() -> None:
    with pytest.raises(TypeError, match="gradient: argument 'input': expected numbers, got bool"):
        genesis.gradient(genesis.tensor([True, False]))
