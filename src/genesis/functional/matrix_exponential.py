"""The exponential of a matrix, with its gradient: a part of genesis.linalg."""

from __future__ import annotations

from genesis.autograd import Context, Function, Tensor
from genesis.functional.decompositions import transposed
from genesis.functional.joining import cat
from genesis.ndarray import ops

__all__: list[str] = []  # genesis.linalg has the function


class MatrixExp(Function):
    """exp(A). dA is the upper right block of exp((Aᵀ dY; 0 Aᵀ))."""

    @staticmethod
    def forward(ctx: Context, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a._like(ops.matrix_exp(a.array))

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        size, turned = a.shape[-1], transposed(a)
        table = cat([cat([turned, grad], -1), cat([turned * 0, turned], -1)], -2)
        return MatrixExp.apply(table)[..., :size, size:]
