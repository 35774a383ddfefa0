"""A kernel in CUDA C++, and an op with a gradient made of two."""

from typing import assert_type

import genesis
from genesis import Tensor
from genesis.autograd import Context, Function

module = genesis.cuda.load_inline("squares", "…", functions=["square<float>", "square_backward<float>"])
square_kernel, square_backward_kernel = module["square<float>"], module["square_backward<float>"]


def forward(ctx: Context, x: Tensor, factor: float) -> Tensor:
    """factor · x²."""
    y = x.new_empty(x.shape)
    square_kernel(x, y, x.numel(), grid=(x.numel() + 255) // 256, block=256)
    ctx.save_for_backward(x)
    ctx.factor = factor
    return y


def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
    """2 · factor · x · grad; factor has no gradient."""
    (x,) = ctx.saved_tensors
    grad_x = x.new_empty(x.shape)
    square_backward_kernel(grad.contiguous(), x, grad_x, x.numel())
    return grad_x, None


def on_cpu(x: Tensor, factor: float) -> Tensor:
    """The same in ops of the library."""
    return x * x * factor


class Square(Function):
    """The same, as a Function."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        return x * x


square = genesis.cuda.op(forward, backward, cpu=on_cpu, name="square")
x = genesis.ones(3)
assert_type(square(x, 2.0), Tensor)
assert_type(genesis.cuda.op(Square)(x), Tensor)
square(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
genesis.cuda.op(forward, cpu=len)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
double = genesis.cuda.op(lambda ctx, x: x + x, cpu=lambda x: x + x)
