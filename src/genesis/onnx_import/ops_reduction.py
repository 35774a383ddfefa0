"""Sums, means, extremes, running sums, order."""

from __future__ import annotations

import numpy as np

from genesis import functional as F
from genesis.onnx_import.registry import Array, Function, Node, computes, integers, on_host
from genesis.tensor import Tensor

_REDUCTIONS = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp",
)  # fmt: skip


def _axes(node: Node, ndim: int, axes: Array | None) -> tuple[int, ...]:
    found = node.integers("axes") if axes is None else integers(axes)
    if found:
        return tuple(sorted({axis % max(ndim, 1) for axis in found}))
    return () if node.integer("noop_with_empty_axes", 0) else tuple(range(ndim))


@computes(*_REDUCTIONS, host=(1,))
def reduce(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
    dims, keepdim = _axes(node, x.ndim, axes), bool(node.integer("keepdims", 1))
    if not dims:
        return x.abs() if node.op in ("ReduceL1", "ReduceL2") else (x * x if node.op == "ReduceSumSquare" else x)
    if node.op == "ReduceProd":
        for dim in reversed(dims):
            x = x.prod(dim, keepdim=keepdim)
        return x
    if node.op in ("ReduceL1", "ReduceL2"):
        return x.norm(1 if node.op == "ReduceL1" else 2, dims, keepdim=keepdim)
    if node.op == "ReduceSumSquare":
        return (x * x).sum(dims, keepdim=keepdim)
    functions: dict[str, Function] = {
        "ReduceMean": F.mean, "ReduceSum": F.sum, "ReduceMax": F.amax, "ReduceMin": F.amin,
        "ReduceLogSumExp": F.logsumexp,
    }  # fmt: skip
    found = functions[node.op](x, dims, keepdim=keepdim)
    assert isinstance(found, Tensor)
    return found


@on_host("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd")
def reduce_on_host(node: Node, x: Array, axes: Array | None = None) -> Array:
    functions: dict[str, Function] = {
        "ReduceMax": np.max,
        "ReduceMin": np.min,
        "ReduceSum": np.sum,
        "ReduceProd": np.prod,
    }
    dims, keepdims = _axes(node, x.ndim, axes), bool(node.integer("keepdims", 1))
    return np.asarray(functions[node.op](x, axis=dims, keepdims=keepdims)).astype(x.dtype)


@computes("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Tensor) -> Tensor:
    if node.integer("select_last_index", 0):
        raise node.refuse("select_last_index=1")
    function = F.argmax if node.op == "ArgMax" else F.argmin
    return function(x, node.integer("axis", 0), keepdim=bool(node.integer("keepdims", 1)))


@computes("CumSum", host=(1,))
def cumsum(node: Node, x: Tensor, axis: Array) -> Tensor:
    (dim,) = integers(axis)
    backwards = bool(node.integer("reverse", 0))
    y = x.flip(dim) if backwards else x
    total = y.cumsum(dim).to(x.dtype)
    if node.integer("exclusive", 0):
        total = total - y
    return total.flip(dim) if backwards else total


@on_host("CumSum")
def cumsum_on_host(node: Node, x: Array, axis: Array) -> Array:
    if node.integer("reverse", 0) or node.integer("exclusive", 0):
        raise node.refuse("reverse or exclusive")
    return np.asarray(np.cumsum(x, integers(axis)[0])).astype(x.dtype)


@computes("TopK", host=(1,))
def topk(node: Node, x: Tensor, k: Array) -> tuple[Tensor, Tensor]:
    values, places = F.topk(x, integers(k)[0], node.integer("axis", -1), bool(node.integer("largest", 1)))
    return values, places
