"""Run an op of PyTorch's OpInfo database on Genesis and on PyTorch, and compare results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import genesis
from genesis import dtypes

DTYPES = {getattr(torch, dtype.name): dtype for dtype in dtypes.ALL}
ERRORS = (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError, OverflowError)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def find(name: str) -> Callable[..., Any] | None:
    """The function of Genesis under OpInfo's name: nn.functional.X is genesis.nn.functional.X, X is genesis.X."""
    space: Any = genesis
    for part in name.split("."):
        space = getattr(space, part, None)
    return space


def to_genesis(value: Any, device: str = "cpu") -> Any:
    """The same arguments for Genesis: tensors are copied (strides kept), dtypes and containers translated."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            copy = torch.empty_strided(leaf.shape, _dense(leaf), dtype=leaf.dtype).copy_(leaf.detach())
            tensor = genesis.from_torch(copy).to(device)
            return tensor.detach().requires_grad_() if leaf.requires_grad else tensor
        if isinstance(leaf, torch.memory_format):
            return genesis.channels_last if leaf is torch.channels_last else genesis.contiguous_format
        if isinstance(leaf, torch.device):
            return device
        return DTYPES.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return tree_map(convert, value)


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    order = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim))
    return genesis.shapes.strides_in_order(tensor.shape, order)


def tensors(value: Any, kind: type) -> list[Any]:
    """The tensors anywhere in a result or an argument list."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, kind)]


def check_sample(
    ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any, device: str = "cpu", gradients: bool = True
) -> None:
    """Results agree in value, shape and dtype; so do the gradients of every operand that requires grad."""
    arguments = (sample.input, *sample.args)
    expected = theirs(*arguments, **sample.kwargs)
    mine = to_genesis((arguments, sample.kwargs), device)
    actual = ours(*mine[0], **mine[1])
    expected_tensors, actual_tensors = tensors(expected, torch.Tensor), tensors(actual, genesis.Tensor)
    if not isinstance(expected, torch.Tensor | tuple | list):
        assert actual == expected, f"expected {expected!r}, got {actual!r}"
    assert len(actual_tensors) == len(expected_tensors)
    for number, (a, e) in enumerate(zip(actual_tensors, expected_tensors, strict=True)):
        compare(f"result {number}", a, e)
    if gradients:
        _check_gradients(arguments, sample.kwargs, mine, expected_tensors, actual_tensors)


def _check_gradients(arguments: Any, kwargs: Any, mine: Any, expected: list[Any], actual: list[Any]) -> None:
    operands = [t for t in tensors((arguments, kwargs), torch.Tensor) if t.requires_grad]
    my_operands = [t for t in tensors(mine, genesis.Tensor) if t.requires_grad]
    pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if e.requires_grad]
    for a, e in zip(actual, expected, strict=True):
        assert a.requires_grad == e.requires_grad, f"requires_grad: expected {e.requires_grad}, got {a.requires_grad}"
    if not operands or not pairs:
        return
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(e.shape, generator=generator, dtype=torch.float32).to(e.dtype) for _, e in pairs]
    wanted = torch.autograd.grad([e for _, e in pairs], operands, seeds, allow_unused=True)
    device = str(actual[0].device)
    my_seeds = [to_genesis(seed, device) for seed in seeds]
    found = genesis.autograd.grad([a for a, _ in pairs], my_operands, my_seeds, allow_unused=True)
    for number, (a, e) in enumerate(zip(found, wanted, strict=True)):
        if e is None or a is None:
            zero = a if e is None else e
            assert zero is None or not zero.to(device="cpu").abs().sum().item(), (
                f"gradient of operand {number} is missing"
            )
        else:
            compare(f"gradient of operand {number}", a, e)


def compare(what: str, actual: Any, expected: torch.Tensor) -> None:
    assert actual.shape == tuple(expected.shape), f"{what}: expected shape {tuple(expected.shape)}, got {actual.shape}"
    assert actual.dtype is DTYPES[expected.dtype], f"{what}: expected {expected.dtype}, got {actual.dtype}"
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    values = actual.detach().cpu().to_torch()
    torch.testing.assert_close(
        values, expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def check_error(ours: Callable[..., Any], error_input: Any, device: str = "cpu") -> None:
    """What PyTorch refuses, Genesis refuses too, by one of its clear errors."""
    sample = error_input.sample_input
    arguments, kwargs = to_genesis(((sample.input, *sample.args), sample.kwargs), device)
    try:
        result = ours(*arguments, **kwargs)
    except ERRORS as error:
        assert str(error), "an error without a message"
        return
    raise AssertionError(f"expected an error like {error_input.error_regex!r}, got {result!r}")
