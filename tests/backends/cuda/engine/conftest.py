"""A family of candidates in front of the plain one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genesis.backends.backend import Backend
from genesis.backends.cuda.engine import plan as plan_module
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.settings import override
from tests.backends.cuda.engine.fake_candidates import FakeFamily


@pytest.fixture
def fakes(simulated: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFamily]:
    family = FakeFamily()
    monkeypatch.setattr(families, "FAMILIES", (family, ImplicitGemmFamily()))
    with override(cache_dir=tmp_path):
        plans.forget()
        yield family
        plans.forget()
    plan_module._used.clear()
