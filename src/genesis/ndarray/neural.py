"""The neural-network ops of NDArray: convolution, pooling, interpolation, norms, attention, losses, optimizer steps.

Each is one line to the backend; shapes and meanings stand in backends/contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import backends
from genesis.interrupts import Call, at_once
from genesis.ndarray.dispatch import backend_of, call, call_raw, handles
from genesis.shapes import Shape

Pair = tuple[int, int]


class NeuralOps:
    """A part of NDArray: see the module's docstring."""

    __slots__ = ()

    # --- convolution --------------------------------------------------------------------------------------------------

    def conv_forward(
        self, weight: Any, bias: Any | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Any:
        x: Any = self
        device = x.device
        if weight.device is not device or not (bias is None or bias.device is device):
            return call("conv_forward", x, weight, bias, stride, padding, dilation, groups)  # says what is wrong
        # Otherwise call() written out: in a network of convolutions, this is on the way of most ops.
        backend = backends.active.get(device.type) or backend_of(device)
        third = None if bias is None else bias.handle
        return type(x)(backend.conv_forward(x.handle, weight.handle, third, stride, padding, dilation, groups), device)

    def conv_input_grad(
        self, weight: Any, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int,
        bias: Any | None = None,
    ) -> Any:  # fmt: skip
        return call("conv_input_grad", self, weight, input_shape, stride, padding, dilation, groups, bias)

    def conv_weight_grad(
        self, input: Any, weight_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Any:
        return call("conv_weight_grad", self, input, weight_shape, stride, padding, dilation, groups)

    def conv_bn_relu(self, weight: Any, *args: Any) -> tuple[Any, ...]:
        return call("conv_bn_relu", self, weight, *args)

    def conv_bn_relu_backward(self, input: Any, weight: Any, *args: Any) -> tuple[Any, ...]:
        return call("conv_bn_relu_backward", self, input, weight, *args)

    def conv_prepack(
        self, bias: Any | None, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Any:
        """self is the weight; the result is the backend's own and only good for conv_prepacked."""
        return call_raw("conv_prepack", self, bias, input_shape, stride, padding, dilation, groups)

    def conv_prepacked(self, packed: Any, residual: Any | None, activation: str | None) -> Any:
        return call("conv_prepacked", self, packed, residual, activation)

    # --- pooling and interpolation ------------------------------------------------------------------------------------

    def max_pool2d(
        self, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool, *, find: str | None
    ) -> tuple[Any, Any]:
        """find: "indices"; "places", for max_pool2d_backward alone; or None."""
        return call("max_pool2d", self, kernel_size, stride, padding, dilation, ceil_mode, find)

    def max_pool2d_backward(self, input_shape: Shape, found: Any, *args: Any) -> Any:
        return call("max_pool2d_backward", self, input_shape, found, *args)

    def avg_pool2d(self, *args: Any) -> Any:
        return call("avg_pool2d", self, *args)

    def avg_pool2d_backward(self, x: Any, *args: Any) -> Any:
        return call("avg_pool2d_backward", self, x, *args)

    def adaptive_avg_pool2d(self, output_size: Pair) -> Any:
        return call("adaptive_avg_pool2d", self, output_size)

    def adaptive_avg_pool2d_backward(self, x: Any) -> Any:
        return call("adaptive_avg_pool2d_backward", self, x)

    def adaptive_max_pool2d(self, output_size: Pair) -> tuple[Any, Any]:
        return call("adaptive_max_pool2d", self, output_size)

    def adaptive_max_pool2d_backward(self, x: Any, indices: Any) -> Any:
        return call("adaptive_max_pool2d_backward", self, x, indices)

    def interpolate(self, size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]) -> Any:
        return call("interpolate", self, size, mode, align_corners, scales)

    def interpolate_backward(
        self, input_shape: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]
    ) -> Any:
        return call("interpolate_backward", self, input_shape, mode, align_corners, scales)

    # --- normalisation ------------------------------------------------------------------------------------------------

    def batch_norm(self, weight: Any, bias: Any, running_mean: Any, running_var: Any, *args: Any) -> tuple[Any, ...]:
        return call("batch_norm", self, weight, bias, running_mean, running_var, *args)

    def batch_norm_backward(self, x: Any, weight: Any, mean: Any, inverse_std: Any, *args: Any) -> tuple[Any, ...]:
        return call("batch_norm_backward", self, x, weight, mean, inverse_std, *args)

    def layer_norm(self, normalized_ndim: int, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
        return call("layer_norm", self, normalized_ndim, weight, bias, eps)

    def layer_norm_backward(self, x: Any, normalized_ndim: int, weight: Any, *args: Any) -> tuple[Any, ...]:
        return call("layer_norm_backward", self, x, normalized_ndim, weight, *args)

    def group_norm(self, num_groups: int, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
        return call("group_norm", self, num_groups, weight, bias, eps)

    def group_norm_backward(self, x: Any, num_groups: int, weight: Any, *args: Any) -> tuple[Any, ...]:
        return call("group_norm_backward", self, x, num_groups, weight, *args)

    def rms_norm(self, normalized_ndim: int, weight: Any, eps: float) -> tuple[Any, Any]:
        return call("rms_norm", self, normalized_ndim, weight, eps)

    def rms_norm_backward(self, x: Any, normalized_ndim: int, weight: Any, *args: Any) -> tuple[Any, ...]:
        return call("rms_norm_backward", self, x, normalized_ndim, weight, *args)

    # --- attention, embedding, losses ---------------------------------------------------------------------------------

    def attention(self, key: Any, value: Any, mask: Any | None, is_causal: bool, scale: float) -> tuple[Any, Any]:
        """y, and what attention_backward wants as saved (the backend's own)."""
        y, saved = call_raw("attention", self, key, value, mask, is_causal, scale)
        return type(self)(y, self.device), saved  # type: ignore[call-arg, attr-defined]

    def attention_backward(
        self, query: Any, key: Any, value: Any, mask: Any | None, y: Any, saved: Any, is_causal: bool, scale: float
    ) -> tuple[Any, Any, Any]:
        return call("attention_backward", self, query, key, value, mask, y, saved, is_causal, scale)

    def embedding_backward(self, indices: Any, num_embeddings: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
        return call("embedding_backward", self, indices, num_embeddings, padding_idx, scale_grad_by_freq)

    def nll_loss(self, target: Any, weight: Any | None, ignore_index: int) -> tuple[Any, Any]:
        return call("nll_loss", self, target, weight, ignore_index)

    def nll_loss_backward(self, shape: Shape, target: Any, weight: Any | None, ignore_index: int) -> Any:
        return call("nll_loss_backward", self, shape, target, weight, ignore_index)


# --- optimizer steps: in place, over lists of arrays on one device ------------------------------------------------


def sgd_step(
    params: Sequence[Any], grads: Sequence[Any], buffers: Sequence[Any] | None, *args: Any, after: Sequence[Call] = ()
) -> None:
    _step("sgd_step", (params, grads, buffers), args, after)


def adam_step(
    params: Sequence[Any], grads: Sequence[Any], exp_avgs: Sequence[Any], exp_avg_sqs: Sequence[Any],
    max_exp_avg_sqs: Sequence[Any] | None, *args: Any, after: Sequence[Call] = (),
) -> None:  # fmt: skip
    _step("adam_step", (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs), args, after)


def _step(op: str, lists: tuple[Sequence[Any] | None, ...], args: tuple[Any, ...], after: Sequence[Call]) -> None:
    """after: calls that belong to it: no interrupt comes between."""
    unwrapped = [None if arrays is None else handles(op, arrays) for arrays in lists]
    assert lists[0]
    for array in lists[0]:  # before it: counted too often does no harm
        array.changes.count += 1
    at_once([(getattr(backend_of(lists[0][0].device), op), *unwrapped, *args), *after])


def scale_into(arrays: Sequence[Any], factor: Any) -> None:
    """Each array times factor, a number or a 0-d array, in place."""
    listed = handles("scale_into", arrays)
    backend_of(arrays[0].device).scale_into(listed, getattr(factor, "handle", factor))
    for array in arrays:
        array.changes.count += 1


def norms(arrays: Sequence[Any], ord: float) -> Any:
    """A 1-d array: the vector norm of each array."""
    first = arrays[0]
    return type(first)(backend_of(first.device).norms(handles("norms", arrays), ord), first.device)


def unscale_into(arrays: Sequence[Any], factor: float) -> Any:
    """Each array times factor, in place; a 0-d bool array: was any element not finite."""
    first = arrays[0]
    found = backend_of(first.device).unscale_into(handles("unscale_into", arrays), factor)
    for array in arrays:
        array.changes.count += 1
    return type(first)(found, first.device)
