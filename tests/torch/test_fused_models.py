"""What happens to a model after it was fused: surgery, hooks, writes, tracers, copies; and the way back."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

import genesis.torch
from genesis.torch import bridge
from genesis.torch.pending import Pending
from genesis.torch.reasons import nothing_follows
from tests.torch.chains import Chain, agree, images, pair


@pytest.fixture(params=["cpu", "simulated"], autouse=True)
def device(request: pytest.FixtureRequest) -> str:
    """Who computes fused ops on tensors in host memory: the CPU backend, or the CUDA backend on a simulated device."""
    torch.manual_seed(0)
    if request.param == "simulated":
        request.getfixturevalue("cuda_kernels")
    return str(request.param)


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


@pytest.mark.parametrize("attributes", ["shared", "copied", "of a layer that is gone"])
def test_shallow_copies_are_asked_themselves(attributes: str) -> None:
    """As replicas of DataParallel are: their attributes are those of the original."""
    theirs, ours = pair(Chain())
    originals = []
    for net in (theirs, ours):
        for name in ("c", "b", "r"):
            layer = copy.copy(getattr(net, name))
            if attributes != "of a layer that is gone":
                originals.append(getattr(net, name))
            if attributes == "copied":
                layer.__dict__ = {key: copy.copy(value) for key, value in layer.__dict__.items()}
            layer._parameters = {key: p.detach() * 2 for key, p in layer._parameters.items()}
            setattr(net, name, layer)
        net.c.stride = (2, 1)  # type: ignore[assignment,union-attr]
        net.b.eps = 0.5  # type: ignore[assignment,union-attr]
    agree(theirs, ours, images())
    replica = ours._replicate_for_data_parallel()  # type: ignore[operator]
    torch.testing.assert_close(replica(images(1) * 0), theirs(images(1) * 0))


def test_a_forward_of_the_models_own(device: str) -> None:
    theirs = Chain()
    inner = theirs.forward
    theirs.forward = lambda x, scale=2.0: inner(x) * scale  # type: ignore[method-assign]
    ours = genesis.torch.fuse(theirs)
    assert list(inspect.signature(ours.forward).parameters) == ["x", "scale"]
    x = images()
    ours.eval()
    torch.testing.assert_close(ours(x, scale=1.0) * 2, ours(x))
    assert list(inspect.signature(genesis.torch.fuse(Chain()).forward).parameters) == ["x"]
    assert genesis.torch.unfuse(ours).forward.__name__ == "<lambda>"


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
        f"  0.fusion: left, as {nothing_follows('conv2d', bridge.activates(images()))}",
        f"  1: left, as {nothing_follows('conv2d', bridge.activates(images()))}",
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
        ours.c.forward.begin()  # type: ignore[operator,union-attr]
    assert type(ours.b(ours.c(x))) is Pending  # type: ignore[operator]
