"""What PyTorch lets a Function of users do, the same program in both libraries."""

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


def apart(library: Any) -> Any:
    """x · y in the style of torch.func: forward without ctx."""

    class Product(library.autograd.Function):  # type: ignore[misc]
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any, y: Any, times: float = 1.0) -> Any:
            return x * y * times

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, y, *rest = inputs
            ctx.save_for_backward(x, y)
            ctx.save_for_forward(x, y)
            ctx.set_materialize_grads(False)
            ctx.times, ctx.total = rest[0] if rest else 1.0, output.sum().item()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, y = ctx.saved_tensors
            return grad * y * ctx.times, (grad * x * ctx.times if ctx.needs_input_grad[1] else None), None

    return Product


@pytest.mark.parametrize("args", [(), (3.0,)])
@pytest.mark.parametrize("both", [False, True])
def test_setup_context(both: bool, args: tuple[float, ...]) -> None:
    results = []
    for library in (genesis, torch):
        x, y = (library.tensor([2.0, 3.0], requires_grad=needed) for needed in (True, both))
        function = apart(library)
        z = function.apply(x, y, *args)
        (gx,) = library.autograd.grad(z.square().sum(), x, create_graph=True)
        gx.sum().backward()
        with library.no_grad():
            assert not function.apply(x, y, *args).requires_grad
        results.append((z.tolist(), gx.tolist(), x.grad.tolist(), y.grad.tolist() if both else y.grad))
    assert results[0] == results[1]


def outputs_of_any_kind(library: Any, materialize: bool, seen: list[Any]) -> Any:
    class Parts(library.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, note: str) -> Any:
            ctx.set_materialize_grads(materialize)
            return x * 2, {"note": note}, x.argmax(), None, x + 1, 3

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            seen.append([grad if grad is None else grad.tolist() for i, grad in enumerate(grads) if i != 2])
            return sum(grad * (i + 2) for i, grad in enumerate(grads) if grad is not None and i in (0, 4)), None

    return Parts


@pytest.mark.parametrize("materialize", [False, True])
@pytest.mark.parametrize("used", [0, 4])
def test_outputs_that_are_no_tensors(used: int, materialize: bool) -> None:
    results = []
    for library in (genesis, torch):
        seen: list[Any] = []
        x = library.tensor([1.0, 2.0], requires_grad=True)
        parts = outputs_of_any_kind(library, materialize, seen).apply(x, "as it is")
        kinds = [part.requires_grad if hasattr(part, "requires_grad") else part for part in parts]
        (grad,) = library.autograd.grad(parts[used].square().sum(), x, create_graph=True)
        parts[used].sum().backward()
        results.append((kinds, seen, grad.tolist(), x.grad.tolist()))
    assert results[0] == results[1]


def in_place(library: Any, keep: bool) -> Any:
    class Scaled(library.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(x.clone(), weight)
            x.mul_(weight)
            ctx.mark_dirty(x)
            return (x, weight + 1) if keep else x

        @staticmethod
        def backward(ctx: Any, grad: Any, *_: Any) -> Any:
            x, weight = ctx.saved_tensors
            return grad * weight, grad * x

    return Scaled


@pytest.mark.parametrize("kind", ["result", "buffer", "view", "leaf", "unrecorded"])
@pytest.mark.parametrize("keep", [False, True])
def test_mark_dirty(keep: bool, kind: str) -> None:
    results = []
    for library in (genesis, torch):
        leaf = library.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=library.float64, requires_grad=kind != "buffer")
        weight = library.tensor([5.0, 6.0], dtype=library.float64, requires_grad=True)
        with library.set_grad_enabled(kind != "unrecorded"):
            base = leaf if kind == "leaf" else leaf * 1
            x = base[:, 0] if kind == "view" else base
            function = in_place(library, keep := keep and not (library is torch and kind == "view"))  # which it refuses
            if kind == "leaf":
                with pytest.raises(RuntimeError):
                    function.apply(x, weight)
                continue
            found = function.apply(x, weight)
            y = found[0] if keep else found
            assert y is x
        if kind != "unrecorded":
            (base * base).sum().backward()
        grads = [each.grad if each.grad is None else each.grad.tolist() for each in (leaf, weight)]
        results.append((base.tolist(), y.requires_grad, grads))
    assert all(result == results[0] for result in results)


def test_calls_without_tensors() -> None:
    def zeros(library: Any) -> Any:
        class Zeros(library.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, size: int) -> Any:
                return library.zeros(size)

        return Zeros.apply(3).tolist()

    assert zeros(genesis) == zeros(torch) == [0, 0, 0]


def keeping(library: Any, names: tuple[str, ...]) -> Any:
    class Keeping(library.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            for number, name in enumerate(names):
                setattr(ctx, name, number)
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * x * sum(getattr(ctx, name) for name in names)

    return Keeping


def test_attributes_of_the_context_are_the_users() -> None:
    names_of_ours = tuple(n for n in dir(genesis.autograd.Context()) if not n.startswith("_"))
    theirs = ("save_for_backward", "mark_dirty", "mark_non_differentiable", "needs_input_grad", "saved_tensors",
              "set_materialize_grads", "save_for_forward", "non_differentiable")  # fmt: skip
    own = tuple(name for name in names_of_ours if name not in theirs)
    assert {"saved", "save", "kwargs", "addend", "owns_grad"} <= set(own)
    results = []
    for library in (genesis, torch):
        x = library.tensor([3.0], requires_grad=True)
        y = keeping(library, own).apply(x)
        (grad,) = library.autograd.grad(y, x, create_graph=True)
        y.backward()
        results.append((grad.item(), x.grad.item()))
    assert results[0] == results[1]
