"""torch.nn.attention: Genesis chooses the kernel of scaled_dot_product_attention itself."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager


class SDPBackend(enum.Enum):
    """PyTorch's implementations."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: list[SDPBackend] | SDPBackend, set_priority: bool = False) -> Iterator[None]:
    """Change nothing: results of all implementations are the same within rounding."""
    yield
