"""Hooks of all modules, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.modules import module as their_module

import genesis
from genesis import nn
from genesis.nn import global_hooks

Seen = list[tuple[Any, ...]]


def register_all(hooks: Any, seen: Seen) -> list[Any]:
    """Hooks of every kind, some of which change what passes."""

    def note(kind: str, result: Any = None) -> Any:
        def hook(module: Any, *parts: Any) -> Any:
            seen.append((kind, type(module).__name__, *[[tuple(x.shape) for x in flat(part)] for part in parts]))
            return None if result is None else result(parts[-1])

        return hook

    return [
        hooks.register_module_forward_pre_hook(note("before", lambda args: (args[0] + 1,))),
        hooks.register_module_forward_hook(note("after", lambda output: output * 2)),
        hooks.register_module_full_backward_pre_hook(note("backward before", lambda grads: (grads[0] * 3,))),
        hooks.register_module_full_backward_hook(note("backward after")),
    ]


def flat(value: Any) -> list[Any]:
    return [x for x in (value if isinstance(value, tuple) else (value,)) if x is not None]


def results(library: Any, hooks: Any, own_too: bool) -> tuple[Seen, Any, Any]:
    seen: Seen = []
    model = library.nn.Sequential(library.nn.Linear(2, 3), library.nn.Tanh())
    for parameter in model.parameters():
        library.nn.init.constant_(parameter, 0.1)
    if own_too:
        model[0].register_forward_pre_hook(lambda module, args: seen.append(("own before",)))
        model[0].register_forward_hook(lambda module, args, output: seen.append(("own after",)))
        model[0].register_full_backward_hook(lambda module, *grads: seen.append(("own backward",)))
    handles = register_all(hooks, seen)
    x = library.ones(4, 2, requires_grad=True)
    try:
        model(x).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    count = len(seen)
    model(x).sum()
    assert len(seen) - count == 2 * own_too
    return seen, x.grad.tolist(), model[0].weight.grad.tolist()


@pytest.mark.parametrize("own_too", [False, True])
def test_as_pytorch_calls_them(own_too: bool) -> None:
    seen, *gradients = results(genesis, global_hooks, own_too)
    expected, *others = results(torch, their_module, own_too)
    assert seen == expected
    torch.testing.assert_close(gradients, others)


@pytest.fixture
def own_call() -> Iterator[object]:
    before = nn.Module.__call__
    yield before
    assert nn.Module.__call__ is before


def test_without_hooks_a_call_is_what_it_was(own_call: object) -> None:
    first, second = (global_hooks.register_module_forward_hook(lambda *_: None) for _ in range(2))
    assert nn.Module.__call__ is not own_call
    first.remove()
    assert nn.Module.__call__ is not own_call
    second.remove()


def test_a_hook_is_called_where_forward_raises(own_call: object) -> None:
    seen = []
    handle = global_hooks.register_module_forward_hook(lambda *parts: seen.append(parts[-1]), always_call=True)
    with pytest.raises(ValueError, match="linear"):
        nn.Linear(2, 3)(genesis.ones(1, 5))
    handle.remove()
    assert seen == [None]


def test_a_compiled_function_calls_them(own_call: object) -> None:
    layer, seen = nn.Linear(2, 3), []
    compiled = genesis.compile(layer)
    with genesis.no_grad():
        for _ in range(3):
            compiled(genesis.ones(1, 2))
        handle = global_hooks.register_module_forward_hook(lambda *parts: seen.append(1))
        compiled(genesis.ones(1, 2))
        handle.remove()
    assert seen == [1]
