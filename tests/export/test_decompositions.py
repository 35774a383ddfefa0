"""Linear algebra in ONNX: elimination unrolled, in both dtypes, for batches of any size; PyTorch's samples lie beside.

`test_samples.py` has one float32 sample each; here rows must be exchanged, and what fails is told as LAPACK tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import linalg, nn
from genesis.export import NotExportableError
from genesis.tensor import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "inv": linalg.inv,
    "solve from the right": lambda x: linalg.solve(x, x[..., :2, :], left=False),
    "determinants": lambda x: (linalg.det(x), *linalg.slogdet(x)),
    "negative power": lambda x: linalg.matrix_power(x, -2),
    "lu": lambda x: (*linalg.lu(x), *linalg.lu(x[..., :2, :]), *linalg.lu(x[..., :2])),
    "lu_solve": lambda x: linalg.lu_solve(*linalg.lu_factor(x), x, adjoint=True),
    "triangles": lambda x: linalg.solve_triangular(x + linalg.diagonal(x).mean() + 3, x, upper=True),
    "cholesky": lambda x: linalg.cholesky(x @ x.mT + genesis.eye(3, dtype=x.dtype), upper=True),
}


class Call(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def matrices(dtype: str) -> Tensor:
    x = np.random.default_rng(0).standard_normal((4, 3, 3)).astype(dtype)
    x[0, 0, 0] = 0  # so that rows must be exchanged
    return genesis.tensor(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_of_any_size(name: str, dtype: str, tmp_path: Path) -> None:
    genesis.export.onnx(Call(FUNCTIONS[name]), matrices(dtype), tmp_path / "model.onnx", dynamic={0: "batch"})


def test_what_fails_is_told(tmp_path: Path) -> None:
    x = genesis.tensor([[[0.0, 1.0], [0.0, 1.0]], [[4.0, 1.0], [1.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    infos = Call(lambda x: (linalg.lu_factor_ex(x).info, linalg.inv_ex(x).info, linalg.cholesky_ex(x).info))
    assert [each.tolist() for each in infos(x)] == [[1, 0, 1], [1, 0, 1], [1, 2, 1]]
    genesis.export.onnx(infos, x, tmp_path / "model.onnx", dynamic={0: "batch"})


@pytest.mark.parametrize(
    ("shape", "dynamic", "said"),
    [((65, 65), None, "LU: matrices of more than 64 rows"), ((3, 3), {0: "n", 1: "n"}, "LU: depends on dynamic sizes")],
)
def test_refusals(shape: tuple[int, int], dynamic: Any, said: str, tmp_path: Path) -> None:
    eye = genesis.eye(shape[0])
    with pytest.raises(NotExportableError, match=said):
        genesis.export.onnx(Call(linalg.inv), eye, tmp_path / "model.onnx", dynamic=dynamic)
