"""1×1 expansions that never write the convolution's output, in tests for small images too."""

from __future__ import annotations

import pytest

from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1


@pytest.fixture(autouse=True)
def expansions_of_small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand_1x1, "LEAST_ROWS", 0)
