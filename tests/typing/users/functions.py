"""A gradient of one's own, and a kernel with one: apply and the call take and give what forward does."""

from typing import assert_type

import genesis
from genesis import Tensor
from genesis.autograd import ArrayFunction, Context, Function, Gradients
from genesis.ndarray import NDArray


class Cube(Function):
    """x³."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


class MinMax(Function):
    """The smallest and the largest of scale · x."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        ctx.scale = scale
        return x.min() * scale, x.max() * scale

    @staticmethod
    def backward(ctx: Context, grad_min: Tensor, grad_max: Tensor) -> tuple[Tensor, None]:
        return (grad_min + grad_max) * ctx.scale, None


class Transpose(ArrayFunction):
    """On arrays, as the functional layer is written."""

    @staticmethod
    def forward(ctx: Context, x: NDArray, dims: tuple[int, int]) -> NDArray:
        ctx.dims = dims
        return x.transpose(*dims)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return grad.transpose(*ctx.dims), None


class Halves(ArrayFunction):
    """Two arrays: apply gives two tensors."""

    @staticmethod
    def forward(ctx: Context, x: NDArray) -> tuple[NDArray, NDArray]:
        return x.narrow(0, 0, 1), x.narrow(0, 1, 1)


x = genesis.ones(2, requires_grad=True)
assert_type(Cube.apply(x), Tensor)
assert_type(MinMax.apply(x, scale=2.0), tuple[Tensor, Tensor])
assert_type(Transpose.apply(x, (0, 1)), Tensor)
assert_type(Halves.apply(x), tuple[Tensor, Tensor])
assert_type(genesis.autograd.gradcheck(Cube.apply, x), bool)

Cube.apply("no tensor")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Cube.apply()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
