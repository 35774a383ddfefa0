"""What the fuzzer calls: how the arguments of each op are drawn; layers of networks are in fuzz_networks.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from genesis import dtypes
from tests.conformance.fuzz_draw import FLOATS, INTEGERS, Call, Draw, Shape, drawn_by

DTYPES = {dtype.name: dtype for dtype in dtypes.ALL}


# --- storage ----------------------------------------------------------------------------------------------------------
@drawn_by("cast")
def cast(name: str, d: Draw) -> Any:
    target = d.choice([*FLOATS, *INTEGERS[:4], torch.bool])
    return d.tensor(d.shape(), d.any_dtype(with_bool=True)), DTYPES[str(target).removeprefix("torch.")]


@drawn_by("copy_into")
def copy_into(name: str, d: Draw) -> Call:
    shape = d.shape()
    target = d.target(shape, d.any_dtype())
    return Call(_in_place(name), (target, d.like(d.choice([target.dtype, d.floating()]), shape)))


@drawn_by("add_into")
def add_into(name: str, d: Draw) -> Call:
    shape, dtype = d.shape(), d.any_dtype()
    return Call(_in_place(name), (d.target(shape, dtype), d.tensor(shape, dtype)))


def _in_place(name: str) -> Callable[..., Any]:
    def run(backend: Any, target: Any, *rest: Any) -> Any:
        getattr(backend, name)(target, *rest)
        return target

    return run


# --- element-wise -----------------------------------------------------------------------------------------------------
@drawn_by("abs sign neg floor ceil round exp expm1 sin cos tanh sigmoid erf isnan isinf isfinite logical_not")
def unary(name: str, d: Draw) -> Any:
    integers = name in ("abs", "sign", "neg", "logical_not")
    return (d.tensor(d.shape(), d.any_dtype() if integers else d.floating()),)


@drawn_by("atan sinh cosh asinh exp2 erfc trunc tan")
def unary_of_floats(name: str, d: Draw) -> Any:
    x = d.tensor(d.shape(), d.floating())
    return (x.clamp(-1, 1) if name == "tan" else x,)  # near the poles, rounding decides


@drawn_by("asin acos atanh erfinv")
def unary_within_one(name: str, d: Draw) -> Any:
    return (d.tensor(d.shape(), d.floating()).clamp(-0.9, 0.9),)


@drawn_by("acosh")
def unary_above_one(name: str, d: Draw) -> Any:
    return (d.tensor(d.shape(), d.floating(), positive=True) + 1.5,)


@drawn_by("lgamma digamma trigamma")
def gammas(name: str, d: Draw) -> Any:
    return (d.tensor(d.shape(), d.floating(), positive=True) + 2,)  # near 1 and 2 a zero, below 0 the poles


@drawn_by("atan2 hypot copysign")
def binary_of_floats(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.floating()
    return d.tensor(shape, dtype), d.tensor(shape, dtype, positive=True)


@drawn_by("nextafter")
def nextafter(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.choice([torch.float32, torch.float64])
    return d.tensor(shape, dtype), d.tensor(shape, dtype)


@drawn_by("log log1p sqrt rsqrt reciprocal log2 log10")
def unary_of_positive(name: str, d: Draw) -> Any:
    return (d.tensor(d.shape(), d.floating(), positive=True),)


@drawn_by("bitwise_not")
def bitwise_not(name: str, d: Draw) -> Any:
    return (d.tensor(d.shape(), d.choice([*INTEGERS, torch.bool])),)


@drawn_by("add sub mul maximum minimum eq ne lt le gt ge logical_and logical_or")
def binary(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.any_dtype()
    x, y = d.tensor(shape, dtype), d.like(dtype, shape)
    return (x, y) if d.chance() else (y, x)


@drawn_by("bitwise_and bitwise_or bitwise_xor")
def bitwise(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.choice(INTEGERS)
    return d.tensor(shape, dtype), d.like(dtype, shape)


@drawn_by("div pow")
def binary_of_positive(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.floating()
    x, y = (d.tensor(shape, dtype, positive=True) for _ in range(2))
    return (x, y) if d.chance(0.7) else (x, d.choice([2.0, 0.5, 3.0]))


@drawn_by("floor_divide remainder fmod")
def quotients(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.choice([*FLOATS, *INTEGERS])
    whole = torch.int64 if dtype.is_floating_point else dtype
    return d.tensor(shape, whole).to(dtype), d.tensor(shape, whole, positive=True).to(dtype)


@drawn_by("where")
def where(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.any_dtype()
    return d.mask(shape), d.tensor(shape, dtype), d.like(dtype, shape)


@drawn_by("clamp")
def clamp(name: str, d: Draw) -> Any:
    low, high = d.choice([(-1, 1), (None, 1), (0, None), (-0.5, 0.5)])
    integral = isinstance(low, int | None) and isinstance(high, int | None)
    return d.tensor(d.shape(), d.any_dtype() if integral else d.floating()), low, high


@drawn_by("masked_fill")
def masked_fill(name: str, d: Draw) -> Any:
    shape = d.shape()
    mask = d.mask(tuple(1 if d.chance(0.2) else size for size in shape))
    return d.tensor(shape, d.any_dtype()), mask, d.integer(0, 3)


ACTIVATION_OPTIONS: dict[str, tuple[Any, ...]] = {
    "relu": (), "silu": (), "hardswish": (), "hardsigmoid": (), "leaky_relu": (0.1,), "elu": (1.3,),
    "gelu": ("tanh",), "softplus": (2.0, 5.0),
}  # fmt: skip


@drawn_by("relu leaky_relu elu gelu silu softplus hardswish hardsigmoid")
def activation(name: str, d: Draw) -> Any:
    return (d.tensor(d.shape(), d.floating()), *ACTIVATION_OPTIONS[name])


@drawn_by(
    "relu_backward leaky_relu_backward elu_backward gelu_backward silu_backward softplus_backward hardswish_backward "
    "hardsigmoid_backward sigmoid_backward tanh_backward"
)
def activation_backward(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.floating()
    if name == "hardsigmoid_backward" and dtype is torch.float64:  # torch holds its 1/6 in float32
        dtype = torch.float32
    options = ACTIVATION_OPTIONS.get(name.removesuffix("_backward"), ())
    return (d.tensor(shape, dtype), d.tensor(shape, dtype), *options)


@drawn_by("softmax log_softmax")
def softmax(name: str, d: Draw) -> Any:
    shape = d.shape()
    return d.tensor(shape, d.floating()), d.integer(0, max(len(shape) - 1, 0))


@drawn_by("softmax_backward log_softmax_backward")
def softmax_backward(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(), d.floating()
    dim = d.integer(0, max(len(shape) - 1, 0))
    y = torch.softmax(d.tensor(shape, torch.float64), dim)
    return d.tensor(shape, dtype), (y if name == "softmax_backward" else y.log()).to(dtype), dim


# --- reductions and products ------------------------------------------------------------------------------------------
@drawn_by("sum mean prod amax amin all any logsumexp")
def reduction(name: str, d: Draw) -> Any:
    dtype = d.floating() if name in ("mean", "logsumexp") else d.any_dtype(with_bool=name in ("sum", "all", "any"))
    shape = d.shape(high=3 if name == "prod" else 4, least=1 if name in ("amax", "amin") else 0)
    if name == "prod":
        shape = shape if torch.Size(shape).numel() < 40 else (3, 5)
    return d.tensor(shape, dtype), d.dims(len(shape)), d.chance()


@drawn_by("argmax argmin")
def arg(name: str, d: Draw) -> Any:
    shape = d.shape(least=1)
    return d.tensor(shape, d.any_dtype()), d.integer(0, max(len(shape) - 1, 0)), d.chance()


@drawn_by("var")
def var(name: str, d: Draw) -> Any:
    shape = d.shape(low=1, least=2)
    return d.tensor(shape, d.floating()), d.dims(len(shape)), d.choice([0.0, 1.0]), d.chance()


@drawn_by("cumsum")
def cumsum(name: str, d: Draw) -> Any:
    shape = d.shape(low=1)
    return d.tensor(shape, d.any_dtype()), d.integer(0, len(shape) - 1)


@drawn_by("matmul")
def matmul(name: str, d: Draw) -> Any:
    batch, (m, k, n), dtype = d.shape(high=2), (d.size() for _ in range(3)), d.floating()
    batch = batch if torch.Size(batch).numel() < 50 else (2,)
    other = batch[d.integer(0, len(batch)) :]
    return d.tensor((*batch, m, k), dtype), d.tensor((*other, k, n), dtype)


@drawn_by("linear")
def linear(name: str, d: Draw) -> Any:
    batch, inputs, outputs, dtype = d.shape(high=2), d.size(), d.size(), d.floating()
    bias = d.tensor((outputs,), dtype) if d.chance() else None
    batch = batch if torch.Size(batch).numel() < 300 else (3,)
    return d.tensor((*batch, inputs), dtype), d.tensor((outputs, inputs), dtype), bias


# --- selection --------------------------------------------------------------------------------------------------------
@drawn_by("cat")
def cat(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(low=1), d.any_dtype(with_bool=True)
    dim = d.integer(0, len(shape) - 1)
    sizes = [d.size() for _ in range(d.integer(1, 4))]
    return [d.tensor((*shape[:dim], size, *shape[dim + 1 :]), dtype) for size in sizes], dim


@drawn_by("flip")
def flip(name: str, d: Draw) -> Any:
    shape = d.shape()
    return d.tensor(shape, d.any_dtype(with_bool=True)), d.dims(len(shape))


@drawn_by("tril triu")
def triangle(name: str, d: Draw) -> Any:
    return d.tensor(d.shape(low=2), d.any_dtype()), d.integer(-3, 3)


@drawn_by("pad")
def pad(name: str, d: Draw) -> Any:
    mode = d.choice(["constant", "constant", "reflect", "replicate", "circular"])
    shape = d.shape(low=3 if mode != "constant" else 1, high=4, least=4)
    pads = tuple(
        (d.integer(-1, 3), d.integer(-1, 3)) if i > 0 or mode == "constant" else (0, 0) for i in range(len(shape))
    )
    return d.tensor(shape, d.any_dtype()), pads, mode, d.integer(0, 2) if mode == "constant" else 0


@drawn_by("pad_backward")
def pad_backward(name: str, d: Draw) -> Any:
    mode = d.choice(["constant", "reflect", "replicate", "circular"])
    shape = d.shape(low=3, high=4, least=4)
    pads = tuple((d.integer(-1, 3), d.integer(-1, 3)) if i > 0 else (0, 0) for i in range(len(shape)))
    padded = tuple(size + before + after for size, (before, after) in zip(shape, pads, strict=True))
    return d.tensor(padded, d.floating()), shape, pads, mode


@drawn_by("index_select")
def index_select(name: str, d: Draw) -> Any:
    shape = d.shape(low=1, least=1)
    dim = d.integer(0, len(shape) - 1)
    return d.tensor(shape, d.any_dtype(with_bool=True)), dim, d.indices((d.size(),), shape[dim])


@drawn_by("index_add")
def index_add(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(low=1, least=1), d.any_dtype()
    dim, count = d.integer(0, len(shape) - 1), d.size()
    source = d.tensor((*shape[:dim], count, *shape[dim + 1 :]), dtype)
    return d.tensor(shape, dtype), dim, d.indices((count,), shape[dim]), source


@drawn_by("gather scatter_add")
def gather(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(low=1, least=1), d.any_dtype()
    dim = d.integer(0, len(shape) - 1)
    part = tuple(d.size() if i == dim else d.integer(1, size) for i, size in enumerate(shape))
    index = d.indices(part, shape[dim])
    if name == "gather":
        return d.tensor(shape, dtype), dim, index
    return d.tensor(shape, dtype), dim, index, d.tensor(part, dtype)


@drawn_by("scatter")
def scatter(name: str, d: Draw) -> Any:
    shape, dtype = d.shape(low=1, least=1), d.any_dtype()
    dim = d.integer(0, len(shape) - 1)
    places = torch.argsort(d.tensor(shape, torch.float64, layout="contiguous"), dim)  # none twice
    source = d.tensor(shape, dtype) if d.chance(0.7) else d.integer(0, 3)
    return d.tensor(shape, dtype), dim, places, source


@drawn_by("one_hot")
def one_hot(name: str, d: Draw) -> Any:
    num_classes = d.integer(1, 5)
    return d.indices(d.shape(), num_classes), num_classes


@drawn_by("refuse")
def refuse(name: str, d: Draw) -> Any:
    return torch.zeros(d.shape(), dtype=torch.bool), "nothing to refuse"


@drawn_by("take")
def take(name: str, d: Draw) -> Any:
    shape = d.shape(low=1, least=1)
    return d.tensor(shape, d.any_dtype(with_bool=True)), _indices(d, shape)


@drawn_by("put")
def put(name: str, d: Draw) -> Call:
    shape, dtype = d.shape(low=1, least=1), d.any_dtype()
    accumulate = d.chance(0.6)
    if accumulate:
        indices = _indices(d, shape)
    else:  # no place twice: which value would stay is not said
        places = torch.argsort(d.tensor((shape[0],), torch.float64, layout="contiguous"))
        indices = (places[: d.integer(1, shape[0])], *[None] * (len(shape) - 1))
    taken = torch.ops.aten.index(torch.empty(shape), list(indices))
    values = d.tensor(tuple(taken.shape), dtype) if d.chance(0.7) else d.integer(0, 3)
    return Call(_in_place(name), (d.target(shape, dtype), indices, values, accumulate))


def _indices(d: Draw, shape: Shape) -> tuple[Any, ...]:
    """For some of the dimensions an index array, all of one shape; None for the others."""
    indexed, wanted = d.dims(len(shape)), d.shape(high=2, least=1)
    wanted = wanted if torch.Size(wanted).numel() < 60 else (5,)
    return tuple(d.indices(wanted, size, negative=True) if i in indexed else None for i, size in enumerate(shape))


@drawn_by("cummax")
def cummax(name: str, d: Draw) -> Any:
    shape = d.shape(low=1)
    x = d.tensor(shape, d.any_dtype(with_bool=True))
    if x.dtype.is_floating_point and d.chance():  # with equal values and NaN
        x = x.round().masked_fill(x > 1, torch.nan)
    return x, d.integer(0, len(shape) - 1)


@drawn_by("nonzero")
def nonzero(name: str, d: Draw) -> Any:
    return (d.tensor(d.shape(), d.choice([torch.bool, torch.int64, torch.int32, torch.uint8])),)


@drawn_by("sort topk")
def sort(name: str, d: Draw) -> Any:
    shape = tuple(min(size, 120) for size in d.shape(low=1, least=1))
    dim = d.integer(0, len(shape) - 1)
    x = d.distinct((*shape[:dim], *shape[dim + 1 :], shape[dim]), d.floating()).movedim(-1, dim)
    if name == "sort":
        return x, dim, d.chance(), d.chance()
    return x, d.integer(0, shape[dim]), dim, d.chance()
