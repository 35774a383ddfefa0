"""On the CPU a fused model's calls are timed against plain ones, and the faster way stays."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.settings import override
from genesis.torch import choosing
from genesis.torch.autograd_functions import place
from genesis.torch.entry import Entry
from genesis.torch.folds import Folds

UNTIMED, BLOCK, COUNTED = 2, 3, 4
TIMED = 4 * BLOCK  # until two calls of each block have been counted, and the first has not


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.rest = nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.Hardswish(), nn.MaxPool2d(2))
        self.left: list[bool] = []
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        self.left.append(place.left)
        if self.fails:
            raise ArithmeticError("it fails")
        return self.rest(self.act(self.norm(self.conv(x))))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long a plain call takes; a fused one takes 1."""
    now, plain = [0.0], [1.0]

    def perf_counter() -> float:
        now[0] += plain[0] if place.left else 1.0
        return now[0]

    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(choosing, "_UNTIMED", UNTIMED)
    monkeypatch.setattr(choosing, "_BLOCK", BLOCK)
    monkeypatch.setattr(choosing, "_COUNTED", COUNTED)
    return lambda seconds: plain.__setitem__(0, seconds)


def fused_and_plain() -> tuple[Net, Net]:
    torch.manual_seed(0)
    theirs = Net().eval()
    nn.init.normal_(theirs.norm.running_mean)
    return genesis.torch.fuse(copy.deepcopy(theirs)), theirs  # type: ignore[return-value]


@pytest.mark.parametrize("plain", [0.5, 2.0])
def test_the_faster_way_stays(plain: float, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    clock(plain)
    ours, theirs = fused_and_plain()
    x = torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        for _ in range(UNTIMED + TIMED + 3):
            torch.testing.assert_close(ours(x), theirs(x))
        stays = plain < 1
        assert ours.left == [False] * UNTIMED + ([False] * BLOCK + [True] * BLOCK) * 2 + [stays] * 3
        if stays:
            monkeypatch.setattr(Folds, "run", None)  # it would be called
            assert torch.equal(ours(x), theirs(x))  # bit for bit
    assert not place.left
    told = "runs plain: inference, 2×3×9×8: PyTorch's layers take 500 ms, and fused 1000" if stays else "max"
    assert (told in str(ours.fusion)) is stays
    assert bool(ours.fusion.plain) is stays


def test_other_inputs_and_modes_are_other_kinds(clock: Callable[[float], None]) -> None:
    clock(0.5)
    ours, _ = fused_and_plain()
    x = torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        for _ in range(UNTIMED + TIMED):
            ours(x)
        kinds = {
            "size": lambda: ours(x[:1]),
            "order": lambda: ours(x.contiguous(memory_format=torch.channels_last)),
            "gradients": torch.enable_grad()(lambda: ours(x)),
            "inference mode": torch.inference_mode()(lambda: ours(x)),
            "training": lambda: ours.train()(x),
        }
        for name, call in kinds.items():
            call()
            assert not ours.left[-1], name
        ours.eval()(x)
        assert ours.left[-1]
        ours(x=x)
        assert ours.left[-1]
        assert not copy.deepcopy(ours).forward.choice.plain()


def test_no_choice(clock: Callable[[float], None]) -> None:
    clock(0.5)
    ours, _ = fused_and_plain()
    whole = genesis.torch.fuse(nn.Sequential(ours, nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval())
    x = torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        with override(deterministic=True):
            for _ in range(20):
                ours(x)
        torch.use_deterministic_algorithms(True)
        try:
            for _ in range(20):
                ours(x)
        finally:
            torch.use_deterministic_algorithms(False)
        with torch.overrides.BaseTorchFunctionMode():
            for _ in range(20):
                ours(x)
        assert not any(ours.left)
        ours.left.clear()
        for _ in range(UNTIMED + TIMED + 1):
            whole(x)
        assert ours.left == [False] * UNTIMED + ([False] * BLOCK + [True] * BLOCK) * 2 + [True]  # as the whole model
        assert not ours.forward.choice.plain()


def test_calls_that_fail_are_not_timed(clock: Callable[[float], None]) -> None:
    clock(0.5)
    ours, theirs = fused_and_plain()
    x = torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        for _ in range(UNTIMED):
            ours(x)
        ours.fails = True
        for _ in range(2 * TIMED):
            with pytest.raises(ArithmeticError):
                ours(x)
        ours.fails = False
        assert not place.left
        assert not ours.forward.choice.plain()
        for _ in range(TIMED):
            ours(x)
        assert ours.forward.choice.plain()
        assert torch.equal(ours(x), theirs(x))


def test_training_by_pytorch_alone(clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients and statistics are those of the plain model, whichever way a call runs."""
    monkeypatch.undo()
    ours, theirs = (model.train() for model in fused_and_plain())
    for _ in range(20):
        x = torch.randn(2, 3, 9, 8)
        for model in (ours, theirs):
            model.zero_grad()
            model(x).square().sum().backward()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(a, b)


def test_layers_that_are_shallow_copies(clock: Callable[[float], None]) -> None:
    """They share the attribute that fuse() set, but not the settings."""
    clock(0.5)
    ours, theirs = fused_and_plain()
    original, ours.conv = ours.conv, copy.copy(ours.conv)
    ours.conv.stride = theirs.conv.stride = (2, 2)
    x = torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        for _ in range(UNTIMED + TIMED + 1):
            torch.testing.assert_close(ours(x), theirs(x))
    assert ours.left[-1]
    assert original.stride == (1, 1)


# --- entries that are set aside while a model runs plain --------------------------------------------------------------
def entries(model: nn.Module) -> list[str]:
    """The names of the layers whose forward is an entry."""
    return [name for name, layer in model.named_modules() if isinstance(layer.__dict__.get("forward"), Entry)]


@pytest.fixture
def plain(clock: Callable[[float], None]) -> tuple[Net, Net, Tensor]:
    """A fused model that runs plain with some input, the plain model, and the input."""
    clock(0.5)
    ours, theirs = fused_and_plain()
    x = torch.randn(2, 3, 9, 8)
    assert len(entries(ours)) == 9
    with torch.no_grad():
        for _ in range(UNTIMED + TIMED):
            ours(x)
    assert entries(ours) == [""]
    return ours, theirs, x


@torch.no_grad()
def test_fused_calls_put_entries_back(plain: tuple[Net, Net, Tensor]) -> None:
    ours, theirs, x = plain
    report = str(ours.fusion)
    ours(x[:1])  # another size, which is not decided
    assert len(entries(ours)) == 9
    assert str(ours.fusion) == report
    ours(x)
    assert len(entries(ours)) == 9  # sizes that alternate move nothing
    ours(x[:1])
    ours(x)
    assert torch.equal(ours(x), theirs(x))
    assert entries(ours) == [""]
    assert str(ours.fusion) == report


@torch.no_grad()
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_models_that_run_plain(
    copied: Callable[[nn.Module], nn.Module], plain: tuple[Net, Net, Tensor]
) -> None:
    ours, theirs, x = plain
    other = copied(ours)
    assert entries(other) == [""]
    other(x)
    assert len(entries(other)) == 9
    assert entries(ours) == [""]
    assert not entries(genesis.torch.unfuse(copied(ours)))
    part = genesis.torch.fuse(copied(ours).rest)
    assert len(entries(part)) == 5
    assert set(vars(genesis.torch.unfuse(ours).conv)) == set(vars(theirs.conv))


@torch.no_grad()
def test_a_forward_that_someone_sets_meanwhile_stays(plain: tuple[Net, Net, Tensor]) -> None:
    ours, _, x = plain
    ours.act.forward = torch.sigmoid  # type: ignore[method-assign]
    ours(x[:1])
    assert ours.act.forward is torch.sigmoid
    assert len(entries(ours)) == 8


@torch.no_grad()
def test_models_that_share_layers(plain: tuple[Net, Net, Tensor]) -> None:
    ours, _, x = plain
    whole = genesis.torch.fuse(nn.Sequential(ours, nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval())
    whole(x)
    assert len(entries(whole)) == 12
    ours(x)
    ours(x)
    assert entries(whole) == ["", "0", "1", "2"]
    whole(x)
    assert len(entries(whole)) == 12
    for _ in range(UNTIMED + TIMED):
        whole(x)
    assert entries(whole) == ["", "0"]
