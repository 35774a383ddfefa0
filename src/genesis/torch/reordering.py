"""Functions between the chains of a contiguous model on the CPU, on the channels-last values that chains have.

A chain's result is contiguous to other code, by a copy. Pooling, cat, interpolation, sums and products need none: they
take the values as they are, and their result is pending in its turn, contiguous to whatever is no chain. Its shape and
strides are those that PyTorch gives for contiguous operands, found once per kind of operands on the meta device.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genesis.records import ConvGeometry
from genesis.torch import pending_pooling as pending_pooling  # whose handlers come first
from genesis.torch import pending_scales as pending_scales
from genesis.torch.activations import Function
from genesis.torch.computed import Computed
from genesis.torch.modes import Modes, current_modes, nothing_intercepts
from genesis.torch.pending import HANDLERS, NOT_HERE, Pending, computed, pending
from genesis.torch.shapes import Plan
from genesis.torch.tensor_guards import Look

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry
    from genesis.torch.norm_entries import BareNorm

_JOINS = frozenset((torch.cat, torch.concat, torch.concatenate, torch.add, Tensor.add, Tensor.__add__))
_MAX_KNOWN = 1024
_any_autocast = torch._C._is_any_autocast_enabled
_known: dict[tuple[object, ...], Look | None] = {}  # by the function and its operands


class _Origin(NamedTuple):
    """The origin of a result: see Link."""

    entry: ConvEntry | BareNorm
    guarded: Look
    plan: Plan
    dtype: torch.dtype
    modes: Modes


class _UnfitError(Exception):
    """An operand that is left to PyTorch."""


def reordered(first: Computed, y: Tensor, look: Look | None = None) -> Tensor:
    """The result y of channels-last values, for other code contiguous, by a copy that only some uses need.

    Args:
        first: a chain whose values y was computed from.
        look: of y in PyTorch; None: as y, but contiguous.
    """
    look = look or _contiguous(y.shape, y.dtype)
    plan = look.plan
    if y.is_contiguous():
        return y if y.stride() == plan.strides else y.as_strided(plan.output_shape, plan.strides)
    origin = _Origin(first.entry, look, plan, look.dtype, current_modes())
    return pending(Computed(origin, y, None, None), 3)


def _handler(func: Function) -> Function:
    """The handler of a function: the one that extends chains where there is one, and then _run."""
    extend = HANDLERS.get(func)
    if extend is None:
        return functools.partial(_run, func)

    def handler(*args: object, **kwargs: object) -> object:
        result = extend(*args, **kwargs)
        return _run(func, *args, **kwargs) if result is NOT_HERE else result

    return handler


def _run(func: Function, *args: object, **kwargs: object) -> object:
    """func on the channels-last values of its operands; NOT_HERE where it is left to PyTorch."""
    if _any_autocast() or not nothing_intercepts() or "out" in kwargs:
        return NOT_HERE
    chains: list[Computed] = []
    key: list[object] = [func, *kwargs]
    try:
        values = tuple([_each(value, chains, key) for value in args])
        named = {name: _each(value, chains, key) for name, value in kwargs.items()}
        if func in _JOINS:
            values = _in_one_order(values)
        if not chains:
            return NOT_HERE
        is_known = tuple(key) in _known
    except (_UnfitError, TypeError):  # TypeError: an argument has no hash
        return NOT_HERE
    look = _known[tuple(key)] if is_known else _keep(tuple(key), _look_of(func, args, kwargs))
    if look is None:
        return NOT_HERE
    y = func(*values, **named)
    assert isinstance(y, Tensor)
    return reordered(chains[0], y, look)


def _each(argument: object, chains: list[Computed], key: list[object]) -> object:
    """The argument with values for each Pending. chains: where these go; key: where what they look like goes."""
    kind = type(argument)
    if type(argument) is tuple or type(argument) is list:
        key.append(len(argument))
        return kind([_each(value, chains, key) for value in argument])  # type: ignore[call-arg]
    if type(argument) is Pending:
        chain = computed(argument) if argument.stage else None
        if type(chain) is not Computed or (found := chain.values()) is None:
            raise _UnfitError
        chains.append(chain)
        key.append((chain.plan.output_shape, chain.plan.strides, chain.dtype))
        return found
    if isinstance(argument, Tensor):
        is_plain = kind is Tensor or kind is nn.Parameter
        if not is_plain or not argument.is_cpu or (argument.requires_grad and torch.is_grad_enabled()):
            raise _UnfitError
        key.append((argument.shape, argument.stride(), argument.dtype))
        return argument
    key.append((kind, argument))
    return argument


def _in_one_order(values: tuple[object, ...]) -> tuple[object, ...]:
    """Operands that are read side by side: all images in channels-last, where at least half of the numbers are."""
    images = [x for x in torch.utils._pytree.tree_leaves(values) if isinstance(x, Tensor) and x.dim() == 4]
    last = sum(x.numel() for x in images if x.is_contiguous(memory_format=torch.channels_last))
    if 2 * last < sum(x.numel() for x in images):
        raise _UnfitError
    return tuple([[*map(_to_last, each)] if isinstance(each, list | tuple) else _to_last(each) for each in values])


def _to_last(x: object) -> object:
    if not isinstance(x, Tensor) or x.dim() != 4 or 1 in (x.shape[1], x.shape[2] * x.shape[3]):
        return x
    return x.contiguous(memory_format=torch.channels_last)


def _look_of(func: Function, args: tuple[object, ...], kwargs: dict[str, object]) -> Look | None:
    """Find the look of the result in PyTorch; None where it is no contiguous image."""

    def shown(value: object) -> object:
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if type(value) is list or type(value) is tuple:
            return type(value)(map(shown, value))
        return value

    y = func(*map(shown, args), **{name: shown(value) for name, value in kwargs.items()})
    if not isinstance(y, Tensor) or y.dim() != 4 or not y.numel() or not y.is_contiguous():
        return None
    return _contiguous(y.shape, y.dtype)


def _contiguous(shape: torch.Size, dtype: torch.dtype) -> Look:
    found = _known.get((shape, dtype))
    if found is None:
        strides = torch.empty(shape, device="meta").stride()
        rows = shape[0] * shape[2] * shape[3]
        plan = Plan(ConvGeometry((1, 1), (0, 0), (1, 1), 1), shape, shape[1:2], rows, strides, True, False, False)
        found = Look(plan, dtype, torch.device("cpu"))
        _keep((shape, dtype), found)
    return found


def _keep(key: tuple[object, ...], look: Look | None) -> Look | None:
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[key] = look
    return look


_WINDOWS: tuple[Function, ...] = (
    F.max_pool2d, torch.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.interpolate, F.conv_transpose2d,
)  # fmt: skip
_PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)
HANDLERS.update({func: _handler(func) for func in (*_WINDOWS, *_PRODUCTS, *_JOINS)})
