"""Conformance with PyTorch's own sample inputs and error inputs (OpInfo), for every name of the public surface."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance import accuracy, opinfo, surface

HALVES_AND_DOUBLE = (torch.float64, torch.bfloat16, torch.float16)


CASES = list(opinfo.cases((torch.float64,), where_all=HALVES_AND_DOUBLE))


@pytest.mark.filterwarnings(*opinfo.ITS_WARNINGS)
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_samples(op: Any, dtype: torch.dtype) -> None:
    is_extra = dtype is torch.float64 and op.name not in opinfo.ALL_DTYPES  # few of max pooling's 1,400 samples
    opinfo.check_samples(op, dtype, most=60 if is_extra else None, most_measured=None)


@pytest.mark.parametrize("name", opinfo.WITH_ERRORS)
def test_errors(name: str) -> None:
    opinfo.check_errors(name)


def test_the_accuracy_of_all_names_is_measured() -> None:
    measured = {case.values[0].name for case in CASES if accuracy.is_measured(*case.values)}
    assert measured == {
        name for name in opinfo.NAMES if any(torch.float32 in op.dtypes for op in opinfo.OPS.get(name, ()))
    } - {*accuracy.NOT_MEASURED, *surface.INTEGERS_ONLY}


@pytest.mark.parametrize(
    ("most_measured", "num_too_far", "num_checks"), [(2, 0, 1), (2, 1, 2), (2, 2, 2), (None, 1, 1)]
)
def test_where_few_samples_are_too_far_all_decide(
    most_measured: int | None, num_too_far: int, num_checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """num_too_far: how many checks fail; the last one made decides."""
    checked: list[int] = []

    def check(distances: list[accuracy.Distances], rounding: float) -> None:
        checked.append(len(distances))
        assert len(checked) > num_too_far

    monkeypatch.setattr(accuracy, "check", check)
    (op,) = opinfo.OPS["exp"]
    with pytest.raises(AssertionError) if num_too_far >= num_checks else nullcontext():
        opinfo.check_samples(op, torch.float32, most=4, most_measured=most_measured)
    assert len(checked) == num_checks
    assert sorted(set(checked)) == checked  # more the second time


def test_deviations_are_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "deviations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", page, re.MULTILINE)
    assert dict(rows) == {name: reason for name, (reason, _) in surface.DEVIATIONS.items()}
