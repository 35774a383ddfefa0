"""PyTorch's options layout= and pin_memory= of functions that make tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from genesis import functional as F
from genesis.callsite import wrappers
from genesis.errors import describe
from genesis.tensor import Tensor

P = ParamSpec("P")
DENSE = (None, "strided")


def placed(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let a function that makes a tensor take pin_memory=, and the one layout that there is."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if "pin_memory" in kwargs or "layout" in kwargs:
            layout, pinned = kwargs.pop("layout", None), kwargs.pop("pin_memory", None)
            if layout not in DENSE:
                raise NotImplementedError(describe(function.__name__, "layout", "strided", layout))
            if pinned:
                required = kwargs.pop("requires_grad", False)
                return F.pin_memory(function(*args, **kwargs)).requires_grad_(bool(required))
        return function(*args, **kwargs)

    wrappers.add(call.__code__)  # type: ignore[attr-defined]
    vars(call)["also"] = {"layout": "", "pin_memory": ""}
    return call
