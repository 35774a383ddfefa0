"""Where results lie: `view` flattens those that are row-major in PyTorch, and they share memory where they do there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional

import genesis

Op = Callable[[Any, Any], Any]  # of a tensor, and the library that it is of
ALONG: dict[str, Callable[[Any, Any, int], Any]] = {
    "sum": lambda x, lib, dim: x.sum(dim),
    "amax": lambda x, lib, dim: x.amax(dim),
    "argmin": lambda x, lib, dim: x.argmin(dim),
    "var": lambda x, lib, dim: x.var(dim),
    "logsumexp": lambda x, lib, dim: x.logsumexp(dim),
    "cumsum": lambda x, lib, dim: x.cumsum(dim),
    "softmax": lambda x, lib, dim: x.softmax(dim),
    "log_softmax": lambda x, lib, dim: x.log_softmax(dim),
    "sort": lambda x, lib, dim: x.sort(dim)[0],
    "topk": lambda x, lib, dim: x.topk(2, dim)[0],
    "cummax": lambda x, lib, dim: x.cummax(dim)[0],
    "cat": lambda x, lib, dim: lib.cat([x, x], dim),
    "stack": lambda x, lib, dim: lib.stack([x, x], dim),
    "repeat_interleave": lambda x, lib, dim: x.repeat_interleave(2, dim),
    "index_select": lambda x, lib, dim: x.index_select(dim, lib.tensor([1, 0], device=x.device)),
}
OPS: dict[str, Op] = (
    {
        f"{name} of {dim}": lambda x, lib, op=op, dim=dim: op(x, lib, dim)  # type: ignore[misc]
        for name, op in ALONG.items()
        for dim in (0, 1, -1)
    }
    | {
        "masked_fill": lambda x, lib: x.masked_fill(x > 0, 0),
        "where": lambda x, lib: lib.where(x > 0, x, -x),
        "mean of all but one": lambda x, lib: x.mean(tuple(range(1, x.ndim)), keepdim=True),
        "pad": lambda x, lib: lib.nn.functional.pad(x, (1, 2)),
        "batch_norm": lambda x, lib: lib.nn.functional.batch_norm(x, None, None, training=True),
        "layer_norm": lambda x, lib: lib.nn.functional.layer_norm(x, x.shape[-1:]),
        "matmul": lambda x, lib: x @ x.transpose(-1, -2),
        "roll": lambda x, lib: x.roll(1, 0),
        "tril": lambda x, lib: x.tril(),
        "scatter": lambda x, lib: x.scatter(1, x.argsort(1), 1.0),
    }
)
VIEWS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "as it is": ((4, 6), lambda x: x),
    "of 3 dimensions": ((2, 4, 6), lambda x: x),
    "transposed": ((4, 6), lambda x: x.t()),
    "inner dimensions transposed": ((2, 4, 6), lambda x: x.transpose(1, 2)),
    "permuted": ((4, 6, 2), lambda x: x.permute(2, 0, 1)),
    "heads transposed": ((2, 4, 3, 6), lambda x: x.transpose(1, 2)),
    "steps": ((4, 12), lambda x: x[:, ::2]),
    "expanded": ((4, 1, 6), lambda x: x.expand(4, 4, 6)),
}
KEPT: dict[str, Op] = {  # what may give its argument back
    "repeat_interleave": lambda x, lib: x.repeat_interleave(1, 0),
    "repeat": lambda x, lib: x.repeat(1, 1, 1, 1),
    "cat": lambda x, lib: lib.cat([x]),
    "roll": lambda x, lib: x.roll(0, 0),
    "flip": lambda x, lib: x.flip(()),
    "pad": lambda x, lib: lib.nn.functional.pad(x, (0, 0)),
    "channel_shuffle": lambda x, lib: lib.nn.functional.channel_shuffle(x, 1),
    "channel_shuffle by one": lambda x, lib: lib.nn.functional.channel_shuffle(x, x.shape[1]),
    "ravel": lambda x, lib: x.ravel(),
    "ravel of steps": lambda x, lib: x.flatten()[::2].ravel(),
    "flatten": lambda x, lib: x.flatten(0, 1),
    "contiguous": lambda x, lib: x.contiguous(),
    "float": lambda x, lib: x.float(),
    "unary plus": lambda x, lib: +x,
    "dropout in eval": lambda x, lib: lib.nn.functional.dropout(x, 0.5, training=False),
    "interpolate": lambda x, lib: lib.nn.functional.interpolate(x, scale_factor=1),
    "max_pool2d": lambda x, lib: lib.nn.functional.max_pool2d(x, 1),
    "sum over one": lambda x, lib: x[:1].sum(0),
    "add nothing": lambda x, lib: x + 0,
    "einsum": lambda x, lib: lib.einsum("abcd->abcd", x),
    "broadcast_tensors": lambda x, lib: lib.broadcast_tensors(x, x)[0],
    "meshgrid": lambda x, lib: lib.meshgrid(x.flatten(), indexing="ij")[0],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("op", OPS)
def test_view_flattens_what_is_row_major_in_pytorch(op: str, view: str, device: str) -> None:
    shape, take = VIEWS[view]
    values = torch.randn(shape, generator=torch.manual_seed(0))
    theirs = OPS[op](take(values), torch)
    ours = OPS[op](take(genesis.from_torch(values).to(device)), genesis)
    if theirs.is_contiguous():
        torch.testing.assert_close(ours.view(-1).cpu().to_torch(), theirs.view(-1))


@pytest.mark.parametrize("op", KEPT)
def test_results_share_memory_where_pytorchs_do(op: str, device: str) -> None:
    theirs, ours = torch.zeros(2, 4, 3, 3), genesis.zeros(2, 4, 3, 3, device=device)
    for x, lib in ((theirs, torch), (ours, genesis)):
        KEPT[op](x, lib)[:1].fill_(1.0)
    assert torch.equal(ours.cpu().to_torch(), theirs)
