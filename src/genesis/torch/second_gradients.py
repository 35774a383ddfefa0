"""Gradients of fused ops while autograd records their backward: PyTorch's layers run again, whose gradients can be
differentiated; or gradients that raise when they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from genesis.records import ConvGeometry, SavedConvNorm, is_output
from genesis.torch import activations
from genesis.torch.modes import versions_of
from genesis.torch.signatures import Gradients

COPIED = "it computed with copies of its operands, in another dtype or order of memory"
_UNKNOWN = f"{COPIED}, or kept less than them, or a sum has another activation than ReLU"
_REFUSED = (
    "its gradients cannot be differentiated again: {}. genesis.torch.unfuse(model) gives the plain layers, whose "
    "gradients can."
)
_ONLY_RESIDUAL = (False,) * 5 + (True,)


class _Node(Protocol):
    """A node of autograd whose backward runs."""

    needs_input_grad: tuple[bool, ...]

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]: ...


C = TypeVar("C", bound=_Node)
Once = Callable[[C, Tensor, Tensor | None, tuple[bool, ...]], Gradients]
"""Gradients by the backend, from a node, the gradient that came in, an addend to the input's, and what needs one."""


def backward_of(
    op: str, once: Once[C], again: Callable[[C, Tensor], Gradients | None], ctx: C, grad: Tensor | None,
    addend: Tensor | None,
) -> Gradients:  # fmt: skip
    """The gradients of a node. again: such that can be differentiated, without the addend; None: there are none."""
    wanted = ctx.needs_input_grad
    if grad is None:
        return addend, *(None,) * (len(wanted) - 1)
    if not torch.is_grad_enabled():
        return once(ctx, grad, addend, wanted[:6])
    found = again(ctx, grad)
    if found is None:
        with torch.no_grad():
            grads = once(ctx, grad, addend, wanted[:6])
        return refused(op, _UNKNOWN, grads, (grad, addend, *ctx.saved_tensors), ctx)
    first, *others = found
    if first is not None and addend is not None:
        first = first + addend
    return first, *others, *(None,) * (len(wanted) - 6)


class Given(NamedTuple):
    """Parameters that the op computed with copies of, in another dtype.

    PyTorch does not check that they stay as they are, as they may change if nobody wants second gradients.
    """

    weight: Tensor | None
    bias: Tensor | None
    versions: tuple[int, ...]


def as_given(weight: Tensor | None, bias: Tensor | None) -> Given:
    return Given(weight, bias, versions_of(weight, bias))


def with_given(saved: SavedConvNorm[Tensor], given: Given | None) -> SavedConvNorm[Tensor]:
    """Put the parameters themselves in the place of their copies."""
    if given is None or given.weight is None:
        return saved
    if versions_of(given.weight, given.bias) != given.versions:
        raise RuntimeError("conv_bn_relu: weight or bias changed in place before its gradient was differentiated")
    return saved._replace(weight=given.weight, bias=given.bias)


class Again(NamedTuple):
    """How conv_bn_relu was called. eps: of the batch's variance; None: the statistics are constants."""

    eps: float | None
    geometry: ConvGeometry
    activation: str | None
    has_residual: bool


def of_conv_bn_relu(
    saved: SavedConvNorm[Tensor], how: Again, needs: Sequence[bool], grad: Tensor, passes: Callable[[], Tensor]
) -> Gradients | None:
    """Gradients of input, weight, bias, gamma, beta and residual.

    Args:
        saved: what the backward has. Its bias may be missing in training, where nothing depends on it.
        needs: what needs a gradient, in that order.
        passes: where ReLU lets pass what comes, as bools.
    Returns: the gradients; None where they cannot be differentiated: operands of the call were copied, or not kept.
    """
    eps, _, activation, has_residual = how
    is_told = activation is None or (activation == "relu" and has_residual)
    if has_residual and not is_told:
        return None
    if not any(needs[:3]):  # the convolution's operands may have changed, but its result says all
        if not is_output(saved.kept) or (eps is None and saved.bias is not None):
            return None
        saved = saved._replace(input=saved.kept, weight=None, bias=None)
    if is_told and activation is not None:  # the sum is not known, but ReLU's second derivative is zero
        with torch.enable_grad():
            grad = grad.masked_fill(~passes(), 0)
    if is_told:
        how = how._replace(activation=None)
    operands = (saved.input, saved.weight, saved.bias, saved.gamma, saved.beta)
    grads = by_layers(lambda *given: _conv_bn(saved, given, how), operands, needs, grad)
    if grads is None:
        return None
    if needs[2] and grads[2] is None:
        grads[2] = torch.zeros_like(saved.mean, dtype=grad.dtype)
    return *grads, grad if needs[5] else None


def by_layers(
    layers: Callable[..., Tensor], operands: Sequence[Tensor | None], needs: Sequence[bool], grad: Tensor
) -> list[Tensor | None] | None:
    """Gradients of operands that need one, through layers(*operands); None where one of them is a copy: no way leads
    from it to what the op was called with."""
    wants = [need and each is not None for each, need in zip(operands, needs, strict=False)]
    if any(each is not None and need and not each.requires_grad for each, need in zip(operands, needs, strict=False)):
        return None
    with torch.enable_grad():
        # Aliases, lest one operand's gradient takes its way through another.
        aliases = [None if each is None else torch.ops.aten.alias(each) for each in operands]
        wanted = [each for each, is_wanted in zip(aliases, wants, strict=True) if is_wanted]
        found = iter(torch.autograd.grad(layers(*aliases), wanted, grad, create_graph=True) if wanted else ())
        return [next(found) if is_wanted else None for is_wanted in wants]


def passes(once: Once[C], ctx: C, grad: Tensor) -> Tensor:
    """Tell where ReLU lets pass what comes, as the gradient of a residual does."""
    with torch.no_grad():
        found = once(ctx, torch.ones_like(grad), None, _ONLY_RESIDUAL)[5]
        assert found is not None
        return found != 0


def _conv_bn(saved: SavedConvNorm[Tensor], operands: Sequence[Tensor | None], how: Again) -> Tensor:
    (x, weight, bias, gamma, beta), (eps, geometry, activation, _) = operands, how
    assert x is not None
    y = x
    if weight is not None:
        y = torch.conv2d(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), *geometry)
    if eps is not None:
        return activations.apply(F.batch_norm(y, None, None, gamma, beta, True, 0.0, eps), activation)
    scale = saved.inverse_std if gamma is None else saved.inverse_std * gamma
    normalized = (y - _by_channel(saved.mean)) * _by_channel(scale)
    if beta is not None:
        normalized = normalized + _by_channel(beta)
    return activations.apply(normalized.to(y.dtype), activation)


def _by_channel(values: Tensor) -> Tensor:
    return values[:, None, None]


def refused(
    op: str, why: str, grads: Sequence[Tensor | None], given: Sequence[Tensor | None], node: object
) -> Gradients:
    """Gradients that raise when they are differentiated.

    PyTorch's once_differentiable lets that pass where autograd.grad() looks only for ways to tensors that it is given,
    as autograd.functional.hvp() has it do: that looks like a gradient of zero. These ways lead through what raises.

    Args:
        given: what the gradients were computed from.
        node: of autograd, whose backward runs.
    """
    known = [grad is not None for grad in grads]
    ways = [each for each in (*given, *_leaves(node)) if each is not None and each.requires_grad]
    leaves = [grad.detach().requires_grad_() for grad in grads if grad is not None]
    outputs = torch._C._functions.DelayedError(f"{op}: {_REFUSED.format(why)}", len(leaves) + len(ways))(*leaves, *ways)
    raising = iter((outputs,) if isinstance(outputs, Tensor) else outputs)
    return tuple(next(raising) if is_known else None for is_known in known)


def _leaves(node: object) -> list[Tensor]:
    """The leaves that a node's edges lead to in the end."""
    found: dict[object, Tensor | None] = {}
    left = [node]
    while left:
        for each, _ in getattr(left.pop(), "next_functions", ()):
            if each is not None and each not in found:
                found[each] = getattr(each, "variable", None)
                left.append(each)
    return [each for each in found.values() if each is not None]
