"""Compiled graphs have right gradients where PyTorch's kernels or compilers compute wrong ones, or fail."""

from __future__ import annotations

import copy
import pickle
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import compile_fx, decomposition
from torch.library import Library, opcheck
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

import genesis.torch
from genesis.settings import override
from genesis.torch import averaging, bridge, capturing, graph_pools
from genesis.torch.graph_mends import mend
from tests.torch.image_ops import LAYOUTS, OPS, in_order, sample

WINDOWS = [  # kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    ((3, 3), (1, 1), (1, 1), False, True, None),
    ((3, 2), (2, 1), (1, 0), True, True, None),
    ((3, 3), (2, 2), (1, 1), True, True, None),
    ((2, 2), (3, 3), (1, 1), True, True, None),
    ((6, 5), (1, 1), (3, 2), False, False, None),
    ((3, 3), (1, 1), (1, 1), False, True, 5),
]


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    torch._dynamo.reset()


# --- the op ---
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", WINDOWS, ids=str)
def test_the_op_agrees_with_pytorch(how: tuple[Any, ...], dtype: torch.dtype, layout: str) -> None:
    right = sample(lambda x: F.avg_pool2d(x, *how))
    x = in_order(right.x.to(dtype), layout).requires_grad_()
    y = torch.ops.genesis.avg_pool2d(x, *how)
    (grad_x,) = torch.autograd.grad(y, x, in_order(right.grad.to(dtype), layout))
    theirs = F.avg_pool2d(x, *how)
    assert torch.equal(y, theirs)
    assert y.stride() == theirs.stride()
    assert grad_x.stride() == torch.autograd.grad(theirs.sum(), x)[0].stride()
    assert max(right.errors(y, grad_x)) < 4 * torch.finfo(dtype).eps


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compilers_know_its_results(layout: str) -> None:
    x = in_order(sample(F.relu).x, layout).requires_grad_()
    opcheck(torch.ops.genesis.avg_pool2d.default, (x, *WINDOWS[2]))
    y = F.avg_pool2d(x, *WINDOWS[2]).detach()
    opcheck(torch.ops.genesis.avg_pool2d_backward.default, (y, x.detach(), *WINDOWS[2]))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("how", WINDOWS, ids=str)
def test_second_derivatives(how: tuple[Any, ...]) -> None:
    x = in_order(sample(F.relu).x[:2, :2], "channels_last").requires_grad_()
    op = torch.ops.genesis.avg_pool2d
    assert torch.autograd.gradcheck(lambda x: op(x, *how), x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: op(x, *how).square(), x, fast_mode=True)


@pytest.mark.parametrize("padding", [1, (1, 0), 0])
def test_fused_models(padding: int | tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch's kernel would forget the padding, the layer is the op; hooks and unfuse() find what they did."""
    calls: list[tuple[int, ...]] = []

    def call(op: str, grad: Tensor, x: Tensor, *args: Any) -> Any:
        calls.append(tuple(x.shape))
        return bridge.call(op, grad, x, *args)

    monkeypatch.setattr(averaging, "is_forgotten", lambda input, padding: padding != 0)
    monkeypatch.setattr(averaging, "call", call)
    layers = torch.nn.Conv2d(4, 4, 1), torch.nn.AvgPool2d(3, 2, padding, True, False), torch.nn.Conv2d(4, 4, 1)
    model = torch.nn.Sequential(*layers).double()
    x = in_order(sample(F.relu).x, "channels_last").requires_grad_()
    expected = torch.autograd.grad(model(x).sin().sum(), [x, *model.parameters()])
    found = torch.autograd.grad(genesis.torch.fuse(model)(x).sin().sum(), [x, *model.parameters()])
    torch.testing.assert_close(found, expected)
    assert len(calls) == (padding != 0)
    genesis.torch.unfuse(model)(x).sum().backward()
    assert len(calls) == (padding != 0)


# --- which calls are changed ---
def graph_of(
    function: Any, *args: Any, shape: tuple[int, ...] = (2, 4, 6, 5), requires_grad: bool = True, **named: Any
) -> fx.GraphModule:
    """A graph of one call, as Dynamo records it."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(function, (x, *args), named)
    graph.output(y)
    with torch._subclasses.FakeTensorMode():
        value = in_order(torch.empty(shape, requires_grad=requires_grad), "channels_last")
        x.meta["example_value"] = value
        y.meta["example_value"] = function(value, *args, **named)
    return fx.GraphModule({}, graph)


def called(module: fx.GraphModule) -> list[str]:
    targets: list[Any] = [node.target for node in module.graph.nodes if node.op == "call_function"]
    return [str(x) if isinstance(x, torch._ops.OpOverloadPacket) else x.__name__ for x in targets]


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in host memory are taken for such of a GPU."""
    monkeypatch.setattr(graph_pools, "_forgets_padding", lambda x: True)


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize(
    ("compiler", "args", "expected"),
    [
        ("inductor", (3, 1, 1), ["avg_pool2d"]),  # of code that Inductor generates
        ("inductor", (6, 1, 3), ["genesis.avg_pool2d"]),
        ("inductor", (6, 1, 3, False, False), ["genesis.avg_pool2d"]),
        ("inductor", ((6, 5), 1, 0), ["avg_pool2d"]),
        ("inductor", (6, 2, 3), ["avg_pool2d"]),
        ("aot_eager", (3, 1, 1), ["genesis.avg_pool2d"]),
        ("aot_eager", (3, 1, [0, 1]), ["genesis.avg_pool2d"]),
        ("aot_eager", ([3], [], (1,), True), ["genesis.avg_pool2d"]),
        ("aot_eager", (3, 1), ["avg_pool2d"]),
    ],
)
def test_which_averages_get_the_op(compiler: str, args: tuple[Any, ...], expected: list[str]) -> None:
    module = graph_of(F.avg_pool2d, *args)
    mend(module, compiler)
    assert called(module) == expected
    assert not mend(graph_of(F.avg_pool2d, *args, requires_grad=False), compiler)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (F.avg_pool2d, (6, 1, 3), ["avg_pool2d"]),
        (F.avg_pool2d, (3, 2, 1, True), ["pad", "avg_pool2d"]),
        (F.avg_pool2d, (2, 3, 1, True), ["pad", "avg_pool2d", "narrow", "contiguous"]),
        (F.avg_pool2d, (3, 2, 1, True, False), ["avg_pool2d"]),
        (F.avg_pool3d, (3, 2, 1, True), ["pad", "avg_pool3d"]),
        (F.pad, ((1, 0, 0, 2), "replicate"), ["narrow", "expand", "cat", "narrow", "expand", "cat", "contiguous"]),
        (F.pad, ((1, 0, 0, 2), "reflect"), ["pad"]),
    ],
)
def test_other_calls_in_their_place(function: Any, args: tuple[Any, ...], expected: list[str]) -> None:
    module = graph_of(function, *args)
    assert bool(mend(module)) == (len(expected) > 1)
    module.graph.lint()
    assert called(module) == expected
    x = torch.randn(2, 4, 6, 5).contiguous(memory_format=torch.channels_last)
    result, right = module(x), function(x, *args)
    torch.testing.assert_close(result, right)
    assert result.stride() == right.stride()
    before = graph_of(function, *args)
    mend(before, "aot_eager")
    assert called(before) == [function.__name__]


@pytest.mark.parametrize(
    ("channels", "options", "takes"),
    [
        (3, {"stride": 2}, True),
        (13, {"stride": (1, 2), "bias": False}, True),
        (24, {"stride": 2, "groups": 2}, True),
        (5, {"stride": 3, "padding": "valid"}, True),
        (16, {"stride": 2}, False),
        (3, {"stride": 1}, False),
        (3, {"stride": 2, "padding": 1}, False),
        (3, {"stride": 2, "kernel_size": 3}, False),
    ],
)
def test_convolutions_that_skip_pixels(channels: int, options: dict[str, Any], takes: bool) -> None:
    """They get the pixels that they see: oneDNN's weight gradient writes beyond the ends of others."""

    def backend(module: fx.GraphModule, _: object) -> fx.GraphModule:
        numbers.append(mend(module))
        return module

    numbers: list[int] = []
    layer = torch.nn.Conv2d(channels, 8, **{"kernel_size": 1, **options})
    x = torch.randn(2, channels, 7, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    results = [function(x) for function in (torch.compile(layer, backend=backend), layer)]
    gradients = [torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]) for y in results]
    assert numbers == [int(takes)]
    assert results[0].stride() == results[1].stride()
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.compile(layer, backend=backend)(x)
    assert numbers == [int(takes), 0]


@pytest.mark.usefixtures("on_cuda")
def test_averages_of_rows() -> None:
    """They are averages of images of one row, which lie as channels-last ones do."""
    module, x = graph_of(F.avg_pool1d, 3, 2, 1, True, shape=(2, 4, 7)), torch.randn(2, 7, 4).transpose(1, 2)
    assert mend(module, "aot_eager")
    module.graph.lint()
    assert called(module)[:3] == ["unsqueeze", "genesis.avg_pool2d", "squeeze"]
    torch.testing.assert_close(module(x), F.avg_pool1d(x, 3, 2, 1, True))


def test_windows_that_end_beyond_the_input() -> None:
    for function, x in ((F.avg_pool1d, torch.rand(4, 7)), (F.avg_pool2d, torch.rand(4, 7, 7))):
        module = graph_of(function, 2, ceil_mode=True, shape=x.shape)
        assert mend(module, "aot_eager")
        assert called(module) == [function.__name__]
        assert torch.equal(module(x), function(x, 2, ceil_mode=True))


@pytest.mark.usefixtures("on_cuda")
def test_inductor_calls_the_kernel_where_many_windows_overlap() -> None:
    """As graph_pools expects it: where that is not so, the gradient would be wrong."""
    for kernel in ((2, 2), (3, 3), (5, 5), (5, 6), (6, 6)):
        for stride in ((1, 1), (2, 1), (2, 2), (3, 2)):
            module = graph_of(F.avg_pool2d, kernel, stride, (1, 1))
            assert bool(mend(module)) == _calls_kernel(kernel, stride), (kernel, stride)


def _calls_kernel(kernel: tuple[int, int], stride: tuple[int, int]) -> bool:
    """Does Inductor's code for this gradient call PyTorch's kernel?"""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import FallbackKernel
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    def backward(grad: Tensor, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.avg_pool2d_backward(grad, x, kernel, stride, (1, 1), False, True, None)
        return result

    with torch._subclasses.FakeTensorMode() as mode:
        x = torch.empty(2, 4, 20, 20)
        grad = torch.empty_like(F.avg_pool2d(x, kernel, stride, (1, 1)))
        lowering = GraphLowering(make_fx(backward, tracing_mode="fake")(grad, x))
    with V.set_graph_handler(lowering), V.set_fake_mode(mode):
        lowering.run(grad, x)
    return any(isinstance(each, FallbackKernel) for each in lowering.operations)


# --- gradients ---
@pytest.fixture
def padding_is_forgotten() -> Iterator[None]:
    """PyTorch's kernel is as wrong on the CPU as it is on CUDA."""

    def wrong(grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, *_: object) -> Tensor:
        (channels, *size), (above, left) = x.shape[1:], padding
        weight = torch.full((channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), dtype=grad.dtype)
        found = F.conv_transpose2d(grad, weight, stride=stride, groups=channels)
        found = F.pad(found, (0, size[1], 0, size[0]))
        if torch._prims_common.suggest_memory_format(x) is not torch.channels_last:
            found = found[..., above:, left:]
        return torch.empty_like(x).copy_(found[..., : size[0], : size[1]])

    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("avg_pool2d_backward", wrong, "CPU", allow_override=True)
    yield
    library._destroy()


@pytest.mark.usefixtures("padding_is_forgotten", "on_cuda")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_where_the_kernel_forgets_the_padding(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "call", bridge.call_cuda)
    op = OPS["average, group norm"]
    x = in_order(sample(F.relu).x.float(), layout)

    def gradient(function: Any) -> Tensor:
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        return torch.autograd.grad(y, leaf, torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos())[0]

    exact = gradient(lambda x: F.group_norm(F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1), 2))
    is_right = torch.allclose(gradient(op), exact, rtol=1e-4, atol=1e-4)
    assert is_right == (layout != "channels_last")
    with override(cuda="simulated"):
        checkpointed = genesis.torch.compile(
            lambda x: checkpoint(op, x, use_reentrant=False), compiler="aot_eager", fullgraph=True
        )
        for compiled in (genesis.torch.compile(op, compiler="aot_eager"), checkpointed):
            torch.testing.assert_close(gradient(compiled), exact, rtol=1e-4, atol=1e-4)


class _Strides(TorchDispatchMode):
    """Ops whose results have other strides than their fakes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view and not func._schema.is_mutable and "empty" not in str(func):
            with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
                args, kwargs = tree_map_only(Tensor, mode.from_tensor, (args, kwargs or {}))
                promised = func(*args, **kwargs)
            for real, fake in zip(tree_leaves(result), tree_leaves(promised), strict=True):
                if isinstance(real, Tensor) and _strides(real) != _strides(fake):
                    self.found[func] = f"{tuple(real.shape)}: {real.stride()}, promised {fake.stride()}"
        return result


def _strides(x: Tensor) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def test_inductor_is_told_right_strides() -> None:
    """Of the kernels that it calls; it reads their results by these. All others are mended."""
    from torch._inductor import decomposition, lowering

    with _Strides() as strides:
        for op in OPS.values():
            for layout in LAYOUTS:
                x = in_order(sample(F.relu).x, layout).requires_grad_()
                y = op(x)
                for order in LAYOUTS:
                    torch.autograd.grad(y, x, in_order(torch.ones_like(y), order), retain_graph=True)
    assert strides.found  # of ops that Inductor generates code for
    called = {op: text for op, text in strides.found.items() if op in lowering.fallbacks}
    called = {op: text for op, text in called.items() if op not in decomposition.decompositions}
    assert {op.name() for op in called} <= {"aten::replication_pad2d_backward", "aten::replication_pad3d_backward"}, (
        called
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.usefixtures("without_vectors")
@pytest.mark.filterwarnings("ignore")
def test_gradients_by_inductor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inductor divides those of windows that end beyond the padding wrongly; replicated ones fail, in channels-last."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    names = [name for name in OPS if "ceil and" in name or name.endswith(("1d", "3d")) or name == "replicated"]
    samples = {name: sample(OPS[name]) for name in names}
    xs = [in_order(each.x.float(), "channels_last").requires_grad_() for each in samples.values()]
    grads = [in_order(each.grad.float(), "channels_last") for each in samples.values()]
    compiled: Any = genesis.torch.compile(lambda xs: [OPS[name](x) for name, x in zip(samples, xs, strict=True)])
    ys = compiled(xs)
    assert not compiled.report().graphs[0].obstacle
    found = torch.autograd.grad(ys, xs, grads)
    for name, y, grad in zip(samples, ys, found, strict=True):
        assert max(samples[name].errors(y, grad)) < 1e-5, name


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
def test_gradients_of_a_max_pooling_are_gathered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch 2.13 scatters them. The sum of one weight's three gradients, and what is computed before the scatter,
    then become one kernel, and the layers before the pooling get zeros."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bridge, "trains", lambda x: False)  # as outside of tests: other kernels are generated
    filtered = capturing.decompositions
    assert pickle.loads(pickle.dumps(filtered)) is filtered  # so that Inductor's cache keeps what it compiles with it
    torch.manual_seed(0)
    first, last = (torch.nn.Conv2d(4, 4, 1) for _ in range(2))
    last.weight = first.weight
    behind = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.SiLU()
    plain = torch.nn.Sequential(first, first, torch.nn.ReLU(), last, torch.nn.MaxPool2d(3, 1, 1), *behind)
    compiled = genesis.torch.compile(copy.deepcopy(plain))
    x, weight = torch.randn(2, 4, 6, 5), torch.randn(2, 4, 6, 5)
    for model in (plain, compiled):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        (y.float() * weight).mean().backward()
    assert compile_fx.select_decomp_table is decomposition.select_decomp_table
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad - theirs.grad).norm() <= 0.1 * theirs.grad.norm()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_in_which_a_graph_is_compiled(reentrant: bool) -> None:
    """What calls saved while they were put into a graph is none of its tensors: computed again, it is not there."""
    layers = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 1, 2), torch.nn.AvgPool2d(2, ceil_mode=True)
    model = torch.nn.Sequential(*layers, torch.nn.ReflectionPad2d(1)).to(memory_format=torch.channels_last)
    compiled: Any = genesis.torch.compile(model, compiler="aot_eager")
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last).requires_grad_()
    y = checkpoint(compiled, x, use_reentrant=reentrant)
    y.square().sum().backward()
    assert x.grad is not None
    (expected,) = torch.autograd.grad(torch.nn.Sequential(*layers, model[3])(x).square().sum(), x)
    torch.testing.assert_close(x.grad, expected)
