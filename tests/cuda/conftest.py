"""The fixture `cuda`: a device for the test, simulated, and with -m gpu a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from genesis.settings import override

torch.set_num_threads(1)


@pytest.fixture(params=["simulated", pytest.param("auto", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> Iterator[str]:
    """The choice that GENESIS_CUDA made."""
    with override(cuda=request.param):
        yield request.param


@pytest.fixture
def simulated() -> Iterator[None]:
    """The simulated pair of devices only."""
    with override(cuda="simulated"):
        yield
