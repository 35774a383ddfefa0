"""torch.overrides: no other class takes part in the dispatch of functions."""

from __future__ import annotations


def has_torch_function(relevant_args: object) -> bool:
    """Say that none of the arguments overrides functions."""
    return False


def has_torch_function_unary(arg: object) -> bool:
    """Say that the argument doesn't override functions."""
    return False


def has_torch_function_variadic(*args: object) -> bool:
    """Say that none of the arguments overrides functions."""
    return False


def is_tensor_like(inp: object) -> bool:
    """Whether the argument is a tensor."""
    from genesis import Tensor

    return isinstance(inp, Tensor)
