"""Run an op of PyTorch's OpInfo database on Genesis and on PyTorch, and compare results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import genesis
from genesis import dtypes, shapes
from genesis.port.facade import facade
from tests.conformance import surface
from tests.conformance.accuracy import Distances

FORMATS = ("channels_last", "contiguous_format", "preserve_format")
DTYPES = {getattr(torch, dtype.name): dtype for dtype in dtypes.WITH_COMPLEX}
MEMORY_FORMATS = {getattr(torch, name): getattr(genesis, name) for name in FORMATS}
ERRORS = (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError, OverflowError)
SIXTEEN_BITS = (torch.float16, torch.bfloat16)
INEXACT = (*SIXTEEN_BITS, torch.float32)  # on a GPU even float32 sums in another order
TOLERANCE = {
    torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.complex128: 1e-12,
    torch.complex64: 1e-4,
}  # fmt: skip


def find(name: str) -> Callable[..., Any] | None:
    """Ours for OpInfo's op of that name: genesis.X, or what redirected code has as torch.X, unless the table CALLS
    says otherwise."""
    if name in surface.CALLS:
        return surface.CALLS[name]
    for root in (genesis, facade("torch")):
        found: Any = root
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return found
    return None


def to_genesis(value: Any, device: str = "cpu") -> Any:
    """The same arguments for Genesis: tensors are copied (strides kept), dtypes and containers translated."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            copy = torch.empty_strided(leaf.shape, _dense(leaf), dtype=leaf.dtype).copy_(leaf.detach())
            tensor = genesis.from_torch(copy).to(device)
            return tensor.detach().requires_grad_() if leaf.requires_grad else tensor
        if isinstance(leaf, torch.memory_format):
            return MEMORY_FORMATS[leaf]
        if isinstance(leaf, torch.device):
            return device
        return DTYPES.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return mapped(convert, value)


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    order = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim))
    return shapes.strides_in_order(tensor.shape, order)


def tensors(value: Any, kind: type) -> list[Any]:
    """The tensors anywhere in a result or an argument list. PyTorch's tree_flatten takes ten times as long."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for part in value for tensor in tensors(part, kind)] if isinstance(value, tuple | list) else []


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """An argument list with what the function makes of each part. PyTorch's tree_map takes several times as long."""
    if isinstance(value, dict):
        return {key: mapped(function, part) for key, part in value.items()}
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return type(value)([mapped(function, part) for part in value])
    return function(value)


def check_sample(
    ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any, device: str = "cpu", gradients: bool = True,
    measured: list[Distances] | None = None,
) -> None:  # fmt: skip
    """Results agree in value, shape and dtype; so do the gradients of every operand that requires grad.

    measured: the call's distances from float64 are added to it.
    """
    arguments = ((sample.input, *sample.args), sample.kwargs)
    mine = to_genesis(arguments, device)
    expected = theirs(*arguments[0], **arguments[1])
    actual = ours(*mine[0], **mine[1])
    if not isinstance(expected, torch.Tensor | tuple | list):
        assert actual == expected, f"expected {expected!r}, got {actual!r}"
    expected_tensors, actual_tensors = tensors(expected, torch.Tensor), tensors(actual, genesis.Tensor)
    assert len(actual_tensors) == len(expected_tensors)
    for a, e in zip(actual_tensors, expected_tensors, strict=True):
        assert not gradients or a.requires_grad == e.requires_grad, f"requires_grad: expected {e.requires_grad}"
    pairs = [
        (f"result {number}", *pair) for number, pair in enumerate(zip(actual_tensors, expected_tensors, strict=True))
    ]
    if gradients:
        found = _gradients_of_genesis(mine, actual_tensors)
        wanted = _gradients_of_torch(arguments, expected_tensors)
        pairs += [(f"gradient {number}", *pair) for number, pair in enumerate(zip(found, wanted, strict=True))]
    exact: list[torch.Tensor] = []
    for number, (what, a, e) in enumerate(pairs):
        compare_kinds(what, a, e)
        try:
            compare_values(what, a, e)
        except AssertionError:
            coarsest = max([TOLERANCE.get(t.dtype, 0.0) for t in tensors(arguments, torch.Tensor)], default=0.0)
            if e.dtype is torch.float64 and _distance(a.detach().cpu().to_torch(), e.detach()) <= coarsest:
                continue  # an element that is small beside the others, which cancel in it; or one made of float32's
            if e.dtype not in (SIXTEEN_BITS if device == "cpu" else INEXACT):
                raise
            exact = exact or _in_float64(theirs, arguments, gradients)
            _compare_errors(what, a, e, exact[number])
    if measured is not None:
        exact = exact or _in_float64(theirs, arguments, gradients)
        measured.append(_distances([(a, e) for _, a, e in pairs], exact))


def _gradients_of_torch(arguments: Any, results: list[torch.Tensor]) -> list[torch.Tensor]:
    operands = [t for t in tensors(arguments, torch.Tensor) if t.requires_grad]
    results = [result for result in results if result.requires_grad]
    if not operands or not results:
        return []
    seeds = [seed_like(result) for result in results]
    return list(torch.autograd.grad(results, operands, seeds, allow_unused=True, materialize_grads=True))


def _gradients_of_genesis(arguments: Any, results: list[Any]) -> list[Any]:
    operands = [t for t in tensors(arguments, genesis.Tensor) if t.requires_grad]
    results = [result for result in results if result.requires_grad]
    if not operands or not results:
        return []
    seeds = [to_genesis(seed_like(result.detach().cpu().to_torch()), str(result.device)) for result in results]
    return list(genesis.autograd.grad(results, operands, seeds, allow_unused=True, materialize_grads=True))


def seed_like(result: torch.Tensor) -> torch.Tensor:
    """The same random gradient for every dtype."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.complex64 if result.is_complex() else torch.float32
    seed = torch.randn(result.shape, generator=generator, dtype=kind)
    return (seed if result.is_complex() else seed.to(torch.bfloat16)).to(result.dtype)


def compare_kinds(what: str, actual: Any, expected: torch.Tensor) -> None:
    assert actual.shape == tuple(expected.shape), f"{what}: expected shape {tuple(expected.shape)}, got {actual.shape}"
    assert actual.dtype is DTYPES[expected.dtype], f"{what}: expected {expected.dtype}, got {actual.dtype}"


def compare_values(what: str, actual: Any, expected: torch.Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE.get(expected.dtype, 0.0) if tolerance is None else tolerance
    values, expected = actual.detach().cpu().to_torch(), expected.detach().cpu()
    is_alike = values.shape == expected.shape and values.dtype is expected.dtype
    if is_alike and torch.allclose(values, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return  # assert_close takes five times as long, to say what is not
    torch.testing.assert_close(
        values,
        expected,
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )


def _in_float64(theirs: Callable[..., Any], arguments: Any, gradients: bool) -> list[torch.Tensor]:
    """The results and gradients of a call, computed in float64."""

    def widen(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return torch.float64 if leaf in INEXACT else leaf
        return leaf.detach().double().requires_grad_(leaf.requires_grad)

    wide = mapped(widen, arguments)
    results = tensors(theirs(*wide[0], **wide[1]), torch.Tensor)
    return results + (_gradients_of_torch(wide, results) if gradients else [])


def distances(ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any, device: str) -> Distances:
    """How far each result and gradient, of Genesis and of PyTorch, is from float64: relative to its norm."""
    arguments = ((sample.input, *sample.args), sample.kwargs)
    mine = to_genesis(arguments, device)
    expected, actual = tensors(theirs(*arguments[0], **arguments[1]), torch.Tensor), ours(*mine[0], **mine[1])
    found = tensors(actual, genesis.Tensor)
    found += _gradients_of_genesis(mine, found)
    expected += _gradients_of_torch(arguments, expected)
    return _distances(list(zip(found, expected, strict=True)), _in_float64(theirs, arguments, gradients=True))


def _distances(pairs: list[tuple[Any, torch.Tensor]], exact: list[torch.Tensor]) -> Distances:
    found = []
    for (a, e), x in zip(pairs, exact, strict=True):
        if e.dtype is torch.float32 and x.numel():
            both = a.detach().cpu().to_torch().double(), e.detach().double()
            found.append((_distance(both[0], x.detach()), _distance(both[1], x.detach())))
    return found


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Of what is finite in both. A norm below 1e-13 is float64's own rounding of 0, as in the gradient of x / |x|."""
    finite = found.isfinite() & exact.isfinite()
    norm = exact[finite].norm().item()
    return (found - exact)[finite].norm().item() / norm if norm > 1e-13 else 0.0


def _compare_errors(what: str, actual: Any, expected: torch.Tensor, exact: torch.Tensor) -> None:
    """Where two results differ, ours is as near to the float64 result as PyTorch's is, element by element."""
    ours, theirs, exact = actual.detach().cpu().to_torch().double(), expected.detach().double(), exact.detach()
    distance = (theirs - exact).abs().nan_to_num(0)  # PyTorch's remainder in bfloat16 gives NaN for tiny divisors
    allowed = distance + TOLERANCE[expected.dtype] * (1 + exact.abs())
    equal = (ours == theirs) | (ours.isnan() & theirs.isnan())  # infinities have no distance
    excess = ((ours - exact).abs() - allowed).masked_fill(equal, 0)
    assert (excess <= 0).all(), (
        f"{what}: {excess.max().item():.2g} further from float64 than PyTorch's, in {expected.dtype}"
    )


def check_refused(ours: Callable[..., Any], sample: Any, wanted: str, device: str = "cpu") -> None:
    """A call that must end in an error with a message; wanted describes it where it does not."""
    try:
        arguments, kwargs = to_genesis(((sample.input, *sample.args), sample.kwargs), device)
        result = ours(*arguments, **kwargs)
        if device == "cuda":
            genesis.cuda.synchronize()  # an index out of range is found by the kernel, and raised here
    except ERRORS as error:
        if str(error):
            return
        raise AssertionError("an error without a message") from error
    raise AssertionError(f"expected an error like {wanted!r}, got {result!r}")
