"""The activations that fused ops apply: what they are called, and the number that some of them take.

An op is given one as text: its name, followed by its number in parentheses if it takes one: "relu", "leaky_relu(0.1)".
To add one: its line here, and its forward and derivative in each backend (backends/cpu/fused_activation.py,
backends/cuda/ops/activation/fused.py).
"""

from __future__ import annotations

import functools
import math
import re
from typing import NamedTuple

from genesis.errors import describe

NUMBERS: dict[str, float | None] = {
    "relu": None, "relu6": None, "leaky_relu": 0.01, "elu": 1.0, "silu": None, "mish": None, "gelu": None,
    "gelu_tanh": None, "hardswish": None, "hardsigmoid": None, "sigmoid": None, "tanh": None,
}  # fmt: skip
"""The name of each; leaky_relu's slope and elu's alpha, where none is given."""

_FORM = re.compile(r"(\w+)(?:\((.*)\))?", re.ASCII)


class Activation(NamedTuple):
    """An activation; number is None where it takes none."""

    name: str
    number: float | None = None

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name}({self.number!r})"


@functools.lru_cache(1024)
def parse(text: str) -> Activation:
    """The activation that a text stands for.

    Raises: ValueError: none.

    Example:
        >>> from genesis import activations
        >>> activations.parse("leaky_relu"), str(activations.parse("elu(0.5)"))
        (Activation(name='leaky_relu', number=0.01), 'elu(0.5)')
    """
    form = _FORM.fullmatch(text)
    if form is not None and form[1] in NUMBERS:
        name, number = form.groups()
        usual = NUMBERS[name]
        if number is None:
            return Activation(name, usual)
        if usual is not None and math.isfinite(float(number)):
            return Activation(name, float(number))
    raise ValueError(text)


_BY_RESULT = frozenset(("relu", "relu6", "sigmoid", "tanh"))


@functools.lru_cache(1024)
def is_known_by_result(text: str) -> bool:
    """Does an activation's derivative follow from its result?"""
    name, number = parse(text)
    return name in _BY_RESULT or (name == "leaky_relu" and number is not None and number > 0.0)


_RESULT_IS_KEPT = frozenset(("relu", "sigmoid", "tanh"))


def keeps_result(text: str) -> bool:
    """Does the activation as an op by itself save its result, so that nobody may change that before the backward?"""
    return text in _RESULT_IS_KEPT


def result_suffices(text: str, has_residual: bool) -> bool:
    """Is the result all that a batch norm's backward on the CPU keeps, after the norm and perhaps a sum?

    Where the activation by itself would save what it was given (ReLU6, leaky ReLU), the result may be changed in place;
    then the norm is computed again, to which a residual would be missing.
    """
    return is_known_by_result(text) and (not has_residual or keeps_result(text))


def checked(op: str, text: str | None) -> str | None:
    """An op's argument `activation` in its one form; None, which stands for none, as it is.

    Raises: ValueError: it is no activation.
    """
    if text is None or text == "relu":
        return text
    try:
        return str(parse(text))
    except (TypeError, ValueError):
        names = ", ".join([f'"{name}"' if usual is None else f'"{name}({usual})"' for name, usual in NUMBERS.items()])
        raise ValueError(describe(op, "activation", f"{names} or None", repr(text))) from None
