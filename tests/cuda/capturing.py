"""What the tests of CUDA graphs share."""

from __future__ import annotations

import gc
from collections.abc import Callable

import genesis
from genesis import Tensor
from genesis import functional as F
from genesis.cuda import Graph, graph

SIZE = 1 << 14  # elements of a tensor of which each byte counts
KIB = 1 << 10


def captured(run: Callable[[], Tensor], g: Graph | None = None) -> tuple[Graph, Tensor]:
    g = Graph() if g is None else g
    with graph(g):
        result = run()
    return g, result


def captured_value(x: Tensor) -> float:
    """What a graph of x + 1 computes."""
    g, y = captured(lambda: x + 1)
    g.replay()
    return float(y[0].item())


def reserved() -> int:
    gc.collect()
    genesis.cuda.empty_cache()
    return genesis.cuda.memory_reserved()


def seeded(*shape: int, seed: int = 0) -> Tensor:
    genesis.manual_seed(seed)
    return genesis.randn(*shape, device="cuda")


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, size=(3, 7)),
    "max pooling": lambda x: F.max_pool2d(x, 2),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(-1)[0],
    "cumsum": lambda x: x.cumsum(2),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "sum": lambda x: x.sum((0, 2)),
    "cat": lambda x: genesis.cat([x, x * 2], 1),
    "to float64": lambda x: x.double().exp(),
    "zeros": lambda x: genesis.zeros(3, device="cuda") + genesis.full((3,), 2.0, device="cuda"),
    "group norm": lambda x: F.group_norm(x, 2),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "index": lambda x: x[:, genesis.arange(2, device="cuda")],
}
