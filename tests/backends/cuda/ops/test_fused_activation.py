"""Activations inside fused kernels, of all numbers of 16 bits: as near to the truth as a number of 16 bits can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.activation import fused
from genesis.backends.cuda.ops.conv_act.launches import BackwardLaunches
from genesis.backends.cuda.ops.storage.rows import fresh
from genesis.backends.cuda.runtime import streams
from tests.fused_activations import FUNCTIONS, activated

HALF_A_UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
LEAST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-118}  # numbers below may be flushed to zero
OF_CDF = 2e-7  # the error of Φ(x), whose tail is known so far


def all_numbers(dtype: torch.dtype) -> torch.Tensor:
    """As images of one channel, channels last."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return bits.reshape(1, 1, 256, 256).contiguous(memory_format=torch.channels_last)


def close(result: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, absolute: torch.Tensor) -> None:
    """Rounded once, from a value that is right to 2e-6; infinite where the exact value is beyond the range."""
    ours, most = result.double(), torch.finfo(dtype).max
    known = exact.isfinite() & (exact.abs() <= most * (1 - 1e-5))
    off = (ours - exact).abs() - ((HALF_A_UNIT[dtype] + 2e-6) * exact.abs() + LEAST[dtype] + absolute)
    worst = torch.where(known, off, 0).argmax()
    assert (off[known] <= 0).all(), f"{ours.flatten()[worst]}, not {exact.flatten()[worst]}"


@pytest.mark.parametrize("dtype", HALF_A_UNIT, ids=str)
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_every_number(cuda: Backend, put: Any, get: Any, activation: str, dtype: torch.dtype) -> None:
    x = all_numbers(dtype)
    exact = x.double().requires_grad_()
    expected = activated(exact, activation)
    (derivative,) = torch.autograd.grad(expected.sum(), exact)
    given = put(x)
    found = get(fused.activated(given, activation))
    finite = x.isfinite()
    absolute = x.double().abs() * (OF_CDF if activation.startswith("gelu") else 0)
    close(found[finite], expected.detach()[finite], dtype, absolute[finite])
    assert found[x.isnan()].isnan().all()

    ones = put(torch.ones_like(x))
    launches = BackwardLaunches.of(ones.layout, given.layout, activation, False)
    stream = streams.current_handle(0)
    out = fresh(given.layout).new(stream)
    kept = given if activation not in ("sigmoid", "tanh") else fused.activated(given, activation)
    launches.launch(stream, out.data_pointer, 0, 0, ones.data_pointer, kept.data_pointer)
    if kept is not given:  # of the result as it was rounded
        y = get(kept).double()
        derivative = y * (1 - y) if activation == "sigmoid" else 1 - y * y
    ordinary = finite & (x.abs() < 1e4) if dtype is torch.bfloat16 else finite  # beyond, x² has no float32 left
    close(get(out)[ordinary], derivative[ordinary], dtype, absolute[ordinary])
