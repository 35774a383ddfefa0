"""A module's call with other parameters and buffers than its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from genesis.errors import describe
from genesis.nn.module import Module
from genesis.tensor import Tensor


def functional_call(
    module: Module, parameters_and_buffers: Mapping[str, Tensor] | tuple[Mapping[str, Tensor], ...],
    args: Any = None, kwargs: Mapping[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """Call a module with these tensors in the places of its parameters and buffers; gradients flow into them.

    Args:
        module: is as before afterwards.
        parameters_and_buffers: tensors of the shapes of what they replace, by dotted name; or several such dicts.
        args: the positional arguments as a tuple, or a single one.
        kwargs: the keyword arguments.
        tie_weights: a tensor that stands in for a shared parameter stands under all of its names.
        strict: every parameter and buffer is given, and nothing else.
    Returns: the module's output.
    Raises: KeyError: a name does not exist, or is missing if strict. ValueError: one is given twice.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> other = {"weight": genesis.ones(1, 2), "bias": genesis.zeros(1)}
        >>> genesis.nn.utils.stateless.functional_call(layer, other, genesis.ones(1, 2)).tolist()
        [[2.0]]
    """
    op = "functional_call"
    given: dict[str, Tensor] = {}
    dicts = parameters_and_buffers if isinstance(parameters_and_buffers, tuple) else (parameters_and_buffers,)
    for each in dicts:
        if twice := sorted(set(each) & set(given)):
            raise ValueError(describe(op, "parameters_and_buffers", "each name once", f"{twice[0]!r} twice"))
        given.update(each)
    own: dict[str, Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False)),
    }  # fmt: skip
    if unknown := [name for name in given if name not in own]:
        raise KeyError(describe(op, "parameters_and_buffers", "names of parameters and buffers", repr(unknown[0])))
    if tie_weights:
        stands_in = {id(own[name]): tensor for name, tensor in given.items()}
        given = {name: stands_in[id(tensor)] for name, tensor in own.items() if id(tensor) in stands_in}
    if strict and (missing := [name for name in own if name not in given]):
        raise KeyError(describe(op, "parameters_and_buffers", "all parameters and buffers", f"none for {missing[0]!r}"))
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, given):
        return module(*positional, **(kwargs or {}))


@contextmanager
def _replaced(module: Module, given: Mapping[str, Tensor]) -> Iterator[None]:
    before: list[tuple[dict[str, Tensor | None], str, Tensor | None]] = []
    try:
        for path, tensor in given.items():
            owner, _, name = path.rpartition(".")
            part = module.get_submodule(owner)
            learned = cast("dict[str, Tensor | None]", part._parameters)  # for once, of any tensors
            registry = learned if name in learned else part._buffers
            before.append((registry, name, registry[name]))
            registry[name] = tensor
        yield
    finally:
        for registry, name, tensor_before in reversed(before):
            registry[name] = tensor_before
