"""genesis.torch on a GPU: PyTorch's memory and streams, accuracy beside the unfused layers, graphs and compilers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch
from genesis.backends.cuda.driver import cudnn
from genesis.torch import dynamo
from tests.models.torch_resnet import Bottleneck, ResNet

pytestmark = pytest.mark.gpu

SHAPES = [(8, 64, 64, 3, 1, 14), (8, 64, 256, 1, 1, 14), (8, 96, 48, 1, 1, 9), (4, 3, 16, 7, 2, 30)]


def layers(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    _, channels, filters, kernel, stride, _ = shape
    conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False)
    chain = nn.Sequential(conv, nn.BatchNorm2d(filters), nn.ReLU()).cuda().to(memory_format=torch.channels_last)
    chain[0].to(dtype)
    return chain


def results(model: Any, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """Output, running statistics and gradients."""
    x = x.clone().requires_grad_()
    y = model(x)
    grads = torch.autograd.grad(y, [x, *model.parameters()], grad.to(y.dtype))
    return [y.detach(), *[b.clone() for b in model.buffers() if b.is_floating_point()], *grads]


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
@pytest.mark.parametrize("mean", [0.5, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_farther_from_the_truth_than_the_layers(shape: tuple[int, ...], dtype: torch.dtype, mean: float) -> None:
    theirs = layers(shape, dtype)
    exact, ours = copy.deepcopy(theirs).double(), genesis.torch.fuse(copy.deepcopy(theirs))
    x = (torch.randn(shape[0], shape[1], shape[5], shape[5], device="cuda") + mean).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(theirs(x))
    theirs = copy.deepcopy(exact).to(torch.float32)
    theirs[0].to(dtype)
    truth, reference, actual = results(exact, x.double(), grad), results(theirs, x, grad), results(ours, x, grad)
    for index, (mine, other, right) in enumerate(zip(actual, reference, truth, strict=True)):
        scale = right.norm().clamp_min(1e-2)  # constant channels come to nothing
        error, allowed = ((value.double() - right).norm() / scale for value in (mine, other))
        # In float32 the rounding of two convolutions of equal quality differs; in 16 bits that of the layers is larger.
        allowed = max(2 * allowed, 1e-5) if dtype is torch.float32 else max(1.2 * allowed, 2e-4)
        assert error <= allowed, f"result {index}: {error:.1e}, allowed {allowed:.1e}"


class Summed(nn.Module):
    """A convolution, and a sum with a parameter, which has a gradient then."""

    def __init__(self, conv: nn.Conv2d, shape: torch.Size, end: nn.Module) -> None:
        super().__init__()
        self.conv, self.other, self.end = conv, nn.Parameter(torch.randn(shape)), end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.end(self.conv(x) + self.other)
        return y


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("end", [nn.ReLU, nn.Identity])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_without_a_norm(shape: tuple[int, ...], end: type[nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _, channels, filters, kernel, stride, size = shape
    conv, x = nn.Conv2d(channels, filters, kernel, stride, kernel // 2), torch.randn(shape[0], channels, size, size)
    theirs = Summed(conv, conv(x).shape, end()).cuda().to(dtype, memory_format=torch.channels_last)
    exact, ours = copy.deepcopy(theirs).double(), genesis.torch.fuse(copy.deepcopy(theirs))
    x = x.to("cuda", dtype).contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(theirs(x))
    truth, reference = results(exact, x.double(), grad), results(theirs, x, grad)
    for _ in range(3):
        for mine, other, right in zip(results(ours, x, grad), reference, truth, strict=True):
            error, allowed = ((value.double() - right).norm() / right.norm() for value in (mine, other))
            assert error <= max(2 * allowed, 1e-5 if dtype is torch.float32 else 1e-3)
    assert len(genesis.torch.report(ours).fused) == 1


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("end", [nn.ReLU, nn.SiLU, nn.Sigmoid])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activations_without_a_norm(shape: tuple[int, ...], end: type[nn.Module], dtype: torch.dtype) -> None:
    """Three steps: the first one prepares the launches."""
    torch.manual_seed(0)
    _, channels, filters, kernel, stride, size = shape
    theirs = nn.Sequential(nn.Conv2d(channels, filters, kernel, stride, kernel // 2), end()).cuda()
    theirs = theirs.to(dtype, memory_format=torch.channels_last)
    exact, ours = copy.deepcopy(theirs).double(), genesis.torch.fuse(copy.deepcopy(theirs))
    x = torch.randn(shape[0], channels, size, size, device="cuda", dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(theirs(x))
    truth, reference = results(exact, x.double(), grad), results(theirs, x, grad)
    for _ in range(3):
        for mine, other, right in zip(results(ours, x, grad), reference, truth, strict=True):
            error, allowed = ((value.double() - right).norm() / right.norm() for value in (mine, other))
            assert error <= max(2 * allowed, 1e-5 if dtype is torch.float32 else 1e-3)
        expected = results(ours, x, grad)[0]
        with torch.no_grad():
            torch.testing.assert_close(ours(x), expected)
    assert len(genesis.torch.report(ours).fused) == 1


def test_memory_is_pytorchs_and_a_step_can_be_captured() -> None:
    model = ResNet(Bottleneck, (1, 1, 1, 1), 5).cuda().to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)

    def step(net: Any) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(x).float().square().mean()
        return loss, *torch.autograd.grad(loss, list(net.parameters()))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = [value.clone() for value in step(fused)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step(fused)
    graph.replay()
    torch.cuda.synchronize()
    for before, after in zip(eager, captured, strict=True):
        assert (before - after).norm() <= 2e-2 * before.norm() + 1e-6
    graph.replay()
    again = [value.clone() for value in captured]
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(first, second) for first, second in zip(again, captured, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_by_the_backend_of_the_compiler() -> None:
    for shape in SHAPES[:2]:
        chain = layers(shape, torch.bfloat16)
        fused = genesis.torch.fuse(copy.deepcopy(chain))
        options = {"compiler": "aot_eager"}
        compiled = torch.compile(copy.deepcopy(chain), backend=dynamo.genesis, fullgraph=True, options=options)
        x = torch.randn(shape[0], shape[1], shape[5], shape[5], device="cuda").bfloat16()
        x = x.contiguous(memory_format=torch.channels_last)
        grad = torch.randn_like(chain(x))
        pairs = zip(results(fused, x, grad), results(compiled, x, grad), strict=True)
        assert all(torch.equal(eager, traced) for eager, traced in pairs)


POOLS = [(8, 64, 56, (3, 2, 1)), (4, 96, 21, (2,)), (2, 20, 30, (5, 1, 2)), (2, 3, 33, (3, 2, 1, 2, True))]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", POOLS, ids=str)
def test_max_pooling(shape: tuple[Any, ...], dtype: torch.dtype, channels_last: bool) -> None:
    """Equal values, and gradients at least as close to the exact ones as PyTorch's, the same in each run.

    Those of PyTorch in row-major order: its kernel for channels_last gives what belongs to a window of nothing but -inf
    to the plane's first pixel.
    """
    torch.manual_seed(0)
    batch, channels, size, window = shape
    order = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(batch, channels, size, size, device="cuda").mul(3).round().to(dtype).contiguous(memory_format=order)
    x[0, 0, 4:6, 7], x[1, 1] = torch.nan, -torch.inf
    leaves = [each.clone().requires_grad_() for each in (x, x.contiguous(), x.contiguous().double())]
    pools = [genesis.torch.max_pool2d, nn.functional.max_pool2d, nn.functional.max_pool2d]
    results = [pool(leaf, *window) for pool, leaf in zip(pools, leaves, strict=True)]
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0, equal_nan=True)
    assert results[0].is_contiguous(memory_format=order)
    with torch.no_grad():
        torch.testing.assert_close(pools[0](x, *window), results[1], rtol=0, atol=0, equal_nan=True)
    grad = torch.randn_like(results[0])
    for given in (grad, grad.contiguous(), grad[:1, :, :1, :1].expand_as(grad)):
        grads = [
            torch.autograd.grad(y, leaf, given.to(y.dtype), retain_graph=True)[0]
            for y, leaf in zip((*results, results[0]), (*leaves, leaves[0]), strict=True)
        ]
        error, theirs, rounding = (
            (each.double() - grads[2]).norm() for each in (grads[0], grads[1], grads[2].to(dtype))
        )
        # In 16 bits nothing is lost but in rounding the sums; wider ones are rounded in an order of each one's own.
        allowed = 1.01 * rounding if dtype.itemsize == 2 else 2 * torch.finfo(dtype).eps * grads[2].norm()
        assert error <= max(theirs, allowed)
        assert torch.equal(grads[0], grads[3])
        assert grads[0].stride() == x.stride()


class PooledStem(nn.Sequential):
    """As ResNet's, and a second pooling."""

    def __init__(self) -> None:
        stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        super().__init__(*stem, nn.Conv2d(64, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiler", ["none", "aot_eager", "inductor"])
def test_fused_pooling_under_autocast_captured_and_compiled(compiler: str) -> None:
    torch.manual_seed(0)
    model = PooledStem().cuda().to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(model))
    assert fused.fusion.replaced == ["3", "7"]
    net: Any = fused
    if compiler != "none":
        options = {"compiler": compiler}
        net = torch.compile(copy.deepcopy(model), backend=dynamo.genesis, fullgraph=True, options=options)
    x = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)

    def step(net: Any) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            y = net(x)
        return y, *torch.autograd.grad(y.float().square().mean(), list(net.parameters()))

    def names(net: Any) -> set[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step(net)
            torch.cuda.synchronize()
        return {event.key for event in profile.key_averages()}

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = [value.clone() for value in step(fused)]
            step(net)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step(net)
    graph.replay()
    torch.cuda.synchronize()
    assert captured[0].dtype is torch.bfloat16
    for before, after in zip(eager, captured, strict=True):
        assert (before.float() - after.float()).norm() <= 2e-2 * before.float().norm() + 1e-6
    seen = names(net)
    assert any("_max_pool_backward_cells_kernel" in name for name in seen)
    assert not any("max_pool_forward" in name or "max_pool_backward_n" in name for name in seen)  # PyTorch's


# --- a fused model is the model ---------------------------------------------------------------------------------------
def test_graphed_callables() -> None:
    torch.manual_seed(0)
    model = ResNet(Bottleneck, (1, 1, 1, 1), 5).cuda().to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(fused), (x,))
    y, expected = graphed(x), fused(x)
    assert (y - expected).norm() <= 1e-3 * expected.norm()
    y.square().sum().backward()
    assert all(parameter.grad is not None for parameter in graphed.parameters())


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_what_a_capture_forbids_beside_one_of_pytorchs(mode: str) -> None:
    """A better plan may be the first one of cuDNN on the stream that is captured: its handle takes memory."""
    if not cudnn.is_available():
        pytest.skip("no cuDNN")
    x, graph, stream = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    idle: list[int] = []
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        idle.append(cudnn._take_handle(0, stream.cuda_stream, idle))
        x += 1
    graph.replay()
    assert x.tolist() == [1] * 4


def test_weights_written_past_the_counters_in_inference() -> None:
    shape = SHAPES[0]
    theirs = layers(shape, torch.bfloat16).eval()
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    x = torch.randn(shape[0], shape[1], shape[5], shape[5], device="cuda").bfloat16()
    with torch.no_grad():
        for _ in range(3):
            expected = theirs(x).float()
            assert (ours(x).float() - expected).norm() <= 1e-2 * expected.norm()
            for net in (theirs, ours):
                for tensor in (*net.parameters(), *net.buffers()):
                    if tensor.is_floating_point():
                        tensor.data.mul_(0.5)


def test_fake_tensors_and_second_gradients() -> None:
    ours = genesis.torch.fuse(layers(SHAPES[0], torch.float32))
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        assert ours(torch.empty(2, 64, 14, 14, device="cuda")).shape == (2, 64, 14, 14)
    theirs = genesis.torch.unfuse(copy.deepcopy(ours))
    x = torch.randn(2, 64, 14, 14, device="cuda", requires_grad=True)
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected, found = (
            torch.autograd.functional.hvp(lambda y, net=net: net(y).pow(3).sum(), x, torch.ones_like(x))[1]
            for net in (theirs, ours)
        )
    assert (found - expected).norm() <= 1e-3 * expected.norm()
