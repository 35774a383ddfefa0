"""Our forward kernel: launched on arrays, and as a candidate."""

from __future__ import annotations

import math

from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch
from genesis.backends.cuda.launch.triton import launch, prepare_raw
from genesis.backends.cuda.ops.attention import tiles
from genesis.backends.cuda.ops.attention.kernels import forward as kernels
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.backends.cuda.runtime.array import DeviceArray, Layout
from genesis.shapes import Shape


class FlashFamily(Family[AttentionProblem]):
    prefix = "flash"

    def variants(self, problem: AttentionProblem) -> list[Candidate[AttentionProblem]]:
        return [Flash()]


class Flash(Candidate[AttentionProblem]):
    """The Triton kernel."""

    name = f"{FlashFamily.prefix}/triton"

    def supports(self, problem: AttentionProblem) -> bool:
        return True

    def prepare(self, problem: AttentionProblem) -> Launch:
        p, layouts = problem, problem.layouts
        grid, rest, constants = _arguments(*layouts[2:], None, p.is_causal, p.scale)
        run = prepare_raw(kernels._attention_kernel, p.device, grid, (*layouts, None), *rest, **constants)
        return lambda stream, y, logsumexp, query, key, value, _: run(stream, y, logsumexp, query, key, value, 0)


def attend(
    y: DeviceArray, logsumexp: DeviceArray, query: DeviceArray, key: DeviceArray, value: DeviceArray,
    mask: DeviceArray | None, is_causal: bool, scale: float,
) -> None:  # fmt: skip
    """Compute y and logsumexp."""
    masked = None if mask is None else mask.layout
    grid, rest, constants = _arguments(query.layout, key.layout, value.layout, masked, is_causal, scale)
    launch(kernels._attention_kernel, grid, y, logsumexp, query, key, value, mask, *rest, **constants)


def _arguments(
    query: Layout, key: Layout, value: Layout, mask: Layout | None, is_causal: bool, scale: float
) -> tuple[tuple[int], tuple[float | Shape | None, ...], dict[str, object]]:
    """The grid, what follows the arrays, and constants."""
    lead, (num_queries, num_keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    batch = tiles.batch_strides(lead, query, key, value, mask)
    fetchable = tiles.is_fetchable(key, value)
    constants = tiles.constants(tiles.FORWARD, (query, value), num_queries, num_keys, fetchable)
    grid = (math.prod(lead) * -(-num_queries // constants["BLOCK_M"]),)
    strides = tiles.matrix_strides(query, key, value, mask)
    rest = (num_queries, num_keys, float(scale) * kernels.LOG2_E, *batch, *strides)
    more = {
        "BATCH_RANK": len(batch[0]), "VALUE_SIZE": value.shape[-1], "CAUSAL": is_causal,
        "SCALE_LATE": scale >= 0 and mask is None,
    }  # fmt: skip
    return grid, rest, {**constants, **more}
