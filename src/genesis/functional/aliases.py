"""PyTorch's second names of functions."""

from genesis.functional import comparison, elementwise, fractions, incomplete_gamma, trigonometry, unary

__all__ = [
    "absolute", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "clip", "divide", "fix",
    "greater", "greater_equal", "igamma", "igammac", "less", "less_equal", "multiply", "negative", "not_equal", "sgn",
    "subtract", "true_divide",
]  # fmt: skip

absolute, negative, sgn = unary.abs, unary.neg, unary.sign
arccos, arcsin, arctan, arctan2 = trigonometry.acos, trigonometry.asin, trigonometry.atan, trigonometry.atan2
arccosh, arcsinh, arctanh = trigonometry.acosh, trigonometry.asinh, trigonometry.atanh
clip = elementwise.clamp
subtract, multiply = elementwise.sub, elementwise.mul
divide = true_divide = elementwise.div
fix = fractions.trunc
igamma, igammac = incomplete_gamma.gammainc, incomplete_gamma.gammaincc
greater, greater_equal, less, less_equal = comparison.gt, comparison.ge, comparison.lt, comparison.le
not_equal = comparison.ne
