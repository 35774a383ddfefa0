"""Module: registration, traversal, modes, moves, hooks, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import genesis
from genesis import Tensor, nn
from genesis.errors import DTypeError


class Net(nn.Module):
    """A parameter, buffers, submodules, and a module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(genesis.ones(2))
        self.register_parameter("shift", None)
        self.register_buffer("mean", genesis.zeros(2))
        self.register_buffer("scratch", genesis.zeros(3), persistent=False)
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.twin = self.body[0]

    def forward(self, x: Tensor) -> Any:
        return self.body(x) * self.scale


class TorchNet(torch.nn.Module):
    """Net, made of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.register_parameter("shift", None)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.body = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.twin = self.body[0]


def names(pairs: Any) -> list[str]:
    return [name for name, _ in pairs]


# --- registration and traversal ---


@pytest.mark.parametrize("method", ["named_parameters", "named_buffers", "named_modules"])
@pytest.mark.parametrize("kwargs", [{}, {"prefix": "net"}, {"remove_duplicate": False}], ids=str)
def test_names_are_pytorchs(method: str, kwargs: dict[str, Any]) -> None:
    assert names(getattr(Net(), method)(**kwargs)) == names(getattr(TorchNet(), method)(**kwargs))


def test_names_without_recursion_and_of_children() -> None:
    net, theirs = Net(), TorchNet()
    assert names(net.named_parameters(recurse=False)) == ["scale"]
    assert names(net.named_buffers(recurse=False)) == names(theirs.named_buffers(recurse=False))
    assert names(net.named_children()) == names(theirs.named_children())
    assert list(net.children()) == [net.body, net.twin]
    assert len(list(net.modules())) == 4


def test_state_dict_has_pytorchs_keys_in_their_order() -> None:
    assert list(Net().state_dict()) == list(TorchNet().state_dict())
    assert list(Net().state_dict(prefix="net.")) == list(TorchNet().state_dict(prefix="net."))


def test_state_dict_shares_memory_outside_the_graph() -> None:
    net = Net()
    entry = net.state_dict()["scale"]
    assert type(entry) is Tensor
    assert not entry.requires_grad
    entry.fill_(3.0)
    assert net.scale.tolist() == [3.0, 3.0]
    assert net.state_dict(keep_vars=True)["scale"] is net.scale


def test_an_attribute_changes_its_kind() -> None:
    net = Net()
    net.body = None
    assert net.body is None
    assert "body" not in names(net.named_children())
    net.mean = nn.Parameter(genesis.ones(2))
    assert names(net.named_buffers()) == ["scratch"]
    assert "mean" in names(net.named_parameters())
    net.plain = 3
    net.plain = nn.ReLU()
    assert "plain" in names(net.named_children())
    net.shift = nn.Parameter(genesis.ones(1))
    assert "shift" in names(net.named_parameters())
    net.shift = None
    assert "shift" not in names(net.named_parameters())


def test_deletion() -> None:
    net = Net()
    del net.scale, net.mean, net.twin, net.scratch
    assert list(net.state_dict()) == ["body.0.weight", "body.0.bias"]
    with pytest.raises(AttributeError, match="scale"):
        del net.scale
    net.register_buffer("scratch", genesis.zeros(1))
    assert "scratch" in net.state_dict()


def test_buffers_can_be_replaced() -> None:
    net = Net()
    net.mean = genesis.ones(2)
    assert net.state_dict()["mean"].tolist() == [1.0, 1.0]
    net.mean = None
    assert "mean" not in net.state_dict()


def test_dir_and_get() -> None:
    net = Net()
    assert {"scale", "mean", "body", "forward"} <= set(dir(net))
    assert net.get_submodule("body.0") is net.body[0]
    assert net.get_submodule("") is net
    assert net.get_parameter("body.0.weight") is net.body[0].weight
    assert net.get_buffer("mean") is net.mean


def test_apply_visits_children_first() -> None:
    seen: list[str] = []
    net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))
    assert net.apply(lambda module: seen.append(type(module).__name__)) is net
    assert seen == ["ReLU", "Tanh", "Sequential", "Sequential"]


# --- errors ---


def test_a_parameter_is_not_overwritten_by_a_tensor() -> None:
    with pytest.raises(DTypeError, match="'scale': expected a Parameter or None, got Tensor; copy_ under no_grad"):
        Net().scale = genesis.ones(2)
    with pytest.raises(DTypeError, match="'mean': expected a Tensor or None, got int"):
        Net().mean = 3
    with pytest.raises(DTypeError, match="'body': expected a Module or None, got str"):
        Net().body = "text"


class Forgetful(nn.Module):
    """Its __init__ calls nobody."""

    def __init__(self, part: Any) -> None:
        self.width = 3  # plain attributes may come first
        self.part = part


@pytest.mark.parametrize("part", [nn.ReLU(), nn.Parameter(genesis.ones(1))], ids=["module", "parameter"])
def test_missing_super_init(part: Any) -> None:
    with pytest.raises(AttributeError, match=r"Forgetful.*__init__ must call super\(\).__init__\(\) before all else"):
        Forgetful(part)
    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
        Forgetful(1)(2)


def test_unknown_names() -> None:
    net = Net()
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'scal'"):
        net.scal  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"get_parameter: Net has no 'body.0.weigth' \(the closest is 'body.0.weight'\)"
    ):
        net.get_parameter("body.0.weigth")
    with pytest.raises(AttributeError, match=r"get_submodule: Net has no 'bodi' \(the closest is 'body'\)"):
        net.get_submodule("bodi")
    with pytest.raises(AttributeError, match="get_buffer: Net has no 'scale'"):
        net.get_buffer("scale")


def test_wrong_registrations() -> None:
    net = Net()
    with pytest.raises(KeyError, match=r"a name without dots, got 'a\.b'"):
        net.add_module("a.b", nn.ReLU())
    with pytest.raises(KeyError, match="a name without dots, got ''"):
        net.register_buffer("", genesis.ones(1))
    with pytest.raises(DTypeError, match="'name': expected a str, got int"):
        net.register_buffer(3, genesis.ones(1))
    with pytest.raises(KeyError, match="a name that is not taken, got 'forward'"):
        net.register_parameter("forward", None)
    with pytest.raises(DTypeError, match="'param': expected a Parameter or None, got Tensor"):
        net.register_parameter("new", genesis.ones(1))
    with pytest.raises(DTypeError, match="'tensor': expected a Tensor or None, got list"):
        net.register_buffer("new", [1])
    with pytest.raises(DTypeError, match="'module': expected a Module or None, got int"):
        net.add_module("new", 1)
    with pytest.raises(DTypeError, match="'data': expected a Tensor, got list"):
        nn.Parameter([1.0])
    with pytest.raises(DTypeError, match="'requires_grad': expected a floating or complex dtype"):
        nn.Parameter(genesis.tensor([1]))


def test_no_forward() -> None:
    with pytest.raises(NotImplementedError, match="Module: a Module needs a method forward"):
        nn.Module()()


# --- modes, gradients, moves ---


def test_train_and_eval_reach_everything() -> None:
    net = Net()
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    assert all(module.training for module in net.train().modules())
    with pytest.raises(DTypeError, match="'mode': expected a bool, got str"):
        net.train("yes")


def test_requires_grad_and_zero_grad() -> None:
    net = Net()
    net(genesis.ones(1, 2)).sum().backward()
    kept = net.scale.grad
    net.zero_grad(set_to_none=False)
    assert kept.tolist() == [0.0, 0.0]
    net.zero_grad()
    assert net.scale.grad is None
    net.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_moves_keep_the_parameters_and_their_gradients() -> None:
    net = Net()
    net.register_buffer("count", genesis.tensor(3))
    net(genesis.ones(1, 2)).sum().backward()
    before, grad = list(net.parameters()), net.scale.grad.tolist()
    assert net.double() is net
    assert all(a is b for a, b in zip(net.parameters(), before, strict=True))
    assert net.twin.weight is net.body[0].weight
    assert {p.dtype for p in net.parameters()} == {genesis.float64} == {net.mean.dtype, net.scale.grad.dtype}
    assert net.scale.grad.tolist() == grad
    assert net.count.dtype is genesis.int64
    net(genesis.ones(1, 2, dtype=genesis.float64)).sum().backward()
    assert net.scale.grad.tolist() == pytest.approx([2 * g for g in grad])


@pytest.mark.parametrize(
    ("args", "kwargs", "dtype"),
    [
        ((genesis.float16,), {}, genesis.float16),
        (("cpu", genesis.bfloat16), {}, genesis.bfloat16),
        ((genesis.ones(1, dtype=genesis.float64),), {}, genesis.float64),
        ((), {"device": "cpu", "dtype": genesis.float64}, genesis.float64),
        ((genesis.device("cpu"),), {}, genesis.float32),
    ],
)
def test_to(args: Any, kwargs: Any, dtype: Any) -> None:
    assert nn.Linear(2, 2).to(*args, **kwargs).weight.dtype is dtype


def test_to_by_name_and_by_memory_format() -> None:
    assert nn.Linear(1, 1).half().weight.dtype is genesis.float16
    assert nn.Linear(1, 1).bfloat16().float().cpu().weight.dtype is genesis.float32
    conv = nn.Conv2d(3, 4, 3)
    assert conv.weight.stride() == (27, 1, 9, 3)
    assert conv.to(memory_format="contiguous").weight.stride() == (27, 9, 3, 1)
    assert conv.to(memory_format="channels_last").weight.stride() == (27, 1, 9, 3)


def test_to_refuses_what_is_no_place() -> None:
    with pytest.raises(DTypeError, match=r"'dtype': expected a floating dtype, got genesis\.int64"):
        nn.Linear(1, 1).to(genesis.int64)
    with pytest.raises(DTypeError, match="'args': expected a device, a dtype or a tensor, got list"):
        nn.Linear(1, 1).to([1])


# --- hooks ---


def test_forward_hooks() -> None:
    layer = nn.Identity()
    calls: list[Any] = []
    first = layer.register_forward_pre_hook(lambda module, args: calls.append(args))
    double = layer.register_forward_pre_hook(lambda module, args: args[0] * 2)
    plus = layer.register_forward_hook(lambda module, args, output: output + args[0])
    assert layer(genesis.ones(1)).item() == 4.0
    assert calls[0][0].item() == 1.0
    for handle in (first, double, plus):
        handle.remove()
    assert layer(genesis.ones(1)).item() == 1.0


def test_forward_hooks_with_keyword_arguments() -> None:
    class Scale(nn.Module):
        def forward(self, x: Any, factor: float = 1.0) -> Any:
            return x * factor

    layer = Scale()
    layer.register_forward_pre_hook(lambda module, args, kwargs: (args, {"factor": 3.0}), with_kwargs=True)
    layer.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)
    layer.register_forward_hook(lambda module, args, kwargs, output: output + kwargs["factor"], with_kwargs=True)
    assert layer(2.0, factor=1.0) == 9.0


# --- copies ---


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deepcopy", "pickle"]
)
def test_copies_are_independent_and_keep_ties(copied: Any) -> None:
    net = Net().eval()
    net(genesis.ones(1, 2)).sum().backward()
    other = copied(net)
    assert not other.training
    assert other.twin.weight is other.body[0].weight is not net.twin.weight
    assert isinstance(other.scale, nn.Parameter)
    assert other.state_dict().keys() == net.state_dict().keys()
    assert other(genesis.ones(1, 2)).tolist() == net(genesis.ones(1, 2)).tolist()
    with genesis.no_grad():
        other.scale.zero_()
    assert net.scale.tolist() == [1.0, 1.0]


def test_results_with_parameters_are_plain_tensors() -> None:
    assert type(nn.Parameter(genesis.ones(1)) + 1) is Tensor
    assert type(nn.Parameter(genesis.ones(1)).detach()) is Tensor
    assert repr(nn.Parameter(genesis.ones(1))) == "Parameter containing:\ntensor([1.], requires_grad=True)"
    assert nn.Parameter().shape == (0,)


# --- the way from a layer to the kernel ---


def test_five_functions_from_conv2d_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """forward, F.conv2d, apply, forward, the backend's: beside them only the two dispatchers."""
    import sys

    stacks: list[list[str]] = []
    conv2d = torch.conv2d

    def watched(*args: Any) -> torch.Tensor:
        frame, stack = sys._getframe(1), []
        while frame.f_code.co_filename != __file__:
            stack.append(f"{frame.f_code.co_filename.rpartition('genesis/')[2]}:{frame.f_code.co_name}")
            frame = frame.f_back
        stacks.append(stack[::-1])
        return conv2d(*args)

    monkeypatch.setattr(torch, "conv2d", watched)
    nn.Conv2d(1, 1, 1)(genesis.ones(1, 1, 2, 2))
    dispatchers = ("nn/module.py:__call__", "backends/dispatch.py:")
    hops = [hop for hop in stacks[0] if not hop.startswith(dispatchers)]
    assert hops == [
        "nn/modules/conv.py:forward",
        "functional/conv.py:conv2d",
        "autograd/function.py:apply",
        "functional/conv.py:forward",
        "backends/cpu/conv.py:conv_forward",
    ]


def test_mismatched_channels() -> None:
    with pytest.raises(ValueError, match=r"conv2d: argument 'input': .*3.*4|conv2d: argument 'weight'"):
        nn.Conv2d(3, 8, 3)(genesis.ones(1, 4, 8, 8))
