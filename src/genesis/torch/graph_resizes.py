"""Interpolation in Dynamo's graphs, whose gradient compilers write as atomic additions."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.nn import functional

from genesis.torch.graph_edits import call, constant_sizes, put, tensor_of
from genesis.torch.interpolating import MODES

_ARGUMENTS = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
_DEFAULTS = {
    "size": None, "scale_factor": None, "mode": "nearest", "align_corners": None, "recompute_scale_factor": None,
    "antialias": False,
}  # fmt: skip


def gather_resize(node: fx.Node) -> bool:
    """Put torch.ops.genesis.interpolate in the place of an interpolation whose gradient is needed."""
    if node.target is not functional.interpolate:
        return False
    given = {**_DEFAULTS, **dict(zip(_ARGUMENTS, node.args, strict=False)), **node.kwargs}
    input, mode = given["input"], given["mode"]
    if not isinstance(input, fx.Node) or mode not in MODES or given["antialias"]:
        return False
    x, y = tensor_of(input), tensor_of(node)
    if not y.requires_grad or not _takes(x):
        return False
    size, scales = _size(given["size"], given["scale_factor"], given["recompute_scale_factor"], x, y)
    if size is None and scales is None:
        return False
    with node.graph.inserting_before(node):
        new = call(node.graph, torch.ops.genesis.interpolate, input, size, scales, mode, given["align_corners"])
        put(new, node)
    return True


def _takes(x: Tensor) -> bool:
    """Return whether the op takes such a tensor. Symbolic sizes would become constant: each size would be compiled."""
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or not all(isinstance(size, int) for size in x.shape):
        return False
    return x.device.type in ("cpu", "cuda") and 3 <= x.dim() <= 5 and x.is_floating_point()


def _size(
    size: object, scale_factor: object, recomputes: object, x: Tensor, y: Tensor
) -> tuple[list[int] | None, list[float] | None]:
    """Size and scale factors that give the same result as those of a call, of which one is None; both where they are
    not constant."""
    dims = x.dim() - 2
    if scale_factor is not None and not recomputes:
        factors = list(scale_factor) if isinstance(scale_factor, tuple | list) else [scale_factor] * dims
        constant = [float(each) for each in factors if isinstance(each, int | float)]
        return None, constant if len(constant) == len(factors) else None
    sizes = constant_sizes(tuple(y.shape[2:]) if size is None else size, dims)
    return None if sizes is None else list(sizes), None
