"""What uses a chain's input later takes it from the chain: gradients are summed in its backward, and nothing else."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import genesis.torch
from genesis.backends.cuda.simulated import SimulatedKernel
from genesis.settings import override
from genesis.torch import bridge, fusing, modules, ops
from genesis.torch.modules import conv_bn_relu, conv_bn_relu_and_input
from tests.models.torch_resnet import BasicBlock, Bottleneck

Make = Callable[[], nn.Module]


def chain(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class InPlace(Bottleneck):
    """As torchvision writes it."""

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = nn.functional.relu_(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(nn.functional.relu_(self.bn2(self.conv2(out)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return nn.functional.relu_(out)


class Thrice(nn.Module):
    """The input goes to three chains, one of which waits for another, and to a sum of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c3, self.b3 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        first = self.b1(self.c1(x))  # ends last: it takes the sum
        second = torch.relu(self.b2(self.c2(x)))
        third = torch.relu(self.b3(self.c3(x)) + second)
        return torch.relu(first + third) + x


class KeepsIts(nn.Module):
    """A module that looks into what it is given, and hands it back."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return x


class Other(nn.Module):
    """Uses that must get the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.keep = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), KeepsIts()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.relu(self.norm(self.conv(x)))
        return y, self.keep(x), x


BLOCKS: dict[str, tuple[Make, int]] = {  # and how many chains hand on their input
    "basic": (lambda: BasicBlock(8, 8, 1), 1),
    "basic, downsampling": (lambda: BasicBlock(8, 16, 2), 1),
    "bottleneck": (lambda: Bottleneck(8, 2, 1), 1),
    "bottleneck, downsampling": (lambda: Bottleneck(8, 4, 2), 1),
    "in place": (lambda: InPlace(8, 2, 1), 1),
    "in place, downsampling": (lambda: InPlace(8, 4, 2), 1),
    "thrice": (Thrice, 3),
    "two of them": (lambda: nn.Sequential(chain(8, 8), Bottleneck(8, 2, 1), BasicBlock(8, 8, 1)), 2),
}


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    make, number = BLOCKS[request.param]
    return make().double(), number


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each backward of a chain that could hand on its input: has a gradient come back?"""
    seen: list[bool] = []

    def backward(ctx: Any, grad: Any, addend: Any = None) -> Any:
        seen.append(addend is not None)
        return ops._ConvBNReLU.backward(ctx, grad, addend)

    monkeypatch.setattr(ops._ConvBNReLUAndInput, "backward", staticmethod(backward))
    return seen


@pytest.fixture
def cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors in host memory go to the CUDA backend, whose device is simulated."""
    with override(cuda="simulated"):
        for module in (modules, ops):
            monkeypatch.setattr(module, "call", bridge.call_cuda)
        yield


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module], nn.Module]:
    """Fuses a copy of a model none of whose chains hands on anything."""

    def fused(model: nn.Module) -> nn.Module:
        with monkeypatch.context() as patch:
            patch.setattr(fusing, "takers", lambda steps, chains: {})
            return genesis.torch.fuse(copy.deepcopy(model))

    return fused


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, and the gradients of a leaf, of the model's input and of its parameters."""
    leaf = x.clone().requires_grad_()
    inner = leaf * 1.0
    inner.retain_grad()
    for parameter in model.parameters():
        parameter.grad = None
    y = model(inner)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape))
    found = [leaf.grad, inner.grad, *[p.grad for p in model.parameters() if p.requires_grad]]
    return [y.detach(), *[each.clone() for each in found if each is not None]]


def agree(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_those_of_the_layers(
    block: tuple[nn.Module, int], handed: list[bool], apart: Any, training: bool
) -> None:
    model, number = block
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    theirs, ours, plain = (gradients(each.train(training), x) for each in (model, fused, apart(model)))
    assert handed == [True] * number
    agree(ours, theirs, 1e-9)
    same(ours, plain)  # the sums are the same


class Adds(TorchDispatchMode):
    """Counts sums of tensors of a shape."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.shape, self.names = shape, list[str]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "add" in op.name() and isinstance(args[0], Tensor) and args[0].shape == self.shape:
            self.names.append(op.name())
        return op(*args, **(kwargs or {}))


WIDE_BLOCKS: dict[str, Make] = {
    "basic": lambda: BasicBlock(32, 32, 1),
    "bottleneck": lambda: Bottleneck(32, 8, 1),
    "in place, downsampling": lambda: InPlace(32, 8, 2),
}


@pytest.mark.parametrize("name", WIDE_BLOCKS)
@pytest.mark.usefixtures("cuda_kernels")
def test_no_pass_adds_the_gradients(name: str, apart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device: neither PyTorch nor a kernel of ours goes over the memory for that."""
    launched: list[str] = []
    launch = SimulatedKernel.launch
    monkeypatch.setattr(SimulatedKernel, "launch", lambda self, *a: (launched.append(self.name), launch(self, *a))[1])
    torch.manual_seed(0)
    model = WIDE_BLOCKS[name]()
    x = torch.randn(2, 32, 4, 4)
    found, counts, kernels = [], [], []
    for fused in (genesis.torch.fuse(copy.deepcopy(model)), apart(model)):
        launched.clear()
        with Adds(x.shape) as adds:
            found.append(gradients(fused, x))
        counts.append(len(adds.names))
        kernels.append(sorted(launched))
    assert counts == [0, 1]
    assert kernels[0] == kernels[1]  # as many launches, of the same kernels
    assert not [each for each in kernels[0] if "add" in each]
    same(*found)


@pytest.mark.usefixtures("cuda_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_the_simulated_device(
    block: tuple[nn.Module, int], handed: list[bool], apart: Any, dtype: torch.dtype
) -> None:
    """Sums are rounded once, in place of twice: by 2⁻⁹ of what is rounded, of which sums that cancel make more."""
    model, number = block
    model = model.to(dtype)
    x = torch.randn(2, 8, 4, 4).to(dtype)
    plain, ours = gradients(apart(model), x), gradients(genesis.torch.fuse(model), x)
    assert handed == [True] * number
    assert torch.equal(ours[0], plain[0])
    mine, other = (torch.cat([each.double().flatten() for each in found[1:]]) for found in (ours, plain))
    assert (mine - other).norm() <= (1e-6 if dtype is torch.float32 else 2.0**-6) * other.norm()


@pytest.mark.usefixtures("cuda_kernels")
@pytest.mark.parametrize("outputs", [32, 64])
def test_where_the_convolutions_output_is_never_written(handed: list[bool], outputs: int) -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(32, outputs, 1, bias=False), nn.BatchNorm2d(outputs)).bfloat16()
    x = torch.randn(2, 32, 5, 7).bfloat16()
    found = []
    for hand_on in (True, False):
        leaf = x.clone().requires_grad_()
        y, view = conv_bn_relu_and_input(*first, leaf) if hand_on else (conv_bn_relu(*first, leaf), leaf)
        (y.square().sum() + (view * torch.linspace(-3, 3, view.numel()).bfloat16().view(view.shape)).sum()).backward()
        found.append(leaf.grad.double())
    assert handed == [True]
    assert (found[0] - found[1]).norm() <= 2.0**-8 * found[1].norm()


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
def test_hooks_see_the_whole_gradient(block: tuple[nn.Module, int]) -> None:
    model, _ = block
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    found = []
    for net in (model, fused):
        seen: list[Tensor] = []
        leaf = x.clone().requires_grad_()
        inner = leaf * 1.0
        inner.register_hook(lambda grad, seen=seen: (seen.append(grad), grad * 2)[1])
        leaf.register_hook(lambda grad, seen=seen: seen.append(grad))
        net(inner).square().sum().backward()
        found.append([*seen, leaf.grad])
        assert len(seen) == 2
    agree(found[1], found[0], 1e-9)  # type: ignore[arg-type]


def test_other_uses_get_the_input_itself(handed: list[bool]) -> None:
    """What keeps a tensor, or returns it, may ask it for its gradient, or change it in place."""
    torch.manual_seed(0)
    model = Other().double()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    found = []
    for net in (model, fused):
        leaf = x.clone().requires_grad_()
        inner = leaf * 1.0
        y, kept, back = net(inner)
        assert back is inner
        assert kept is net.keep.seen is inner
        (y * kept + back).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])
    assert handed == []


class ChangesLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        z = torch.relu(self.norm2(self.conv2(x)))
        return y + z + x.mul_(2.0)


class ChangesBefore(ChangesLater):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(x.mul_(2.0))
        return torch.relu(self.norm(self.conv(x))) + self.norm2(self.conv2(x)) + x


@pytest.mark.parametrize("fuse", [False, True])
def test_changes_in_place_are_noticed(fuse: bool) -> None:
    def prepared(model: nn.Module) -> nn.Module:
        return genesis.torch.fuse(model) if fuse else model

    x = torch.randn(2, 8, 3, 3, requires_grad=True)
    y = prepared(ChangesLater())(x * 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    inner = x * 1.0
    y = prepared(Bottleneck(8, 2, 1))(inner)
    with torch.no_grad():
        inner.add_(1.0)  # by whoever has it too
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.no_grad():
        prepared(ChangesLater())(x * 1.0)


def test_the_view_shares_memory_and_version() -> None:
    layer = genesis.torch.ConvBNReLU(8, 8, 1)
    x = torch.randn(2, 8, 3, 3, requires_grad=True) * 1.0
    y, view = conv_bn_relu_and_input(layer.conv, layer.norm, x)
    assert view is not x
    assert view.data_ptr() == x.data_ptr()
    x.detach().mul_(2.0)
    assert view._version == x._version > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="has been modified inplace"):
        view.sum().backward()
    _, view = conv_bn_relu_and_input(layer.conv, layer.norm, x)
    with pytest.raises(RuntimeError, match="modified inplace"):
        view.mul_(2.0)


def test_changes_in_place_before_it() -> None:
    torch.manual_seed(0)
    model = ChangesBefore().double()
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    found = []
    for net in (model, genesis.torch.fuse(copy.deepcopy(model))):
        leaf = x.clone().requires_grad_()
        net(leaf * 1.0).square().sum().backward()
        found.append([leaf.grad, *[p.grad for p in net.parameters()]])
    agree(found[1], found[0], 1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("frozen", ["conv1", "bn1", "conv2", "all", "none, with a constant input"])
def test_frozen_parameters(frozen: str, handed: list[bool]) -> None:
    torch.manual_seed(0)
    model = Bottleneck(8, 2, 1).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (frozen == "all" or name.startswith(frozen)))
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    nets = model, genesis.torch.fuse(copy.deepcopy(model))
    if frozen == "none, with a constant input":
        for net in nets:
            net(x).square().sum().backward()
        assert handed == []
        agree(*([p.grad for p in net.parameters()] for net in nets), 1e-9)  # type: ignore[arg-type]
    else:
        agree(gradients(nets[1], x), gradients(nets[0], x), 1e-9)
        assert handed == [True]


def test_the_input_itself_where_nothing_is_gained() -> None:
    """Without gradients, and where the convolution takes a copy in another dtype."""
    layer = genesis.torch.ConvBNReLU(8, 8, 1)
    x = torch.randn(2, 8, 3, 3)
    assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
    x.requires_grad_()
    with torch.no_grad():
        assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
        layer.eval()
        assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
    layer.train()
    with torch.autocast("cpu", torch.bfloat16):
        y, same = conv_bn_relu_and_input(layer.conv, layer.norm, x)
        assert (y.dtype, same) == (torch.bfloat16, x) or same is x
    with torch.inference_mode():
        assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
    assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is not x
    batchless = torch.randn(8, 3, 3, requires_grad=True)
    layer.eval()
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    with pytest.raises(ValueError, match="expected 4D input"):
        conv_bn_relu_and_input(layer.conv, norm, batchless)
    circular = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    assert conv_bn_relu_and_input(circular, layer.norm, x)[1] is x


@pytest.mark.parametrize("used", ["result", "input", "both"])
def test_a_gradient_of_one_of_the_outputs(used: str) -> None:
    torch.manual_seed(0)
    layer = genesis.torch.ConvBNReLU(8, 8, 1, dtype=torch.float64)
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    found = []
    for way in (conv_bn_relu_and_input, lambda conv, norm, x: (conv_bn_relu(conv, norm, x), x)):
        leaf = x.clone().requires_grad_()
        outputs = dict(zip(("result", "input"), way(layer.conv, layer.norm, leaf), strict=True))
        chosen = list(outputs.values()) if used == "both" else [outputs[used]]
        sum([each.square().sum() for each in chosen]).backward()  # type: ignore[union-attr]
        found.append([leaf.grad, *[p.grad for p in layer.parameters() if p.grad is not None]])
        layer.zero_grad()
    same(*found)
    assert len(found[0]) == (1 if used == "input" else 4)


def test_against_differences() -> None:
    torch.manual_seed(0)
    layer = genesis.torch.ConvBNReLU(2, 3, 3, dtype=torch.float64, activation=None)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)

    def both(x: Tensor) -> Tensor:
        y, view = conv_bn_relu_and_input(layer.conv, layer.norm, x)
        return y.square().sum() + (y[:, :2] * view).sum()

    torch.autograd.gradcheck(both, (x,))


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast(block: tuple[nn.Module, int], apart: Any, dtype: torch.dtype) -> None:
    model = block[0].float()
    x = torch.randn(2, 8, 6, 6).to(dtype)
    fused, plain = genesis.torch.fuse(copy.deepcopy(model)), apart(model)
    with torch.autocast("cpu", torch.bfloat16):
        same(gradients(fused, x), gradients(plain, x))


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
def test_gradients_add_up_over_calls(block: tuple[nn.Module, int], apart: Any) -> None:
    model, _ = block
    found = []
    for net in (genesis.torch.fuse(copy.deepcopy(model)), apart(model)):
        torch.manual_seed(1)
        leaf = torch.randn(2, 8, 6, 6, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            y = net(leaf)
            y.square().sum().backward(retain_graph=True)
            y.sum().backward()
        found.append([leaf.grad, *[p.grad for p in net.parameters()], *net.buffers()])
    same(*found)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(block: tuple[nn.Module, int], handed: list[bool], reentrant: bool) -> None:
    model, number = block
    net = genesis.torch.fuse(model)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.net, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    same(gradients(Checkpointed(), x), gradients(net, x))
    assert handed == 2 * [True] * number


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
def test_copies_and_pickles(block: tuple[nn.Module, int], handed: list[bool]) -> None:
    model, number = block
    fused = genesis.torch.fuse(model)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    expected = gradients(copy.deepcopy(fused), x)
    same(gradients(pickle.loads(pickle.dumps(fused)), x), expected)
    assert handed == 2 * [True] * number


@pytest.mark.parametrize("name", ["bottleneck", "bottleneck, downsampling"])
def test_under_a_compiler(name: str) -> None:
    torch.manual_seed(0)
    model = BLOCKS[name][0]().double()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    compiled = torch.compile(copy.deepcopy(fused), backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own, about what it deprecates
        agree(gradients(compiled, x), gradients(fused, x), 1e-12)


def test_a_downsampling_that_looks_at_its_input_gets_the_input(handed: list[bool]) -> None:
    block = BasicBlock(8, 16, 2)
    assert block.downsample is not None
    seen: list[Tensor] = []
    block.downsample.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = torch.randn(2, 8, 4, 4, requires_grad=True) * 1.0
    genesis.torch.fuse(block)(x).sum().backward()
    assert seen[0] is x
    assert handed == []
