"""The script for compute-sanitizer runs, and notices what is wrong."""

from __future__ import annotations

import pytest

from genesis import backends
from genesis.settings import override
from tests import gpu_sanitize


@pytest.mark.parametrize("step", gpu_sanitize.STEPS)
def test_step(step: str) -> None:
    with override(cuda="simulated"):
        assert gpu_sanitize.run([step]) == []


def test_a_failure_is_reported() -> None:
    with override(cuda="simulated"):
        cuda = backends.get("cuda")
        wrong = cuda.wrapped(lambda op, function: cuda.cos if op == "sin" else function)
        with backends.use("cuda", wrong):
            failures = gpu_sanitize.run(["sin", "cos"])
    assert len(failures) == 1
    assert failures[0].startswith("sin\n")
