"""Forms of conv_bn_relu that only compiled graphs have: eager code reaches the same kernels without them."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from genesis.records import NormState
from genesis.torch import bridge
from genesis.torch.folds import Folds
from genesis.torch.known_folds import KnownFold
from genesis.torch.opaque import define, laid_out
from genesis.torch.ops import GEOMETRY, conv_bn_relu_inference, opaque_backward, shapes_backward
from genesis.torch.shapes import empty_output, geometry_of
from genesis.torch.signatures import BackwardArguments, InferenceArguments


# --- inference, the norm folded into the weight ---
class _Layer:
    """The fold of a layer on the CPU, and how its op finds that again."""

    def __init__(self) -> None:
        self.folds = Folds()
        self.known: KnownFold | None = None


_layers = WeakTensorKeyDictionary()  # by weight
_present: weakref.WeakValueDictionary[int, _Layer] = weakref.WeakValueDictionary()  # the same, by its id: faster


def _inference(*args: *InferenceArguments) -> Tensor:
    layer = _present.get(id(args[1]))
    if layer is not None and layer.known is not None:
        y = layer.known.run(args)
        if y is not None:
            return y
    return _inference_anew(args)


def _inference_anew(args: InferenceArguments) -> Tensor:
    input, weight, bias, gamma, beta, mean, var, residual, eps = args[:9]
    geometry, activation, found = geometry_of(*args[9:13]), args[13], None
    layer: _Layer | None = _layers.get(weight)
    if layer is not None:
        found = layer.folds.find(input, (weight, bias, gamma, beta, mean, var), eps, geometry, None)
    elif bridge.keeps_folds(input):  # for later calls, if there are any: a weight may be computed anew at each
        layer = _layers[weight] = _Layer()
        _present[id(weight)] = layer
    if layer is None or found is None:
        if layer is not None:
            layer.known = None  # whose weight nobody will ask for again
        norm = NormState(gamma, beta, mean, var)
        y = conv_bn_relu_inference(input, weight, bias, norm, residual, eps, geometry, activation)
        return laid_out(y, _shapes_inference(*args))
    fold, packed = found
    y = laid_out(bridge.call("conv_prepacked", input, packed, residual, activation), _shapes_inference(*args))
    layer.known = (layer.known or KnownFold(fold, args)).add(fold, args, packed, y)
    return y


def _shapes_inference(*args: *InferenceArguments) -> Tensor:
    """Promise the result of _inference, without values."""
    return empty_output(*args[:2], *args[9:12])


define(
    "conv_bn_relu_inference(Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, Tensor? beta, "
    f"Tensor running_mean, Tensor running_var, Tensor? residual, float eps, {GEOMETRY}) -> Tensor",
    _inference,
    _shapes_inference,
)


# --- backward, adding another gradient of the input ---
def _backward_add(addend: Tensor, grad: Tensor, *args: *BackwardArguments) -> list[Tensor]:
    """Gradients of input, weight, bias, gamma, beta, residual, that of the input with addend; empty: not wanted."""
    return opaque_backward(grad, *args, addend=addend)


def _shapes_backward_add(addend: Tensor, grad: Tensor, *args: *BackwardArguments) -> list[Tensor]:
    return shapes_backward(grad, *args)


define(
    "conv_bn_relu_backward_add(Tensor addend, Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, "
    "Tensor? beta, Tensor mean, Tensor inverse_std, Tensor kept, Tensor passed, bool training, "
    f"{GEOMETRY}, bool[] needs) -> Tensor[]",
    _backward_add,
    _shapes_backward_add,
)
