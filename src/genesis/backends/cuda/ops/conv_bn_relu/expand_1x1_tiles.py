"""How the passes of the 1×1 expansion are cut: tiles of the Triton kernels, and parts of their sums."""

from __future__ import annotations

from genesis.backends.cuda import driver
from genesis.backends.cuda.launch import tiles

_PARTIAL_BYTES = 24 << 20  # of partial sums, which are written and read again
_PART_ROWS = 256  # at least, for each part of a sum
_BLOCK_COST = 8  # of a block of outputs beside that of its outputs, in outputs
# As measured on an H200: rows and outputs of a program's block, its warps, blocks on their way at a time, and how many
# programs there are for each multiprocessor.
GRAM = {"BLOCK_M": 64, "STAGES": 4, "num_warps": 4}
FORWARD = {"BLOCK_M": 64, "BLOCK_K": 64, "STAGES": 3, "num_warps": 4}
PRODUCTS = {"BLOCK_M": 64, "BLOCK_K": 32, "STAGES": 3, "num_warps": 4}
INPUT_GRAD = {"BLOCK_M": 128, "BLOCK_K": 32, "STAGES": 3, "num_warps": 4}
GRAM_PARTS, FORWARD_PROGRAMS, PRODUCTS_PROGRAMS = 4, 8, 6


def block_c(num_inputs: int) -> int:
    return max(tiles.power_of_2(num_inputs), 16)


def num_parts(num_rows: int, per_multiprocessor: int, num_blocks: int, sums_per_part: int, device: int) -> int:
    """Choose enough parts to keep the multiprocessors busy, each with enough rows, in bounded memory."""
    wanted = per_multiprocessor * num_multiprocessors(device) // num_blocks
    return max(1, min(wanted, num_rows // _PART_ROWS, _PARTIAL_BYTES // (4 * sums_per_part)))


def num_multiprocessors(device: int) -> int:
    return driver.get().properties(device).multiprocessor_count


def fitted(tile: dict[str, int], num_rows: int, num_inputs: int, num_outputs: int) -> dict[str, int]:
    """The constants of a kernel: blocks no larger than the problem, those of outputs such that none is nearly empty."""
    block_m = min(max(tiles.power_of_2(num_rows), 16), tile["BLOCK_M"])
    sizes = [size for size in (16, 32, 64) if size <= tile["BLOCK_K"] and (size > 16 or num_outputs <= 16)]
    block_k = min(sizes, key=lambda size: -(-num_outputs // size) * (size + _BLOCK_COST))
    return {
        **tile, "BLOCK_M": block_m, "BLOCK_K": block_k, "BLOCK_C": block_c(num_inputs),
        "EVEN": num_rows > 0 and num_rows % block_m == 0,
    }  # fmt: skip
