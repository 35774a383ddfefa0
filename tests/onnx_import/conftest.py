"""Skips where the packages of the extra `export` are not installed."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _needs_the_extra_export() -> None:
    for package in ("onnx_ir", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package}, of the extra 'export', is not installed")
