"""torch.ops.genesis: each op is a single one to a compiler, which knows the shapes of its results only."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor

_library = torch.library.Library("genesis", "DEF")
_names: list[str] = []
P = ParamSpec("P")  # an op's arguments, as its schema lists them


def define(
    schema: str, run: Callable[P, object], shapes: Callable[P, object], autograd: Callable[P, object] | None = None
) -> None:
    """Register torch.ops.genesis.<name of the schema>.

    Args:
        run: the op, on tensors of the CPU and of CUDA.
        shapes: its results without values.
        autograd: the op where gradients may be needed: Function.apply. None: it has no gradient.
    """
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.needs_exact_strides,))
    _names.append(name)
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)
    if autograd is not None:
        _library.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"genesis::{name}", shapes, lib=_library)


def tell_inductor() -> None:
    """Have Inductor call the ops, none of which it could compile.

    It would find that out by itself, but before PyTorch 2.13 it then writes out the op's arguments with all that led to
    them, if only for a log that nobody reads: minutes for a deep network.
    """
    from torch._inductor.lowering import lowerings, make_fallback

    for name in _names:
        op = getattr(torch.ops.genesis, name).default
        if op not in lowerings:
            make_fallback(op, warn=False)


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """x with the strides that the compiler was told: those that an empty_like has."""
    promised = torch.empty_like(like)
    return x if x.stride() == promised.stride() else promised.copy_(x)
