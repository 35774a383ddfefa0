"""Run an op of PyTorch's OpInfo database on Genesis and on PyTorch, and compare results and gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import genesis
from genesis import dtypes, shapes
from tests.conformance import surface

DTYPES = {getattr(torch, dtype.name): dtype for dtype in dtypes.ALL}
ERRORS = (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError, OverflowError)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def find(name: str) -> Callable[..., Any] | None:
    """Ours for OpInfo's op of that name: nn.functional.X is genesis.nn.functional.X, X is genesis.X, unless CALLS knows."""
    if name in surface.CALLS:
        return surface.CALLS[name]
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
    return shapes.strides_in_order(tensor.shape, order)


def tensors(value: Any, kind: type) -> list[Any]:
    """The tensors anywhere in a result or an argument list."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, kind)]


def check_sample(
    ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any, device: str = "cpu", gradients: bool = True
) -> None:
    """Results agree in value, shape and dtype; so do the gradients of every operand that requires grad."""
    arguments = ((sample.input, *sample.args), sample.kwargs)
    mine = to_genesis(arguments, device)
    expected = theirs(*arguments[0], **arguments[1])
    actual = ours(*mine[0], **mine[1])
    expected_tensors, actual_tensors = tensors(expected, torch.Tensor), tensors(actual, genesis.Tensor)
    if not isinstance(expected, torch.Tensor | tuple | list):
        assert actual == expected, f"expected {expected!r}, got {actual!r}"
    assert len(actual_tensors) == len(expected_tensors)

    @functools.cache
    def truth() -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        exact = tree_map(_to_float64, arguments)
        results = tensors(theirs(*exact[0], **exact[1]), torch.Tensor)
        return results, _gradients(exact, results) if gradients else []

    for number, (a, e) in enumerate(zip(actual_tensors, expected_tensors, strict=True)):
        compare(f"result {number}", a, e, lambda number=number: truth()[0][number])
        if gradients:
            assert a.requires_grad == e.requires_grad, (
                f"requires_grad: expected {e.requires_grad}, got {a.requires_grad}"
            )
    if gradients:
        wanted, found = _gradients(arguments, expected_tensors), _my_gradients(mine, expected_tensors, actual_tensors)
        for number, (a, e) in enumerate(zip(found, wanted, strict=True)):
            what = f"gradient of operand {number}"
            if e is None or a is None:
                zero = a if e is None else e
                assert zero is None or not zero.to(device="cpu").abs().sum().item(), f"{what} is missing"
            else:
                compare(what, a, e, lambda number=number: truth()[1][number])


def _to_float64(leaf: Any) -> Any:
    is_half = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)
    return leaf.detach().double().requires_grad_(leaf.requires_grad) if is_half else leaf


def _seeds(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of the results that backward starts from, the same for every dtype."""
    generator = torch.Generator().manual_seed(0)
    shapes = [result.shape for result in results if result.requires_grad]
    return [torch.randn(shape, generator=generator, dtype=torch.float32) for shape in shapes]


def _gradients(arguments: Any, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    operands = [t for t in tensors(arguments, torch.Tensor) if t.requires_grad]
    chosen = [result for result in results if result.requires_grad]
    if not operands or not chosen:
        return []
    seeds = [seed.to(result.dtype) for seed, result in zip(_seeds(results), chosen, strict=True)]
    return list(torch.autograd.grad(chosen, operands, seeds, allow_unused=True))


def _my_gradients(arguments: Any, expected: list[torch.Tensor], results: list[Any]) -> list[Any]:
    operands = [t for t in tensors(arguments, genesis.Tensor) if t.requires_grad]
    chosen = [result for result in results if result.requires_grad]
    if not operands or not chosen:
        return []
    seeds = [to_genesis(seed, str(r.device)).to(r.dtype) for seed, r in zip(_seeds(expected), chosen, strict=True)]
    return list(genesis.autograd.grad(chosen, operands, seeds, allow_unused=True))


def compare(what: str, actual: Any, expected: torch.Tensor, truth: Callable[[], Any] | None = None) -> None:
    """Equal shapes and dtypes; values within the tolerance, or (16-bit floats) no farther from the float64 truth."""
    assert actual.shape == tuple(expected.shape), f"{what}: expected shape {tuple(expected.shape)}, got {actual.shape}"
    assert actual.dtype is DTYPES[expected.dtype], f"{what}: expected {expected.dtype}, got {actual.dtype}"
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    values, expected = actual.detach().cpu().to_torch(), expected.detach()
    try:
        torch.testing.assert_close(
            values, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
        )
    except AssertionError:
        if truth is None or expected.dtype not in (torch.float16, torch.bfloat16):
            raise
        exact = truth().detach()
        error, allowed = (torch.linalg.vector_norm(x.double() - exact) for x in (values, expected))
        if not error <= allowed:
            raise


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
