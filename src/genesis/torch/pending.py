"""Deferred tensors: a convolution's output, until other code uses it.

A `Pending` stands for conv(x), batch_norm(conv(x)), or the sum of that and a residual. Batch norm, a sum and an
activation extend it; any other use computes it first and turns the object itself into a plain tensor. The result of a
chain of contiguous tensors is one too, of stage 3: computed, but in another order of memory. The statistics of batch
norm are computed when it is called, so that nothing with a side effect is ever deferred.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn

from genesis.records import NormState
from genesis.torch import activations, bridge
from genesis.torch.activations import Function
from genesis.torch.computed import Computed
from genesis.torch.links import NO_NORM, Link
from genesis.torch.modes import are_current, are_current_for_guarded, versions_of_norm
from genesis.torch.reasons import SUMMED
from genesis.torch.tensor_guards import GuardedConv, GuardedNorm, Look, guard

_swap, _make = torch._C._swap_tensor_impl, Tensor._make_wrapper_subclass
_any_autocast = torch._C._is_any_autocast_enabled
_has_torch_function, _function_modes = torch._C._is_torch_function_enabled, torch._C._len_torch_function_stack
_PLAIN = (Tensor, nn.Parameter)


class _NotHere(Enum):
    NOT_HERE = 0


NOT_HERE: Final = _NotHere.NOT_HERE  # the result of a handler that leaves the call to PyTorch
NotHere = Literal[_NotHere.NOT_HERE]


@final
class Pending(Tensor):
    """A tensor without values. Its attributes are gone once the object is a plain tensor."""

    link: Link | Computed
    stage: int
    value: Tensor | None  # the result, if the object itself cannot become it

    def dim(self) -> int:  # batch norm asks for it: without __torch_function__
        return 4

    @classmethod
    def __torch_function__(
        cls, func: Function, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        handler = HANDLERS.get(func)
        if handler is not None:
            result = handler(*args, **(kwargs or {}))
            if result is not NOT_HERE:
                return result
        for arg in args:
            for each in arg if type(arg) in (list, tuple) else (arg,):  # type: ignore[attr-defined]  # cat's list
                if type(each) is Pending and each.stage < 3:
                    each.link.entry.taker = getattr(func, "__name__", "")
        return func(*materialized(args), **materialized(kwargs or {}))

    # A sum that Python calls directly: three times as fast as by __torch_function__.
    def __add__(self, other: object) -> Tensor:
        return _sum(Tensor.__add__, self, other)

    def __iadd__(self, other: object) -> Tensor:
        return _sum(Tensor.__iadd__, self, other)

    def __radd__(self, other: object) -> Tensor:
        result = _deferred_sum(Tensor.__radd__, self, other)
        if result is not NOT_HERE:
            return result
        # Python asks a subclass first; but the result has the order of memory of the first operand.
        return NotImplemented if isinstance(other, Tensor) else Tensor.__radd__(self, other)

    @classmethod
    def __torch_dispatch__(
        cls, func: Function, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        """Compute the operands of C++ code that bypassed __torch_function__."""
        return func(*_without_graph(args), **_without_graph(kwargs or {}))


def pending(link: Link | Computed, stage: int) -> Pending:
    make = link.guarded.make
    p = _maker(link.guarded)() if make is None else make()
    p.__dict__ = {"link": link, "stage": stage, "value": None}
    return p


def _maker(guarded: GuardedConv | Look) -> Callable[[], Pending]:
    plan = guarded.plan
    how = (plan.strides, None, None, guarded.dtype, torch.strided, guarded.device)  # by name they cost a fifth more
    made = guarded.make = functools.partial(_make, Pending, plan.output_shape, *how)
    return made


def materialize(p: Pending) -> Tensor:
    """Compute a Pending, and turn the object itself into a plain tensor; or return another one, if C++ holds it too."""
    if p.value is not None:
        return p.value
    value = _compute(p)
    link = p.link
    if type(link) is Computed and link.taken:
        p.value = value
        link.inner = None
        return value
    return become(p, value)


def _compute(p: Pending) -> Tensor:
    link, stage = p.link, p.stage
    if not stage and type(link) is Link and link.norm is NO_NORM:
        link.entry.is_shared = True
    value = link.compute(stage)
    if type(link) is Link:
        link.note_materialized(stage)
    return value.compute(3) if type(value) is Computed else value


def given(y: Tensor | Computed) -> Tensor:
    """The result of a chain, as the caller of its last layer gets it."""
    return pending(y, 3) if type(y) is Computed else y


def computed(p: Pending) -> Tensor | Computed:
    """Compute a Pending for a chain that takes it."""
    if p.value is not None:
        return p.value
    link = p.link
    if p.stage == 1 or p.stage == 2:
        value = link.compute(p.stage)
        assert type(link) is Link
        link.note_materialized(p.stage)
        if type(value) is not Computed:
            return become(p, value)
        p.link, p.stage = link, _ = value, 3
    return link if type(link) is Computed and link.is_current() else materialize(p)


def become(p: Pending, value: Tensor) -> Tensor:
    """Turn the object into a plain tensor; or note the value in it and return that, if C++ holds the object too."""
    if _function_modes():
        with torch._C.DisableTorchFunction():
            return _become(p, value)
    return _become(p, value)


def _become(p: Pending, value: Tensor) -> Tensor:
    p.__class__ = Tensor  # whose methods no __torch_function__ sees
    try:
        if p._use_count() == 1:
            _swap(p, value)
            p.__dict__ = value.__dict__
            return p
    except RuntimeError:  # a profiler that records shapes knows it too
        pass
    p.__class__ = Pending
    p.value = value
    return value


def materialized(value: Any) -> Any:
    """Return a value with plain tensors for every Pending in it, containers included."""
    kind = type(value)
    if kind is Pending:
        return materialize(value)
    if kind in (tuple, list):
        return kind([materialized(each) for each in value])
    if kind is dict:
        return {key: materialized(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(materialized, value))
    if isinstance(value, list | tuple | dict):
        torch.utils._pytree.tree_map_only(Pending, materialize, value)
    return value


def _without_graph(value: Any) -> Any:
    """The values for C++ code, which runs below autograd."""
    if type(value) is Pending:
        link = value.link
        if value.value is None and link.needs_gradients(value.stage):
            link.entry.stop("C++ code uses its result")
            message = (
                f"genesis.torch.fuse: the deferred result of convolution '{link.entry.name}' reached C++ or "
                "TorchScript code, which cannot record its gradient. From the next call on it is computed at once; "
                "genesis.torch.unfuse(model) gives the plain model."
            )
            warnings.warn(message, stacklevel=2)  # TorchScript passes on no message
            raise RuntimeError(message)
        if value.value is None:
            result = link.compute(value.stage)
            value.value = result.compute(3) if type(result) is Computed else result
        return value.value
    if isinstance(value, list | tuple):
        return type(value)([_without_graph(each) for each in value])
    return {key: _without_graph(each) for key, each in value.items()} if isinstance(value, dict) else value


# --- functions that extend a Pending ---
def can_extend(p: Pending, link: Link) -> bool:
    """Are the modes those in which the Pending was created?"""
    return p.value is None and are_current(link.modes) and (not _any_autocast() or is_autocast_to(link))


def is_autocast_to(link: Link) -> bool:
    """Is autocast off, or does it prescribe the dtype of the convolution?"""
    return not _any_autocast() or link.dtype is torch.get_autocast_dtype("cuda" if link.input.is_cuda else "cpu")


def batch_norm(p: Any, norm: NormState[Tensor], training: bool, momentum: float, eps: float) -> Any:
    """F.batch_norm of a Pending, NOT_HERE if that is PyTorch's business; the norm's count of batches grows by 1."""
    link: Link = p.link
    weight, bias, mean, var, count = norm
    if p.stage or p.value is not None or not eps > 0.0 or type(momentum) is not float:
        return NOT_HERE
    if training and link.output is not None:
        return NOT_HERE
    entry, known = link.entry, None
    if weight is not None and bias is not None and mean is not None and var is not None:
        tensors = norm[:4] if count is None else norm
        known = link.guarded.norm
        if known is not None and not known.fits(tensors, training):
            known = None
    if known is None:
        if not can_extend(p, link) or not _takes_norm(link, norm, training):
            return NOT_HERE
        if weight is not None and bias is not None and mean is not None and var is not None:
            known = link.guarded.norm = GuardedNorm(tensors, training)
    elif not are_current_for_guarded(link.modes) or not is_autocast_to(link):
        return NOT_HERE
    link.known = known
    link.check_convolution()
    if link.norm is not None:  # the convolution's output goes to several norms
        entry.is_shared = entry.is_shared or link.norm is NO_NORM
        link = link.copy(0)
    if training:
        entry.folds.forget()
    link.norm, link.training, link.momentum, link.eps = norm, training, momentum, eps
    entry.norm = id(mean if weight is None else weight)
    if link.output is None:
        if entry.next == "value":
            y = link.whole(None)
            return given(link.in_order(y) if link.plan.fits_both else y)
        if entry.next not in NO_ACTIVATIONS:
            link.ready, link.ready_for = link.whole(entry.next), entry.next
        elif entry.next != "add" or training or link.needs_gradients(1):  # else it has no effect, and the sum may come
            link.begin(norm)
    else:
        link.begin(norm)
    link.norm_versions = versions_of_norm(norm, training)
    return pending(link, 1)


def _takes_norm(link: Link, norm: NormState[Tensor], training: bool) -> bool:
    """Can the op compute this batch norm?"""
    _, _, mean, var, _ = norm
    if (training and link.plan.num_rows == 1) or (mean is None) is not (var is None) or (mean is None and not training):
        return False
    size, device, dtype = link.plan.channels, link.input.get_device(), None
    for each in norm[:4]:
        if each is None:
            continue
        if type(each) is not Tensor and type(each) is not nn.Parameter:
            return False
        dtype = dtype or each.dtype
        if each.dtype is not dtype or each.shape != size or each.get_device() != device:
            return False
    if dtype is not link.dtype and dtype is not None and (dtype is not torch.float32 or link.dtype.itemsize != 2):
        return False
    if mean is not None and mean.is_meta:
        return False
    return not (training and mean is not None and (mean.requires_grad or mean.is_inference()))


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor | NotHere:  # fmt: skip
    if type(input) is not Pending or type(training) is not bool or type(eps) is not float:
        return NOT_HERE
    return batch_norm(input, NormState(weight, bias, running_mean, running_var), training, momentum, eps)


def activate(p: Pending, activation: str, inplace: bool) -> Tensor | NotHere:
    """An activation of a Pending, or NOT_HERE."""
    link, stage = p.link, p.stage
    if type(link) is Computed or not can_extend(p, link):
        return NOT_HERE
    if stage == 1 and link.ready is not None and link.ready_for == activation:
        y, link.ready = link.ready, None
        link.note_fused(1, activation)
        return _given_to(p, y, activation, inplace)
    if not stage:
        if link.output is not None or link.entry.is_shared:
            return NOT_HERE
        if link.norm is not None:
            link.entry.is_shared = True
            return NOT_HERE
        if not bridge.activates(link.input):
            link.entry.leave_on_cpu()
            return NOT_HERE
        y = link.activate(activation, inplace, 0)
    elif link.norm is NO_NORM:
        if activation != "relu":  # whose derivative of higher orders asks nothing of the summand
            return NOT_HERE
        y = link.activate(activation, inplace, stage)
    else:
        y = link.finish(activation, stage)
    link.note_fused(stage, activation)
    return _given_to(p, y, activation, inplace)


def _given_to(p: Pending, y: Tensor | Computed, activation: str, inplace: bool) -> Tensor:
    """The result of an activation of p, p itself if it works in place."""
    link = p.link
    if link.plan.fits_both and type(link) is Link:
        y = link.in_order(y, None if inplace else activation, p.stage)
    if not inplace:
        return given(y)
    if type(y) is not Computed:
        return become(p, y)
    p.link, p.stage = y, 3
    return p


def _relu(func: Function, input: Tensor, inplace: bool = False) -> Tensor | NotHere:
    return activate(input, "relu", inplace or func in _RELUS_IN_PLACE) if type(input) is Pending else NOT_HERE


def _activate(func: Function, input: Tensor, *args: object, **kwargs: object) -> Tensor | NotHere:
    found = activations.read(activations.READERS[func], args, kwargs) if type(input) is Pending else None
    return NOT_HERE if found is None else activate(input, *found)


def _add(func: object, input: Tensor, other: Any = None, *, alpha: object = 1, out: object = None) -> Tensor | NotHere:
    if other is None or alpha != 1 or out is not None:
        return NOT_HERE
    first, second = input, other
    if type(input) is not Pending or input.stage != 1:
        takes, may_swap = type(input) is Pending and is_unused_convolution(input), func not in _ADDS_IN_PLACE
        if may_swap and type(other) is Pending and (other.stage == 1 or (not takes and is_unused_convolution(other))):
            first, second = other, input
        elif not takes:
            return NOT_HERE
    link: Link = first.link
    if second is first or link.plan.is_ambiguous or not can_extend(first, link):
        return NOT_HERE
    strides, inner, summand = None, None, None
    if type(second) is Pending:
        if not second.stage:
            summand = second.link.entry
            summand.taker = "add"
        second = computed(second) if link.plan.contiguous else materialize(second)
        if type(second) is Computed:
            strides = second.plan.strides
            second, inner = second.take()
    if type(second) not in _PLAIN:
        return NOT_HERE
    known = link.guarded.summand
    if known is None or known[0] != strides or not known[1](second) or second.is_inference():
        if not _takes_summand(link, second, strides):
            return NOT_HERE
        link.guarded.summand = strides, guard(second)
    if first.stage:
        link.entry.next = "add"
    elif bridge.activates(link.input):
        link.norm = NO_NORM
    else:
        link.entry.leave_on_cpu()
        return NOT_HERE
    if summand is not None and not summand.kinds:
        summand.reason = SUMMED
    if link.residual is not None:
        link = link.copy(1)
    link.residual, link.residual_inner, link.residual_version = second, inner, second._version
    if func not in _ADDS_IN_PLACE:
        return pending(link, 2)
    first.link, first.stage = link, 2
    return first


def is_unused_convolution(p: Pending) -> bool:
    """Is this a convolution's result that may be summed, which nobody else has used?"""
    link = p.link
    if type(link) is Computed or p.stage or p.value is not None or link.output is not None:
        return False
    if link.norm is not None:
        link.entry.is_shared = True
    return not link.entry.is_shared


def _takes_summand(link: Link, x: Tensor, strides: tuple[int, ...] | None) -> bool:
    """Can the op add it? strides: those that it has for PyTorch, where they are not its own."""
    plan = link.plan
    return (
        x.dtype is link.dtype
        and x.shape == plan.output_shape
        and (strides or x.stride()) == plan.strides  # else the sum has the order of whichever comes first
        and x.get_device() == link.input.get_device()
        and not x.is_meta
        and not x.is_inference()
    )


def _deferred_sum(func: object, p: Tensor, other: object) -> Tensor | NotHere:
    """The sum that an operator of Pending gives, NOT_HERE if __torch_function__ or a mode must see it."""
    return NOT_HERE if _function_modes() or not _has_torch_function() else _add(func, p, other)


def _sum(func: Callable[[Tensor, object], Tensor], p: Tensor, other: object) -> Tensor:
    result = NOT_HERE if _function_modes() or not _has_torch_function() else HANDLERS[func](p, other)
    return func(p, other) if result is NOT_HERE else result


NO_ACTIVATIONS = frozenset(("", "add", "value"))  # of what may have followed a batch norm
_RELUS_IN_PLACE = frozenset((torch.relu_, nn.functional.relu_, Tensor.relu_))
_ADDS_IN_PLACE = frozenset((Tensor.add_, Tensor.__iadd__))


def each(handler: Function, functions: Iterable[Function]) -> dict[Function, Function]:
    """The handler of several functions, which takes the one that was called before its arguments."""
    return {func: functools.partial(handler, func) for func in functions}


HANDLERS: dict[Function, Function] = {
    nn.functional.batch_norm: _batch_norm,
    **each(_activate, activations.READERS),
    **each(_relu, (torch.relu, nn.functional.relu, Tensor.relu, *_RELUS_IN_PLACE)),
    **each(_add, (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, *_ADDS_IN_PLACE)),
}
