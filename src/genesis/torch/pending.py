"""Tensors that are not computed yet: a convolution's output, until it shows what is done with it.

A `Pending` stands for conv(x), batch_norm(conv(x)), or the sum of that and a residual. Batch norm, a sum and ReLU take
it further; whatever else anybody does with it computes it first and turns the object itself into a plain tensor.
The result of a chain of contiguous tensors is one too, of stage 3: computed, but in another order of memory.
The statistics of batch norm are taken when it is called, so that only what has no effect is ever put off.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from genesis.torch.guards import is_same, is_same_else, saved_tensors_hooks
from genesis.torch.links import Computed, Link, versions_of
from genesis.torch.seen import SeenConvolution, SeenNorm

_swap = torch._C._swap_tensor_impl
_make: Any = Tensor._make_wrapper_subclass
_any_autocast = torch._C._is_any_autocast_enabled
_PLAIN = (Tensor, nn.Parameter)
NOT_HERE: Any = object()  # the answer of a handler that leaves the call to PyTorch


class Pending(Tensor):
    """A tensor without values. Its attributes are gone once the object is a plain tensor."""

    link: Link | Computed
    stage: int
    value: Tensor | None  # where the object itself cannot become it

    def dim(self) -> int:  # what batch norm asks, by the short way
        return 4

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            result = handler(func, *args, **(kwargs or {}))
            if result is not NOT_HERE:
                return result
        return func(*settled(args), **settled(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Code in C++ has it, which PyTorch's functions in Python have not seen."""
        return func(*_without_graph(args), **_without_graph(kwargs or {}))


def pending(link: Link | Computed, stage: int) -> Any:
    seen = link.seen
    p = (seen.make or _maker(seen))()
    p.__dict__ = {"link": link, "stage": stage, "value": None}
    return p


def _maker(seen: SeenConvolution) -> Any:
    plan = seen.plan
    how = {"strides": plan.strides, "dtype": seen.dtype, "device": seen.device}
    made = seen.make = functools.partial(_make, Pending, plan.output_shape, **how)
    return made


def settle(p: Any) -> Tensor:
    """Compute a Pending, and make the object itself a plain tensor; or, if C++ holds it too, give another for it."""
    if p.value is not None:
        return p.value
    value = _compute(p)
    if p.stage == 3 and p.link.taken:
        p.value = value
        p.link.inner = None
        return value
    return become(p, value)


def _compute(p: Any) -> Tensor:
    link, stage = p.link, p.stage
    value = link.compute(stage)
    if stage < 3:
        link.entry.settled(stage)
    return value.compute(3) if type(value) is Computed else value


def given(y: Any) -> Any:
    """What a chain gave, for whoever called the last of its layers."""
    return pending(y, 3) if type(y) is Computed else y


def computed(p: Any) -> Any:
    """What a Pending stands for, for a chain that takes it: Computed, or a plain tensor."""
    if p.value is not None:
        return p.value
    if p.stage == 1 or p.stage == 2:
        link: Link = p.link
        value = link.compute(p.stage)
        link.entry.settled(p.stage)
        if type(value) is not Computed:
            return become(p, value)
        p.link, p.stage = value, 3
    return p.link if p.stage == 3 else settle(p)


def become(p: Any, value: Tensor) -> Tensor:
    if _use_count(p) > 1:
        p.value = value
        return value
    try:
        _swap(p, value)
    except RuntimeError:  # a profiler that records shapes knows it too
        p.value = value
        return value
    p.__dict__ = value.__dict__
    p.__class__ = Tensor
    return p


def _use_count(p: Any) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return p._use_count()


def settled(value: Any) -> Any:
    """With every Pending in it as a plain tensor."""
    kind = type(value)
    if kind is Pending:
        return settle(value)
    if kind in (tuple, list):
        return kind([settled(each) for each in value])
    if kind is dict:
        return {key: settled(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(settled, value))
    if isinstance(value, list | tuple | dict):
        torch.utils._pytree.tree_map_only(Pending, settle, value)
    return value


def _without_graph(value: Any) -> Any:
    """Values for C++ code, which has gone past autograd already."""
    if type(value) is Pending:
        link: Any = value.link
        if value.value is None and link.needs_gradients(value.stage):
            link.entry.stop("code in C++ uses its result")
            message = (
                f"genesis.torch.fuse: what was made of convolution '{link.entry.name}' went to code in C++ or "
                "TorchScript before PyTorch's functions in Python did; it is computed at once from the next call on. "
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


# --- what takes a Pending further -----------------------------------------------------------------------------------
def _goes_on(p: Any, link: Link) -> bool:
    """Is everything as it was when the Pending was made?"""
    return p.value is None and is_same(link.modes) and _is_autocast_to(link)


def _is_autocast_to(link: Link) -> bool:
    """Does autocast, if it is on, ask for the dtype of the convolution?"""
    return not _any_autocast() or link.dtype is torch.get_autocast_dtype("cuda" if link.input.is_cuda else "cpu")


def batch_norm(
    p: Any, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool,
    momentum: float, eps: float, count: Tensor | None = None,
) -> Any:  # fmt: skip
    """F.batch_norm of a Pending, NOT_HERE if that is PyTorch's business; count: of batches, to grow by 1."""
    link: Link = p.link
    if p.stage or p.value is not None or not eps > 0.0 or type(momentum) is not float:
        return NOT_HERE
    if training and link.output is not None:
        return NOT_HERE
    entry, known = link.entry, None
    if weight is not None and bias is not None and mean is not None and var is not None:
        tensors = (weight, bias, mean, var) if count is None else (weight, bias, mean, var, count)
        known = link.seen.norm
        if known is not None and not known.fits(tensors, training):
            known = None
    if known is None:
        if not _goes_on(p, link) or not _takes_norm(link, weight, bias, mean, var, training):
            return NOT_HERE
        if weight is not None and bias is not None and mean is not None and var is not None:
            known = link.seen.norm = SeenNorm(tensors, training)
    elif not is_same_else(link.modes) or not _is_autocast_to(link):
        return NOT_HERE
    link.known = known
    link.check_convolution()
    if link.norm is not None:  # the convolution's output goes to several norms
        link = link.copy(0)
    link.norm = (weight, bias, mean, var, training, momentum, eps)
    entry.norm = id(mean if weight is None else weight)
    if link.output is None:
        if entry.next == "value":
            return given(link.whole(None, count))
        if entry.next == "relu":
            link.ready = link.whole("relu", count)
        elif entry.next != "add" or training or link.needs_gradients(1):  # else it has no effect, and the sum may come
            link.begin(mean, var, count)
    else:
        link.begin(mean, var, None)
    link.norm_versions = versions_of(weight, bias) if training else versions_of(weight, bias, mean, var)
    return pending(link, 1)


def _takes_norm(link: Link, weight: Any, bias: Any, mean: Any, var: Any, training: bool) -> bool:
    """Has the op such a batch norm?"""
    if (training and link.plan.num_rows == 1) or (mean is None) is not (var is None) or (mean is None and not training):
        return False
    size, device, dtype = link.plan.channels, link.input.get_device(), None
    for each in (weight, bias, mean, var):
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
    func: Any, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: Any = False, momentum: Any = 0.1, eps: Any = 1e-5,
) -> Any:  # fmt: skip
    if type(input) is not Pending or type(training) is not bool or type(eps) is not float:
        return NOT_HERE
    return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def relu(p: Any, inplace: bool) -> Any:
    """F.relu of a Pending, or NOT_HERE."""
    link, stage = p.link, p.stage
    if not stage or stage == 3 or not _goes_on(p, link):
        return NOT_HERE
    y = link.finish("relu", stage)
    link.entry.fused(stage)
    if not inplace:
        return given(y)
    if type(y) is not Computed:
        return become(p, y)
    p.link, p.stage = y, 3
    return p


def _relu(func: Any, input: Any, inplace: bool = False) -> Any:
    return relu(input, inplace or func in _RELUS_IN_PLACE) if type(input) is Pending else NOT_HERE


def _add(func: Any, input: Any, other: Any = None, *, alpha: Any = 1, out: Any = None) -> Any:
    if other is None or alpha != 1 or out is not None:
        return NOT_HERE
    first, second = input, other
    if type(input) is not Pending or input.stage != 1:
        if func in _ADDS_IN_PLACE or type(other) is not Pending or other.stage != 1:
            return NOT_HERE
        first, second = other, input
    link: Link = first.link
    if second is first or not _goes_on(first, link):
        return NOT_HERE
    strides, inner = None, None
    if type(second) is Pending:
        second = computed(second) if link.plan.contiguous else settle(second)
        if type(second) is Computed:
            strides = second.plan.strides
            second, inner = second.take()
    if type(second) not in _PLAIN or second.dtype is not link.dtype or second.shape != link.plan.output_shape:
        return NOT_HERE
    if (strides or second.stride()) != link.plan.strides:  # the sum would have the order of whichever comes first
        return NOT_HERE
    if second.get_device() != link.input.get_device() or second.is_meta or second.is_inference():
        return NOT_HERE
    link.entry.next = "add"
    if link.residual is not None:
        link = link.copy(1)
    link.residual, link.residual_inner, link.residual_version = second, inner, second._version
    if func not in _ADDS_IN_PLACE:
        return pending(link, 2)
    first.link, first.stage = link, 2
    return first


def _metadata(func: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _requires_grad(func: Any, p: Any) -> Any:
    return p.link.needs_gradients(p.stage) if p.value is None else NOT_HERE


_RELUS_IN_PLACE = frozenset((torch.relu_, nn.functional.relu_, Tensor.relu_))
_ADDS_IN_PLACE = frozenset((Tensor.add_, Tensor.__iadd__))
_METADATA = [
    Tensor.shape.__get__, Tensor.size, Tensor.dim, Tensor.ndim.__get__, Tensor.dtype.__get__, Tensor.numel,
    Tensor.device.__get__, Tensor.is_cuda.__get__, Tensor.is_cpu.__get__, Tensor.is_floating_point, Tensor.is_complex,
    Tensor.get_device, torch.is_floating_point, torch.is_complex, torch.numel, Tensor.nelement, Tensor.__len__,
    Tensor.stride, Tensor.is_contiguous,
    Tensor.layout.__get__, Tensor.is_sparse.__get__, Tensor.is_quantized.__get__, Tensor.is_meta.__get__,
]  # fmt: skip
HANDLERS: dict[Any, Callable[..., Any]] = {
    nn.functional.batch_norm: _batch_norm,
    **dict.fromkeys((torch.relu, nn.functional.relu, Tensor.relu, *_RELUS_IN_PLACE), _relu),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, *_ADDS_IN_PLACE), _add),
    **dict.fromkeys(_METADATA, _metadata),
    Tensor.requires_grad.__get__: _requires_grad,
}


# --- autograd functions -----------------------------------------------------------------------------------------------
class _Place(threading.local):
    """Where a thread is: in whose forward of an autograd function, and where the innermost fused model was called."""

    function = 0
    calls = 0
    model: tuple[int, Any] | None = None


_place = _Place()


def _here() -> tuple[int, Any]:
    hooks = saved_tensors_hooks(True)
    return _place.function, None if hooks is None else hooks[0]


@contextmanager
def inside_model() -> Iterator[None]:
    """While a fused model is called, which returns nothing that is pending."""
    outside = _place.model
    _place.model = _here()
    try:
        yield
    finally:
        _place.model = outside


def may_be_put_off() -> bool:
    """Not out of what is to be computed by an end that nobody tells of.

    That is the forward of an autograd function, whose results get its graph, and what saves tensors in a way of its
    own, as checkpoints do; there a fused model may be called, which returns nothing that is pending.
    """
    if _place.function == 0 and saved_tensors_hooks(True) is None:
        return True
    return _place.model == _here()


@functools.cache
def install() -> None:
    """Make autograd.Function.apply compute what is pending: it asks no tensor, and looks at its graph at once."""
    apply = torch.autograd.Function.__dict__["apply"].__func__

    @functools.wraps(apply)
    def apply_to_values(cls: Any, *args: Any, **kwargs: Any) -> Any:
        for each in args:
            if type(each) is Pending:
                args = settled(args)
                break
        outside = _place.function
        _place.calls += 1
        _place.function = _place.calls
        try:
            return apply(cls, *args, **kwargs)
        finally:
            _place.function = outside

    torch.autograd.Function.apply = classmethod(apply_to_values)
