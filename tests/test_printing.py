"""Tensors print as PyTorch's do, but for the names of dtypes and of what made them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import genesis

NAN, INF = float("nan"), float("inf")
VALUES: list[Any] = [
    2.03, 2.0, 0.0, -0.0, 1e10, 1e-10, 123456.789, NAN, INF, -INF, 5, -7, True, [], [[], []],
    [1.5, 2.25],
    [1e-5, 1.0], [1e5, 1.0], [1e9, 2e9], [1e-4, 1.0], [99999999.0], [1000.0, 1.0], [1001.0, 1.0], [1.0, 1e-2],
    [NAN, 1.0], [INF, 1.5, -2.0], [NAN, NAN], [0.0, 0.0], [[1.0, NAN], [INF, -3.0]], [1, -2, 300], [True, False],
    [[[1.5]], [[2.0]]],
]  # fmt: skip
LARGE = [
    torch.arange(24.0).view(2, 3, 4) / 7, torch.arange(2000.0), torch.arange(2000).view(40, 50), torch.ones(3, 1500),
    torch.arange(1440).view(10, 12, 12), torch.zeros(1100, dtype=torch.bool), torch.arange(30.0) * 1.5,
    torch.zeros(2, 0, 3), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int32),
    torch.arange(16.0).view(2, 2, 2, 2) * 1000.5,
]  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {"precision": 2}, {"precision": 8}, {"sci_mode": True}, {"sci_mode": False}, {"threshold": 5},
    {"linewidth": 40}, {"edgeitems": 1, "threshold": 5}, {"profile": "short"}, {"profile": "full"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tensors_print_as_pytorchs(options: dict[str, Any]) -> None:
    dtypes = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8)
    cases = [torch.tensor(value) for value in VALUES] + LARGE + [torch.tensor([0, 1, 2], dtype=kind) for kind in dtypes]
    try:
        genesis.set_printoptions(**options)
        torch.set_printoptions(**options)
        for theirs in cases if options.get("profile") != "full" else cases[: len(VALUES)]:
            ours = genesis.from_torch(theirs)
            assert repr(ours) == repr(theirs).replace("torch.", "genesis.")
            assert f"{ours}" == f"{theirs}".replace("torch.", "genesis.")
    finally:
        genesis.set_printoptions(profile="default")
        torch.set_printoptions(profile="default")


def test_notes_behind_the_elements() -> None:
    long = genesis.ones(40, requires_grad=True) * 1.5
    theirs = torch.ones(40, requires_grad=True) * 1.5
    assert repr(long) == repr(theirs).replace("MulBackward0", "MulBackward")
    assert repr(genesis.nn.Parameter(genesis.tensor([0.5]))) == repr(torch.nn.Parameter(torch.tensor([0.5])))
    assert repr({"a": genesis.tensor(1.5)}) == "{'a': tensor(1.5000)}"
    with pytest.raises(TypeError, match=r"format: argument 'self': expected one number, for '\.2f', got shape \(2,\)"):
        format(genesis.ones(2), ".2f")
    assert format(genesis.ones(1), ">14") == "  tensor([1.])"
