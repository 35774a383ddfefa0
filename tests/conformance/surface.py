"""Which of OpInfo's ops belong to the public surface, in which dtypes they run, and where we deviate on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis
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
CONVERSIONS = words("clone contiguous item double float half bfloat16 long int bool byte")
CREATION = words("zeros ones full eye arange linspace zeros_like ones_like full_like")

ALL_DTYPES = {*ELEMENTWISE, *REDUCTIONS, *PRODUCTS}  # also float64, bfloat16 and float16
NAMES = [*ELEMENTWISE, *ACTIVATIONS, *REDUCTIONS, *PRODUCTS, *SHAPES, *SELECTION, *CONVERSIONS, *CREATION]

# Where OpInfo's call is not genesis.<name>: a method, an attribute, a lambda of its own, or another order of arguments.
METHODS = words("""
    view view_as expand expand_as repeat __getitem__ __rmatmul__
    contiguous item double float half bfloat16 long int bool byte
""")
CALLS: dict[str, Callable[..., Any]] = {
    **{name: getattr(Tensor, name) for name in METHODS},
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "einsum": lambda operands, equation: genesis.einsum(equation, operands),
    "where": lambda x, condition, other: genesis.where(condition, x, other),
}

# name → (what we refuse on purpose, whether a sample asks for it); docs/deviations.md lists the same names.
DEVIATIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "norm": ('`p="nuc"` needs singular values, which no backend has', lambda sample: "nuc" in _values(sample)),
    "scatter": ("`reduce=`; use `scatter_add`", lambda sample: "reduce" in sample.kwargs),
}


def _values(sample: Any) -> list[Any]:
    return [value for value in (*sample.args, *sample.kwargs.values()) if isinstance(value, str)]
