"""Casts of many tensors in graphs of AOTAutograd: one launch for all weights, and one for all of their gradients.

Inductor fuses a cast with what is computed element by element beside it. Weights that only convolutions and matrix
products read, and gradients that only leave the graph, have nothing beside them: each would be a kernel of its own.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from genesis.torch.opaque import define

_aten = torch.ops.aten
_CASTS = (torch.ops.prims.convert_element_type.default, _aten._to_copy.default)
_LIBRARIES = {
    _aten.convolution.default, _aten.convolution_backward.default, _aten.mm.default, _aten.addmm.default,
    _aten.bmm.default, _aten.baddbmm.default,
}  # fmt: skip
_VIEWS = {_aten.permute.default, _aten.t.default, _aten.transpose.int, _aten.view.default, operator.getitem}
_NARROW = (torch.bfloat16, torch.float16)
_MANY = 1 << 22  # elements, for which a launch is little, and memory that is held longer is much


def cast_at_once(graph: fx.Graph) -> int:
    """Cast weights in one op at the beginning, and gradients in one at the end. Returns: how many casts these were."""
    casts = [node for node in graph.nodes if node.target in _CASTS and _is_simple(node)]
    last = next(node for node in reversed(graph.nodes) if node.op == "output")
    weights = [node for node in casts if _source(node).op == "placeholder" and all(map(_is_opaque, _readers(node)))]
    gradients = [node for node in casts if set(node.users) == {last} and _is_opaque(_maker(_source(node)))]
    inputs, replaced = ("placeholder", "get_attr"), set(weights)
    first = next(node for node in graph.nodes if node.op not in inputs and node not in replaced)
    return _together(graph, weights, first) + _together(graph, gradients, last)


def _is_simple(node: fx.Node) -> bool:
    """From float32 to 16 bits or back, on CUDA, of few elements, and nothing else."""
    given, made = (each.meta.get("val") for each in (_source(node), node))
    if not (isinstance(given, Tensor) and isinstance(made, Tensor)) or not _has_launches(given):
        return False
    kinds = {given.dtype, made.dtype}
    same = given.device == made.device and given.stride() == made.stride()
    if not same or not all(isinstance(size, int) for size in given.shape) or not 0 < given.numel() < _MANY:
        return False
    is_dense = torch.empty_like(given).stride() == given.stride()
    return is_dense and len(kinds) == 2 and torch.float32 in kinds and not kinds.isdisjoint(_NARROW)


def _has_launches(x: Tensor) -> bool:
    return x.is_cuda


def _source(node: fx.Node) -> fx.Node:
    given = node.args[0]
    assert isinstance(given, fx.Node)
    return given


def _readers(node: fx.Node) -> list[fx.Node]:
    """Return what reads a tensor, through views of it."""
    found: list[fx.Node] = []
    for user in node.users:
        found += _readers(user) if user.target in _VIEWS else [user]
    return found


def _maker(node: fx.Node) -> fx.Node:
    """Return what has computed a tensor, through views of it."""
    while node.target in _VIEWS:
        node = _source(node)
    return node


def _is_opaque(node: fx.Node) -> bool:
    """Does Inductor call this, or hand it on, and fuse nothing with it?"""
    if node.op == "output" or node.target in _LIBRARIES:
        return True
    called: object = node.target
    if isinstance(called, torch._ops.HigherOrderOperator) and called.name().startswith("auto_functionalized"):
        called = node.args[0]  # an op that changes its arguments, such as running statistics
    return isinstance(called, torch._ops.OpOverload) and called.namespace == "genesis"


def _together(graph: fx.Graph, casts: Sequence[fx.Node], before: fx.Node) -> int:
    """Put one op for each pair of dtypes in the place of casts. Returns: how many those were."""
    groups: defaultdict[tuple[torch.dtype, torch.dtype], list[fx.Node]] = defaultdict(list)
    for node in casts:
        groups[_source(node).meta["val"].dtype, node.meta["val"].dtype].append(node)
    number = 0
    for (_, dtype), nodes in groups.items():
        if len(nodes) < 2:
            continue
        with graph.inserting_before(before):
            together = graph.call_function(torch.ops.genesis.cast.default, ([_source(node) for node in nodes], dtype))
            together.meta["val"] = [node.meta["val"] for node in nodes]
            for index, node in enumerate(nodes):
                one = graph.call_function(operator.getitem, (together, index))
                one.meta = dict(node.meta)
                node.replace_all_uses_with(one)
                graph.erase_node(node)
        number += len(nodes)
    return number


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    made = _shapes_cast(tensors, dtype)
    torch._foreach_copy_(made, list(tensors))
    return made


def _shapes_cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(each, dtype=dtype) for each in tensors]


define("cast(Tensor[] tensors, ScalarType dtype) -> Tensor[]", _cast, _shapes_cast)
