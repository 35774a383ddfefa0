"""Checkpointing of activations: memory is saved by computing a part of the forward pass again for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from genesis.autograd.checkpoint import checkpointed
from genesis.errors import describe

R = TypeVar("R")

_OPTIONS = ("context_fn", "determinism_check", "debug", "early_stop")  # PyTorch's, about what it does by hooks


def checkpoint(
    function: Callable[..., R],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> R:
    """Call function, keep its arguments instead of what it saves, and run it again in the backward pass.

    Parameters that function uses get their gradients, whether its arguments require grad or not.

    Args:
        function: takes args and kwargs; computes the same each time it is called.
        args: tensors of any shape, and other values.
        use_reentrant: accepted for PyTorch's sake; both ways are one here.
        preserve_rng_state: draw the same random numbers when it runs again.
        kwargs: keywords of function; PyTorch's context_fn, determinism_check, debug and early_stop are ignored.
    Returns: what function returns.
    Raises: GraphError: in the backward pass, if function computes something else, or an argument has changed.
    Source: Chen et al. 2016, arXiv:1604.06174.

    Example:
        >>> from genesis.utils.checkpoint import checkpoint
        >>> x = genesis.ones(2, requires_grad=True)
        >>> checkpoint(lambda x: (x * 3).exp().log(), x, use_reentrant=False).sum().backward()
        >>> [round(value, 4) for value in x.grad.tolist()]
        [3.0, 3.0]
    """
    for option in _OPTIONS:
        kwargs.pop(option, None)
    return checkpointed(preserve_rng_state, function, *args, **kwargs)


def checkpoint_sequential(
    functions: Sequence[Callable[[Any], Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Chain functions in checkpointed segments; the last one is not checkpointed.

    Args:
        functions: a Sequential, or a sequence of functions of one argument.
        segments: how many parts of equal length, at least 1.
        input: of the first function, a tensor of any shape.
        use_reentrant: as in `genesis.utils.checkpoint.checkpoint`.
        kwargs: preserve_rng_state, as there.
    Returns: what the last function returns.
    Raises: ValueError: fewer functions than segments, or no segment.

    Example:
        >>> from genesis.utils.checkpoint import checkpoint_sequential
        >>> checkpoint_sequential([genesis.sqrt, genesis.square], 2, genesis.ones(2)).tolist()
        [1.0, 1.0]
    """
    chain = list(functions)
    if not 1 <= segments <= len(chain):
        expected = f"from 1 to {len(chain)}, the number of functions"
        raise ValueError(describe("checkpoint_sequential", "segments", expected, segments))
    length = len(chain) // segments
    value = input
    for number in range(segments - 1):
        value = checkpoint(_chained, chain[number * length : (number + 1) * length], value, **kwargs)
    return _chained(chain[(segments - 1) * length :], value)


def _chained(functions: Sequence[Callable[[R], R]], value: R) -> R:
    """The result of functions, one after the other."""
    for function in functions:
        value = function(value)
    return value
