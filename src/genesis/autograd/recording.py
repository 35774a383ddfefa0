"""After the forward of a Function has run: the call is put into the graph, and views are told of their base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from genesis.autograd.complex_forms import over_complex
from genesis.autograd.context import Context, Differentiable
from genesis.autograd.graph import Node, Variable
from genesis.autograd.views import ViewKind

if TYPE_CHECKING:
    from genesis.tensor import Tensor


def needs(args: tuple[object, ...]) -> tuple[bool, ...]:
    """Say which arguments require a gradient."""
    return tuple([arg is not None and isinstance(arg, Variable) and arg._requires_grad for arg in args])


def record(
    function: type[Differentiable], ctx: Context, args: tuple[Any, ...], kwargs: dict[str, object],
    outputs: Sequence[object], made: list[Tensor],
) -> None:  # fmt: skip
    """Put a call into the graph: made are the tensors of its outputs."""
    if function.on_arrays:
        ctx.kwargs = kwargs
    node, unwanted = Node(function, ctx, args, made), ctx.non_differentiable
    for index, variable in enumerate(made):
        is_wanted = variable.array.dtype.is_floating_point or _has_form(node, variable)
        if is_wanted and not (unwanted and any(outputs[index] is x for x in unwanted)):
            variable._requires_grad, variable._node, variable._output_index = True, node, index


def _has_form(node: Node, variable: Variable) -> bool:
    """Whether an output that is not real has a gradient: if it is complex, by the function's form there."""
    if variable.array.dtype.is_complex:
        node.function = over_complex(node.function)
    return variable.array.dtype.is_complex


def note_view(view: Variable, origin: Variable, recording: bool, kind: ViewKind | None = None) -> None:
    """Tell a view of its base; what is taken from a view that cannot change cannot change either."""
    view._base = origin if origin._base is None else origin._base
    view._viewed_at = view.array.changes.count
    if not recording:
        view._view_kind = ViewKind.UNRECORDED
    elif kind is not None:
        view._view_kind = kind
    elif origin._base is not None:
        view._view_kind = origin._view_kind
