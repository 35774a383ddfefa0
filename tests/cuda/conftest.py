"""One thread, as the tests of the backend; and the fixture `simulated`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from genesis.settings import override

torch.set_num_threads(1)


@pytest.fixture
def simulated() -> Iterator[None]:
    """The simulated pair of devices only."""
    with override(cuda="simulated"):
        yield
