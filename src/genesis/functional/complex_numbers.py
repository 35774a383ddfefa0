"""Complex numbers: made of real ones, seen as them, and taken apart. On the CPU only.

What takes apart is a view, so changes reach the complex tensor; where gradients are recorded, change that instead.
"""

from __future__ import annotations

from genesis.autograd import ArrayFunction, Context, ElementwiseFunction, Gradients, Tensor
from genesis.autograd.views import ViewKind
from genesis.dtypes import get_default_dtype
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.elementwise import mul
from genesis.functional.unary import cos, sin
from genesis.ndarray import NDArray, ops

__all__ = [
    "angle", "complex", "conj", "conj_physical", "imag", "polar", "real", "resolve_conj", "resolve_neg",
    "view_as_complex", "view_as_real",
]  # fmt: skip


def require_device(op: str, input: Tensor) -> None:
    """Refuse to make complex numbers on a CUDA device.

    Args:
        op: for the message.
        input: any shape.
    Raises: NotImplementedError: it is on one.
    """
    device = input.array.device
    if device.type != "cpu":
        raise NotImplementedError(f"{op}: complex tensors are on the CPU only, and input is on {device}; use .cpu()")


# --- made of real numbers ---------------------------------------------------------------------------------------------


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """real + i·imag.

    Args:
        real, imag: float32 or float64, of one dtype, on the CPU; their shapes broadcast.
    Returns: the common shape, complex64 or complex128.
    Raises: DTypeError: another dtype, or two. NotImplementedError: they are on a CUDA device.
    Grad: real, imag. Saves nothing.
    Example: >>> F.complex(genesis.tensor([1.0, 2.0]), genesis.tensor([0.0, -1.0])).tolist()
    [(1+0j), (2-1j)]
    """
    require_tensors("complex", real=real, imag=imag)
    require_device("complex", real)
    if real.array.dtype.name not in ("float32", "float64"):
        raise DTypeError(describe("complex", "real", "float32 or float64", real.array.dtype))
    if imag.array.dtype is not real.array.dtype:
        raise DTypeError(describe("complex", "imag", f"{real.array.dtype}, as real", imag.array.dtype))
    return Complex.apply(real, imag)


class Complex(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, y: NDArray) -> NDArray:
        return ops.make_complex(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return grad.part(0), grad.part(1)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """abs · (cos angle + i·sin angle).

    Args:
        abs, angle: float32 or float64, of one dtype, on the CPU; their shapes broadcast.
    Returns: the common shape, complex64 or complex128.
    Raises: DTypeError: another dtype, or two.
    Grad: abs, angle.
    Example: >>> F.polar(genesis.tensor([2.0]), genesis.tensor([0.0])).tolist()
    [(2+0j)]
    """
    require_tensors("polar", abs=abs, angle=angle)
    for name, value in (("abs", abs), ("angle", angle)):
        if value.array.dtype.name not in ("float32", "float64") or value.array.dtype is not abs.array.dtype:
            raise DTypeError(describe("polar", name, "float32 or float64, as the other", value.array.dtype))
    return complex(mul(abs, cos(angle)), mul(abs, sin(angle)))


def view_as_complex(input: Tensor) -> Tensor:
    """Pairs of real numbers as complex ones.

    Args:
        input: (…, 2), float32 or float64; the last dimension is dense in memory, the other strides are even.
    Returns: (…), complex64 or complex128: a view.
    Raises: DTypeError: another dtype. ShapeError: another last dimension, or strides that no view can have.
    Grad: input. Saves nothing.
    Example: >>> F.view_as_complex(genesis.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [(1+2j), (3+4j)]
    """
    require_tensors("view_as_complex", input=input)
    require_device("view_as_complex", input)
    x = input.array
    if x.dtype.name not in ("float32", "float64"):
        raise DTypeError(describe("view_as_complex", "input", "float32 or float64", x.dtype))
    if not x.ndim or x.shape[-1] != 2:
        raise ShapeError(describe("view_as_complex", "input", "a last dimension of size 2", f"shape {x.shape}"))
    if x.strides[-1] != 1 or any(step % 2 for step in (*x.strides[:-1], x.offset)):
        got = f"strides {x.strides} at {x.offset}"
        raise ShapeError(describe("view_as_complex", "input", "pairs that lie at even places in memory", got))
    return _seen(ViewAsComplex.apply(input))


class ViewAsComplex(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        strides = tuple([step // 2 for step in x.strides[:-1]])
        return x.view_dtype(x.dtype.to_complex(), x.shape[:-1], strides, x.offset // 2)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad.pairs()


# --- taken apart ------------------------------------------------------------------------------------------------------


def view_as_real(input: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones.

    Args:
        input: any shape, complex.
    Returns: the shape of input and a last dimension of 2, in the dtype of its parts: a view.
    Raises: DTypeError: input is not complex.
    Grad: input. Saves nothing.
    Example: >>> F.view_as_real(genesis.tensor([1 + 2j])).tolist()
    [[1.0, 2.0]]
    """
    require_tensors("view_as_real", input=input)
    if not input.array.dtype.is_complex:
        raise DTypeError(describe("view_as_real", "input", "a complex dtype", input.array.dtype))
    return _seen(ViewAsReal.apply(input))


class ViewAsReal(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return x.pairs()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        last = grad.ndim - 1
        return ops.make_complex(grad.select(last, 0), grad.select(last, 1))


def real(input: Tensor) -> Tensor:
    """The real part: a view; input itself if it is real.

    Args:
        input: any shape and dtype.
    Returns: the shape of input, in the dtype of its parts.
    Grad: input. Saves nothing.
    Example: >>> F.real(genesis.tensor([1 + 2j])).tolist()
    [1.0]
    """
    require_tensors("real", input=input)
    return _seen(Part.apply(input, place=0)) if input.array.dtype.is_complex else input


def imag(input: Tensor) -> Tensor:
    """The imaginary part: a view.

    Args:
        input: any shape, complex.
    Returns: the shape of input, in the dtype of its parts.
    Raises: DTypeError: input is not complex.
    Grad: input. Saves nothing.
    Example: >>> F.imag(genesis.tensor([1 + 2j])).tolist()
    [2.0]
    """
    require_tensors("imag", input=input)
    if not input.array.dtype.is_complex:
        raise DTypeError(describe("imag", "input", "a complex dtype", input.array.dtype))
    return _seen(Part.apply(input, place=1))


class Part(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, place: int) -> NDArray:
        ctx.place = place
        return x.part(place)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        zero = grad.full_like(0)
        return ops.make_complex(zero, grad) if ctx.place else ops.make_complex(grad, zero)


def _seen(view: Tensor) -> Tensor:
    if view._view_kind is ViewKind.PLAIN:
        view._view_kind = ViewKind.PARTS
    return view


def angle(input: Tensor) -> Tensor:
    """The angle of complex numbers, in (−π, π]; of real ones 0, π below 0, and NaN of NaN.

    Args:
        input: any shape and dtype.
    Returns: the shape of input, in the dtype of its parts; integers compute as the default float dtype.
    Grad: input; 0 at 0. Saves input.
    Example: >>> F.angle(genesis.tensor([1 + 0j, -1 + 0j])).tolist()
    [0.0, 3.1415927410125732]
    """
    require_tensors("angle", input=input)
    return Angle.apply(input)


class Angle(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        if x.dtype.is_complex:
            return ops.angle(x)
        x = x if x.dtype.is_floating_point else x.to(get_default_dtype())
        return x.isnan().where(x, x.lt(0).where(x.full_like(3.141592653589793), 0.0))

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        if not x.dtype.is_complex:
            return grad.full_like(0)
        size = x.abs()
        safe = size.eq(0).where(1.0, size)
        turned = ops.make_complex(x.part(1).neg(), x.part(0))  # i·z
        return turned.div(safe).mul(grad.div(safe))  # i·z / |z|², 0 at 0


# --- conjugates -------------------------------------------------------------------------------------------------------


def conj(input: Tensor) -> Tensor:
    """The complex conjugate; input itself if it is real.

    Args:
        input: any shape and dtype.
    Returns: shape and dtype of input: new values, where PyTorch gives a view that is conjugated when it is read.
    Grad: input. Saves nothing.
    Example: >>> F.conj(genesis.tensor([1 + 2j])).tolist()
    [(1-2j)]
    """
    require_tensors("conj", input=input)
    return Conj.apply(input) if input.array.dtype.is_complex else input


class Conj(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return ops.conj(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return ops.conj(grad)


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate, as new values; input itself if it is real.

    Args:
        input: any shape and dtype.
    Returns: shape and dtype of input.
    Grad: input. Saves nothing.
    Example: >>> F.conj_physical(genesis.tensor([1 + 2j])).tolist()
    [(1-2j)]
    """
    return conj(input)


def resolve_conj(input: Tensor) -> Tensor:
    """Return input: conjugates are computed at once. See `F.conj`."""
    return input


def resolve_neg(input: Tensor) -> Tensor:
    """Return input: negatives are computed at once. See `F.conj`."""
    return input
