"""The contract's ops of neural networks: see contract.py, which has them too."""

# ruff: noqa: E704  (stubs read best on one line)
# fmt: off
from __future__ import annotations

from collections.abc import Sequence

from genesis.backends import flops
from genesis.backends.signatures import Handle, Number, Opaque, Pair, Shape
from genesis.backends.traits import op
from genesis.records import (
    AdamOptions,
    BegunConvNorm,
    ConvGeometry,
    NormOptions,
    NormState,
    RecurrentLayer,
    SavedAttention,
    SavedConvNorm,
    SavedGroupNorm,
    SGDOptions,
    StepInputs,
    Windows,
)

__all__ = [
    "adam_step",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_backward",
    "attention",
    "attention_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "batch_norm",
    "batch_norm_backward",
    "conv_act",
    "conv_act_backward",
    "conv_bn_begin",
    "conv_bn_finish",
    "conv_bn_relu",
    "conv_bn_relu_backward",
    "conv_bn_relu_inference",
    "conv_forward",
    "conv_input_grad",
    "conv_prepack",
    "conv_prepacked",
    "conv_weight_grad",
    "copy_all_into",
    "cross_entropy",
    "cross_entropy_backward",
    "embedding_backward",
    "group_norm",
    "group_norm_backward",
    "interpolate",
    "interpolate_backward",
    "layer_norm",
    "layer_norm_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "nll_loss",
    "nll_loss_backward",
    "norms",
    "recurrent",
    "recurrent_backward",
    "rms_norm",
    "rms_norm_backward",
    "scale_into",
    "sgd_step",
    "unscale_into",
    "update_scale",
]


# --- convolution: NCHW shapes, any strides; input (N, C, H, W), weight (K, C/groups, R, S) (cpu/conv.py, cuda/ops/conv) ---
@op(accumulates=True, flops=flops.conv_forward)
def conv_forward(input: Handle, weight: Handle, bias: Handle | None, geometry: ConvGeometry) -> Handle: ...
@op(accumulates=True, flops=flops.conv_input_grad)
def conv_input_grad(grad: Handle, weight: Handle, input_shape: Shape, geometry: ConvGeometry, bias: Handle | None = None) -> Handle: """Also the forward of a transposed convolution, which alone has a bias: (C,), added before rounding."""; ...
@op(accumulates=True, flops=flops.conv_weight_grad)
def conv_weight_grad(grad: Handle, input: Handle, weight_shape: Shape, geometry: ConvGeometry) -> Handle: ...
@op()
def conv_prepack(weight: Handle, bias: Handle | None, input_shape: Shape, geometry: ConvGeometry) -> Opaque: """For inference: the weight in the layout that conv_prepacked runs fastest on; an opaque value that says whether it fits_all_shapes."""; ...
@op(accumulates=True)
def conv_prepacked(input: Handle, packed: Opaque, residual: Handle | None, activation: str | None) -> Handle: """act(conv(input) + residual) with a prepacked weight; activation: as conv_bn_relu's."""; ...

# --- convolution, norm, sum and activation in one (cpu/conv.py, cuda/ops/conv_bn_relu, cuda/ops/conv_bn_folded) -------------
@op(in_training=("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"), accumulates=True, comparable=1, flops=flops.conv_bn_relu)
def conv_bn_relu(input: Handle, weight: Handle, bias: Handle | None, norm: NormState[Handle], residual: Handle | None, options: NormOptions, geometry: ConvGeometry, activation: str | None) -> tuple[Handle, Handle, Handle, Handle | None, Handle | None]: """y = act(bn(conv(input)) + residual); gives y, mean, inverse deviation, and as the backend's own backward wants them: the convolution's output (or what stands for it) and where the activation let through. In training the running statistics change in place, and num_batches_tracked grows by 1. activation: a text of genesis.activations, or None."""; ...
@op(accumulates=True)
def conv_bn_relu_inference(input: Handle, weight: Handle, bias: Handle | None, norm: NormState[Handle], residual: Handle | None, eps: float, geometry: ConvGeometry, activation: str | None) -> Handle: """conv_bn_relu with the running statistics as they are now, for no gradient. weight and bias may have another dtype than input: they are cast."""; ...
@op(in_training=("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"))
def conv_bn_begin(input: Handle, weight: Handle | None, bias: Handle | None, norm: NormState[Handle], options: NormOptions, geometry: ConvGeometry) -> BegunConvNorm[Handle]: """The convolution and its statistics, which change the running ones in training; the rest of conv_bn_relu comes with conv_bn_finish, as often as wanted. Without a weight, as of a norm that follows no convolution, the input is the convolution's output."""; ...
@op()
def conv_bn_finish(input: Handle, weight: Handle | None, norm: NormState[Handle], begun: BegunConvNorm[Handle], residual: Handle | None, eps: float, activation: str | None) -> tuple[Handle, Handle, Handle, Handle, Handle | None]: """Compute conv_bn_relu's results from what conv_bn_begin gave. None will do for the running statistics where it gave mean and inverse deviation, and for the weight where it gave the convolution's output."""; ...
@op(flops=flops.conv_bn_relu_backward)
def conv_bn_relu_backward(grad: Handle, saved: SavedConvNorm[Handle], training: bool, geometry: ConvGeometry, activation: str | None, needs: tuple[bool, ...], may_overwrite: bool = False, addend: Handle | None = None) -> tuple[Handle | None, ...]: """Gradients of input, weight, bias, gamma, beta, residual, where needs says so. may_overwrite: grad's memory may be used for anything. addend: added to the input's gradient, if that is needed; in the input's shape and dtype. Without a weight, as conv_bn_begin."""; ...

# --- convolution, sum and activation in one (cpu/conv_act.py, cuda/ops/conv_act) ------------------------------------------
@op(accumulates=True, flops=flops.conv_act)
def conv_act(input: Handle, weight: Handle, bias: Handle | None, geometry: ConvGeometry, activation: str | None, keeps: str | None, residual: Handle | None = None) -> tuple[Handle, Handle | None]: """y = act(conv(input) + residual), and what its backward wants. keeps: "result", y, for activations whose derivative is known by it; "input", the activation's, for those but sigmoid and tanh; None, nothing. activation: as conv_bn_relu's."""; ...
@op(flops=flops.conv_act_backward)
def conv_act_backward(grad: Handle, input: Handle, weight: Handle, kept: Handle | None, geometry: ConvGeometry, activation: str | None, needs: tuple[bool, ...], addend: Handle | None = None) -> tuple[Handle | None, ...]: """Gradients of input, weight, bias and residual, where needs says so; without activation that of the residual is grad. kept: as conv_act gave it. addend: as conv_bn_relu_backward's."""; ...

# --- pooling (cpu/pooling.py, cuda/ops/pooling) -----------------------------------------------------------------------
@op(comparable=1)
def max_pool2d(x: Handle, windows: Windows, find: str | None = "indices") -> tuple[Handle, Handle | None]: """values, and where they were found: "indices", int64 into the H·W plane; "places", for the backward alone, in the backend's own form; None, whatever is the fastest."""; ...
@op()
def max_pool2d_backward(grad: Handle, input_shape: Shape, found: Handle, windows: Windows) -> Handle: """In the memory order of found, which is that of x: indices or places."""; ...
@op()
def avg_pool2d(x: Handle, windows: Windows, count_include_pad: bool, divisor_override: int | None) -> Handle: ...
@op()
def avg_pool2d_backward(grad: Handle, x: Handle, windows: Windows, count_include_pad: bool, divisor_override: int | None) -> Handle: ...
@op()
def adaptive_avg_pool2d(x: Handle, output_size: Pair) -> Handle: ...
@op()
def adaptive_avg_pool2d_backward(grad: Handle, x: Handle) -> Handle: ...
@op(comparable=1)
def adaptive_max_pool2d(x: Handle, output_size: Pair) -> tuple[Handle, Handle]: """values, int64 indices into the H·W plane."""; ...
@op()
def adaptive_max_pool2d_backward(grad: Handle, x: Handle, indices: Handle) -> Handle: ...

# --- interpolation (cpu/pooling.py, cuda/ops/interpolation) -----------------------------------------------------------
@op(accumulates=True)
def interpolate(x: Handle, size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]) -> Handle: """(N, C, …) with 1 to 3 spatial dims; mode nearest | nearest-exact | linear | bilinear | trilinear | bicubic."""; ...
@op()
def interpolate_backward(grad: Handle, input_shape: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]) -> Handle: ...

# --- normalisation: statistics are float32 for 16-bit inputs (cpu/norm.py, cuda/ops/norm) -----------------------------
@op(in_training=("running_mean", "running_var"), accumulates=True, comparable=1)
def batch_norm(x: Handle, weight: Handle | None, bias: Handle | None, running_mean: Handle | None, running_var: Handle | None, training: bool, momentum: float, eps: float) -> tuple[Handle, Handle, Handle]: """Over all dims but 1: y, mean, inverse deviation. In training the running statistics change in place."""; ...
@op()
def batch_norm_backward(grad: Handle, x: Handle, weight: Handle | None, mean: Handle, inverse_std: Handle, training: bool, needs: tuple[bool, ...]) -> tuple[Handle | None, ...]: """Gradients of x, weight, bias."""; ...
@op(accumulates=True, comparable=1)
def layer_norm(x: Handle, normalized_ndim: int, weight: Handle | None, bias: Handle | None, eps: float) -> tuple[Handle, Handle, Handle]: """Over the last normalized_ndim dims: y, mean, inverse deviation."""; ...
@op()
def layer_norm_backward(grad: Handle, x: Handle, normalized_ndim: int, weight: Handle | None, mean: Handle, inverse_std: Handle, needs: tuple[bool, ...]) -> tuple[Handle | None, ...]: ...
@op(accumulates=True, comparable=1)
def group_norm(x: Handle, num_groups: int, weight: Handle | None, bias: Handle | None, eps: float, activation: str | None = None) -> tuple[Handle, Handle, Handle]: """act(norm), mean, inverse deviation; the last two are (N, groups). activation: as conv_bn_relu's. Channels-last memory stays."""; ...
@op()
def group_norm_backward(grad: Handle, saved: SavedGroupNorm[Handle], num_groups: int, needs: tuple[bool, ...], activation: str | None = None) -> tuple[Handle | None, ...]: """Gradients of input, weight, bias. The bias counts where there is an activation, whose operand is computed again."""; ...
@op(accumulates=True, comparable=1)
def rms_norm(x: Handle, normalized_ndim: int, weight: Handle | None, eps: float) -> tuple[Handle, Handle]: """y, inverse root mean square."""; ...
@op()
def rms_norm_backward(grad: Handle, x: Handle, normalized_ndim: int, weight: Handle | None, inverse_rms: Handle, needs: tuple[bool, ...]) -> tuple[Handle | None, ...]: ...

# --- attention (cpu/attention.py, cuda/ops/attention) -----------------------------------------------------------------
@op(comparable=1)
def attention(query: Handle, key: Handle, value: Handle, mask: Handle | None, is_causal: bool, scale: float) -> tuple[Handle, Opaque]: """softmax(query·keyᵀ·scale + mask)·value for (…, L, E), (…, S, E), (…, S, V) of equal leading dims; mask is bool (True takes part) or additive, expanded to (…, L, S) or None. Gives y and what the backward needs."""; ...
@op()
def attention_backward(grad: Handle, saved: SavedAttention[Handle, Opaque], is_causal: bool, scale: float) -> tuple[Handle, Handle, Handle]: ...

# --- recurrent networks (cpu/recurrent.py) ----------------------------------------------------------------------------
@op(accumulates=True, comparable=3, optional=True, flops=flops.recurrent)
def recurrent(input: Handle, hidden: Handle, cell: Handle | None, weights: Sequence[Handle], layer: RecurrentLayer, needs: tuple[bool, ...]) -> tuple[Handle, Handle, Handle | None, Opaque]: """One layer over a sequence, (T, N, I) or packed (Σ N_t, I): y with both directions side by side, the last h (D, N, H), the last c of an LSTM, and what the backward wants; needs: which of input, hidden, cell and weights get gradients."""; ...
@op(optional=True)
def recurrent_backward(grad: Handle, grad_hidden: Handle, grad_cell: Handle | None, saved: Opaque) -> tuple[Handle | None, ...]: """Gradients of input, hidden, cell and weights, where recurrent was told so."""; ...

# --- embedding, losses (cpu/loss.py, cuda/ops/loss, cuda/ops/cross_entropy) -------------------------------------------
@op()
def embedding_backward(grad: Handle, indices: Handle, num_embeddings: int, padding_idx: int, scale_grad_by_freq: bool) -> Handle: """padding_idx -1: none."""; ...
@op()
def nll_loss(log_probs: Handle, target: Handle, weight: Handle | None, ignore_index: int) -> tuple[Handle, Handle]: """(N, C, …), (N, …) int64: per element −w[t]·log_probs[t] (0 where ignored), and its weight."""; ...
@op()
def nll_loss_backward(grad: Handle, shape: Shape, target: Handle, weight: Handle | None, ignore_index: int) -> Handle: """grad is per element, (N, …)."""; ...
@op()
def cross_entropy(logits: Handle, target: Handle, weight: Handle | None, ignore_index: int, smoothing: float, reduction: str) -> tuple[Handle, Handle | None, Handle]: """(N, C), (N,) int64: the loss, (N,) or 0-d; for the mean, the sum of weights by which it was divided; and the logarithms of probabilities, (N, C)."""; ...
@op()
def cross_entropy_backward(grad: Handle, log_probs: Handle, target: Handle, weight: Handle | None, total: Handle | None, ignore_index: int, smoothing: float) -> Handle: """grad as the loss; log_probs and total: as cross_entropy gave them."""; ...

# --- optimizer steps: in place, one call for all parameters (cpu/optimizer.py, cuda/ops/optimizer) --------------------
@op(in_place=("params", "buffers"), unreplayable="takes an optimizer's step")
def sgd_step(params: Sequence[Handle], grads: Sequence[Handle], buffers: Sequence[Handle] | None, options: SGDOptions, first: bool, inputs: StepInputs[Handle] = StepInputs()) -> None: """buffers: one per parameter, or None without momentum; first: the buffers are empty and take the gradient."""; ...
@op(in_place=("params", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "step"), unreplayable="takes an optimizer's step")
def adam_step(params: Sequence[Handle], grads: Sequence[Handle], exp_avgs: Sequence[Handle], exp_avg_sqs: Sequence[Handle], max_exp_avg_sqs: Sequence[Handle] | None, step: Handle | Number, options: AdamOptions, inputs: StepInputs[Handle] = StepInputs()) -> None: """step counts from 1; a 0-d int64 array holds the number of steps before, and grows by 1."""; ...
@op(in_place=("targets",))
def copy_all_into(targets: Sequence[Handle], sources: Sequence[Handle]) -> None: """In place: each target takes the values of its source, of equal shape; no source shows a target's memory."""; ...
@op(in_place=("arrays",))
def scale_into(arrays: Sequence[Handle], factor: Handle | Number) -> None: """In place: each array times one number or 0-d array."""; ...
@op(accumulates=True)
def norms(arrays: Sequence[Handle], ord: float) -> Handle: """1-d: the vector norm of each array."""; ...
@op(in_place=("arrays",))
def unscale_into(arrays: Sequence[Handle], factor: Handle | Number) -> Handle: """In place: each array times one number or 0-d array; gives a 0-d bool: was any element not finite."""; ...
@op(in_place=("scale", "growth_tracker"))
def update_scale(scale: Handle, growth_tracker: Handle, found_inf: Handle, growth_factor: float, backoff_factor: float, growth_interval: int) -> None: """In place, for 0-d float64, int64 and bool arrays: back off where found_inf is true; else count, and grow after growth_interval in a row."""; ...
