"""Gradients of gradients of layers and losses: see second_order.py."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import activations
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.autograd.recorded_walk import RULES, Recorded, Same
from genesis.autograd.walk import grad as gradients
from genesis.functional import activation as act
from genesis.functional import attention, binary_loss, classification, conv, dense, loss, normalization, recurrent
from genesis.functional.activation import sigmoid, softmax, softplus
from genesis.functional.conversion import cast
from genesis.functional.elementwise import where
from genesis.functional.linalg import matmul
from genesis.functional.reduction import mean, sum
from genesis.functional.second_order import Arrays, Gradients, applied, diagonal
from genesis.functional.selection import masked_fill
from genesis.functional.shape import reshape, transpose, unsqueeze
from genesis.functional.unary import exp, log, rsqrt
from genesis.functional.windows import as_planes, from_planes
from genesis.ndarray import NDArray, ops
from genesis.precision import float32_precision
from genesis.records import ConvGeometry
from genesis.shapes import Shape, numel

__all__: list[str] = []  # the import fills the table of rules

# --- linear layers ----------------------------------------------------------------------------------------------------


def _linear(call: Recorded, grad: Tensor) -> Gradients:
    x, weight = (call.input(index, each) for index, each in enumerate(call.saved))
    rows = reshape(grad, (-1, grad.shape[-1])) if grad.shape[-1] else reshape(grad, (0, 0))
    with float32_precision(call.ctx.precision):
        grad_x = matmul(grad, weight) if call.needs[0] else None
        grad_weight = matmul(rows.t(), reshape(x, (rows.shape[0], x.shape[-1]))) if call.needs[1] else None
    return grad_x, grad_weight, sum(rows, 0) if call.needs[2] else None


RULES[dense.Linear] = _linear

# --- convolution: three bilinear maps, each of which is the gradient of the other two --------------------------------


class Forward(ArrayFunction):
    """y = x ∗ w, of planes."""

    @staticmethod
    def forward(ctx: Context, x: NDArray, w: NDArray, *, geometry: ConvGeometry) -> NDArray:
        ctx.save(x, w)
        return ops.conv_forward(x.contiguous(channels_last=True), w, None, geometry)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Arrays:
        x, w = ctx.saved
        geometry, grad = ctx.kwargs["geometry"], grad.contiguous(channels_last=True)
        needs_x, needs_w = ctx.needs_input_grad
        return (
            ops.conv_input_grad(grad, w, x.shape, geometry) if needs_x else None,
            ops.conv_weight_grad(grad, x.contiguous(channels_last=True), w.shape, geometry) if needs_w else None,
        )


class InputGrad(ArrayFunction):
    """The gradient of x, from that of y, and w."""

    @staticmethod
    def forward(ctx: Context, g: NDArray, w: NDArray, *, shape: Shape, geometry: ConvGeometry) -> NDArray:
        ctx.save(g, w)
        return ops.conv_input_grad(g.contiguous(channels_last=True), w, shape, geometry)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Arrays:
        g, w = ctx.saved
        geometry, grad = ctx.kwargs["geometry"], grad.contiguous(channels_last=True)
        needs_g, needs_w = ctx.needs_input_grad
        return (
            ops.conv_forward(grad, w, None, geometry) if needs_g else None,
            ops.conv_weight_grad(g.contiguous(channels_last=True), grad, w.shape, geometry) if needs_w else None,
        )


class WeightGrad(ArrayFunction):
    """The gradient of w, from that of y, and x."""

    @staticmethod
    def forward(ctx: Context, g: NDArray, x: NDArray, *, shape: Shape, geometry: ConvGeometry) -> NDArray:
        ctx.save(g, x)
        g, x = g.contiguous(channels_last=True), x.contiguous(channels_last=True)
        return ops.conv_weight_grad(g, x, shape, geometry)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Arrays:
        g, x = ctx.saved
        geometry, x = ctx.kwargs["geometry"], x.contiguous(channels_last=True)
        needs_g, needs_x = ctx.needs_input_grad
        return (
            ops.conv_forward(x, grad, None, geometry) if needs_g else None,
            ops.conv_input_grad(g.contiguous(channels_last=True), grad, x.shape, geometry) if needs_x else None,
        )


def _operands(call: Recorded) -> tuple[Tensor, Tensor]:
    first, second = (call.input(index, each) for index, each in enumerate(call.saved))
    return first, second


def _forward(call: Recorded, grad: Tensor) -> Gradients:
    (x, w), geometry = _operands(call), call.kwargs["geometry"]
    return (
        InputGrad.apply(grad, w, shape=x.shape, geometry=geometry),
        WeightGrad.apply(grad, x, shape=w.shape, geometry=geometry),
    )


def _input_grad(call: Recorded, grad: Tensor) -> Gradients:
    (g, w), geometry = _operands(call), call.kwargs["geometry"]
    return Forward.apply(grad, w, geometry=geometry), WeightGrad.apply(g, grad, shape=w.shape, geometry=geometry)


def _weight_grad(call: Recorded, grad: Tensor) -> Gradients:
    (g, x), geometry = _operands(call), call.kwargs["geometry"]
    return Forward.apply(x, grad, geometry=geometry), InputGrad.apply(g, grad, shape=x.shape, geometry=geometry)


RULES[Forward], RULES[InputGrad], RULES[WeightGrad] = _forward, _input_grad, _weight_grad


class _Layer:
    """A convolution's call: its operands as planes, and the way back."""

    def __init__(self, call: Recorded) -> None:
        self.call, ctx = call, call.ctx
        self.spatial = len(ctx.weight_shape) - 2
        self.ndim, self.shape = len(ctx.input_shape), conv.planes_shape(ctx.input_shape, self.spatial)
        self.weight_shape = conv.planes_shape(ctx.weight_shape, self.spatial)
        self.extra = call.kwargs["extra"]
        self.padded = (*self.shape[:2], self.shape[2] + self.extra[0], self.shape[3] + self.extra[1])

    def planes(self, tensor: Tensor, spatial_ndim: int) -> Tensor:
        """A tensor of the layer's kind, with so many dimensions, as planes."""
        tensor = unsqueeze(tensor, 0) if tensor.ndim == self.spatial + 1 else tensor
        return unsqueeze(tensor, 2) if self.spatial == 1 else tensor

    def input(self) -> Tensor:
        """The input as planes, padded."""
        cut = conv._cut(self.call.saved[0], self.shape[2], self.shape[3])
        x = self.call.input(0, from_planes(cut, self.spatial, self.ndim))
        (padded,) = applied(
            lambda arrays: conv._pad_after(as_planes(arrays[0], self.spatial), self.extra), self._without, (x,)
        )
        assert padded is not None
        return padded

    def _without(self, arrays: Sequence[NDArray]) -> NDArray:
        return from_planes(conv._cut(arrays[0], self.shape[2], self.shape[3]), self.spatial, self.ndim)

    def weight(self) -> Tensor:
        weight = self.call.input(1, self.call.saved[1])
        return unsqueeze(weight, 2) if self.spatial == 1 else weight

    def of_input(self, grad: Tensor) -> Tensor:
        """The gradient of the input, from that of the padded planes."""
        (cut,) = applied(
            self._without, lambda arrays: conv._pad_after(as_planes(arrays[0], self.spatial), self.extra), (grad,)
        )
        assert cut is not None
        return cut


def _conv2d(call: Recorded, grad: Tensor) -> Gradients:
    layer, geometry = _Layer(call), call.ctx.geometry
    grad = layer.planes(grad, layer.ndim)
    grad_input = grad_weight = None
    with float32_precision(call.ctx.precision):
        if call.needs[0]:
            grad_input = InputGrad.apply(grad, layer.weight(), shape=layer.padded, geometry=geometry)
            grad_input = layer.of_input(grad_input)
        if call.needs[1]:
            found = WeightGrad.apply(grad, layer.input(), shape=layer.weight_shape, geometry=geometry)
            grad_weight = reshape(found, call.ctx.weight_shape)
    return grad_input, grad_weight, sum(grad, (0, 2, 3)) if call.needs[2] else None


def _conv_transpose2d(call: Recorded, grad: Tensor) -> Gradients:
    layer, geometry = _Layer(call), call.ctx.geometry
    grad = layer.planes(grad, layer.ndim)
    grad_input = grad_weight = None
    with float32_precision(call.ctx.precision):
        if call.needs[0]:
            grad_input = layer.of_input(Forward.apply(grad, layer.weight(), geometry=geometry))
        if call.needs[1]:
            found = WeightGrad.apply(layer.input(), grad, shape=layer.weight_shape, geometry=geometry)
            grad_weight = reshape(found, call.ctx.weight_shape)
    return grad_input, grad_weight, sum(grad, (0, 2, 3)) if call.needs[2] else None


RULES[conv.Conv2d] = _conv2d
RULES[conv.ConvTranspose2d] = _conv_transpose2d

# --- ops that are computed again from others, whose gradients of gradients are known ---------------------------------


def _again(call: Recorded, y: Tensor, operands: Sequence[Tensor | None], grad: Tensor) -> Gradients:
    """The gradients of y, computed again from operands; None for those without one."""
    asked = [x for x in operands if isinstance(x, Tensor) and x.requires_grad]
    found = iter(gradients(y, asked, grad, create_graph=True, allow_unused=True))
    return tuple([next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in operands])


def _batch_norm(call: Recorded, grad: Tensor) -> Gradients:
    x_array, weight_array, mean_array, inverse_std = call.saved
    x, weight = call.input(0, x_array), call.input(1, weight_array)
    dims, shape = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
    if call.ctx.training:
        centered = x - mean(x, dims, keepdim=True)
        y = centered * rsqrt(mean(centered * centered, dims, keepdim=True) + call.kwargs["eps"])
    else:
        known = [reshape(call.constant(array), shape) for array in (mean_array, inverse_std)]
        y = (x - known[0]) * known[1]
    y = y if weight is None else y * reshape(weight, shape)
    return *_again(call, y, [x, weight], grad), sum(grad, dims) if call.needs[2] else None


def _layer_norm(call: Recorded, grad: Tensor) -> Gradients:
    x, weight = (call.input(index, each) for index, each in enumerate(call.saved[:2]))
    count = call.ctx.normalized_ndim
    dims = list(range(x.ndim - count, x.ndim))
    centered = x - mean(x, dims, keepdim=True)
    y = centered * rsqrt(mean(centered * centered, dims, keepdim=True) + call.kwargs["eps"])
    y = y if weight is None else y * weight
    others = list(range(x.ndim - count))
    grad_bias = (sum(grad, others) if others else grad) if call.needs[2] else None
    return *_again(call, y, [x, weight], grad), grad_bias


def _group_norm(call: Recorded, grad: Tensor) -> Gradients:
    x, weight = (call.input(index, each) for index, each in enumerate(call.saved[:2]))
    y = _grouped_norm(x, weight, call.ctx.num_groups, call.kwargs["eps"])
    grad_bias = sum(grad, [0, *range(2, x.ndim)]) if call.needs[2] else None
    return *_again(call, y, [x, weight], grad), grad_bias


def _group_norm_act(call: Recorded, grad: Tensor) -> Gradients:
    x, weight, bias = operands = [call.input(index, each) for index, each in enumerate(call.saved[:3])]
    groups, activation = call.ctx.options
    y = _grouped_norm(x, weight, groups, call.kwargs["eps"])
    y = y if bias is None else y + reshape(bias, [1, -1] + [1] * (x.ndim - 2))
    return tuple(_again(call, _activated(y, activation), operands, grad))


def _activated(x: Tensor, activation: str) -> Tensor:
    name, number = activations.parse(activation)
    if name == "gelu_tanh":
        return act.gelu(x, "tanh")
    function = getattr(act, name)
    return function(x) if number is None else function(x, number)


def _grouped_norm(x: Tensor, weight: Tensor | None, groups: int, eps: float) -> Tensor:
    grouped = reshape(x, (x.shape[0], groups, numel(x.shape[1:]) // groups))
    centered = grouped - mean(grouped, 2, keepdim=True)
    y = reshape(centered * rsqrt(mean(centered * centered, 2, keepdim=True) + eps), x.shape)
    return y if weight is None else y * reshape(weight, [1, -1] + [1] * (x.ndim - 2))


def _rms_norm(call: Recorded, grad: Tensor) -> Gradients:
    x, weight = (call.input(index, each) for index, each in enumerate(call.saved[:2]))
    eps = call.kwargs["eps"]
    eps = normalization.EPSILON[x.dtype.name] if eps is None else eps
    y = x * rsqrt(mean(x * x, list(range(x.ndim - call.ctx.normalized_ndim, x.ndim)), keepdim=True) + eps)
    return tuple(_again(call, y if weight is None else y * weight, [x, weight], grad))


def _attention(call: Recorded, grad: Tensor) -> Gradients:
    query, key, value = (call.input(index, each) for index, each in enumerate(call.saved[:3]))
    mask_array, (is_causal, scale) = call.saved[3], call.ctx.options
    scores = matmul(query, transpose(key, -1, -2)) * scale
    if is_causal:
        last = scores.array.full_like(1, scores.shape[-2:])
        scores = masked_fill(scores, call.constant(ops.triu(last, 1).ne(0)), float("-inf"))
    if mask_array is not None:
        mask = call.constant(mask_array)
        scores = scores + mask if mask_array.dtype.is_floating_point else masked_fill(scores, ~mask, float("-inf"))
    operands = [query, key, value]
    return *_again(call, matmul(softmax(scores, -1), value), operands, grad), None


def _recurrent(call: Recorded, *grads: Tensor) -> Gradients:
    """By the layer composed of steps, of operands that are different places even where one is made of another."""
    places = [index for index, array in enumerate(call.saved[:-2]) if array is not None]
    operands = {index: call.made_of(call.saved[index], Same, index) for index in places}
    states = [operands[index] for index in (1, 2) if index in operands]
    y, last = recurrent.composed(
        operands[0], tuple(states), [operands[i] for i in places if i > 2], call.kwargs["layer"]
    )
    outputs = [cast(output, grad.dtype) for output, grad in zip((y, *last), grads, strict=True)]
    asked = [index for index in places if call.needs[index]]
    found = dict(zip(asked, gradients(outputs, [operands[i] for i in asked], grads, create_graph=True), strict=True))
    return tuple([found.get(index) for index in range(len(call.needs))])


RULES[recurrent.Recurrent] = _recurrent
RULES[normalization.BatchNorm] = _batch_norm
RULES[normalization.LayerNorm] = _layer_norm
RULES[normalization.GroupNorm] = _group_norm
RULES[normalization.GroupNormAct] = _group_norm_act
RULES[normalization.RMSNorm] = _rms_norm
RULES[attention.Attention] = _attention

# --- losses -----------------------------------------------------------------------------------------------------------


def _reduced(each: Tensor, reduction: str) -> Tensor:
    return each if reduction == "none" else sum(each) if reduction == "sum" else mean(each)


class Difference(ArrayFunction):
    """The function of x − target, which a loss has saved."""

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> tuple[NDArray, NDArray]:
        return grad, grad.neg()


RULES[Difference] = lambda call, grad: (grad, -grad)


def _mse_loss(call: Recorded, grad: Tensor) -> Gradients:
    (d_array,) = call.saved
    return _spread(call, grad * 2.0, call.made_of(d_array, Difference, 0, 1))


def _l1_loss(call: Recorded, grad: Tensor) -> Gradients:
    (slope_array,) = call.saved
    return _spread(call, grad, call.constant(slope_array))


class HuberSlope(ArrayFunction):
    """The function of scale · clamp(x − target, ±delta), which a loss has saved."""

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> tuple[NDArray, NDArray]:
        grad_x = ctx.inside.where(grad.mul(ctx.scale), 0.0)
        return grad_x, grad_x.neg()


RULES[HuberSlope] = diagonal


def _huber_loss(call: Recorded, grad: Tensor) -> Gradients:
    (slope_array,), scale = call.saved, call.kwargs["scale"]
    inside = slope_array.abs().lt(call.kwargs["delta"] * scale)
    return _spread(call, grad, call.made_of(slope_array, HuberSlope, 0, 1, scale=scale, inside=inside))


def _spread(call: Recorded, grad: Tensor, slope: Tensor) -> Gradients:
    """The gradients of x and target of a loss whose elements have this slope."""
    each = slope * (1.0 / max(slope.numel(), 1)) if call.ctx.reduction == "mean" else slope
    grad_x = grad * each
    return grad_x, -grad_x


def _bce_loss(call: Recorded, grad: Tensor) -> Gradients:
    x, target, weight = (call.input(index, each) for index, each in enumerate(call.saved))

    def limited(p: Tensor) -> Tensor:
        return log(where(p > 0, p, 1.0)) if bool((p > 0).all()) else where(p > 0, log(where(p > 0, p, 1.0)), -100.0)

    each = -(target * limited(x) + (1 - target) * limited(1 - x))
    y = _reduced(each if weight is None else each * weight, call.ctx.reduction)
    return *_again(call, y, [x, target], grad), None


def _bce_with_logits(call: Recorded, grad: Tensor) -> Gradients:
    x, target, weight, pos_weight = (call.input(index, each) for index, each in enumerate(call.saved))
    factor = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    slope = (1 - target) - factor * sigmoid(-x)
    log_rest = softplus(-x, 1.0, 50.0)
    slope_target = -x if pos_weight is None else (pos_weight - 1) * log_rest - x
    scale = 1.0 / max(slope.numel(), 1) if call.ctx.reduction == "mean" else 1.0
    scaled = grad * scale if weight is None else grad * scale * weight
    return scaled * slope, scaled * slope_target if call.needs[1] else None, None, None


def _kl_div(call: Recorded, grad: Tensor) -> Gradients:
    x, target = (call.input(index, each) for index, each in enumerate(call.saved))
    probability = exp(target) if call.ctx.log_target else target
    scale = 1.0
    if call.ctx.reduction == "mean":
        scale = 1.0 / max((x + target).numel(), 1)
    grad_x = -(grad * scale * probability)
    if not call.needs[1]:
        return grad_x, None
    slope = probability * (target - x + 1) if call.ctx.log_target else log(target) + 1 - x
    return grad_x, grad * scale * slope


def _nll_loss(call: Recorded, grad: Tensor) -> Gradients:
    target, weight, _ = call.saved
    target = target.select(0, 0) if call.ctx.single else target

    def back(arrays: Sequence[NDArray]) -> NDArray:
        return classification.NLLLoss.forward(Context(), arrays[0], target, weight, **call.kwargs)

    def forth(arrays: Sequence[NDArray]) -> Arrays:
        return classification.NLLLoss.backward(call.ctx, arrays[0])

    return applied(forth, back, (grad,))


def _cross_entropy(call: Recorded, grad: Tensor) -> Gradients:
    """By what it is composed of. A constant that is added to a row changes nothing: log_probs stand for the logits."""
    log_probs, target, weight, _ = call.saved
    x = call.input(0, log_probs)
    classes, weights = call.constant(target), None if weight is None else call.constant(weight)
    y = classification.NLLLoss.apply(act.log_softmax(x, 1), classes, weights, **call.kwargs)
    return *_again(call, y, [x], grad), None, None


RULES[loss.MSELoss] = _mse_loss
RULES[loss.L1Loss] = _l1_loss
RULES[loss.HuberLoss] = _huber_loss
RULES[binary_loss.BCELoss] = _bce_loss
RULES[binary_loss.BCEWithLogitsLoss] = _bce_with_logits
RULES[loss.KLDiv] = _kl_div
RULES[classification.NLLLoss] = _nll_loss
RULES[classification.CrossEntropy] = _cross_entropy


def _probability_loss(call: Recorded, grad: Tensor) -> Gradients:
    log_probs, target = (call.input(index, each) for index, each in enumerate(call.saved[:2]))
    weight, dim, (reduction, smoothing) = call.saved[2], call.ctx.dim, call.ctx.options
    if reduction == "none":
        grad = unsqueeze(grad, dim)
    elif reduction == "mean" and call.ctx.count:
        grad = grad * (1 / call.ctx.count)
    if weight is not None:
        grad = grad * reshape(call.constant(weight), (-1,) if dim == 0 else (1, -1) + (1,) * (target.ndim - 2))
    q = target * (1 - smoothing) + smoothing / target.shape[dim] if smoothing else target
    return -(q * grad), log_probs * grad * (smoothing - 1) if call.needs[1] else None, None


RULES[classification.ProbabilityLoss] = _probability_loss
