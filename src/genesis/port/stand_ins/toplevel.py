"""torch: names that have no function of their own here."""

from __future__ import annotations

import builtins
from typing import Any

strided = "strided"  # the only layout of tensors that there is
layout = str
memory_format = str


def _assert(condition: Any, message: str = "") -> None:
    """PyTorch's assert that tracers see."""
    assert builtins.bool(condition), message


_assert_async = _assert
