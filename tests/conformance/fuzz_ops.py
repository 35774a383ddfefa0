"""What the fuzzer calls: for each op of the contract, how its arguments are drawn.

An entry draws a Call: a function of a backend and its handles, and the arguments, arrays among them as torch tensors.
Where an op works in place, or needs what another one saved, the function makes both calls and gives the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from genesis import dtypes
from tests.conformance.fuzz_draw import FLOATS, INTEGERS, Draw, Shape


class Call(NamedTuple):
    run: Callable[..., Any]  # of (backend, *arguments)
    arguments: tuple[Any, ...]
    slack: float = 1.0  # times the tolerance, where the terms of a sum are larger than the sum


OPS: dict[str, Callable[[Draw], Call]] = {}
DTYPES = {dtype.name: dtype for dtype in dtypes.ALL}
Drawer = Callable[[str, Draw], tuple[Any, ...] | Call]


def drawn_by(names: str) -> Callable[[Drawer], Drawer]:
    """These ops draw their arguments so."""

    def register(drawer: Drawer) -> Drawer:
        for name in names.split():

            def draw(d: Draw, name: str = name) -> Call:
                found = drawer(name, d)
                if isinstance(found, Call):
                    return found
                return Call(lambda backend, *arguments: getattr(backend, name)(*arguments), found)

            assert name not in OPS, f"{name} is drawn twice"
            OPS[name] = draw
        return drawer

    return register


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


@drawn_by("log log1p sqrt rsqrt reciprocal")
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


@drawn_by("floor_divide remainder")
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


# --- networks ---------------------------------------------------------------------------------------------------------
@drawn_by("conv_forward conv_input_grad conv_weight_grad")
def conv(name: str, d: Draw) -> Any:
    groups, dtype = d.choice([1, 1, 1, 2, 3]), d.floating()
    channels, filters = groups * d.integer(1, 5), groups * d.integer(1, 5)
    kernel = d.integer(1, 3), d.integer(1, 4)
    stride, padding = (d.integer(1, 3), d.integer(1, 2)), (d.integer(0, 2), d.integer(0, 3))
    dilation = d.integer(1, 2), d.choice([1, 1, 3])
    height, width = ((k - 1) * e + d.integer(1, 8) for k, e in zip(kernel, dilation, strict=True))
    batch = d.integer(1, 3)
    sizes = [
        (size + 2 * p - (k - 1) * e - 1) // s + 1
        for size, p, k, e, s in zip((height, width), padding, kernel, dilation, stride, strict=True)
    ]
    how = (stride, padding, dilation, groups)
    x = d.tensor((batch, channels, height, width), dtype)
    weight = d.tensor((filters, channels // groups, *kernel), dtype)
    grad = d.tensor((batch, filters, *sizes), dtype)
    if name == "conv_forward":
        return x, weight, d.tensor((filters,), dtype) if d.chance() else None, *how
    if name == "conv_input_grad":
        return grad, weight, tuple(x.shape), *how
    return grad, x, tuple(weight.shape), *how


@drawn_by("conv_bn_relu")
def conv_bn_relu(name: str, d: Draw) -> Call:
    """And its backward. Not in 16 bits: there rounding decides whether a sum near 0 lets a gradient through."""
    dtype, training = d.choice([torch.float32, torch.float64]), d.chance(0.7)
    batch, channels, filters, size, kernel = (d.integer(*ends) for ends in ((2, 3), (1, 4), (1, 5), (4, 7), (1, 3)))
    how = ((d.integer(1, 2),) * 2, (d.integer(0, 1),) * 2, (1, 1), 1)
    activation = d.choice(["relu", None])
    out = (size + 2 * how[1][0] - kernel) // how[0][0] + 1
    x = d.tensor((batch, channels, size, size), dtype)
    weight = d.tensor((filters, channels, kernel, kernel), dtype)
    gamma, beta = (d.tensor((filters,), dtype) for _ in range(2))
    mean, variance = d.target((filters,), dtype), d.target((filters,), dtype).square_().add_(0.1)
    grad, residual = (d.tensor((batch, filters, out, out), dtype) for _ in range(2))
    residual = residual if d.chance() else None

    def run(backend: Any, x: Any, weight: Any, gamma: Any, *rest: Any) -> Any:
        beta, mean, variance, skip, grad = rest
        y, *saved = backend.conv_bn_relu(
            x, weight, None, gamma, beta, mean, variance, skip, training, 0.2, 1e-3, *how, activation
        )
        needs = (True, True, False, True, True, skip is not None)
        grads = backend.conv_bn_relu_backward(grad, x, weight, gamma, *saved, y, training, *how, activation, needs)
        return y, mean, variance, grads

    return Call(run, (x, weight, gamma, beta, mean, variance, residual, grad), slack=10.0)


@drawn_by("max_pool2d avg_pool2d")
def pooling(name: str, d: Draw) -> Call:
    """And its backward, on a gradient that is drawn for the largest output."""
    kernel = d.integer(1, 4), d.integer(1, 3)
    stride, padding = (d.integer(1, 3), d.integer(1, 4)), (kernel[0] // 2, 0)
    dilation = (d.integer(1, 2), 1) if name == "max_pool2d" else (1, 1)
    height, width = (k * e + d.integer(0, 6) for k, e in zip(kernel, dilation, strict=True))
    shape, dtype = (d.integer(1, 3), d.integer(1, 5), height, width), d.floating()
    x = d.distinct((*shape[:2], height * width), dtype).view(shape) / 8
    ceil = d.chance()
    options: tuple[Any, ...] = (kernel, stride, padding)
    if name == "max_pool2d":
        options = (*options, dilation, ceil)
        y = torch.ops.aten.max_pool2d_with_indices(x.double(), *options)[0]
    else:
        options = (*options, ceil, d.chance(), d.choice([None, None, 3]))
        y = torch.ops.aten.avg_pool2d(x.double(), *options)

    def run(backend: Any, x: Any, grad: Any) -> Any:
        result = getattr(backend, name)(x, *options)
        saved = (result[1],) if name == "max_pool2d" else ()
        grad_x = getattr(backend, f"{name}_backward")(grad, x, *saved, *options)
        return result, grad_x

    return Call(run, (x.contiguous(memory_format=torch.channels_last) if d.chance() else x, d.tensor(y.shape, dtype)))


@drawn_by("adaptive_avg_pool2d adaptive_max_pool2d")
def adaptive_pooling(name: str, d: Draw) -> Call:
    size, dtype = (d.integer(1, 5), d.integer(1, 5)), d.floating()
    shape = d.integer(1, 3), d.integer(1, 4), d.integer(1, 9), d.integer(1, 9)
    x = (d.distinct((*shape[:2], shape[2] * shape[3]), dtype) / 8).view(shape)

    def run(backend: Any, x: Any, grad: Any) -> Any:
        result = getattr(backend, name)(x, size)
        saved = (result[1],) if name == "adaptive_max_pool2d" else ()
        return result, getattr(backend, f"{name}_backward")(grad, x, *saved)

    return Call(run, (x, d.tensor((*shape[:2], *size), dtype)))


@drawn_by("interpolate")
def interpolate(name: str, d: Draw) -> Call:
    mode = d.choice(["nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic"])
    rank = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}.get(mode) or d.integer(1, 3)
    align = d.chance() and not mode.startswith("nearest")
    shape = (d.integer(1, 2), d.integer(1, 4), *(d.integer(1, 6) for _ in range(rank)))
    size, dtype = tuple(d.integer(1, 9) for _ in range(rank)), d.floating()
    how = (mode, align, (None,) * rank)

    def run(backend: Any, x: Any, grad: Any) -> Any:
        return backend.interpolate(x, size, *how), backend.interpolate_backward(grad, shape, *how)

    return Call(run, (d.tensor(shape, dtype), d.tensor((*shape[:2], *size), dtype)))


@drawn_by("batch_norm layer_norm group_norm rms_norm")
def norm(name: str, d: Draw) -> Call:
    """And its backward. Statistics of one value only have no gradient worth comparing, so there are always more."""
    dtype = d.floating()
    groups = d.integer(1, 3)
    shape = (d.integer(2, 4), groups * d.integer(1, 4), *(d.integer(2, 6) for _ in range(d.integer(1, 2))))
    ndim = d.integer(1, 2)
    parameters = (shape[1],) if name in ("batch_norm", "group_norm") else shape[len(shape) - ndim :]
    x, grad = (d.tensor(shape, dtype, layout=d.choice(["contiguous", "permuted", "sliced"])) for _ in range(2))
    weight, bias = (d.tensor(parameters, dtype) if d.chance(0.8) else None for _ in range(2))
    if name == "batch_norm":
        training = d.chance()
        mean, variance = d.target((shape[1],), dtype), d.tensor((shape[1],), dtype, positive=True, layout="contiguous")

        def run_batch(backend: Any, x: Any, grad: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> Any:
            y, *saved = backend.batch_norm(x, weight, bias, mean, variance, training, 0.3, 1e-3)
            needs = (True, weight is not None, weight is not None)
            return y, mean, variance, backend.batch_norm_backward(grad, x, weight, *saved, training, needs)

        return Call(run_batch, (x, grad, weight, bias, mean, variance))

    def run(backend: Any, x: Any, grad: Any, weight: Any, bias: Any) -> Any:
        which = groups if name == "group_norm" else ndim
        if name == "rms_norm":
            y, inverse = backend.rms_norm(x, which, weight, 1e-3)
            return y, backend.rms_norm_backward(grad, x, which, weight, inverse, (True, weight is not None))
        y, *saved = getattr(backend, name)(x, which, weight, bias, 1e-3)
        needs = (True, weight is not None, weight is not None)
        return y, getattr(backend, f"{name}_backward")(grad, x, which, weight, *saved, needs)

    return Call(run, (x, grad, weight, bias))


@drawn_by("attention")
def attention(name: str, d: Draw) -> Call:
    lead, dtype = d.shape(high=2, least=1), d.floating()
    lead = lead if torch.Size(lead).numel() < 20 else (2,)
    num_queries, num_keys, size, value_size = d.integer(1, 40), d.integer(1, 40), d.integer(1, 20), d.integer(1, 20)
    causal = d.chance(0.4)
    mask = None
    if not causal and d.chance(0.6):
        mask = d.tensor((*lead, num_queries, num_keys), dtype) if d.chance() else d.mask((*lead, num_queries, num_keys))
    query, grad = (d.tensor((*lead, num_queries, each), dtype) for each in (size, value_size))
    key, value = (d.tensor((*lead, num_keys, each), dtype) for each in (size, value_size))
    scale = size**-0.5

    def run(backend: Any, grad: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        y, saved = backend.attention(query, key, value, mask, causal, scale)
        return y, backend.attention_backward(grad, query, key, value, mask, y, saved, causal, scale)

    return Call(run, (grad, query, key, value, mask))


@drawn_by("embedding_backward")
def embedding_backward(name: str, d: Draw) -> Any:
    shape, rows, columns = d.shape(low=1, high=2), d.integer(1, 9), d.size(1)
    grad = d.tensor((*shape, columns), d.floating())
    return grad, d.indices(shape, rows), rows, d.integer(-1, rows - 1), d.chance()


@drawn_by("nll_loss")
def nll_loss(name: str, d: Draw) -> Call:
    count, num_classes, rest, dtype = d.size(1), d.integer(2, 9), d.shape(high=2, least=1), d.floating()
    rest = rest if torch.Size(rest).numel() < 50 else (4,)
    target = d.indices((count, *rest), num_classes)
    weight = d.tensor((num_classes,), dtype, positive=True) if d.chance() else None
    shape, ignored = (count, num_classes, *rest), d.integer(-1, num_classes - 1)

    def run(backend: Any, x: Any, grad: Any, target: Any, weight: Any) -> Any:
        result = backend.nll_loss(x, target, weight, ignored)
        return result, backend.nll_loss_backward(grad, shape, target, weight, ignored)

    return Call(run, (d.tensor(shape, dtype), d.tensor((count, *rest), dtype), target, weight))
