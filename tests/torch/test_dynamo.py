"""Genesis as a backend of torch.compile: what is fused in Dynamo's graphs, and that nothing else changes."""

from __future__ import annotations

import copy
import logging
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.fusion import Fusion
from genesis.torch import dynamo

OPTIONS = {"compiler": "aot_eager"}


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    torch._dynamo.reset()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Fusion]:
    """What was fused in each graph."""
    every: list[Fusion] = []
    fuse_graph = dynamo.fuse_graph
    monkeypatch.setattr(dynamo, "fuse_graph", lambda *args: every.append(fuse_graph(*args)) or every[-1])
    return every


class Layers(nn.Module):
    """Two convolutions with a norm each, and whatever forward a test gives them."""

    def __init__(self, forward: Callable[..., Any], **norm: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.c1, self.b1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, **norm)
        self.c2, self.b2 = nn.Conv2d(4, 4, 3, padding="same"), nn.BatchNorm2d(4, **norm)
        self.relu = nn.ReLU(inplace=True)
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def chain(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.b2(m.c2(m.relu(m.b1(m.c1(x))))))


def residual(m: Any, x: Tensor) -> Tensor:
    y = m.b2(m.c2(m.relu(m.b1(m.c1(x)))))
    y += x
    return m.relu(y)


def both_sides(m: Any, x: Tensor) -> Tensor:
    return F.relu(m.b1(m.c1(x)) + m.b2(m.c2(x)))


def broadcast(m: Any, x: Tensor) -> Tensor:
    return torch.relu(m.b1(m.c1(x)) + x.mean((2, 3), keepdim=True))


def changed_on_the_way(m: Any, x: Tensor) -> Tensor:
    x = x * 1
    y = m.c1(x)
    x.mul_(2)
    return m.relu(m.b1(y)) + x


def changed_by_a_view(m: Any, x: Tensor) -> Tensor:
    x = x * 1
    y = m.c1(x)
    x[:, 0].zero_()
    return m.relu(m.b1(y)) + x


def statistics_are_read(m: Any, x: Tensor) -> Tensor:
    y = m.b1(m.c1(x))
    before = m.b1.running_mean.sum()
    y = y + before
    return m.b1(m.c2(y)).relu()


def statistics_are_read_on_the_way(m: Any, x: Tensor) -> Tensor:
    y = m.b1(m.c1(x))
    mean = m.b1.running_mean.clone()
    return m.relu(y) + mean[:, None, None]


def one_norm_for_both(m: Any, x: Tensor) -> Tensor:
    first, second = m.c1(x), m.c2(x)
    first = m.b1(first)
    second = m.b1(second).relu()
    return first.relu() + second


def used_twice(m: Any, x: Tensor) -> Tensor:
    y = m.c1(x)
    return m.b1(y).relu() + y


def norm_used_twice(m: Any, x: Tensor) -> Tensor:
    y = m.b1(m.c1(x))
    return y.relu() + y


def without_gradients(m: Any, x: Tensor) -> Tensor:
    y = m.c1(x)
    with torch.no_grad():
        y = m.b1(y)
    return m.relu(m.b2(m.c2(y.relu() + x)))


def norm_only_without_gradients(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = m.b1(m.c1(x))
    return F.relu(y) + x


def uneven_padding(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.b1(F.conv2d(x, m.c1.weight[..., :2], padding="same")))


def by_functions(m: Any, x: Tensor) -> Tensor:
    y = torch.conv2d(x, m.c1.weight, stride=2, padding=1)
    return F.batch_norm(y, None, None, m.b1.weight, m.b1.bias, training=True).relu_()


def random_branch(m: Any, x: Tensor) -> Tensor:
    y = m.relu(m.b1(m.c1(x)))
    return y if torch.rand(()) < 0.5 else m.relu(m.b2(m.c2(y)))


FORWARDS = {  # forward: chains that are fused in the graphs of one training step
    chain: 2, residual: 2, both_sides: 2, broadcast: 1,
    statistics_are_read: 2, statistics_are_read_on_the_way: 1, one_norm_for_both: 1, used_twice: 0, norm_used_twice: 1,
    without_gradients: 1, norm_only_without_gradients: 1, by_functions: 1,
}  # fmt: skip


def outcome(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """Result, gradients and buffers of a step."""
    torch.manual_seed(7)
    model.zero_grad()
    args = tuple(x.clone().requires_grad_() if isinstance(x, Tensor) else x for x in args)
    result = model(*args, **kwargs)
    if result.requires_grad:
        (result * torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view(result.shape)).sum().backward()
    plain = getattr(model, "_orig_mod", model)
    found = {"result": result.detach()} | {f"input {i}": x.grad for i, x in enumerate(args) if x.grad is not None}
    found |= {name: x.grad for name, x in plain.named_parameters() if x.grad is not None}
    return found | {name: x.clone() for name, x in plain.named_buffers()}


def agree(plain: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    assert plain.keys() == ours.keys()
    for name, expected in plain.items():
        assert ours[name].dtype == expected.dtype, name
        torch.testing.assert_close(ours[name], expected, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: name + text)


def compiled(model: nn.Module, **kwargs: Any) -> Any:
    return torch.compile(model, backend=dynamo.genesis, options=OPTIONS, **kwargs)


def images(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(batch))


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_a_step_is_what_it_was(forward: Callable[..., Any], found: list[Fusion]) -> None:
    plain = Layers(forward).double()
    ours = copy.deepcopy(plain)
    step = compiled(ours)
    for _ in range(2):
        agree(outcome(plain, images()), outcome(step, images()))
    assert sum(len(fusion.fused) for fusion in found) == FORWARDS[forward]
    plain.eval(), ours.eval()
    agree(outcome(plain, images()), outcome(step, images()))
    with torch.no_grad():
        agree(outcome(plain, images()), outcome(step, images()))


@pytest.mark.parametrize(
    "forward", [changed_on_the_way, changed_by_a_view, uneven_padding], ids=lambda forward: forward.__name__
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_what_must_run_in_its_order(forward: Callable[..., Any], found: list[Fusion]) -> None:
    plain = Layers(forward).double()
    step = compiled(copy.deepcopy(plain))
    with torch.no_grad():
        agree(outcome(plain, images()), outcome(step, images()))
    assert sum(len(fusion.fused) for fusion in found) == 0


@pytest.mark.parametrize("norm", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_norms(norm: dict[str, Any]) -> None:
    plain = Layers(residual, **norm).double()
    step = compiled(copy.deepcopy(plain))
    for _ in range(3):
        agree(outcome(plain, images()), outcome(step, images()))


def test_random_branches_stay_random() -> None:
    plain = Layers(random_branch).double()
    step = compiled(copy.deepcopy(plain))
    for _ in range(6):
        agree(outcome(plain, images()), outcome(step, images()))


def test_optional_arguments() -> None:
    def forward(m: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = m.relu(m.b1(m.c1(x)))
        return y if mask is None else y * mask

    plain = Layers(forward).double()
    step = compiled(copy.deepcopy(plain))
    for mask in (None, images() > 0, None):
        agree(outcome(plain, images(), mask=mask), outcome(step, images(), mask=mask))


def test_the_batch_may_vary(found: list[Fusion]) -> None:
    plain = Layers(residual).double()
    step = compiled(copy.deepcopy(plain), dynamic=True)
    for batch in (3, 5, 2):
        agree(outcome(plain, images(batch)), outcome(step, images(batch)))
    assert len(found[-1].fused) == 2
    assert len(found) <= 2  # first with momentum and eps as numbers that might change, too


@pytest.mark.parametrize("in_place", [False, True])
def test_the_dtype_of_a_sum_under_autocast(in_place: bool) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.b1(m.c1(x))
        return m.relu(y.add_(x) if in_place else y + x)

    plain = Layers(forward)
    step = compiled(copy.deepcopy(plain))
    x = images().float()
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = plain(x), step(x)
    assert actual.dtype == expected.dtype == (torch.bfloat16 if in_place else torch.float32)
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.03)


def test_what_was_found_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="genesis.torch"):
        compiled(Layers(used_twice).double())(images())
    assert caplog.messages == ["0 fused, 1 left\n  y: left, as its result is used in several places"]


def test_another_compiler_of_pytorch(found: list[Fusion]) -> None:
    plain = Layers(chain).double()
    step = torch.compile(copy.deepcopy(plain), backend=dynamo.genesis, options={"compiler": "eager"})
    agree(outcome(plain, images()), outcome(step, images()))
    assert len(found[0].fused) == 2


def test_pytorch_finds_it_by_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"genesis": "genesis.torch.dynamo:genesis"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.filterwarnings("ignore")
def test_by_inductor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: list[Fusion]) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # what was compiled before would prove nothing
    plain = Layers(residual).double()
    step = torch.compile(copy.deepcopy(plain), backend=dynamo.genesis)
    agree(outcome(plain, images()), outcome(step, images()))
    assert len(found[0].fused) == 2


def test_parameters_that_are_unfrozen_get_gradients() -> None:
    """PyTorch's own guards pass over that before 2.13."""
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    plain[0].requires_grad_(False)
    model = torch.compile(plain, backend=dynamo.genesis, options={"compiler": "aot_eager"})
    for _ in range(2):
        model(torch.ones(2, 3, 5, 5)).sum().backward()
    assert plain[0].weight.grad is None
    plain[0].requires_grad_(True)
    model(torch.ones(2, 3, 5, 5)).sum().backward()
    assert plain[0].weight.grad is not None


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.parametrize("compiled_by", [lambda f: torch.compile(f, backend="genesis"), genesis.torch.compile])
@pytest.mark.usefixtures("without_vectors")
@pytest.mark.filterwarnings("ignore")
def test_gradients_of_averages_whose_windows_end_beyond_the_input(
    compiled_by: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Inductor's own are wrong: it divides them by the size of a whole window."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def averages(x: Tensor) -> list[Tensor]:
        settings = [{}, {"count_include_pad": True}, {"divisor_override": 3}, {"count_include_pad": False}]
        images = [F.avg_pool2d(x, 2, ceil_mode=True, **each) for each in settings]  # type: ignore[arg-type]
        return [*images, F.avg_pool2d(x, (3, 2), 2, 0, True), F.avg_pool1d(x.flatten(1, 2), 3, 2, ceil_mode=True)]

    x = torch.randn(1, 2, 9, 7, dtype=torch.float64, requires_grad=True)
    compiled = compiled_by(averages)
    for found, wanted in zip(compiled(x), averages(x), strict=True):
        assert torch.equal(found, wanted)
        weights = torch.arange(wanted.numel(), dtype=x.dtype).view_as(wanted)
        grads = [torch.autograd.grad((y * weights).sum(), x, retain_graph=True)[0] for y in (found, wanted)]
        torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
