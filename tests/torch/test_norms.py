"""genesis.torch.group_norm against PyTorch's layers: eager, compiled, and what it leaves to PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from genesis.torch import dynamo, group_norm, norms
from tests.fused_activations import FUNCTIONS, activated


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The op runs on the CPU too."""
    monkeypatch.setattr(norms, "has_kernels", lambda input: True)


def operands(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 4, 5, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return [x, torch.randn(6, dtype=dtype), torch.randn(6, dtype=dtype)]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("activation", [None, *FUNCTIONS])
def test_values_and_gradients(activation: str | None) -> None:
    mine, theirs = ([each.clone().requires_grad_() for each in operands()] for _ in range(2))
    y = group_norm(mine[0], 3, mine[1], mine[2], activation=activation)
    expected = activated(F.group_norm(theirs[0], 3, theirs[1], theirs[2]), activation)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, expected)
    for value in (y, expected):
        value.square().sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("affine", [True, False])
def test_opaque_to_the_compiler(affine: bool) -> None:
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

    def forward(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return group_norm(x, 2, *parameters, activation="silu") * 2

    compiled = torch.compile(forward, backend=backend, fullgraph=True)
    mine, theirs = ([each.clone().requires_grad_() for each in operands()[: 3 if affine else 1]] for _ in range(2))
    for leaves, function in ((mine, compiled), (theirs, forward)):
        function(*leaves).square().sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert any("genesis.group_norm" in target for target in seen)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_the_op_keeps_what_it_promises(activation: str | None) -> None:
    x, weight, bias = (each.requires_grad_() for each in operands(torch.float32))
    tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    for parameters in ((weight, bias), (None, None)):
        args = (x, 3, *parameters, 1e-5, activation)
        torch.library.opcheck(torch.ops.genesis.group_norm.default, args, test_utils=tests)


@pytest.mark.usefixtures("everywhere")
def test_the_rest_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = operands(torch.bfloat16)
    monkeypatch.setattr(norms, "call", None)  # would fail
    assert group_norm(x[:0], 3, weight, bias).shape == (0, 6, 4, 5)
    with pytest.raises(RuntimeError, match="divisible"):
        group_norm(x, 4, weight, bias)
    with pytest.raises(ValueError, match=r"group_norm: argument .activation."):
        group_norm(x, 3, activation="step")
    assert not norms.takes(x, 3, weight, bias.float())  # mixed


def test_devices_without_kernels() -> None:
    x, weight, bias = operands(torch.float32)
    assert not norms.takes(x, 3, weight, bias)
    torch.testing.assert_close(group_norm(x, 3, weight, bias, 1e-5, "silu"), F.silu(F.group_norm(x, 3, weight, bias)))


class Block(nn.Module):
    """Two norms that are replaced, with SiLU and alone; three that are not: after a bias, before a sum, at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1, bias=index == 2) for index in range(5)])
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4) for _ in range(5)])
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convs[1](F.silu(self.norms[0](self.convs[0](x))))
        y = self.convs[2](self.norms[1](y))
        y = self.convs[3](F.silu(self.norms[2](y)))
        y = F.silu(self.norms[3](y)) + x
        return self.norms[4](self.convs[4](y))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.filterwarnings("ignore")
def test_in_graphs_of_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    fuse_graph = dynamo.fuse_graph
    monkeypatch.setattr(
        dynamo, "fuse_graph", lambda *args: graphs.append((fuse_graph(*args), args[0])) or graphs[-1][0]
    )
    torch._dynamo.reset()
    model = Block().double()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend=dynamo.genesis, options={"compiler": "aot_eager"})
    results = []
    for net in (compiled, model):
        model.zero_grad()
        y = net(x)
        y.square().sum().backward()
        results.append([y, *(each.grad for each in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    ((fusion, graph),) = graphs
    assert len(fusion.replaced) == 2, fusion
    called = [node for node in graph.graph.nodes if node.target is torch.ops.genesis.group_norm]
    assert [node.args[-1] for node in called] == ["silu", None]


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu(compiled: bool, autocast: bool) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    torch.manual_seed(0)
    x = torch.randn(2, 320, 32, 32, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
    parameters = [torch.randn(320, device="cuda", dtype=dtype) for _ in range(2)]

    def ours(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return group_norm(x, 32, *parameters, activation="silu")

    function = torch.compile(ours) if compiled else ours
    results = []
    for run in (function, lambda x, w, b: F.silu(F.group_norm(x, 32, w, b))):
        leaves = [each.clone().requires_grad_() for each in (x, *parameters)]
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            y = run(*leaves)
        y.float().square().sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        assert (a.double() - b.double()).norm() <= (1e-5 if autocast else 1e-2) * b.double().norm()
