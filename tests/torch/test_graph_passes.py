"""What is rewritten in recorded graphs: counters, sums of gradients, inference; and that the values stay."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.operator_schemas import normalize_function
from torch.nn import functional as F

import genesis.torch
from genesis.torch import capturing, graph_casts, graph_folds, graph_ops
from genesis.torch.folds import Folds
from genesis.torch.known_folds import KnownFold
from genesis.torch.opaque import tell_inductor
from tests.torch.replayed import Replayed


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Counter[str]]]:
    """How often each op is in the last graph of each kind that Inductor was given."""
    found: dict[str, Counter[str]] = {}

    def compile_inner(graph: fx.GraphModule, *_: Any, **how: Any) -> Replayed:
        kind = "backward" if how.get("is_backward") else "inference" if how.get("is_inference") else "forward"
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        for node in nodes:  # as Inductor does when it lays out the arguments of an op
            if "eager_input_vals" in node.meta and isinstance(node.target, torch._ops.OpOverload):
                assert normalize_function(node.target, *node.meta["eager_input_vals"]) is not None, str(node)
        # An op that changes its arguments is that of a functional form.
        found[kind] = Counter(str(n.args[0] if "auto_functionalized" in str(n.target) else n.target) for n in nodes)
        return Replayed(graph)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compile_inner)
    monkeypatch.setattr(capturing, "available", lambda compiler, _: compiler)
    with torch._functorch.config.patch(enable_autograd_cache=False):  # of what Inductor compiled elsewhere
        yield found


class Block(nn.Module):
    def __init__(self, downsample: bool) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.c2, self.b2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.down = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)) if downsample else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.down(x))


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(Block(False), Block(True), Block(False)).double()
    return model.to(memory_format=torch.channels_last)


def images() -> Tensor:
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x.to(memory_format=torch.channels_last).requires_grad_()


def step(model: nn.Module) -> list[Tensor]:
    x = images()
    y = model(x)
    y.square().mean().backward()
    found = [y, x.grad, *[p.grad for p in model.parameters()], *model.state_dict().values()]
    return [value.detach().clone() for value in found if value is not None]


def test_sums_of_gradients_and_counters(graphs: dict[str, Counter[str]]) -> None:
    model = blocks()
    ours, theirs = step(genesis.torch.compile(copy.deepcopy(model))), step(model)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    forward, backward = graphs["forward"], graphs["backward"]
    assert forward["genesis.conv_bn_relu.default"] == 7
    assert forward["aten._foreach_add.Scalar"] == 1
    assert not forward["aten.add.Tensor"]
    assert backward["genesis.conv_bn_relu_backward_add.default"] == 3
    assert backward["genesis.conv_bn_relu_backward.default"] == 4
    assert not backward["aten.add.Tensor"]


def test_a_gradient_that_has_another_use_is_kept(graphs: dict[str, Counter[str]]) -> None:
    """The sum stays where its other part comes after the convolution's backward, or has another dtype."""

    class Promoted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x.double().float())).relu().double() + x

    model = Promoted().to(memory_format=torch.channels_last)
    ours, theirs = step(genesis.torch.compile(copy.deepcopy(model))), step(model)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not graphs["backward"]["genesis.conv_bn_relu_backward_add.default"]


@pytest.mark.usefixtures("graphs")
def test_a_counter_that_is_read_is_counted_by_itself() -> None:
    class Reads(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.b1.num_batches_tracked

    torch.manual_seed(0)
    model = nn.Sequential(Reads(False), Block(True)).double()
    ours, theirs = step(genesis.torch.compile(copy.deepcopy(model))), step(model)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_inference_folds_the_norm(graphs: dict[str, Counter[str]], channels_last: bool, autocast: bool) -> None:
    model = blocks().float().to(memory_format=torch.contiguous_format)
    for parameter in model.buffers():
        parameter.data.add_(1)
    model = (model.to(memory_format=torch.channels_last) if channels_last else model).eval()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        x = (
            images()
            .detach()
            .float()
            .to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        )
        ours, theirs = compiled(x), model(x)
    assert ours.dtype == theirs.dtype
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs, rtol=0.05 if autocast else 1e-5, atol=0.05 if autocast else 1e-5)
    assert graphs["inference"]["genesis.conv_bn_relu_inference.default"] == 7
    compiled(images().float()).sum().backward()  # in eval mode, with gradients
    assert graphs["forward"]["genesis.conv_bn_relu.default"] == 7


def test_folded_weights_are_kept_on_the_cpu(graphs: dict[str, Counter[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as what they were made of is bit for bit the same, and the weight is alive."""
    found: list[bool] = []  # of each op: whether there was a fold

    def find(self: Folds, *args: Any) -> tuple[object, object] | None:
        fold = kept(self, *args)
        found.append(fold is not None)
        return fold

    def run(self: KnownFold, args: Any) -> Tensor | None:
        y = known(self, args)
        found.extend([True] * (y is not None))  # else find() is asked
        return y

    kept, known = Folds.find, KnownFold.run
    monkeypatch.setattr(Folds, "find", find)
    monkeypatch.setattr(KnownFold, "run", run)
    graph_ops._layers.clear()
    model = blocks().float().eval()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    x = images().detach().float()
    with torch.no_grad():
        for index in range(6):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
            if index == 3:
                for each in (model, compiled):
                    each[1].c2.weight.data.numpy()[:] *= 2  # type: ignore[union-attr, operator]
                    each[2].b1.running_mean.data.add_(1)  # type: ignore[union-attr, operator]
    assert found[:21] == [False] * 7 + [True] * 14  # from the second call on
    assert found[21:28].count(False) == 2  # those that were changed
    assert found[28:] == [True] * 7


def test_folded_weights_end_with_their_weight() -> None:
    graph_ops._layers.clear()
    weight, ones, zeros = torch.randn(4, 4, 3, 3), torch.ones(4), torch.zeros(4)
    how = (None, ones, zeros, zeros, ones, None, 1e-5, [1, 1], [1, 1], [1, 1], 1, "relu")
    for _ in range(3):
        torch.ops.genesis.conv_bn_relu_inference(torch.randn(2, 4, 5, 5), weight, *how)
    assert len(graph_ops._layers) == 1
    del weight
    gc.collect()
    assert len(graph_ops._layers) == len(graph_ops._present) == 0


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.float16, False), (torch.bfloat16, False), (torch.float32, True)],
    ids=str,
)
def test_norms_are_folded_at_once(
    graphs: dict[str, Counter[str]], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, autocast: bool
) -> None:
    """Weights in any order of memory; what changes in place shows in the next call."""
    monkeypatch.setattr(graph_folds, "_has_launches", lambda x: True)
    model = blocks().to(dtype).eval()
    first = model[0].c1  # type: ignore[union-attr]
    first.weight.data = first.weight.data.contiguous()  # type: ignore[union-attr, operator]
    compiled = genesis.torch.compile(copy.deepcopy(model))
    x = images().detach().to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 and not autocast else 0.05
    for _ in range(2):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            torch.testing.assert_close(compiled(x), model(x), rtol=tolerance, atol=tolerance)
        for each in (model, compiled):
            for tensor in (*each.parameters(), *each.buffers()):
                if tensor.is_floating_point():
                    tensor.data.mul_(1.25)
    counts = graphs["inference"]
    assert counts["genesis.fold_norms.default"] == 1
    assert counts["genesis.conv_folded.default"] == 7
    assert not counts["genesis.conv_bn_relu_inference.default"]


def test_no_gradient_is_an_argument() -> None:
    """That of a residual without an activation would be, and PyTorch takes an op's results for new tensors."""
    torch.manual_seed(0)
    x, addend = (torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last) for _ in range(2))
    weight, ones, zeros = torch.randn(4, 4, 3, 3), torch.ones(4), torch.zeros(4)
    how = [[1, 1], [1, 1], [1, 1], 1, None]
    op = torch.ops.genesis.conv_bn_relu
    y, *saved = op(x, weight, None, ones, zeros, zeros.clone(), ones.clone(), x, True, 0.1, 1e-5, *how)
    grad = torch.randn_like(y)
    args = (grad, x, weight, None, ones, zeros, *saved, True, *how, [True, True, False, True, True, True])
    grads = torch.ops.genesis.conv_bn_relu_backward_add(addend, *args)
    expected = torch.ops.genesis.conv_bn_relu_backward(*args)
    expected[0] = expected[0] + addend
    torch.testing.assert_close(grads, expected)
    arguments = {each.data_ptr() for each in (grad, x, addend, weight)}
    assert arguments.isdisjoint(each.data_ptr() for each in grads if each.numel())


def test_inductor_knows_the_ops() -> None:
    """It calls them at once, with arguments laid out as they were recorded."""
    from torch._inductor.lowering import constrain_to_fake_tensors, lowerings, maybe_layout_constraints

    tell_inductor()
    for name in ("conv_bn_relu", "conv_bn_relu_backward_add", "conv_bn_relu_inference", "max_pool2d"):
        op = getattr(torch.ops.genesis, name).default
        assert op in lowerings
        assert maybe_layout_constraints(op) is constrain_to_fake_tensors


_CASTS = ("prims.convert_element_type", "genesis.cast")


class Ends(nn.Module):
    """Convolutions, a matrix product, and parameters that element by element kernels read, which cast them as well."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.linear = blocks().float(), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(x) * self.scale.to(torch.bfloat16)[:, None, None]
        return self.linear(y.mean((2, 3)))


def test_casts_of_weights_and_of_their_gradients(
    graphs: dict[str, Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One op each, with the same results to the bit."""
    model = Ends()
    sides, counts = [], []
    for is_at_once in (False, True):
        monkeypatch.setattr(graph_casts, "_has_launches", lambda x, answer=is_at_once: answer)
        torch._dynamo.reset()
        ours = copy.deepcopy(model)
        compiled = genesis.torch.compile(ours)
        with torch.autocast("cpu", torch.bfloat16):
            y = compiled(images().float())
        y.float().square().mean().backward()
        sides.append([y, *(each.grad for each in ours.parameters())])
        counts.append([graphs[kind][f"{op}.default"] for kind in ("forward", "backward") for op in _CASTS])
    alone, together = counts
    assert alone[1::2] == [0, 0]
    assert together[1::2] == [1, 1]
    num_weights = 7 + 1  # of convolutions, and the matrix; its bias and the images are cast in the forward alone
    assert [a - b for a, b in zip(alone[::2], together[::2], strict=True)] == [num_weights + 2, num_weights]
    for theirs, ours_too in zip(*sides, strict=True):
        assert torch.equal(theirs, ours_too)
        assert theirs.stride() == ours_too.stride()


def test_casts_between_several_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node of a graph, in front of which the ops are put, may be a cast that goes."""
    monkeypatch.setattr(graph_casts, "_has_launches", lambda x: True)
    mm, cast = torch.ops.aten.mm.default, torch.ops.prims.convert_element_type.default

    def forward(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        narrow = [cast(x, torch.bfloat16) for x in (a, b)]
        wide = [cast(x, torch.float32) for x in (c, d)]
        products = mm(*narrow), mm(*wide)
        return tuple(cast(x, dtype) for x, dtype in zip(products, (torch.float32, torch.bfloat16), strict=True))

    given = [torch.randn(3, 3, dtype=dtype) for dtype in (torch.float32,) * 2 + (torch.bfloat16,) * 2]
    module = make_fx(forward, tracing_mode="fake")(*given)
    expected = module(*given)
    assert graph_casts.cast_at_once(module.graph) == 4  # of the gradients each is the only one of its dtypes
    module.graph.lint()
    module.recompile()
    for ours, theirs in zip(module(*given), expected, strict=True):
        assert torch.equal(ours, theirs)
