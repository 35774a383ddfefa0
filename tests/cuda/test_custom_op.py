"""op() and triton_kernel(): one call on tensors of Genesis and of PyTorch, with gradients."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import genesis
from genesis.errors import DeviceError, DTypeError
from genesis.settings import override


@genesis.cuda.triton_kernel
@triton.jit
def _square_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    tl.store(out_ptr + i, x * x, mask=i < n)


@genesis.cuda.triton_kernel
@triton.jit
def _square_backward_kernel(grad_x_ptr, grad_ptr, x_ptr, n, BLOCK: tl.constexpr = 64):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(grad_ptr + i, mask=i < n).to(tl.float32)
    tl.store(grad_x_ptr + i, 2 * grad * tl.load(x_ptr + i, mask=i < n).to(tl.float32), mask=i < n)


def forward(ctx: Any, x: Any) -> Any:
    out = x.new_empty(x.shape)
    _square_kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](out, x, x.numel(), BLOCK=64, num_warps=2)
    ctx.save_for_backward(x)
    return out


def backward(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    grad_x = x.new_empty(x.shape)
    _square_backward_kernel[(-(-x.numel() // 64),)](grad_x, grad.contiguous(), x, x.numel())
    return grad_x


square = genesis.cuda.op(forward, backward, cpu=lambda x: x * x, name="square")


def test_triton_kernels_as_an_op(cuda: str) -> None:
    values = [float(value) for value in range(100)]
    x = genesis.tensor(values, device="cuda", requires_grad=True)
    y = square(x)
    assert y.tolist() == [value * value for value in values]
    (3 * y).sum().backward()
    assert x.grad.tolist() == [6 * value for value in values]
    with genesis.no_grad():
        assert not square(x).requires_grad


@pytest.mark.gpu
def test_triton_kernels_on_torch_tensors() -> None:
    x = torch.randn(1000, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = square(x)
        (3 * y).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y, x * x)
    assert torch.equal(x.grad, 6 * x)


@pytest.mark.parametrize("make", [genesis.tensor, torch.tensor], ids=["genesis", "torch"])
def test_on_the_cpu_the_op_is_the_cpu_function(make: Any) -> None:
    x = make([1.0, -2.0]).requires_grad_()
    y = square(x)
    assert type(y) is type(x)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([1.0, 4.0], [2.0, -4.0])


def test_a_function_as_an_op(simulated: None) -> None:
    class Square(genesis.autograd.Function):
        forward = staticmethod(forward)
        backward = staticmethod(backward)

    made = genesis.cuda.op(Square)
    x = genesis.tensor([3.0], device="cuda", requires_grad=True)
    made(x).backward()
    assert x.grad.tolist() == [6.0]
    assert repr(made) == "<op Square>"


def test_without_backward(simulated: None) -> None:
    made = genesis.cuda.op(forward)
    x = genesis.tensor([3.0], device="cuda", requires_grad=True)
    y = made(x)
    assert y.tolist() == [9.0]
    with pytest.raises(NotImplementedError, match=r"^forward: it has no backward, and cannot be differentiated"):
        y.backward()

    class Plain(genesis.autograd.Function):
        forward = staticmethod(forward)

    with pytest.raises(NotImplementedError, match=r"^Plain: it has no backward"):
        genesis.cuda.op(Plain)(x).backward()


def test_on_torch_tensors_the_gradient_is_torchs() -> None:
    """On the CPU, where autograd is the same: op() itself sends CPU tensors to cpu=."""
    from genesis.cuda.frameworks.torch import make_function

    def double(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x * factor

    def double_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.factor, None

    x = torch.ones(3, requires_grad=True)
    apply = make_function("double", double, double_backward)
    y = apply(x, 4.0)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    assert gradient.tolist() == [32.0] * 3
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
    with pytest.raises((NotImplementedError, RuntimeError), match="backward"):
        make_function("plain", double, None)(x, 4.0).sum().backward()


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((1, "a"), DTypeError, r"square: expected a tensor among the arguments, got \(int, str\)"),
        (
            (genesis.ones(1), torch.ones(1)),
            DTypeError,
            "square: expected tensors of Genesis, or of PyTorch, got genesis.Tensor, torch.Tensor",
        ),
        ((torch.ones(1).numpy(),), DTypeError, "square: expected tensors of Genesis, or of PyTorch, got numpy.ndarray"),
    ],
)
def test_wrong_arguments(args: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        square(*args)


def test_without_a_cpu_function(simulated: None) -> None:
    made = genesis.cuda.op(forward, backward)
    for x in (genesis.ones(2), torch.ones(2)):
        with pytest.raises(DeviceError, match=r"argument '0': expected a CUDA tensor \(or give the op a cpu= function"):
            made(x)
    with pytest.raises(DeviceError, match="square: argument '1': expected a CUDA tensor, got one on the CPU"):
        square(genesis.ones(2, device="cuda"), genesis.ones(2))


def test_what_has_no_name_is_called_op() -> None:
    assert repr(genesis.cuda.op(functools.partial(forward))) == "<op op>"


def test_what_op_refuses() -> None:
    class Square(genesis.autograd.Function):
        forward = staticmethod(forward)

    with pytest.raises(ValueError, match="op: argument 'backward': expected none, since Square has one"):
        genesis.cuda.op(Square, backward)
    with pytest.raises(DTypeError, match="op: argument 'cpu': expected a function, got int"):
        genesis.cuda.op(forward, cpu=3)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="square: argument 'x': expected an argument by position, got a keyword"):
        square(x=genesis.ones(2))


# --- Triton kernels ---------------------------------------------------------------------------------------------------


def test_a_triton_kernel_is_called_as_in_triton(cuda: str) -> None:
    x = genesis.tensor([2.0, 3.0], device="cuda")
    out = x.new_zeros(2)
    _square_kernel[1](out, x, 2, 64)  # a constant by position, a grid of one number
    assert out.tolist() == [4.0, 9.0]
    _square_kernel[(1,)](out_ptr=out, x_ptr=out, n=1, BLOCK=64)
    assert out.tolist() == [16.0, 9.0]
    _square_kernel[(0,)](out, x, 0, BLOCK=64)
    assert repr(_square_kernel) == "<Triton kernel _square_kernel(out_ptr, x_ptr, n, BLOCK)>"


def test_a_triton_kernel_takes_what_has_dlpack(simulated: None) -> None:
    memory = genesis.ones(4, device="cuda").array.handle
    out = genesis.zeros(4, device="cuda")
    _square_kernel[1](out, memory, 4, BLOCK=64)
    assert out.tolist() == [1.0] * 4


def test_what_a_triton_kernel_refuses(simulated: None) -> None:
    x, there = genesis.ones(2, device="cuda"), genesis.ones(2, device="cuda:1")
    with pytest.raises(
        DeviceError, match=r"_square_kernel: argument 'x_ptr': expected a tensor on a CUDA device, got one"
    ):
        _square_kernel[1](x, genesis.ones(2), 2, BLOCK=64)
    with pytest.raises(
        DeviceError, match="expected tensors on one CUDA device, got 'out_ptr' on cuda:0, 'x_ptr' on cu"
    ):
        _square_kernel[1](x, there, 2, BLOCK=64)
    with pytest.raises(DeviceError, match="expected tensors on one CUDA device, got no tensors"):
        _square_kernel[1](1, 2, 2, BLOCK=64)
    with pytest.raises(DTypeError, match="expected arguments out_ptr, x_ptr, n, BLOCK; n, BLOCK missing"):
        _square_kernel[1](x, x)
    with pytest.raises(DTypeError, match=r"expected 4 arguments \(out_ptr, x_ptr, n, BLOCK\), got 5"):
        _square_kernel[1](x, x, 2, 64, 4)
    with pytest.raises(TypeError, match="by name"):
        _square_kernel[1](x, x, 2, BLOCK=64, num_wraps=4)
    with pytest.raises(DTypeError, match="_square_kernel: expected each argument once; n by position and by name"):
        _square_kernel[1](x, x, 2, n=2, BLOCK=64)
    with pytest.raises(TypeError, match=r"_square_kernel: expected a grid: _square_kernel\[grid\]"):
        _square_kernel(x, x, 2, BLOCK=64)
    grids: list[Any] = [-1, (1, 1, 1, 1), (), 1.5, None, lambda given: None]
    for grid in grids:
        with pytest.raises(ValueError, match="_square_kernel: argument 'grid': expected 1 to 3 integers from 0 to"):
            _square_kernel[grid](x, x, 2, BLOCK=64)
    with pytest.raises(
        DTypeError, match=r"triton_kernel: argument 'kernel': expected a @triton\.jit function, got function"
    ):
        genesis.cuda.triton_kernel(test_what_op_refuses)


def test_new_empty_and_new_zeros() -> None:
    x = genesis.ones(2, dtype=genesis.float64)
    for made in (x.new_empty(2, 3), x.new_empty((2, 3)), x.new_zeros([2, 3])):
        assert (made.shape, made.dtype) == ((2, 3), genesis.float64)
    assert x.new_zeros(3, dtype=genesis.int32).tolist() == [0, 0, 0]
    with override(cuda="simulated"):
        assert x.new_empty(1, device="cuda").is_cuda
        assert genesis.ones(1, device="cuda:1").new_zeros(1).device == genesis.device("cuda:1")


@pytest.mark.parametrize("repeats", [1, 5])
def test_milliseconds(cuda: str, repeats: int) -> None:
    calls = []
    elapsed = genesis.cuda.milliseconds(lambda: calls.append(genesis.ones(10, device="cuda") * 2), repeats)
    assert elapsed > 0
    assert len(calls) == repeats + 1
    with pytest.raises(ValueError, match="milliseconds: argument 'repeats': expected at least 1, got 0"):
        genesis.cuda.milliseconds(list, 0)
