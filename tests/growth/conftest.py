"""What tests of a small network are given."""

from __future__ import annotations

import pytest

import genesis
from genesis.tensor import Tensor


@pytest.fixture
def x() -> Tensor:
    """An input of networks.small()."""
    genesis.manual_seed(3)
    return genesis.randn(4, 2, 4, 4)
