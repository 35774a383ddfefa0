"""Run one call on Genesis and on PyTorch, and compare the result and the gradient of every operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import genesis


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def to_genesis(operand: torch.Tensor | None, requires_grad: bool = False) -> Any:
    """A copy with the same strides."""
    if operand is None:
        return None
    tensor = genesis.from_torch(operand.detach().clone())
    return tensor.requires_grad_() if requires_grad else tensor


def _row_major(operand: torch.Tensor) -> torch.Tensor:
    """A copy in the order in which PyTorch's kernels are safest: its channels-last group norm can crash in backward."""
    return operand.detach().clone(memory_format=torch.contiguous_format)


def assert_close(actual: Any, expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        actual.detach().to_torch(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def assert_agreement(
    ours: Callable[..., Any], theirs: Callable[..., Any], *operands: torch.Tensor | None, tolerance: float = 1e-9
) -> None:
    """Equal results and gradients: with all floating operands requiring grad, and with each of them once not."""
    floating = [i for i, operand in enumerate(operands) if operand is not None and operand.is_floating_point()]
    for without in (None, *floating):
        needs = [i in floating and i != without for i in range(len(operands))]
        mine = [to_genesis(operand, need) for operand, need in zip(operands, needs, strict=True)]
        reference = [
            operand if operand is None else _row_major(operand).requires_grad_(need)
            for operand, need in zip(operands, needs, strict=True)
        ]
        actual, expected = ours(*mine), theirs(*reference)
        assert_close(actual, expected, tolerance)
        assert actual.requires_grad == expected.requires_grad
        if not any(needs):
            continue
        seed = normal(*expected.shape, seed=1, dtype=expected.dtype)
        expected.backward(seed)
        actual.backward(to_genesis(seed))
        for a, e in zip(mine, reference, strict=True):
            if e is not None and e.grad is not None:
                assert_close(a.grad, e.grad, tolerance)
            elif a is not None:
                assert a.grad is None
