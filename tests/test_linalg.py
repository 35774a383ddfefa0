"""genesis.linalg: errors, gradients of what PyTorch's samples leave out, and the way to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import Tensor
from genesis.errors import DTypeError, LinAlgError, ShapeError
from genesis.settings import override


def matrix(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda t: genesis.linalg.eigh(t(2, 3)), ShapeError, "eigh: argument 'A': expected square matrices, got shape"),
        (
            lambda t: genesis.linalg.eigh(t(2, 2), "x"),
            ValueError,
            "eigh: argument 'UPLO': expected 'L' or 'U', got",
        ),
        (lambda t: genesis.linalg.svd(t(2)), ShapeError, "svd: argument 'A': expected at least 2 dimensions"),
        (lambda t: genesis.linalg.svd(t(2, 2), driver="gesvd"), ValueError, "svd: argument 'driver': expected None"),
        (lambda t: genesis.linalg.svdvals(t(2, 2).long()), DTypeError, "svdvals: argument 'A': expected a floating"),
        (
            lambda t: genesis.linalg.qr(t(2, 2), "full"),
            ValueError,
            "qr: argument 'mode': expected 'reduced', ",
        ),
        (lambda t: genesis.linalg.lu(t(2, 2), pivot=False), NotImplementedError, "lu: argument 'pivot': expected True"),
        (lambda t: genesis.linalg.lu_factor(t(2, 2) * 0), LinAlgError, "lu_factor: argument 'A': expected regular"),
        (lambda t: genesis.linalg.inv(t(2, 2) * 0), LinAlgError, "inv: argument 'A': expected regular matrices"),
        (lambda t: genesis.linalg.solve(t(2, 2), t(3)), ShapeError, "solve: argument 'B': expected 2 rows, as A"),
        (
            lambda t: genesis.linalg.solve(t(2, 2), t(2).float()),
            DTypeError,
            "solve: argument 'B': expected genesis.float64",
        ),
        (lambda t: genesis.linalg.lstsq(t(2, 2), t(3, 1)), ShapeError, "lstsq: argument 'B': expected 2 rows, as A"),
        (lambda t: genesis.linalg.lstsq(t(2, 2), t(2, 1), driver="x"), ValueError, "lstsq: argument 'driver'"),
        (lambda t: genesis.linalg.cholesky(-genesis.eye(2)), LinAlgError, "cholesky: argument 'A': expected positive"),
        (lambda t: genesis.linalg.tensorinv(t(2, 3)), ShapeError, "tensorinv: argument 'A': expected as many elements"),
        (lambda t: genesis.linalg.matrix_norm(t(2, 2), "x"), ValueError, "matrix_norm: argument 'ord': expected 'fro'"),
        (lambda t: genesis.linalg.vander(t(2), N=1), ValueError, "vander: argument 'N': expected above 1, got 1"),
        (lambda t: genesis.lu_unpack(t(2, 2), t(2)), DTypeError, "lu_unpack: argument 'LU_pivots': expected int32"),
        (lambda t: genesis.cholesky_solve(t(3, 1), t(2, 2)), ShapeError, "cholesky_solve: argument 'B': expected"),
    ],
)
def test_errors(call: Callable[..., object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(lambda *shape: genesis.tensor(matrix(*shape)))
    assert str(caught.value).startswith(text)


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "least squares, tall": lambda lib, x, y: lib.linalg.lstsq(x, y[:5]).solution,
    "least squares, wide": lambda lib, x, y: lib.linalg.lstsq(x.mT, y[:3]).solution,
    "residuals": lambda lib, x, y: lib.linalg.lstsq(x, y[:5], driver="gelsd").residuals,
    "pinv of low rank": lambda lib, x, y: lib.linalg.pinv(x[:, :2] @ y[:2], rtol=1e-10),
    "lu, tall": lambda lib, x, y: lib.linalg.lu(x).L + lib.linalg.lu(x).U.sum(),
    "lu, wide": lambda lib, x, y: lib.linalg.lu(x.mT)[2],
    "qr, wide": lambda lib, x, y: lib.linalg.qr(x.mT).R.square(),
    "eigenvalues alone": lambda lib, x, y: lib.linalg.eigvalsh(x.mT @ x) ** 3,
    "singular values alone, equal ones": lambda lib, x, y: lib.linalg.svdvals(x * 0 + lib.eye(5, 3, dtype=x.dtype)),
    "det of a singular matrix": lambda lib, x, y: lib.linalg.det(x[:3] * lib.tensor([[1.0], [1.0], [0.0]]).double()),
    "lu_solve, adjoint": lambda lib, x, y: lib.linalg.lu_solve(
        *lib.linalg.lu_factor(x[:3]), y[:3], adjoint=True
    ),
    "matrix_exp": lambda lib, x, y: lib.matrix_exp(x[:3]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str) -> None:
    grads = []
    for lib in (genesis, torch):
        x, y = (
            lib.tensor(matrix(*shape, seed=seed), requires_grad=True) for seed, shape in enumerate([(5, 3), (5, 4)])
        )
        result = CALLS[name](lib, x, y)
        (result * lib.tensor(matrix(*result.shape, seed=9))).sum().backward()
        grads.append([np.zeros(each.shape) if each.grad is None else each.grad.numpy() for each in (x, y)])
    for ours, theirs in zip(*grads, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mode", ["r", "complete"])
def test_qr_refuses_the_gradient_of_a_mode(mode: str) -> None:
    x = genesis.tensor(matrix(4, 2), requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^qr: argument 'mode': "):
        genesis.linalg.qr(x, mode).R.sum().backward()


def test_results_have_names() -> None:
    x = genesis.tensor(matrix(3, 3))
    assert genesis.linalg.svd(x)._fields == ("U", "S", "Vh")
    assert genesis.linalg.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    assert genesis.linalg.slogdet(x)._fields == ("sign", "logabsdet")
    assert genesis.linalg.lu_factor_ex(x)._fields == ("LU", "pivots", "info")
    assert genesis.linalg.lstsq(x, x)._fields == ("solution", "residuals", "rank", "singular_values")


def test_on_a_device_results_and_gradients_stay_there() -> None:
    with override(cuda="simulated"):
        x = genesis.tensor(matrix(3, 3), device="cuda").float().requires_grad_()
        u, s, vh = genesis.linalg.svd(x)
        assert {each.device.type for each in (u, s, vh)} == {"cuda"}
        (u * s @ vh).square().sum().backward()
        assert x.grad is not None
        assert x.grad.device.type == "cuda"
        np.testing.assert_allclose(x.grad.cpu().numpy(), 2 * matrix(3, 3), rtol=1e-4, atol=1e-4)


def test_autocast_decomposes_in_float32() -> None:
    x: Tensor = genesis.tensor(matrix(3, 3)).to(genesis.bfloat16)
    with genesis.autocast("cpu"):
        assert genesis.linalg.svdvals(x).dtype is genesis.float32
