"""torch.nn.modules.transformer: the private helpers that copies of its layers import."""

from __future__ import annotations

import copy
from collections.abc import Callable

from genesis import functional as F
from genesis.nn.module import Module
from genesis.nn.modules.container import ModuleList
from genesis.tensor import Tensor


def _get_activation_fn(activation: str) -> Callable[[Tensor], Tensor]:
    if activation == "relu":
        return F.relu
    if activation == "gelu":
        return F.gelu
    raise RuntimeError(f"activation should be relu/gelu, not {activation}")


def _get_clones(module: Module, N: int) -> ModuleList[Module]:
    return ModuleList([copy.deepcopy(module) for _ in range(N)])
