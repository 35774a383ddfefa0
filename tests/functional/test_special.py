"""Bessel functions, tails of the normal distribution, zeta and frexp, beyond the samples of PyTorch's op database."""

from __future__ import annotations

import math

import pytest
import torch

import genesis

INF, NAN = math.inf, math.nan
EDGES = [
    0.0,
    -0.0,
    1e-300,
    -1e-300,
    7.999,
    8.0,
    8.001,
    -8.001,
    700.0,
    -700.0,
    1e10,
    -1e10,
    1e200,
    -1e200,
    INF,
    -INF,
    NAN,
]
WIDE = torch.cat([torch.linspace(-40, 40, 1601, dtype=torch.float64), torch.tensor(EDGES, dtype=torch.float64)])
CHANCES = torch.cat(
    [
        torch.linspace(0, 1, 1001, dtype=torch.float64),
        torch.logspace(-300, -1, 300, dtype=torch.float64),
        torch.tensor([-0.1, 1.1, 1 - 2**-53, NAN, INF], dtype=torch.float64),
    ]
)


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e", "erfcx", "log_ndtr", "ndtri"])
def test_values_in_float64(name: str) -> None:
    x = CHANCES if name == "ndtri" else WIDE
    found = getattr(genesis.special, name)(genesis.from_torch(x)).to_torch()
    torch.testing.assert_close(found, getattr(torch.special, name)(x), rtol=1e-12, atol=1e-300, equal_nan=True)


def test_zeta_everywhere() -> None:
    generator = torch.Generator().manual_seed(0)
    s = torch.cat([torch.rand(500, generator=generator, dtype=torch.float64) * 30 + 1, torch.arange(-1.0, 12).double()])
    q = torch.cat([torch.linspace(-20.3, 40, 200, dtype=torch.float64), torch.tensor([0.0, -1.0, 1e-200, INF, NAN])])
    s, q = torch.cat([s, torch.tensor([2.5, 300.0]).double()])[:, None], q[None]
    found = genesis.special.zeta(genesis.from_torch(s), genesis.from_torch(q)).to_torch()
    torch.testing.assert_close(found, torch.special.zeta(s, q), rtol=1e-12, atol=1e-12, equal_nan=True)


def test_zeta_of_numbers_and_its_gradients() -> None:
    q = genesis.tensor([0.5, 2.0], dtype=genesis.float64, requires_grad=True)
    genesis.special.zeta(2, q).sum().backward()
    theirs = -2 * torch.special.zeta(torch.tensor(3.0).double(), torch.tensor([0.5, 2.0]).double())
    assert q.grad is not None
    assert q.grad.tolist() == pytest.approx(theirs.tolist(), rel=1e-12)
    assert genesis.special.zeta(genesis.tensor(2), 1).dtype is genesis.float32
    s = genesis.tensor(2.0, requires_grad=True)
    with pytest.raises(NotImplementedError, match="zeta: argument 'input' has no derivative, in PyTorch neither"):
        genesis.special.zeta(s, 1.0).backward()
    with pytest.raises(TypeError, match="zeta: argument 'other': expected a tensor"):
        genesis.special.zeta(2.0, 1.0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_frexp_takes_every_float_apart(dtype: str) -> None:
    info = torch.finfo(getattr(torch, dtype))
    values = [0.0, -0.0, 1.0, -0.75, 12.0, info.max, info.tiny, info.smallest_normal / 4, INF, -INF, NAN]
    x = torch.tensor(values, dtype=getattr(torch, dtype))
    mantissa, exponent = genesis.frexp(genesis.from_torch(x))
    theirs = torch.frexp(x)
    assert (exponent.dtype, exponent.tolist()) == (genesis.int32, theirs.exponent.tolist())
    torch.testing.assert_close(mantissa.to_torch(), theirs.mantissa, rtol=0, atol=0, equal_nan=True)
    assert mantissa.signbit().tolist() == theirs.mantissa.signbit().tolist()
    with pytest.raises(TypeError, match="frexp: argument 'input': expected a floating dtype, got genesis\\.int64"):
        genesis.frexp(genesis.arange(2))
