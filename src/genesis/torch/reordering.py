"""Functions between the chains of a contiguous model on the CPU, on the channels-last values that chains have.

A chain's result is contiguous to other code, by a copy. Pooling, cat, interpolation and arithmetic need none: they
take the values as they are, and their result is pending in its turn, contiguous to whatever is no chain. Its shape and
strides are those that PyTorch gives for contiguous operands, found once per kind of operands on the meta device. So do
the layers in reordered_layers.py. Nobody writes into such values, and slices (slicing.py) are slices of them.
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
from genesis.torch.computed import Computed, Part
from genesis.torch.modes import Modes, current_modes, nothing_intercepts
from genesis.torch.pending import HANDLERS, NOT_HERE, Pending, computed, pending
from genesis.torch.shapes import Plan
from genesis.torch.tensor_guards import Look

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry
    from genesis.torch.norm_entries import BareNorm

_JOINS = frozenset((torch.cat, torch.concat, torch.concatenate, torch.add, Tensor.add, Tensor.__add__))
_ALONE = object()  # a tensor that no chain gave
_MAX_KNOWN = 1 << 14
_any_autocast = torch._C._is_any_autocast_enabled
_known: dict[tuple[object, ...], Look | None] = {}  # by the function and its operands
_NEW = Look.__new__(Look)  # no look
_CPU = torch.device("cpu")


class Origin(NamedTuple):
    """The origin of a result: see Link."""

    entry: ConvEntry | BareNorm
    guarded: Look
    plan: Plan
    dtype: torch.dtype
    modes: Modes


class _UnfitError(Exception):
    """An operand that is left to PyTorch."""


def reordered(first: Computed, y: Tensor, look: Look | None = None, part: Part | None = None) -> Tensor:
    """The result y of channels-last values, for other code contiguous, by a copy that only some uses need.

    Args:
        first: a chain whose values y was computed from.
        look: of y in PyTorch; None: as y, but contiguous.
        part: see Computed.
    """
    look = look or _contiguous(y.shape, y.dtype)
    plan = look.plan
    if part is None and y.is_contiguous():
        return y if y.stride() == plan.strides else y.as_strided(plan.output_shape, plan.strides)
    return pending(_computed(first, y, look, part), 3)


def put_in(p: object, first: Computed, y: Tensor) -> object:
    """p with new values y, as reordered(), which nobody else has; NOT_HERE where it can't have them."""
    if type(p) is not Pending or type(p.link) is not Computed or y.is_contiguous():
        return NOT_HERE
    before, look = p.link, _contiguous(y.shape, y.dtype)
    if look is not before.guarded:
        looks = [(each.dtype, each.plan.output_shape, each.plan.strides) for each in (look, before)]
        if looks[0] != looks[1]:
            return NOT_HERE
    whole = None if before.part is None else before.part.whole
    if whole is not None:  # of which p must be all, then
        return NOT_HERE if put_in(whole, first, y) is NOT_HERE else p
    p.link = _computed(first, y, look, None)
    return p


def _computed(first: Computed, y: Tensor, look: Look, part: Part | None) -> Computed:
    return Computed(Origin(first.entry, look, look.plan, look.dtype, current_modes()), y, None, None, part)


def after_chains(func: Function, handler: Function) -> Function:
    """The handler of a function that extends chains, where there is one, and then this one."""
    extend = HANDLERS.get(func)
    if extend is None:
        return handler

    def handle(*args: object, **kwargs: object) -> object:
        result = extend(*args, **kwargs)
        return handler(*args, **kwargs) if result is NOT_HERE else result

    return handle


def chain_of(p: object) -> Computed | None:
    """The chain's result that p is; None where PyTorch's function is to have it. p may be a plain tensor afterwards."""
    if type(p) is not Pending or not p.stage or _any_autocast() or not nothing_intercepts():
        return None
    chain = computed(p)
    return chain if type(chain) is Computed else None


def values_of(p: object) -> tuple[Computed, Tensor] | None:
    """The same with its values in channels-last."""
    chain = chain_of(p)
    values = None if chain is None else chain.values()
    return None if chain is None or values is None else (chain, values)


def run(func: Function, *args: object, **kwargs: object) -> object:
    """func on the channels-last values of its operands; NOT_HERE where it is left to PyTorch."""
    found = computed_by(func, *args, **kwargs)
    return NOT_HERE if found is None else reordered(*found)


def computed_by(func: Function, *args: object, **kwargs: object) -> tuple[Computed, Tensor, Look] | None:
    """Return a chain among the operands of func, the result of their values, and its look in PyTorch; else None."""
    if _any_autocast() or not nothing_intercepts() or "out" in kwargs:
        return None
    chains: list[Computed] = []
    key: list[object] = [func, *kwargs]
    try:
        values = tuple([_each(value, chains, key) for value in args])
        named = {name: _each(value, chains, key) for name, value in kwargs.items()}
        if not chains:
            return None
        if func in _JOINS and _ALONE in key:
            values = _in_one_order(values)
        whole = tuple(key)
        look = _known.get(whole, _NEW)
    except (_UnfitError, TypeError):  # TypeError: an argument has no hash
        return None
    if look is _NEW:
        look = _keep(whole, _look_of(func, args, kwargs))
    if look is None:
        return None
    y = func(*values, **named)
    assert isinstance(y, Tensor)
    return chains[0], y, look


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
        key.append(chain.guarded)  # its plan and dtype
        return found
    if isinstance(argument, Tensor):
        is_plain = kind is Tensor or kind is nn.Parameter
        if not is_plain or not argument.is_cpu or (argument.requires_grad and torch.is_grad_enabled()):
            raise _UnfitError
        key += (_ALONE, argument.shape, argument.stride(), argument.dtype)
        return argument
    key.append((kind, argument))
    return argument


def _in_one_order(values: tuple[object, ...]) -> tuple[object, ...]:
    """Operands that are read side by side: all images in channels-last, where at least half of the numbers are."""
    images = [x for x in torch.utils._pytree.tree_leaves(values) if isinstance(x, Tensor) and x.dim() == 4]
    last = sum(x.numel() for x in images if x.stride(1) == 1)
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


@functools.lru_cache(4096)
def _contiguous(shape: torch.Size, dtype: torch.dtype) -> Look:
    return look_like(torch.empty(shape, dtype=dtype, device="meta"))


def look_like(y: Tensor) -> Look:
    """The look of a result on the CPU with the shape, strides and dtype of y."""
    rows = y.shape[0] * y.shape[2] * y.shape[3]
    geometry = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
    return Look(Plan(geometry, y.shape, y.shape[1:2], rows, y.stride(), True, False, False), y.dtype, _CPU)


def _keep(key: tuple[object, ...], look: Look | None) -> Look | None:
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[key] = look
    return look


_WINDOWS: tuple[Function, ...] = (
    F.max_pool2d, torch.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.interpolate, F.conv_transpose2d,
)  # fmt: skip
_PRODUCTS: tuple[Function, ...] = (
    torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__,
    torch.div, torch.divide, Tensor.div, Tensor.divide, Tensor.__truediv__,
    torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__,
)  # fmt: skip
HANDLERS.update({func: after_chains(func, functools.partial(run, func)) for func in (*_WINDOWS, *_PRODUCTS, *_JOINS)})
