"""How the fuzzer draws arguments of convolutions, pooling, norms, attention and losses; backwards are called too."""

from __future__ import annotations

from typing import Any

import torch

from genesis import activations as known
from genesis.records import ConvGeometry, NormOptions, NormState, SavedAttention, SavedConvNorm, SavedGroupNorm, Windows
from tests.conformance.fuzz_draw import Call, Draw, drawn_by
from tests.fused_activations import FUNCTIONS


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
    how = ConvGeometry(stride, padding, dilation, groups)
    x = d.tensor((batch, channels, height, width), dtype)
    weight = d.tensor((filters, channels // groups, *kernel), dtype)
    grad = d.tensor((batch, filters, *sizes), dtype)
    if name == "conv_forward":
        return x, weight, d.tensor((filters,), dtype) if d.chance() else None, how
    if name == "conv_input_grad":
        return grad, weight, tuple(x.shape), how
    return grad, x, tuple(weight.shape), how


def activations(dtype: torch.dtype) -> list[str]:
    """Without hardsigmoid in float64, where the CPU's gradient is PyTorch's: 1/6 of float32."""
    return [name for name in FUNCTIONS if name != "hardsigmoid" or dtype is not torch.float64]


@drawn_by("conv_bn_relu conv_bn_begin conv_bn_finish")
def conv_bn_relu(name: str, d: Draw) -> Call:
    """In one call or two, and its backward. Not in 16 bits: there rounding decides which sums near 0 have gradients."""
    dtype, training = d.choice([torch.float32, torch.float64]), d.chance(0.7)
    batch, channels, filters, size, kernel = (d.integer(*ends) for ends in ((2, 3), (1, 4), (1, 5), (4, 7), (1, 3)))
    how = ConvGeometry((d.integer(1, 2),) * 2, (d.integer(0, 1),) * 2, (1, 1), 1)
    activation = d.choice(["relu", None, *activations(dtype)])
    out = (size + 2 * how.padding[0] - kernel) // how.stride[0] + 1
    x = d.tensor((batch, channels, size, size), dtype)
    weight = d.tensor((filters, channels, kernel, kernel), dtype)
    gamma, beta = (d.tensor((filters,), dtype) for _ in range(2))
    mean, variance = d.target((filters,), dtype), d.target((filters,), dtype).square_().add_(0.1)
    grad, residual = (d.tensor((batch, filters, out, out), dtype) for _ in range(2))
    residual = residual if d.chance() else None
    addend = d.tensor(tuple(x.shape), dtype) if d.chance() else None

    def run(backend: Any, x: Any, weight: Any, gamma: Any, *rest: Any) -> Any:
        beta, mean, variance, skip, grad, addend = rest
        norm, options = NormState(gamma, beta, mean, variance), NormOptions(training, 0.2, 1e-3)
        if name == "conv_bn_relu":
            y, *found = backend.conv_bn_relu(x, weight, None, norm, skip, options, how, activation)
        else:
            begun = backend.conv_bn_begin(x, weight, None, norm, options, how)
            y, *found = backend.conv_bn_finish(x, weight, norm, begun, skip, options.eps, activation)
        needs = (True, True, False, True, True, skip is not None)
        saved = SavedConvNorm(x, weight, None, gamma, beta, *found)
        grads = backend.conv_bn_relu_backward(grad, saved, training, how, activation, needs, False, addend)
        return y, mean, variance, grads

    return Call(run, (x, weight, gamma, beta, mean, variance, residual, grad, addend), slack=10.0)


@drawn_by("conv_bn_relu_inference")
def conv_bn_relu_inference(name: str, d: Draw) -> Call:
    """Weights in any order of memory; for 16-bit images in float32 too."""
    dtype = d.choice([torch.float32, torch.float64, torch.bfloat16])
    groups, batch, size, kernel = d.integer(1, 2), d.integer(1, 3), d.integer(3, 7), (d.integer(1, 3), d.integer(1, 3))
    channels, filters = d.integer(1, 3) * groups, d.integer(1, 3) * groups
    given = d.choice([dtype, torch.float32]) if dtype is torch.bfloat16 else dtype
    how = ConvGeometry((d.integer(1, 2), 1), (1, d.integer(0, 2)), (1, 1), groups)
    rows = (size + 2 * how.padding[0] - kernel[0]) // how.stride[0] + 1
    columns = size + 2 * how.padding[1] - kernel[1] + 1
    x = d.tensor((batch, channels, size, size), dtype)
    weight = d.tensor((filters, channels // groups, *kernel), given)
    bias, gamma, beta = (d.tensor((filters,), given) if d.chance(0.7) else None for _ in range(3))
    mean, variance = d.target((filters,), given), d.target((filters,), given).square_().add_(0.1)
    residual = d.tensor((batch, filters, rows, columns), dtype) if d.chance() else None
    activation = d.choice(["relu", None, *activations(dtype)])

    def run(backend: Any, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        *norm, residual = rest
        return backend.conv_bn_relu_inference(x, weight, bias, NormState(*norm), residual, 1e-3, how, activation)

    return Call(run, (x, weight, bias, gamma, beta, mean, variance, residual), slack=10.0)


@drawn_by("conv_act")
def conv_act(name: str, d: Draw) -> Call:
    """With and without a sum, and its backward from what it keeps."""
    activation, groups = d.choice([None, "relu", *FUNCTIONS]), d.integer(1, 2)
    # torch's gradient of hardsigmoid is 1/6 of float32, in float64 too
    dtype = torch.float32 if activation == "hardsigmoid" else d.choice([torch.float32, torch.float64])
    batch, size, kernel = d.integer(1, 3), d.integer(3, 7), d.integer(1, 3)
    channels, filters = d.integer(1, 3) * groups, d.integer(1, 40) * groups
    how = ConvGeometry((d.integer(1, 2),) * 2, (d.integer(0, 1),) * 2, (1, 1), groups)
    out = (size + 2 * how.padding[0] - kernel) // how.stride[0] + 1
    x = d.tensor((batch, channels, size, size), dtype)
    weight = d.tensor((filters, channels // groups, kernel, kernel), dtype)
    bias = d.tensor((filters,), dtype) if d.chance(0.7) else None
    grad = d.tensor((batch, filters, out, out), dtype)
    addend = d.tensor(tuple(x.shape), dtype) if d.chance() else None
    residual = d.tensor((batch, filters, out, out), dtype) if activation is None or d.chance() else None
    allowed: list[str | None] = ["result"] * (activation is not None and known.is_known_by_result(activation))
    allowed += ["input"] * (activation not in (None, "sigmoid", "tanh"))
    keeps = d.choice(allowed or [None])
    needs = (d.chance(0.8), d.chance(0.8), bias is not None and d.chance(), residual is not None and d.chance(0.8))

    def run(backend: Any, x: Any, weight: Any, bias: Any, residual: Any, grad: Any, addend: Any) -> Any:
        z, _ = backend.conv_act(x, weight, bias, how, activation, None, residual)
        y, kept = backend.conv_act(x, weight, bias, how, activation, keeps, residual)
        grads = backend.conv_act_backward(grad, x, weight, kept, how, activation, needs, addend)
        return z, y, kept, grads

    return Call(run, (x, weight, bias, residual, grad, addend), slack=10.0)


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
    options: tuple[Any, ...] = (Windows(kernel, stride, padding, dilation, ceil),)
    if name == "max_pool2d":
        y = torch.ops.aten.max_pool2d_with_indices(x.double(), *options[0])[0]
    else:
        options = (*options, d.chance(), d.choice([None, None, 3]))
        y = torch.ops.aten.avg_pool2d(x.double(), kernel, stride, padding, ceil, *options[1:])

    def run(backend: Any, x: Any, grad: Any) -> Any:
        result = getattr(backend, name)(x, *options)
        if name == "avg_pool2d":
            return result, backend.avg_pool2d_backward(grad, x, *options)
        _, places = backend.max_pool2d(x, *options, "places")
        return result, [backend.max_pool2d_backward(grad, x.shape, found, *options) for found in (result[1], places)]

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
    activation = d.choice([None, *activations(dtype)]) if name == "group_norm" and dtype.itemsize > 2 else None
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
        needs = (True, weight is not None, weight is not None)
        if name == "group_norm":
            y, *saved = backend.group_norm(x, which, weight, bias, 1e-3, activation)
            record = SavedGroupNorm(x, weight, bias, *saved)
            return y, backend.group_norm_backward(grad, record, which, needs, activation)
        y, *saved = getattr(backend, name)(x, which, weight, bias, 1e-3)
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
        return y, backend.attention_backward(grad, SavedAttention(query, key, value, mask, y, saved), causal, scale)

    return Call(run, (grad, query, key, value, mask))


@drawn_by("embedding_backward")
def embedding_backward(name: str, d: Draw) -> Any:
    shape, rows, columns = d.shape(low=1, high=2), d.integer(1, 9), d.size(1)
    grad = d.tensor((*shape, columns), d.floating())
    return grad, d.indices(shape, rows), rows, d.integer(-1, rows - 1), d.chance()


@drawn_by("cross_entropy")
def cross_entropy(name: str, d: Draw) -> Call:
    count, num_classes, dtype = d.size(1), d.integer(2, 40), d.floating()
    target, ignored = d.indices((count,), num_classes), d.integer(-1, num_classes - 1)
    weight = d.tensor((num_classes,), dtype, positive=True) if d.chance() else None
    smoothing, reduction = d.choice((0.0, 0.1)), d.choice(("none", "sum", "mean"))
    grad = d.tensor((count,) if reduction == "none" else (), dtype)

    def run(backend: Any, logits: Any, grad: Any, target: Any, weight: Any) -> Any:
        loss, total, log_probs = backend.cross_entropy(logits, target, weight, ignored, smoothing, reduction)
        back = backend.cross_entropy_backward(grad, log_probs, target, weight, total, ignored, smoothing)
        return loss, total, log_probs, back

    return Call(run, (d.tensor((count, num_classes), dtype), grad, target, weight))


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
