"""Hooks of calls, backward passes and states, and what subclasses override: the same program in both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis

Program = Callable[[Any], Any]  # of a library, genesis or torch


def plain(value: Any) -> Any:
    """Tensors as lists, all else as it is."""
    if isinstance(value, genesis.Tensor | torch.Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def network(lib: Any) -> Any:
    net = lib.nn.Sequential(lib.nn.Linear(2, 3), lib.nn.ReLU())
    with lib.no_grad():
        net[0].weight.copy_(lib.tensor([[0.5, -1.0], [1.0, 0.25], [-0.5, 2.0]]))
        net[0].bias.fill_(0.25)
    return net


def gradients(lib: Any, net: Any, seen: list[Any], needs_grad: bool = True) -> Any:
    x = lib.tensor([[1.0, 2.0], [3.0, -4.0]], requires_grad=needs_grad)
    net(x).sum().backward()
    return plain([seen, x.grad, net[0].weight.grad])


def backward_hooks(lib: Any) -> Any:
    net, seen = network(lib), list[Any]()
    net[0].register_full_backward_pre_hook(lambda module, grads: (seen.append(("before", grads)), (grads[0] * 3,))[1])
    net[0].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * 2,))
    net.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append((grad_in, grad_out)))
    return gradients(lib, net, seen)


def without_a_gradient_of_the_input(lib: Any) -> Any:
    net, seen = network(lib), list[Any]()
    net.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append((grad_in, grad_out)))
    return gradients(lib, net, seen, needs_grad=False)


def removed_and_prepended(lib: Any) -> Any:
    net, seen = network(lib), list[Any]()
    removed = net.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append("removed"))
    net.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append("second"))
    net.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append("first"), prepend=True)
    net.register_forward_hook(lambda module, args, output: seen.append("last"))
    net.register_forward_hook(lambda module, args, output: seen.append("earlier"), prepend=True)
    net.register_forward_pre_hook(lambda module, args: seen.append("pre"))
    net.register_forward_pre_hook(lambda module, args: seen.append("before pre"), prepend=True)
    removed.remove()
    return gradients(lib, net, seen)


def several_inputs_and_outputs(lib: Any) -> Any:
    class Mixed(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, factor: int, y: Any) -> Any:
            return x * factor, "text", y + x

    module, seen = Mixed(), list[Any]()
    module.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append((grad_in, grad_out)))
    x, y = lib.tensor([1.0], requires_grad=True), lib.tensor([2.0], requires_grad=True)
    first, text, second = module(x, 3, y)
    (first * second).sum().backward()
    return plain([seen, text, x.grad, y.grad])


def called_where_forward_raises(lib: Any) -> Any:
    class Raises(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            raise KeyError("x")

    module, seen = Raises(), list[Any]()
    module.register_forward_hook(lambda module, args, output: seen.append(output), always_call=True)
    module.register_forward_hook(lambda module, args, output: seen.append("never"))
    with pytest.raises(KeyError):
        module(lib.ones(1))
    return seen


class Shared:
    """Modules that override how their state is saved and loaded."""

    @staticmethod
    def renaming(lib: Any) -> Any:
        class Renaming(lib.nn.Linear):  # type: ignore[misc]
            _version = 2

            def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, *rest: Any) -> None:
                if metadata.get("version", 1) < 2 and prefix + "kernel" in state_dict:
                    state_dict[prefix + "weight"] = state_dict.pop(prefix + "kernel")
                super()._load_from_state_dict(state_dict, prefix, metadata, *rest)

        return Renaming


def an_overridden_load(lib: Any) -> Any:
    net = lib.nn.Sequential(Shared.renaming(lib)(2, 1), lib.nn.ReLU())
    old = {"0.kernel": lib.tensor([[1.0, 2.0]]), "0.bias": lib.tensor([3.0])}
    found = net.load_state_dict(old)
    versions = {
        key: value.get("version") for key, value in net.state_dict()._metadata.items() if value.get("version") == 2
    }
    return plain([list(old), list(found), net.state_dict(), net(lib.ones(1, 2)), versions])


def extra_state(lib: Any) -> Any:
    class Counter(lib.nn.Module):  # type: ignore[misc]
        count = 3

        def get_extra_state(self) -> Any:
            return {"count": self.count}

        def set_extra_state(self, state: Any) -> None:
            self.count = state["count"]

    source, target = lib.nn.Sequential(Counter()), lib.nn.Sequential(Counter())
    source[0].count = 7
    target.load_state_dict(source.state_dict())
    return plain([source.state_dict(), target[0].count, list(target.load_state_dict({}, strict=False))])


def state_hooks(lib: Any) -> Any:
    net, seen = network(lib), list[Any]()
    layer = net[0]
    layer.register_state_dict_pre_hook(lambda module, prefix, keep_vars: seen.append((prefix, keep_vars)))
    layer._register_state_dict_hook(lambda module, state, prefix, metadata: seen.append(sorted(state)))
    layer._register_load_state_dict_pre_hook(lambda state, prefix, *rest: seen.append((sorted(state), prefix)))
    layer.register_load_state_dict_pre_hook(lambda module, state, *rest: state.pop("0.more", None) and None)
    handle = net.register_load_state_dict_post_hook(lambda module, keys: keys.unexpected_keys.clear())
    state = dict(net.state_dict())
    state["2.other"] = lib.ones(1)
    found = net.load_state_dict(state)
    handle.remove()
    return plain([seen, list(found), list(net.load_state_dict(state, strict=False))])


def what_apply_moves(lib: Any) -> Any:
    class Keeps(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.own = [lib.ones(1)]
            self.counts = lib.nn.Buffer(lib.ones(2))
            self.hidden = lib.nn.Buffer(lib.ones(2), persistent=False)

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            super()._apply(fn, recurse)
            self.own = [fn(each) for each in self.own]
            return self

    net = lib.nn.Sequential(Keeps(), lib.nn.Linear(1, 1))
    net.double()
    kinds = [each.dtype is lib.float64 for each in (*net[0].own, net[0].counts, *net.parameters())]
    net.type(lib.float16)
    kinds += [each.dtype is lib.float16 for each in (*net[0].own, net[0].counts, *net.parameters())]
    net.set_submodule("1", lib.nn.ReLU())
    return [kinds, sorted(net.state_dict()), [name for name, _ in net.named_buffers()], net[1]._get_name()]


PROGRAMS: list[Program] = [
    backward_hooks, without_a_gradient_of_the_input, removed_and_prepended, several_inputs_and_outputs,
    called_where_forward_raises, an_overridden_load, extra_state, state_hooks, what_apply_moves,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # PyTorch's own
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_in_both(program: Program) -> None:
    assert program(genesis) == program(torch)


def test_an_override_that_does_not_fit_changes_nothing() -> None:
    net = genesis.nn.Sequential(genesis.nn.Linear(2, 1), Shared.renaming(genesis)(1, 1))
    before = plain(net.state_dict())
    wrong = {**net.state_dict(), "1.kernel": genesis.ones(5, 5), "0.weight": genesis.zeros(1, 2)}
    del wrong["1.weight"]
    with pytest.raises(genesis.errors.CheckpointError, match=r"'1.weight': expected shape \(1, 1\), got \(5, 5\)"):
        net.load_state_dict(wrong)
    assert plain(net.state_dict()) == before


def test_a_hook_that_returns_other_gradients_than_there_are() -> None:
    layer = genesis.nn.Identity()
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0], grad_in[0]))
    with pytest.raises(genesis.errors.GraphError, match="expected 1 gradients from the hook, got 2"):
        layer(genesis.ones(1, requires_grad=True)).sum().backward()
    alone = genesis.nn.Linear(1, 1)
    alone.register_full_backward_hook(lambda module, grad_in, grad_out: (grad_out[0],))
    with pytest.raises(genesis.errors.GraphError, match="returned for inputs that need none"):
        alone(genesis.ones(1)).sum().backward()
