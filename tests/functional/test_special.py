"""Bessel, incomplete gamma and zeta functions, normal tails, frexp: beyond the samples of PyTorch's op database."""

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


def test_incomplete_gamma_functions_everywhere() -> None:
    """Between a = 20 and 1e6 PyTorch's own values are off by up to 2e-9: see EXACT."""
    a = torch.tensor([0.0, 1e-3, 0.1, 0.5, 1.0, 3.3, 8.0, 19.99, 20.5, 100.0, 1e3, 1e5, INF, -1.0]).double()[:, None]
    ratios = torch.cat([torch.logspace(-6, 1.5, 90), torch.linspace(0.5, 1.5, 41)]).double()
    scale = torch.where(a.isfinite() & (a > 0), a, 1.0)
    x = torch.cat([scale * ratios, torch.tensor([0.0, 0.7, 1.0, INF, -1.0]).double().expand(len(a), -1)], 1)
    for name in ("gammainc", "gammaincc"):
        found = getattr(genesis.special, name)(genesis.from_torch(a), genesis.from_torch(x)).to_torch()
        wanted = getattr(torch.special, name)(a, x)
        torch.testing.assert_close(found, wanted, rtol=5e-9, atol=1e-290, equal_nan=True)
        torch.testing.assert_close(found[1:8], wanted[1:8], rtol=2e-12, atol=1e-290, equal_nan=True)
        nothing = getattr(genesis.special, name)(genesis.tensor([NAN, 0.0, INF]), genesis.tensor([0.0, NAN, NAN]))
        assert nothing.isnan().all()


EXACT = [  # a, x, P(a, x), Q(a, x), by mpmath
    (20.5, 11.0, 0.006622607107421627, 0.9933773928925784),
    (25.0, 60.0, 0.9999998904119288, 1.0958807112599779e-07),
    (100.0, 99.0, 0.473304330399461, 0.526695669600539),
    (199.0, 260.0, 0.9999641752900343, 3.5824709965667576e-05),
    (1000.0, 900.0, 0.0005499022657117829, 0.9994500977342882),
    (10000.0, 10000.0, 0.5013298083399552, 0.4986701916600448),
]


@pytest.mark.parametrize(("a", "x", "lower", "upper"), EXACT)
def test_incomplete_gamma_functions_are_exact(a: float, x: float, lower: float, upper: float) -> None:
    operands = genesis.tensor([a, x], dtype=genesis.float64).unbind()
    assert genesis.special.gammainc(*operands).item() == pytest.approx(lower, rel=1e-12)
    assert genesis.special.gammaincc(*operands).item() == pytest.approx(upper, rel=1e-12)


def test_gradients_of_the_incomplete_gamma_functions() -> None:
    a, x = (genesis.tensor(value, dtype=genesis.float64, requires_grad=True) for value in (2.5, 2.0))
    for function in (genesis.igamma, genesis.igammac):
        assert genesis.autograd.gradcheck(lambda x, function=function: function(a.detach(), x), (x,))
        (once,) = genesis.autograd.grad(function(a.detach(), x), x, create_graph=True)
        (twice,) = genesis.autograd.grad(once, x)
        assert twice.item() == pytest.approx(once.item() * (1.5 / 2.0 - 1))  # p′ = p · ((a − 1) / x − 1)
    with pytest.raises(NotImplementedError, match="gammainc: argument 'input' has no derivative, in PyTorch neither"):
        genesis.igamma(a, x).backward()
    with pytest.raises(TypeError, match="gammaincc: argument 'other': expected a tensor, got float"):
        genesis.igammac(x, 1.0)
