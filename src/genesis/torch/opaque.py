"""torch.ops.genesis: each op is a single one to a compiler, which knows the shapes of its results only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("genesis", "DEF")


def define(schema: str, run: Callable[..., Any], shapes: Callable[..., Any], autograd: Any = None) -> None:
    """Register torch.ops.genesis.<name of the schema>.

    Args:
        run: the op, on tensors of the CPU and of CUDA.
        shapes: its results without values.
        autograd: the op where gradients may be wanted: Function.apply. None: it has none.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)
    if autograd is not None:
        _library.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"genesis::{name}", shapes, lib=_library)


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """x with the strides that the compiler was told: those that an empty_like has."""
    promised = torch.empty_like(like)
    return x if x.stride() == promised.stride() else promised.copy_(x)
