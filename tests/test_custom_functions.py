"""once_differentiable, custom_fwd and custom_bwd, the same program in both libraries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import genesis
from genesis.port import names


def square(library: Any, once: Any) -> Any:
    class Square(library.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * grad

    return Square


def test_once_differentiable() -> None:
    theirs = torch.autograd.function.once_differentiable
    for library, once in ((genesis, genesis.autograd.once_differentiable), (torch, theirs)):
        function, x = square(library, once), library.tensor([3.0], requires_grad=True)
        (grad,) = library.autograd.grad(function.apply(x), x)
        assert (grad.tolist(), grad.requires_grad) == ([6.0], False)
        y = function.apply(x)
        (grad,) = library.autograd.grad(y * y, x, create_graph=True)  # the gradient of y has a gradient
        assert (grad.tolist(), grad.requires_grad) == ([108.0], True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.backward()


def is_enabled(library: Any) -> bool:
    return bool((library.amp if library is genesis else library).is_autocast_enabled("cpu"))


def product(library: Any, seen: list[Any], **options: Any) -> Any:
    class Product(library.autograd.Function):  # type: ignore[misc]
        @staticmethod
        @library.amp.custom_fwd(device_type="cpu", **options)
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            seen.append((str(x.dtype), is_enabled(library)))
            return x @ y

        @staticmethod
        @library.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Any) -> Any:
            x, y = ctx.saved_tensors
            seen.append((str((x.float() @ y.float()).dtype), is_enabled(library)))
            return grad.to(y.dtype) @ y.t(), x.t() @ grad.to(x.dtype)

    return Product


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("cast", [None, "float32", "bfloat16"])
def test_autocast_of_custom_functions(cast: str | None, enabled: bool) -> None:
    results = []
    for library in (genesis, torch):
        seen: list[Any] = []
        function = product(library, seen, cast_inputs=cast and getattr(library, cast))
        x = library.ones(2, 2, requires_grad=True)
        with library.autocast("cpu", enabled=enabled):
            y = function.apply(x, library.ones(2, 2))
        y.float().sum().backward()
        results.append(([(name.rpartition(".")[2], on) for name, on in seen], str(y.dtype)[-8:], x.grad.tolist()))
    assert results[0] == results[1]


def test_they_stand_for_pytorchs() -> None:
    assert names.find("torch.autograd.function", "once_differentiable") is genesis.autograd.once_differentiable
    assert names.find("torch.amp", "custom_fwd") is genesis.amp.custom_fwd
