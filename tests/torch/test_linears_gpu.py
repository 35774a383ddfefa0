"""Linear layers in full float32 on a GPU: no farther from float64 than twice PyTorch's, in compiled loops too."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.ops.matmul.operation import MATMUL
from genesis.torch import linears as linears  # registers the op

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::Warning:torch")]

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


def found(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> list[Tensor]:
    given = [each.detach().requires_grad_() for each in (x, weight, bias)]
    y = layer(*given)
    return [y.detach(), *torch.autograd.grad(y, given, grad)]


def distances(results: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(results, exact, strict=True)]


@pytest.mark.parametrize("spread", ["normal", "outliers", "tiny", "huge"])
@pytest.mark.parametrize("sizes", [(6304, 384, 1536), (1000, 1024, 260), (64, 2048, 1000), (7, 64, 64)], ids=str)
def test_as_accurate_as_pytorch(sizes: tuple[int, int, int], spread: str) -> None:
    rows, inputs, outputs = sizes
    torch.manual_seed(0)
    x, weight = torch.randn(rows, inputs, device="cuda"), torch.randn(outputs, inputs, device="cuda") / inputs**0.5
    bias, grad = torch.randn(outputs, device="cuda"), torch.randn(rows, outputs, device="cuda")
    if spread == "outliers":
        x[:, ::97] *= 1e3
    elif spread != "normal":
        x *= {"tiny": 1e-25, "huge": 1e25}[spread]
    wide = [each.double() for each in (x, weight, bias, grad)]
    exact = found(F.linear, *wide)
    theirs, ours = (distances(found(layer, x, weight, bias, grad), exact) for layer in (F.linear, _ours))
    assert all(a <= max(2 * b, 3e-7) for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


def _ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.ops.genesis.linear(x, weight, bias)


class Block(nn.Module):
    """A transformer's, with its own attention, and products with matrices that are no layers."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up = nn.Parameter(torch.randn(width, 4 * width) / width**0.5)
        self.down, self.shift = (
            nn.Parameter(torch.randn(4 * width, width) / 2 / width**0.5),
            nn.Parameter(torch.zeros(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        hidden = F.gelu(self.norms[1](x) @ self.up)
        return x + torch.addmm(self.shift, hidden.flatten(0, -2), self.down).view_as(x)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_compiled_loop(precision: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block()).cuda()
    exact = copy.deepcopy(plain).double()
    model = copy.deepcopy(plain)
    with genesis.float32_precision(precision):  # which is that of convolutions; PyTorch's is that of its products
        compiled = genesis.torch.compile(model)
        for _ in range(5):
            x = torch.randn(16, 64, 128, device="cuda")
            for each in (plain, exact, compiled):
                each(x.to(next(each.parameters()).dtype)).square().mean().backward()
    grads = [[p.grad.double() for p in each.parameters() if p.grad is not None] for each in (plain, exact, model)]
    theirs, ours = distances(grads[0], grads[1]), distances(grads[2], grads[1])
    assert max(ours) <= 2 * max(theirs), (ours, theirs)
    assert any(plan.problem.rows == 1024 for plan in planner.all_plans(MATMUL)), "products of a layer's rows"
    report = genesis.torch.report(model)
    assert not any(graph.obstacle for graph in report.graphs), str(report)
