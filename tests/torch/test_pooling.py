"""genesis.torch.max_pool2d against PyTorch's; and the CUDA kernels on PyTorch's memory, simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from genesis.settings import override
from genesis.torch import bridge, max_pool2d, pooling

WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": [1, 3], "padding": (1,), "ceil_mode": True},
    {"kernel_size": 2, "stride": (), "dilation": (2, 3)},
    {"kernel_size": (2, 1), "stride": (3, 3)},  # steps over pixels
    {"kernel_size": 6, "stride": 3, "padding": 3},
    {"kernel_size": 17, "stride": 8, "padding": 8},  # more elements than a byte tells apart
]


@pytest.fixture(params=["cpu", "simulated"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The op takes tensors in host memory; they go to the CPU backend, or to the CUDA backend on a simulated device."""
    monkeypatch.setattr(pooling, "takes", lambda input: True)
    if request.param == "cpu":
        yield request.param
        return
    with override(cuda="simulated"):
        monkeypatch.setattr(pooling, "call", bridge.call_cuda)
        yield request.param


def sample(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> Tensor:
    """With equal elements, infinities and NaN."""
    torch.manual_seed(0)
    x = torch.randn(shape).mul(2).round().to(dtype)
    x[0, 0, 2:4, 3], x[0, 1] = torch.nan, -torch.inf
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def gradients(y: Tensor, x: Tensor, grads: list[Tensor]) -> list[Tensor]:
    return [torch.autograd.grad(y, x, grad.to(y.dtype), retain_graph=True)[0] for grad in grads]


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
CASES = [(window, torch.float32) for window in WINDOWS] + [(WINDOWS[0], dtype) for dtype in DTYPES]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("window", "dtype"), CASES, ids=str)
def test_agrees_with_pytorch(kernels: str, window: dict[str, Any], dtype: torch.dtype, channels_last: bool) -> None:
    x = sample((2, 4, 9, 8), dtype, channels_last)
    mine, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    y, exact = max_pool2d(mine, **window), F.max_pool2d(wide, **window)
    expected = F.max_pool2d(x, **window)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert y.stride() == expected.stride()
    dense = torch.randn(expected.shape).to(dtype)
    grads = [dense, torch.ones(1, 4, 1, 1, dtype=dtype).expand(expected.shape), dense.mT.contiguous().mT]
    grads.append(dense.contiguous(memory_format=torch.channels_last))
    tolerance = torch.finfo(dtype).eps  # sums of some windows, rounded to dtype
    for result, right in zip(gradients(y, mine, grads), gradients(exact, wide, grads), strict=True):
        assert result.dtype is dtype
        assert result.stride() == x.stride()
        # Sums on the CPU are PyTorch's: of 16-bit numbers, each rounded.
        loose = kernels == "cpu" and dtype.itemsize == 2
        torch.testing.assert_close(result, right.to(dtype), rtol=tolerance, atol=(16 if loose else 2) * tolerance)


@pytest.mark.parametrize("window", WINDOWS[:5], ids=str)
def test_gradcheck(kernels: str, window: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randperm(2 * 2 * 4 * 5).double().reshape(2, 2, 4, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: max_pool2d(x, **window), x, fast_mode=True)
    assert torch.autograd.gradcheck(lambda x: max_pool2d(x[0], **window), x, fast_mode=True)  # no batch


def test_used_twice_and_in_place(kernels: str) -> None:
    """The results may be changed, as nothing but places is kept; a view of the input is an input too."""
    torch.manual_seed(0)
    leaf = torch.randn(2, 6, 8, 8)
    results = []
    for pool in (F.max_pool2d, max_pool2d):
        x = leaf.clone().requires_grad_()
        y = pool(x[:, 1:5], 3, 2, 1).add_(1.0)
        z = pool(y, 2) + pool(x.transpose(2, 3)[:, :4, 2:, 2:], 3)
        results += [z, torch.autograd.grad(z.square().sum(), x)[0]]
    assert torch.equal(results[2], results[0])
    torch.testing.assert_close(results[3], results[1])


def test_what_is_kept_for_the_gradient(kernels: str) -> None:
    y = max_pool2d(torch.randn(2, 4, 8, 8).requires_grad_(), 2)
    (places,) = y.grad_fn.saved_tensors
    assert places.shape == y.shape
    assert places.dtype is (torch.int64 if kernels == "cpu" else torch.uint8)


def test_nothing_is_kept_without_gradients(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    inner = pooling.call

    def watched(op: str, *args: Any) -> Any:
        asked.append(args[-1])
        return inner(op, *args)

    monkeypatch.setattr(pooling, "call", watched)
    x = torch.randn(2, 4, 8, 8).requires_grad_()
    expected = F.max_pool2d(x, 3, 2, 1)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(max_pool2d(x, 3, 2, 1), expected)
    assert torch.equal(max_pool2d(x.detach(), 3, 2, 1), expected)
    assert asked == [None] * 3


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_gradients_of_any_order(kernels: str, windows: dict[str, Any], channels_last: bool) -> None:
    found = []
    for pool in (max_pool2d, F.max_pool2d):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 17, 18, dtype=torch.float64)
        x = x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        x.requires_grad_()
        first, second = x, []
        for _ in range(3):
            y = pool(x, **windows).pow(4) if first is x else first.sin()
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            second.append(first)
        found.append(second)
    for ours, theirs in zip(*found, strict=True):
        assert ours.abs().sum() > 0
        torch.testing.assert_close(ours, theirs)


def test_autocast_keeps_the_dtype(kernels: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert max_pool2d(torch.ones(1, 1, 4, 4, dtype=dtype, requires_grad=True), 2).dtype is dtype


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
def test_opaque_to_the_compiler(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    monkeypatch.setattr(pooling, "takes", lambda input: True)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

    compiled = torch.compile(lambda x: max_pool2d(x, 3, 2, 1) * 2, backend=backend, fullgraph=True, dynamic=dynamic)
    for shape in ((2, 4, 8, 8), (3, 5, 9, 7)):
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        y, expected = compiled(leaves[0]), F.max_pool2d(leaves[1], 3, 2, 1) * 2
        assert torch.equal(y, expected)
        for value in (y, expected):
            value.square().sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
        with torch.no_grad():
            assert torch.equal(compiled(x), expected)
    assert any("genesis.max_pool2d" in target for target in seen)


@pytest.mark.parametrize("window", WINDOWS[:3], ids=str)
@pytest.mark.parametrize("with_places", [True, False])
def test_custom_ops_keep_what_they_promise(window: dict[str, Any], with_places: bool) -> None:
    for x in (torch.randn(2, 4, 7, 6), torch.randn(2, 4, 7, 6).to(memory_format=torch.channels_last)):
        x.requires_grad_(with_places)
        windows = pooling.windows_of(x, **{"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **window})
        assert windows is not None
        args = (x, *windows, with_places)
        tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
        torch.library.opcheck(torch.ops.genesis.max_pool2d.default, args, test_utils=tests)


def test_the_rest_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "call", None)  # never comes to it
    x = torch.arange(32.0).reshape(2, 1, 4, 4)
    assert torch.equal(max_pool2d(x, 2), F.max_pool2d(x, 2))
    monkeypatch.setattr(pooling, "takes", lambda input: True)
    assert torch.equal(max_pool2d(x, 2, return_indices=True)[1], F.max_pool2d(x, 2, return_indices=True)[1])
    assert max_pool2d(x, 7, 3, 1, ceil_mode=True).shape == (2, 1, 1, 1)  # a window larger than all there is
    for arguments, message in (
        ((5,), "Output size is too small"), ((2, 2, 2), "pad should be at most half"), ((2, 0), "stride"),
        ((2, 1, 0, 0), "dilation"), ((2.0,), "kernel_size"), (((2, 2, 2),), "kernel_size"),
    ):  # fmt: skip
        with pytest.raises((RuntimeError, TypeError), match=message):
            max_pool2d(x, *arguments)


def test_which_tensors_are_taken() -> None:
    class Subclass(Tensor):
        pass

    assert not pooling.takes(torch.ones(1, 1, 4, 4))  # PyTorch's own kernels are as good as any on the CPU
    assert not pooling.takes(torch.ones(1, 1, 4, 4).as_subclass(Subclass))
