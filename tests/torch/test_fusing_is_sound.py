"""What a model computed, it still computes once it is fused: outputs, gradients, buffers, whatever its code does."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import genesis.torch
from genesis.torch.pending import Pending


@pytest.fixture(params=["cpu", "simulated"], autouse=True)
def device(request: pytest.FixtureRequest) -> str:
    """Who computes fused ops on tensors in host memory: the CPU backend, or the CUDA backend on a simulated device."""
    torch.manual_seed(0)
    if request.param == "simulated":
        request.getfixturevalue("cuda_kernels")
    return str(request.param)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.b, self.r = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.r(self.b(self.c(x)))


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 5, 4, dtype=torch.float64)


def pair(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return model, genesis.torch.fuse(copy.deepcopy(model))


def agree(theirs: nn.Module, ours: nn.Module, *args: Any, calls: int = 3, tolerance: float = 1e-8) -> None:
    """Of several calls (the later ones know what follows): outputs, random numbers, gradients and buffers."""
    for seed in range(calls):
        outputs = []
        for net in (theirs, ours):
            torch.manual_seed(seed)
            outputs.append((net(*args), torch.rand(1)))
        torch.testing.assert_close(outputs[1], outputs[0], rtol=tolerance, atol=tolerance)
        for output, _ in outputs:
            if isinstance(output, Tensor) and output.requires_grad:
                output.square().sum().backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=100 * tolerance, atol=100 * tolerance, msg=name)
    for (name, mine), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance, msg=name)


# --- whatever a forward does ------------------------------------------------------------------------------------------
class Counts(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1  # type: ignore[operator]
        self.last = self.b(self.c(x))
        if not torch.is_inference_mode_enabled():
            self.n = self.n * 2
        return self.r(self.last)


class WithoutGradients(Chain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.b(self.c(x))
        return self.r(y) + self.c.weight.sum()


class PartlyWithout(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x)
        with torch.no_grad():
            y = self.b(y)
        return self.r(y) + self.c.weight.sum()


class ConvolvesWithout(Chain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.c(x)
        return self.r(self.b(y))


class RandomBranch(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        return self.r(y) if torch.rand(1) < 0.5 else y * 2


class Asks(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        assert isinstance(x, Tensor)
        assert isinstance(y, Tensor)
        assert (y.shape, y.dim(), y.dtype, len(y)) == ((2, 4, 5, 4), 4, torch.float64, 2)
        return self.r(y) if self.b.training and torch.is_grad_enabled() and y.requires_grad else y


class ReadsStatistics(Chain):
    """Between the norm and its activation, which is where they must have moved already."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        read = self.b.running_mean.sum() + self.b.num_batches_tracked  # type: ignore[operator,union-attr]
        return self.r(y) + read


class Lists(Chain):
    """As dla34's roots: a list and None among the arguments."""

    def forward(self, x: Tensor, children: list[Tensor] | None = None) -> Tensor:
        y = self.r(self.b(self.c(x)))
        together = [y, y * 2] + ([] if children is None else children)
        x = self.b(torch.cat(together, 1)[:, :4])
        x += together[1]
        return self.r(x)


class SharedNorm(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.c2 = nn.Conv2d(3, 4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.c(x), self.c2(x)
        return self.r(self.b(u) + self.b(v)) + self.r(self.b(u)) * self.b(v) + u


class SeveralUses(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        first, second = self.r(y), self.r(y)
        z = y + x.mean()
        y += first
        return first * second + self.r(y) + self.r(z) + torch.relu(y + y)


class InPlace(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.r = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        same = y
        z = self.r(y)
        assert z is y is same
        return z + same


class Returns(Chain):
    def forward(self, x: Tensor) -> Any:
        u = self.c(x)
        return {"convolved": [u], "normed": (self.b(u), None)}


class Raises(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        try:
            raise KeyError
        except KeyError:
            return self.b(self.c(x)).relu_() if y.requires_grad else self.r(y)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class Reverses(torch.autograd.Function):
    """Looks at nothing: only the graph knows that it was there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class OwnFunctions(Chain):
    def forward(self, x: Tensor) -> Any:
        return Reverses.apply(Swish.apply(self.b(Reverses.apply(self.c(x)))))


class Checkpointed(Chain):
    reentrant = False

    def forward(self, x: Tensor) -> Any:
        x = x + self.c.weight.sum()
        y = checkpoint(self.b, checkpoint(self.c, x, use_reentrant=self.reentrant), use_reentrant=self.reentrant)
        return self.r(y) + checkpoint(super().forward, x, use_reentrant=self.reentrant)


class CheckpointedReentrantly(Checkpointed):
    reentrant = True


FORWARDS = [
    Chain, Counts, WithoutGradients, PartlyWithout, ConvolvesWithout, RandomBranch, Asks, ReadsStatistics, Lists,
    SharedNorm, SeveralUses, InPlace, Returns, Raises, OwnFunctions, Checkpointed, CheckpointedReentrantly,
]  # fmt: skip


@pytest.mark.parametrize("kind", FORWARDS)
def test_the_code_of_a_forward_runs(kind: type[Chain]) -> None:
    theirs, ours = pair(kind())
    for training in (True, False):
        theirs.train(training)
        ours.train(training)
        agree(theirs, ours, images())
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                agree(theirs, ours, images(), calls=2)
    if kind is Counts:
        torch.testing.assert_close(ours.last, theirs.last)


@pytest.mark.parametrize("kind", FORWARDS)
def test_nothing_pending_leaves_the_model(kind: type[Chain]) -> None:
    ours = genesis.torch.fuse(kind())
    for _ in range(4):
        leaves = torch.utils._pytree.tree_leaves(ours(images()))
        assert {type(leaf) for leaf in leaves} <= {Tensor, type(None)}


class Masked(Chain):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.r(self.b(self.c(x)))
        return y if mask is None else y * mask


def test_optional_arguments() -> None:
    theirs, ours = pair(Masked())
    agree(theirs, ours, images())
    agree(theirs, ours, images(), torch.zeros(2, 4, 5, 4, dtype=torch.float64))


class WithSum(Chain):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.r(self.b(self.c(x)) + residual)


class AutocastOff(WithSum):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = self.c(x)
        return self.r(self.b(y) + residual)


class AutocastOffLater(WithSum):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = self.c(x)
        with torch.autocast("cpu", enabled=False):
            return self.r(self.b(y) + residual)


@pytest.mark.parametrize("kind", [WithSum, AutocastOff, AutocastOffLater])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_gives_the_dtypes_of_the_layers(kind: type[Chain], dtype: torch.dtype) -> None:
    theirs, ours = pair(kind().float())
    x, residual = images().float(), torch.randn(2, 4, 5, 4, dtype=dtype)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            expected, result = theirs(x, residual), ours(x, residual)
        assert result.dtype is expected.dtype
        torch.testing.assert_close(result, expected, rtol=0.05, atol=0.05)


def test_the_layer_gives_them_too() -> None:
    layer = genesis.torch.ConvBNReLU(3, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(1, 3, 4, 4), torch.ones(1, 4, 4, 4)).dtype is torch.float32


# --- gradients --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("square", [True, False])
def test_second_gradients_are_refused(square: bool) -> None:
    """Whether or not the gradient that comes in is a constant."""
    ours = genesis.torch.fuse(Chain())
    x = images().requires_grad_()
    y = ours(x)
    (grad,) = torch.autograd.grad((y.square() if square else y).sum(), x, create_graph=True)
    assert torch.isfinite(grad).all()
    with pytest.raises(RuntimeError, match=r"genesis\.torch\.unfuse"):
        grad.square().sum().backward()
    theirs = genesis.torch.unfuse(ours)
    (grad,) = torch.autograd.grad(theirs(x).sum(), x, create_graph=True)
    grad.square().sum().backward()


def test_forward_gradients_and_transforms() -> None:
    nets, x = pair(Chain().eval()), images()
    found: list[list[Any]] = []
    for net in nets:
        with forward_ad.dual_level():
            y = net(forward_ad.make_dual(x, torch.ones_like(x)))
            results = [forward_ad.unpack_dual(y).tangent]
        results.append(torch.func.vmap(lambda each, net=net: net(each[None])[0])(x))
        results.append(torch.func.jvp(net, (x,), (x,))[1])
        results.append(torch.func.grad(lambda each, net=net: net(each).square().sum())(x))
        weights = dict(net.named_parameters())
        results.append(
            torch.func.grad(lambda each, net=net: torch.func.functional_call(net, each, x).sum())(weights)["c.weight"]
        )
        found.append(results)
    torch.testing.assert_close(found[1], found[0])
    layer = genesis.torch.ConvBNReLU(3, 4, 3, dtype=torch.float64).eval()
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x)))).tangent is not None


@pytest.mark.parametrize("when", ["before the norm", "before the activation"])
def test_inputs_changed_in_place_are_never_silent(when: str) -> None:
    class Changes(Chain):
        def forward(self, x: Tensor) -> Tensor:
            y = self.c(x)
            if when == "before the norm":
                x.mul_(2.0)
            y = self.b(y)
            if when == "before the activation":
                x.mul_(2.0)
            return self.r(y)

    theirs, ours = pair(Changes())
    x = images()
    if when == "before the norm":
        with pytest.raises(RuntimeError, match="convolution 'c': its input, weight or bias was changed in place"):
            ours(x.clone())
        theirs(x.clone())
        ours.b.load_state_dict(theirs.b.state_dict())
    for _ in range(2):
        torch.testing.assert_close(ours(x.clone()), theirs(x.clone()))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            ours(x.clone()).sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            theirs(x.clone()).sum().backward()


# --- what happens to a model after it was fused -----------------------------------------------------------------------
def _set(name: str, make: Callable[[], nn.Module]) -> Callable[[nn.Module], None]:
    return lambda model: setattr(model, name, make().double())


def _prune(model: Any) -> None:
    prune.l1_unstructured(model.c, "weight", 0.5)  # type: ignore[no-untyped-call]


def _freeze(model: Any) -> None:
    model.b.eval()
    model.c.weight.requires_grad_(False)


def _cast(model: Any) -> None:
    model.float().double()


class LoRA(nn.Module):
    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.conv, self.down = conv, nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.down(x)  # type: ignore[no-any-return]


def _lora(model: Any) -> None:
    torch.manual_seed(1)
    model.c = LoRA(model.c).double()


def _spectral(model: Any) -> None:
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.spectral_norm(model.c)


EVENTS: dict[str, Callable[[Any], Any]] = {
    "no activation": _set("r", nn.Identity),
    "another activation": _set("r", nn.GELU),
    "group norm": _set("b", lambda: nn.GroupNorm(2, 4)),
    "instance norm": _set("b", lambda: nn.InstanceNorm2d(4)),
    "another batch norm": _set("b", lambda: nn.BatchNorm2d(4, eps=0.1, momentum=None, affine=False)),
    "no statistics": _set("b", lambda: nn.BatchNorm2d(4, track_running_stats=False)),
    "no norm": _set("b", nn.Identity),
    "LoRA": _lora,
    "prune": _prune,
    "spectral_norm": _spectral,
    "weight_norm": lambda model: parametrizations.weight_norm(model.c),
    "frozen": _freeze,
    "stride": lambda model: setattr(model.c, "stride", (2, 1)),
    "padding mode": lambda model: setattr(model.c, "padding_mode", "circular"),
    "cast": _cast,
    "replaced forward": lambda model: setattr(model.b, "forward", lambda x: x * 3),
    "eval": lambda model: model.eval(),
}


@pytest.mark.parametrize("event", EVENTS)
def test_surgery(event: str) -> None:
    theirs, ours = pair(Chain())
    agree(theirs, ours, images())
    for net in (theirs, ours):
        torch.manual_seed(1)
        EVENTS[event](net)
        net.zero_grad()
    agree(theirs, ours, images())
    with torch.no_grad():
        agree(theirs, ours, images())


def test_synchronized_norms_can_be_put_in() -> None:
    ours = nn.SyncBatchNorm.convert_sync_batchnorm(genesis.torch.fuse(Chain()))
    assert type(ours.b) is nn.SyncBatchNorm
    assert genesis.torch.report(ours).fused == []


def test_surgery_on_sequentials() -> None:
    def make() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).double()

    theirs, ours = pair(make())
    for net in (theirs, ours):
        net.append(nn.Flatten())  # type: ignore[operator]
    agree(theirs, ours, images())
    agree(theirs[:2], ours[:2], images())  # type: ignore[index]
    for net in (theirs, ours):
        del net[2]  # type: ignore[attr-defined]
    agree(theirs, ours, images())
    for net in (theirs, ours):
        net[1] = nn.Identity()  # type: ignore[index]
    agree(theirs, ours, images())


def test_hooks_see_what_they_saw() -> None:
    nets, seen = pair(Chain()), list[list[Tensor]]([[], []])
    x = images().requires_grad_()
    for net in nets:
        net(x).sum().backward()
    for net, found in zip(nets, seen, strict=True):
        net.zero_grad()
        for layer in net.children():
            layer.register_forward_pre_hook(lambda layer, args, found=found: found.append(args[0].detach().clone()))
            layer.register_forward_hook(lambda layer, args, y, found=found: found.append(y.detach().clone()))
            layer.register_forward_hook(lambda layer, args, y, found=found: found.append(y))
            layer.register_full_backward_hook(lambda layer, gi, go, found=found: found.append(go[0].clone()))
    agree(*nets, x, calls=1)
    assert len(seen[0]) == 12
    assert [type(each) for each in seen[1]] == [Tensor] * 12
    torch.testing.assert_close(seen[1], seen[0])


def test_hooks_that_only_keep_what_they_see() -> None:
    nets, kept = pair(Chain()), list[list[Tensor]]([[], []])
    for net, found in zip(nets, kept, strict=True):
        for layer in net.children():
            layer.register_forward_hook(lambda layer, args, y, found=found: found.append(y))
    x = images()
    for _ in range(2):
        for net in nets:
            net(x)
    torch.testing.assert_close(kept[1], kept[0])
    for found in kept:
        found[-2].square().sum().backward()  # the norm's output has its graph
    agree(*nets, x, calls=0)


def test_writes_past_the_counters_of_changes() -> None:
    """As an average of weights by `.data` makes them."""
    theirs, ours = pair(Chain().eval())
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(3):
            with mode():
                agree(theirs, ours, images(), calls=1)
            for net in (theirs, ours):
                for tensor in (*net.parameters(), net.b.running_var, net.b.running_mean):
                    tensor.data.mul_(0.5)  # type: ignore[union-attr]


def test_flops_are_all_seen() -> None:
    counts = []
    for net in pair(Chain()):
        with FlopCounterMode(display=False) as counter:
            net(images()).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_fake_and_meta_tensors() -> None:
    ours = genesis.torch.fuse(Chain())
    layer = genesis.torch.ConvBNReLU(3, 4, 3, dtype=torch.float64)
    fake = torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    for net in (ours, layer):
        with fake:
            assert net(torch.empty(2, 3, 5, 4, dtype=torch.float64)).shape == (2, 4, 5, 4)
        assert copy.deepcopy(net).to("meta")(images().to("meta")).is_meta


# --- what takes models apart ------------------------------------------------------------------------------------------
def test_tracers_and_exporters_get_the_plain_model() -> None:
    theirs, ours = pair(Chain().eval())
    x = images()
    expected = theirs(x)
    graph = torch.fx.symbolic_trace(ours)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(ours, (x,), dynamic_shapes=({0: batch},))
    for model in (
        graph, copy.deepcopy(graph), torch.jit.trace(ours, x), torch.jit.script(ours), exported.module(),
        torch.export.export(ours, (x,), strict=True).module(), torch.compile(ours, backend="aot_eager", fullgraph=True),
        genesis.torch.fuse(copy.deepcopy(graph)),
    ):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(model(x), expected)
    assert exported.module()(images(5)).shape[0] == 5
    targets = [str(node.target) for node in exported.graph.nodes]
    assert any("conv2d" in target for target in targets)
    assert not any("genesis" in target for target in targets)
    torch.testing.assert_close(ours(x), expected)


def test_code_in_c_plus_plus() -> None:
    @torch.jit.script
    def swish(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    class Scripted(Chain):
        def forward(self, x: Tensor) -> Any:
            return swish(self.b(self.c(x)))

    theirs, ours = pair(Scripted())
    with torch.no_grad():
        agree(theirs, ours, images())
    theirs, ours = pair(Scripted())
    with pytest.warns(UserWarning, match=r"genesis\.torch\.unfuse"), pytest.raises(RuntimeError, match="TorchScript"):
        ours(images())
    ours.b.load_state_dict(theirs.b.state_dict())
    agree(theirs, ours, images())


class OwnState(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.me = [self]

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __init_subclass__(cls, *, word: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)


class OwnFusion(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.fusion = nn.Conv2d(4, 4, 1).double()

    def forward(self, x: Tensor) -> Any:
        return self.fusion(super().forward(x))


@pytest.mark.parametrize("kind", [Chain, OwnState, OwnFusion])
def test_copies_and_pickles(kind: type[Chain]) -> None:
    model = kind()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), torch.load(file, weights_only=False)):
        agree(copy.deepcopy(model), other, images())
        assert ("c", "b", "relu") in genesis.torch.report(other).fused
    if kind is OwnFusion:
        assert isinstance(fused.fusion, nn.Conv2d)


def test_the_way_back() -> None:
    """Not an attribute is left, and not a tensor is another."""
    model = nn.Sequential(Chain(), nn.MaxPool2d(2), OwnFusion())
    model[0].c.register_forward_hook(lambda layer, args, y: None)

    def state() -> list[Any]:
        found: list[Any] = []
        for module in model.modules():
            found += [module, type(module), sorted(module.__dict__), list(module._forward_hooks)]
        return found + [*model.parameters(), *model.buffers()]

    before = state()
    genesis.torch.fuse(genesis.torch.fuse(model))
    assert len(state()) > 0
    model[0](images())
    assert genesis.torch.unfuse(model) is model
    assert all(now is then or now == then for now, then in zip(state(), before, strict=True))
    assert "fusion" not in model.__dict__


def test_reports_learn_from_calls() -> None:
    ours = genesis.torch.fuse(nn.Sequential(OwnFusion(), nn.Conv2d(4, 3, 1).double(), Chain()))
    assert ours.fusion.fused == []
    for _ in range(4):
        ours(images())
    text = str(genesis.torch.fuse(ours).fusion)
    assert text.splitlines() == [
        "2 fused, 2 left", "  0.c → 0.b → relu", "  2.c → 2.b → relu",
        "  0.fusion: left, as no batch norm follows", "  1: left, as no batch norm follows",
    ]  # fmt: skip
    assert str(genesis.torch.report(ours)) == text
    ours[2].r = nn.Identity()
    ours(images())
    assert ("2.c", "2.b") in ours.fusion.fused  # without its activation


def test_pending_tensors_outside_of_a_model() -> None:
    """A part of a fused model is called by itself: what it gives is a tensor to whoever asks."""
    theirs, ours = pair(Chain())
    x = images()
    for ask in (
        repr, Tensor.tolist, lambda y: y.numpy(force=True).sum(), lambda y: y[0], lambda y: torch.cat([y, y]),
        copy.copy, lambda y: torch.save(y.detach(), io.BytesIO()), lambda y: y.grad_fn is not None, Tensor.stride,
        lambda y: torch.autograd.backward(y.sum()), lambda y: y.register_hook(lambda grad: None), Tensor.contiguous,
        lambda y: y.data_ptr() > 0, lambda y: torch.utils.dlpack.from_dlpack(y.detach()), lambda y: {y: 1}[y],
    ):  # fmt: skip
        y = ours.b(ours.c(x))  # type: ignore[operator]
        z = theirs.b(theirs.c(x))  # type: ignore[operator]
        number = id(y)
        ask(y)
        torch.testing.assert_close(y, z)
        assert (type(y), id(y)) == (Tensor, number)
        ours.c._conv_forward.begin()  # type: ignore[operator,union-attr]
    assert type(ours.b(ours.c(x))) is Pending  # type: ignore[operator]
