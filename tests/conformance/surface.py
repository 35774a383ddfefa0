"""In which dtypes OpInfo's ops run, how they are called, and where we deviate on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis
import genesis.nn.functional as F
from genesis import Tensor


def words(text: str) -> list[str]:
    return text.split()


ELEMENTWISE = words("""
    add sub mul div floor_divide remainder pow neg abs exp log log1p expm1 sqrt rsqrt square reciprocal sign sin cos
    tanh sigmoid erf floor ceil round clamp maximum minimum where eq ne lt le gt ge isnan isinf isfinite
    logical_and logical_or logical_not
""")
ACTIVATIONS = words("""
    nn.functional.relu
    nn.functional.leaky_relu nn.functional.relu6 nn.functional.elu nn.functional.gelu
    nn.functional.silu nn.functional.softplus nn.functional.hardswish nn.functional.hardsigmoid softmax log_softmax
""")
REDUCTIONS = words("sum mean prod amax amin max min var std argmax argmin all any logsumexp cumsum norm")
PRODUCTS = words("matmul mm bmm mv dot outer einsum __rmatmul__")
SHAPES = words("""
    reshape view view_as flatten unflatten squeeze unsqueeze permute transpose t T mT movedim diagonal flip roll
    expand expand_as broadcast_to repeat tile cat stack split chunk unbind narrow tril triu
""")
SELECTION = words("""
    __getitem__ index_select index_add index_put gather take_along_dim scatter scatter_add masked_fill masked_select
    sort argsort topk nonzero
""")
CONVERSIONS = words("clone contiguous item double float half bfloat16 long int short bool byte")
CREATION = words("zeros ones full eye arange linspace zeros_like ones_like full_like")

CONVOLUTION = words("conv1d conv2d conv_transpose1d conv_transpose2d")
NORMALISATION = words("batch_norm layer_norm group_norm instance_norm rms_norm")
POOLING = words("""
    max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d
""")
IMAGES = words("interpolate pad pixel_shuffle pixel_unshuffle")
DENSE = words("linear embedding one_hot scaled_dot_product_attention dropout dropout2d")
LOSSES = words("""
    cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits kl_div
""")
NEURAL = ["nn.functional." + name for name in (*CONVOLUTION, *NORMALISATION, *POOLING, *IMAGES, *DENSE, *LOSSES)]
NEURAL_ALL_DTYPES = ["nn.functional." + name for name in (*CONVOLUTION, *NORMALISATION)]

ALL_DTYPES = {*ELEMENTWISE, *REDUCTIONS, *PRODUCTS, *NEURAL_ALL_DTYPES}  # also float64, bfloat16 and float16
DROPOUTS = words("nn.functional.dropout nn.functional.dropout2d")
INTEGERS_ONLY = {"nn.functional.one_hot", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"}
# The other names that both sides have are compared too, in all dtypes (opinfo.NAMES); but values that are drawn.
NOT_COMPARED = words(
    "bernoulli multinomial normal new_empty empty empty_like randn randn_like rand_like randint randint_like"
)
NAMES = [*ELEMENTWISE, *ACTIVATIONS, *REDUCTIONS, *PRODUCTS, *SHAPES, *SELECTION, *CONVERSIONS, *CREATION, *NEURAL]


def _seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    """As OpInfo calls random functions: with this seed, so that both draw the same numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        genesis.manual_seed(42)
        return function(*args, **kwargs)

    return call


# Where OpInfo's call is not genesis.<name>: a method, an attribute, a lambda of its own, or another order of arguments.
METHODS = words("""
    view view_as expand expand_as repeat __getitem__ __rmatmul__ __radd__ __rand__ __rmod__ __rmul__ __ror__ __rpow__
    __rsub__ __rxor__ reshape_as char new_empty new_full new_ones new_zeros unfold type_as
    contiguous item double float half bfloat16 long int short bool byte cfloat cdouble
""")
CALLS: dict[str, Callable[..., Any]] = {
    **{name: getattr(Tensor, name) for name in METHODS},
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "einsum": lambda operands, equation: genesis.einsum(equation, operands),
    **{name: _seeded(getattr(F, name.rpartition(".")[2])) for name in DROPOUTS},
    "nn.functional.scaled_dot_product_attention": _seeded(F.scaled_dot_product_attention),
    "nn.functional.multi_head_attention_forward": _seeded(F.multi_head_attention_forward),
    "nn.functional.embedding": lambda weight, index, **options: F.embedding(index, weight, **options),
    "nn.functional.fractional_max_pool2d": _seeded(F.fractional_max_pool2d),
    "nn.functional.embedding_bag": lambda weight, index, **options: F.embedding_bag(index, weight, **options),
    "polygamma": lambda x, n: genesis.polygamma(n, x),
    "special.polygamma": lambda x, n: genesis.special.polygamma(n, x),
    "zero_": lambda x: x.clone().zero_(),
    "where": lambda x, condition, other: genesis.where(condition, x, other),
    # The samples bring PyTorch's PairwiseDistance, which is the default.
    "nn.functional.triplet_margin_with_distance_loss": lambda *tensors, distance_function=None, **options: (
        F.triplet_margin_with_distance_loss(*tensors, **options)
    ),
}


# Variants whose samples PyTorch hands to a function of several ops; tests/test_linalg.py has these gradients.
# Of as_strided: views of memory that the copies of the samples do not have.
OTHER_FUNCTIONS = {("linalg.lstsq", "grad_oriented"), ("linalg.pinv", "singular"), ("as_strided", "partial_views")}

# Complex numbers are on the CPU only: these take or give them.
ON_CPU_ONLY = {
    "cdouble", "cfloat", "complex", "polar", "stft", "istft", "view_as_complex", "view_as_real", "imag",
    *(f"fft.{name}{kind}" for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for kind in ("", "2", "n")),
}  # fmt: skip
# name → (what we refuse on purpose, whether a sample asks for it); docs/deviations.md lists the same names.
DEVIATIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "norm": ('`p="nuc"`; use `linalg.matrix_norm`', lambda sample: "nuc" in _values(sample)),
    "nn.functional.batch_norm": ("a 1-d input, which has no channels", lambda sample: sample.input.ndim < 2),
}

# Whether a sample draws random numbers: the CPU draws those of PyTorch's generator, other devices have their own.
DRAWS: dict[str, Callable[[Any], bool]] = {
    **{name: lambda sample: 0 < _option(sample, 0, "p", 0.5) < 1 for name in DROPOUTS},
    "nn.functional.scaled_dot_product_attention": lambda sample: _option(sample, 3, "dropout_p", 0.0) > 0,
    "nn.functional.multi_head_attention_forward": lambda sample: (
        bool(_option(sample, 9, "dropout_p", 0.0)) and sample.kwargs.get("training", True)
    ),
    "nn.functional.fractional_max_pool2d": lambda sample: sample.kwargs.get("_random_samples") is None,
}

# Whether a sample draws numbers in another way than PyTorch, on the CPU too: tests/functional/test_random.py has these.
DRAWS_OTHERWISE: dict[str, Callable[[Any], bool]] = {
    "nn.functional.rrelu": lambda sample: bool(sample.kwargs.get("training")),
    "nn.functional.alpha_dropout": lambda sample: bool(sample.kwargs.get("training", False)),
    "nn.functional.feature_alpha_dropout": lambda sample: bool(sample.kwargs.get("training", False)),
    "nn.functional.fractional_max_pool2d": lambda sample: sample.input.dtype.itemsize < 4,
    "nn.functional.dropout3d": lambda sample: 0 < _option(sample, 0, "p", 0.5) < 1,
    # No draw: of values of 10⁴, PyTorch's float32 gradient is wrong from the third digit on; tests/test_scattering.py.
    "logcumsumexp": lambda sample: bool(sample.input.numel() and sample.input.abs().max() > 1000),
}

# OpInfo lists a call of a tensor and a number among their errors, but PyTorch takes it.
TAKEN = words("clamp_min clamp_max __radd__ __rand__ __rmul__ __ror__ __rxor__")

# Ops whose 16-bit samples have no one right answer on another device, and why.
NOT_IN_16_BITS = {
    "complex": "there are no complex numbers of 16-bit parts",
    "view_as_complex": "there are no complex numbers of 16-bit parts",
    "nextafter": "CUDA has no such function, and refuses it",
    "topk": "the samples have equal elements, which come in any order",
    "sort": "the samples have equal elements, which come in any order",
    "argsort": "the samples have equal elements, which come in any order",
    "msort": "the samples have equal elements, which come in any order",
    **dict.fromkeys(
        ("scatter_reduce-amax", "scatter_reduce-amin", "index_reduce-amax", "index_reduce-amin"),
        "PyTorch shares a gradient with the element that include_self=False leaves out, where that one is equal",
    ),
    "mode": "the samples have several equal elements, of which PyTorch's sort keeps any",
    "nn.functional.linear_cross_entropy": "PyTorch rounds the logits of each chunk, and sums them in another order",
    "nn.functional.scaled_dot_product_attention": "the samples saturate the softmax, where a gradient is a difference "
    "of products that cancel; tests/conformance/test_fuzz.py has samples of usual size",
}


def _option(sample: Any, position: int, name: str, default: float) -> float:
    return sample.args[position] if len(sample.args) > position else sample.kwargs.get(name, default)


def _values(sample: Any) -> list[Any]:
    return [value for value in (*sample.args, *sample.kwargs.values()) if isinstance(value, str)]
