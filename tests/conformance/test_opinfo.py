"""Conformance with PyTorch's own sample inputs and error inputs (OpInfo), for every name of the public surface."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance import surface
from tests.conformance.harness import check_refused, check_sample, find

OPS: dict[str, list[Any]] = {}
for info in op_db:
    OPS.setdefault(info.name, []).append(info)
HALVES_AND_DOUBLE = (torch.float64, torch.bfloat16, torch.float16)


def cases() -> Iterator[Any]:
    for name in surface.NAMES:
        for op in OPS.get(name, ()):
            extra = HALVES_AND_DOUBLE if name in surface.ALL_DTYPES else ()
            main = torch.int64 if name in surface.INTEGERS_ONLY else torch.float32
            for dtype in [dtype for dtype in (main, *extra) if dtype in op.dtypes]:
                variant = f"{name}-{op.variant_test_name}" if op.variant_test_name else name
                yield pytest.param(op, dtype, id=f"{variant}-{str(dtype).removeprefix('torch.')}")


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:reduction. 'mean' divides")  # PyTorch's own
@pytest.mark.parametrize(("op", "dtype"), list(cases()))
def test_samples(op: Any, dtype: torch.dtype) -> None:
    ours = find(op.name)
    assert ours is not None, f"genesis.{op.name} is missing"
    refused = surface.DEVIATIONS.get(op.name, ("", lambda sample: False))[1]
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradients)):
        if refused(sample):
            check_refused(ours, sample, surface.DEVIATIONS[op.name][0])
            continue
        try:
            check_sample(ours, op.op, sample, gradients=gradients)
        except Exception as error:
            raise AssertionError(f"{op.name} sample {number}: {sample}\n{type(error).__name__}: {error}") from error


@pytest.mark.parametrize(
    "name", [name for name in surface.NAMES if any(op.error_inputs_func for op in OPS.get(name, ()))]
)
def test_errors(name: str) -> None:
    ours = find(name)
    refused = surface.DEVIATIONS.get(name, ("", lambda sample: False))[1]
    for op in OPS[name]:
        for error_input in op.error_inputs("cpu") if op.error_inputs_func else ():
            if not refused(error_input.sample_input):
                check_refused(ours, error_input.sample_input, error_input.error_regex)


def test_deviations_are_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "deviations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", page, re.MULTILINE)
    assert dict(rows) == {name: reason for name, (reason, _) in surface.DEVIATIONS.items()}
