"""PyTorch's second names of functions."""

from __future__ import annotations

from genesis.functional.elementwise import div, mul, sub
from genesis.functional.joining import cat
from genesis.functional.unary import abs, neg

__all__ = ["absolute", "concat", "concatenate", "divide", "multiply", "negative", "subtract", "true_divide"]

absolute, negative = abs, neg
concat = concatenate = cat
divide = true_divide = div
multiply, subtract = mul, sub
