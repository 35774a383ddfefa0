"""torch.cuda: what genesis.cuda leaves out."""

from __future__ import annotations

import genesis.cuda

# PyTorch's former names
reset_max_memory_allocated = reset_max_memory_cached = genesis.cuda.reset_peak_memory_stats
max_memory_cached, memory_cached = genesis.cuda.max_memory_reserved, genesis.cuda.memory_reserved


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be computed with: wherever there is a GPU."""
    return genesis.cuda.is_available()


def is_initialized() -> bool:
    """Whether a GPU can be used: Genesis initializes it when it is."""
    return genesis.cuda.is_available()


def init() -> None:
    """Do nothing: Genesis initializes a GPU when it is used."""


def ipc_collect() -> None:
    """Do nothing: memory that other processes were given is theirs to release."""
