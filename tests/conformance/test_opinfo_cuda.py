"""The same conformance on CUDA: a few small samples on the simulated device; on a GPU all of them, in all dtypes.

A result that differs from the CPU's passes only if it is as near to float64 as PyTorch's on the CPU, plus the
tolerance of its dtype.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from genesis.settings import override
from tests.conformance import opinfo

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
pytestmark = pytest.mark.filterwarnings(*opinfo.ITS_WARNINGS)


@pytest.mark.parametrize(("op", "dtype"), list(opinfo.cases()))
def test_samples_simulated(op: Any, dtype: torch.dtype) -> None:
    with override(cuda="simulated"):
        opinfo.check_samples(op, dtype, "cuda", most=4, most_measured=2)


@pytest.mark.parametrize("name", opinfo.WITH_ERRORS)
def test_errors_simulated(name: str) -> None:
    with override(cuda="simulated"):
        opinfo.check_errors(name, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "dtype"), list(opinfo.cases(SIXTEEN_BITS, where_all=(torch.float64,))))
def test_samples(op: Any, dtype: torch.dtype) -> None:
    with override(cuda="auto"):
        opinfo.check_samples(op, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", opinfo.WITH_ERRORS)
def test_errors(name: str) -> None:
    with override(cuda="auto"):
        opinfo.check_errors(name, "cuda")
