"""An op of genesis.cuda.op on PyTorch's tensors: a torch.autograd.Function of the same forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable


def make_function(name: str, forward: Callable[..., Any], backward: Callable[..., Any] | None) -> Callable[..., Any]:
    """Function.apply. The gradient is computed by kernels too, so it cannot be differentiated again: that raises."""
    methods = {"forward": staticmethod(forward)}
    if backward is not None:
        methods["backward"] = staticmethod(once_differentiable(backward))
    return type(name, (torch.autograd.Function,), methods).apply  # type: ignore[attr-defined]
