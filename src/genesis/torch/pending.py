"""Tensors that are not computed yet: a convolution's output, until it shows what is done with it.

A `Pending` stands for conv(x), batch_norm(conv(x)), or the sum of that and a residual. Batch norm, a sum and ReLU take
it further; whatever else anybody does with it computes it first and turns the object itself into a plain tensor.
The statistics of batch norm are taken when it is called, so that only what has no effect is ever put off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from genesis.torch import handing, ops
from genesis.torch.guards import modes, nothing_watches
from genesis.torch.shapes import Plan

_swap = torch._C._swap_tensor_impl
_PLAIN = (Tensor, nn.Parameter)
_NOT_HERE: Any = object()  # the answer of a handler that leaves the call to PyTorch


class Link:
    """What a Pending stands for, and what it takes to compute it."""

    __slots__ = (
        "begun", "bias", "dtype", "entry", "input", "modes", "norm", "norm_versions", "output", "plan", "ready",
        "residual", "residual_version", "value", "versions", "weight",
    )  # fmt: skip

    def __init__(
        self, entry: Any, input: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, dtype: torch.dtype,
        modes: tuple[bool, bool], versions: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.entry, self.plan, self.dtype, self.modes = entry, plan, dtype, modes
        self.input, self.weight, self.bias, self.versions = input, weight, bias, versions
        self.output: Tensor | None = None  # of the convolution, where that could not wait
        self.norm: Any = None  # gamma, beta, running mean and variance, training, momentum, eps
        self.begun: Any = None  # convolution and statistics
        self.residual: Tensor | None = None
        self.ready: Tensor | None = None  # with ReLU, computed in advance
        self.value: Tensor | None = None  # where the object itself cannot become it

    def copy(self) -> Link:
        """To be taken further: this one goes on standing for what it does."""
        link = Link(
            self.entry, self.input, self.weight, self.bias, self.plan, self.dtype, self.modes, self.versions
        )
        link.output = self.output
        return link

    def with_residual(self, residual: Tensor) -> Link:
        link = self.copy()
        link.norm, link.norm_versions, link.begun = self.norm, self.norm_versions, self.begun
        link.residual, link.residual_version = residual, _version(residual)
        return link

    def needs_gradients(self) -> bool:
        if not self.modes[0]:
            return False
        gamma, beta = self.norm[:2] if self.norm is not None else (None, None)
        tensors = (self.weight, self.input, gamma, beta, self.bias, self.residual)
        return any([each is not None and each.requires_grad for each in tensors])

    # --- computing --------------------------------------------------------------------------------------------------
    def compute(self) -> Tensor:
        """What the Pending stands for, as it was when it was made: with its modes, and what it was made of."""
        if self.value is not None:
            return self.value
        with _Then(self.modes):
            if self.norm is None:
                if self.output is not None:
                    return self.output.clone()  # what was made of it has it too
                self.check_convolution()
                return torch.conv2d(*self._operands(), *self.plan.geometry)
            return self.finish(None)

    def finish(self, activation: str | None) -> Tensor:
        """activation(batch_norm(conv) + residual) of a Pending with a norm."""
        if activation is not None and self.ready is not None:
            ready, self.ready = self.ready, None
            return ready
        gamma, beta, mean, var, training, momentum, eps = self.norm
        if self.begun is None:  # the statistics have moved already
            self.check_convolution()
            self.begin(() if training else (mean, var))
        if self.norm_versions != _versions(*(self.norm[:2] if training else self.norm[:4])):
            raise self._changed("its batch norm's weight, bias or statistics were")
        if self.residual is not None and self.residual_version != _version(self.residual):
            raise self._changed("the other summand was")
        unchanged = self.versions == _versions(*self.operands)
        if not unchanged and self.begun[2].dim() != 4:  # the convolution has still to be done
            self.check_convolution()
        y = self._finished(activation)
        if not unchanged and y.requires_grad:  # as PyTorch itself would say it in the backward
            (y,) = _as_tuple(torch._C._functions.DelayedError(_MODIFIED.format(self.entry.name), 1)(y))
        return y

    def whole(self, activation: str | None) -> Tensor:
        """All of it in one call, the running statistics included."""
        gamma, beta, mean, var, *options = self.norm
        input, weight, bias = self._operands()
        if not self.needs_gradients():
            return ops.conv_bn_relu_values(
                input, weight, bias, gamma, beta, mean, var, None, *options, *self.plan.geometry, activation
            )
        input, hands_on = handing.taken(self, input)
        args = (input, weight, bias, gamma, beta, mean, var, None, *options, *self.plan.geometry, activation)
        if hands_on:
            return handing.note(self.input, *ops.conv_bn_relu_and_input(*args, None))
        return ops.conv_bn_relu(*args)

    def begin(self, running: tuple[Any, ...]) -> None:
        """The convolution and its statistics, which change the running ones."""
        if self.output is not None:
            self.begun = None, None, self.output, None
            return
        gamma, beta, _, _, *options = self.norm
        mean, var = running or (None, None)
        self.begun = ops.conv_bn_begin(*self._operands(), gamma, beta, mean, var, *options, *self.plan.geometry)

    def _finished(self, activation: str | None) -> Tensor:
        gamma, beta, mean, var, *options = self.norm
        input, weight, bias = self._operands()
        tensors = (weight, bias, gamma, beta, mean, var)
        options += (*self.plan.geometry, activation)
        if not self.needs_gradients():
            return ops.conv_bn_finish_values(self.begun, input, *tensors, self.residual, *options)
        input, hands_on = handing.taken(self, input)
        residual = None if self.residual is None else handing.view_of(self.residual)
        result = ops.conv_bn_finish(self.begun, hands_on, input, *tensors, residual, *options)
        return handing.note(self.input, *result) if hands_on else result

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.input, self.weight, self.bias

    def _operands(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """As autocast would have them."""
        dtype, (input, weight, bias) = self.dtype, self.operands
        if input.dtype is dtype and weight.dtype is dtype:
            return input, weight, bias
        return input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)

    def check_convolution(self) -> None:
        if self.versions != _versions(*self.operands):
            raise self._changed("its input, weight or bias was")

    def _changed(self, what: str) -> RuntimeError:
        self.entry.stop(f"{what} changed in place before its result was used")
        return RuntimeError(
            f"genesis.torch.fuse: convolution '{self.entry.name}': {what} changed in place before its result was used; "
            "from the next call on it is computed at once. genesis.torch.unfuse(model) gives the plain model."
        )


_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: the input or "
    "weight of convolution '{}'"
)


def _version(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return -1


def _versions(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple([_version(each) for each in tensors])


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


class _Then:
    """The modes of an earlier moment, without what has begun to watch since."""

    def __init__(self, then: tuple[bool, bool]) -> None:
        self.then, self.contexts = then, list[Any]()

    def __enter__(self) -> None:
        if modes() != self.then:
            grad, inference = self.then
            self.contexts += [torch.inference_mode(inference), torch.set_grad_enabled(grad)]
        if torch._C._is_any_autocast_enabled():
            self.contexts += [torch.autocast(device, enabled=False) for device in ("cpu", "cuda")]
        if not nothing_watches():
            self.contexts.append(torch.utils._python_dispatch._disable_current_modes())
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self.contexts):
            context.__exit__(*error)


class Pending(Tensor):
    """A tensor without values. `link` says of what; it is gone once the object is a plain tensor."""

    link: Link

    def dim(self) -> int:  # what batch norm asks, by the short way
        return 4

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            result = handler(func, *args, **(kwargs or {}))
            if result is not _NOT_HERE:
                return result
        return func(*settled(args), **settled(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Code in C++ has it, which PyTorch's functions in Python have not seen."""
        return func(*_without_graph(args), **_without_graph(kwargs or {}))


def pending(link: Link) -> Tensor:
    p: Any = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        Pending, link.plan.output_shape, dtype=link.dtype, device=link.input.device
    )
    p.link = link
    return p  # type: ignore[no-any-return]


def settle(p: Any) -> Tensor:
    """Compute a Pending, and make the object itself a plain tensor; or, if C++ holds it too, give another for it."""
    link: Link = p.link
    value = link.compute()
    link.entry.settled(link)
    return become(p, value)


def become(p: Any, value: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        shared = p._use_count() > 1
    if shared:
        p.link.value = value
        return value
    held = value.__dict__.copy()
    _swap(p, value)
    p.__dict__.clear()
    p.__dict__.update(held)
    p.__class__ = Tensor
    return p  # type: ignore[no-any-return]


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
        link: Link = value.link
        if link.needs_gradients():
            link.entry.stop("code in C++ uses its result")
            raise RuntimeError(
                f"genesis.torch.fuse: what was made of convolution '{link.entry.name}' went to code in C++ or TorchScript "
                "before PyTorch's functions in Python saw it; from the next call on it is computed at once. "
                "genesis.torch.unfuse(model) gives the plain model."
            )
        link.value = link.compute()
        return link.value
    if isinstance(value, list | tuple):
        return type(value)([_without_graph(each) for each in value])
    return {key: _without_graph(each) for key, each in value.items()} if isinstance(value, dict) else value


# --- what takes a Pending further -----------------------------------------------------------------------------------
def _goes_on(link: Link) -> bool:
    """Is everything as it was when the Pending was made?"""
    return link.value is None and modes() == link.modes and nothing_watches()


def _batch_norm(
    func: Any, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: Any = False, momentum: Any = 0.1, eps: Any = 1e-5,
) -> Any:  # fmt: skip
    if type(input) is not Pending:
        return _NOT_HERE
    link: Link = input.link
    channels = link.plan.output_shape[1]
    if link.norm is not None or not _goes_on(link) or type(training) is not bool or not eps > 0.0:
        return _NOT_HERE
    if type(momentum) is not float or (training and link.plan.num_rows == 1):
        return _NOT_HERE
    if (running_mean is None) is not (running_var is None) or (running_mean is None and not training):
        return _NOT_HERE
    given = [each for each in (running_mean, running_var, weight, bias) if each is not None]
    wide = torch.promote_types(link.dtype, torch.float32)
    device = link.input.get_device()
    for each in given:
        if (
            type(each) not in _PLAIN
            or each.shape != (channels,)
            or each.dtype not in (link.dtype, wide)
            or each.dtype is not given[0].dtype
            or each.get_device() != device
            or each.is_meta
        ):
            return _NOT_HERE
    if running_mean is not None and training and running_mean.requires_grad:
        return _NOT_HERE
    if link.input.is_inference() and training:  # without counters of changes, nothing that has effects is put off
        return _NOT_HERE
    entry = link.entry
    link.check_convolution()
    following = link.copy()
    following.norm = (weight, bias, running_mean, running_var, training, momentum, float(eps))
    following.norm_versions = ()
    entry.followed_by_norm(running_mean if weight is None else weight)
    if entry.next == "value" and link.output is None:
        return following.whole(None)
    if entry.next == "relu" and link.output is None:
        following.ready = following.whole("relu")
    else:
        following.begin((running_mean, running_var))
    following.norm_versions = _versions(*(following.norm[:2] if training else following.norm[:4]))
    return pending(following)


def _relu(func: Any, input: Any, inplace: bool = False) -> Any:
    if type(input) is not Pending:
        return _NOT_HERE
    link: Link = input.link
    if link.norm is None or not _goes_on(link):
        return _NOT_HERE
    y = link.finish("relu")
    link.entry.fused(link, "relu")
    return become(input, y) if inplace or func in _RELUS_IN_PLACE else y


def _add(func: Any, input: Any, other: Any = None, *, alpha: Any = 1, out: Any = None) -> Any:
    if other is None or alpha != 1 or out is not None:
        return _NOT_HERE
    in_place = func in _ADDS_IN_PLACE
    first, second = input, other
    if type(input) is not Pending or input.link.norm is None or input.link.residual is not None:
        if in_place or type(other) is not Pending:
            return _NOT_HERE
        first, second = other, input
    link: Link = first.link
    if link.norm is None or link.residual is not None or not _goes_on(link):
        return _NOT_HERE
    if type(second) is Pending:
        second = settle(second)
    if not isinstance(second, Tensor) or type(second) not in _PLAIN or second.dtype is not link.dtype:
        return _NOT_HERE
    if second.shape != link.plan.output_shape or second.get_device() != link.input.get_device() or second.is_meta:
        return _NOT_HERE
    if second is first or second.is_inference() is not link.modes[1] and second.is_inference():
        return _NOT_HERE
    link.entry.next = "add"
    following = link.with_residual(second)
    if in_place:
        if _version(second) == -1:
            return _NOT_HERE
        first.link = following
        return first
    return pending(following)


def _metadata(func: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _requires_grad(func: Any, p: Any) -> Any:
    return p.link.needs_gradients() if p.link.value is None else _NOT_HERE


_RELUS_IN_PLACE = frozenset((torch.relu_, nn.functional.relu_, Tensor.relu_))
_ADDS_IN_PLACE = frozenset((Tensor.add_, Tensor.__iadd__))
_METADATA = [
    Tensor.shape.__get__, Tensor.size, Tensor.dim, Tensor.ndim.__get__, Tensor.dtype.__get__, Tensor.numel,
    Tensor.device.__get__, Tensor.is_cuda.__get__, Tensor.is_cpu.__get__, Tensor.is_floating_point, Tensor.is_complex,
    Tensor.get_device, torch.is_floating_point, torch.is_complex, torch.numel, Tensor.nelement, Tensor.__len__,
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
        return apply(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply_to_values)  # type: ignore[assignment]
