"""torch.cuda: what genesis.cuda leaves out."""

from __future__ import annotations

import genesis.cuda


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be computed with: wherever there is a GPU."""
    return genesis.cuda.is_available()


def is_initialized() -> bool:
    """Whether a GPU can be used: Genesis initializes it when it is."""
    return genesis.cuda.is_available()
