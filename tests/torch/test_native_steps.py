"""Gradients of short steps that C++ accumulates in one call, and the backward passes that are left to autograd."""

from __future__ import annotations

import contextlib
import copy
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode

import genesis.torch
from genesis.settings import override
from genesis.torch import compiling, native_steps
from tests.torch.loops import LOOPS, Halves, Net, Steps, TwoHeads, agree, batch, outcome, plain, tolerance
from tests.torch.trees import simulated

Look = Callable[[nn.Module], Any]


@pytest.fixture(scope="module")
def compiled() -> None:
    if not native_steps.wait():
        pytest.skip("no C++ compiler, or no headers of Python")


@pytest.fixture
def handled(compiled: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each short backward: was it done without autograd's engine?"""
    seen: list[bool] = []
    accumulate = native_steps.accumulate

    def watched(context: object, gradients: list[Tensor | None], copies: bool) -> bool:
        seen.append(accumulate(context, gradients, copies))
        return seen[-1]

    monkeypatch.setattr(native_steps, "accumulate", watched)
    torch._dynamo.reset()
    with simulated(), override(short_steps=True):
        yield seen


@pytest.fixture
def pair(handled: list[bool]) -> tuple[nn.Module, nn.Module]:
    """A compiled model whose next step is a short one, and the plain one."""
    model = Net()
    short = genesis.torch.compile(copy.deepcopy(model))
    list(plain(short))
    list(plain(model))
    handled.clear()
    for each in (short, model):
        each.zero_grad()
    return short, model


def grads(model: nn.Module) -> list[Tensor | None]:
    return [None if x.grad is None else x.grad.clone() for x in model.parameters()]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_runs_unmodified(loop: Callable[[nn.Module], Steps], handled: list[bool]) -> None:
    def twice(model: nn.Module) -> Steps:
        for _ in range(2):
            yield from loop(model)

    model = Net()
    ours = genesis.torch.compile(copy.deepcopy(model))
    agree(outcome(twice, ours), outcome(twice, model), tolerance(loop))


def test_gradients_are_accumulated(pair: tuple[nn.Module, nn.Module], handled: list[bool]) -> None:
    """The first are those of the backward, without another copy; the second are added to them."""
    for _ in range(2):
        for each in pair:
            each(batch(3)[0]).square().sum().backward()
        torch.testing.assert_close(*map(grads, pair))
    for ours, theirs in zip(*(each.parameters() for each in pair), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.stride() == theirs.grad.stride()
        assert not ours.grad.requires_grad
    assert handled == [True, True]


@pytest.mark.parametrize("copies", [False, True])
def test_gradients_are_copied_once(copies: bool, compiled: None) -> None:
    """What the graph's memory has is copied; a gradient that nobody else holds is the tensor's own."""
    places: list[int] = []
    given = torch.randn(2, 3, 4).transpose(0, 2), torch.randn(5), torch.tensor(2.0, dtype=torch.float64)
    values = [x.clone() for x in given]
    leaves = [x.clone().requires_grad_() for x in given]

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: Tensor) -> Tensor:
            return torch.ones(())

        @staticmethod
        def backward(ctx: Any, _: Tensor) -> tuple[()]:
            gradients: list[Tensor | None] = [x.clone() for x in given]
            places.extend(x.data_ptr() for x in gradients if x is not None)
            held = [x for x in gradients if x is not None] if copies else []
            assert native_steps.accumulate(ctx, gradients, copies)
            assert gradients == [None] * 3
            for x in held:
                x.zero_()
            return ()

    result: Any = Node.apply(*leaves)
    result.backward()
    grads = [x.grad for x in leaves if x.grad is not None]
    torch.testing.assert_close(grads, values)
    assert [x.stride() for x in grads] == [x.stride() for x in leaves]
    assert [x.data_ptr() == place for x, place in zip(grads, places, strict=True)] == [not copies] * 3


class Seen(TorchDispatchMode):
    """The ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


GRADIENTS: dict[str, Callable[[], Tensor | None]] = {
    "dense": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "sliced": lambda: torch.randn(4, 6)[:, ::2],
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "empty": lambda: torch.empty(0, 3),
    "none": lambda: None,
}


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("kinds", [*([kind] for kind in GRADIENTS), list(GRADIENTS)], ids="-".join)
def test_copies_are_as_empty_like_has_them(kinds: list[str], is_watched: bool, compiled: None) -> None:
    """In modes that see all ops, they are its own."""
    given = [GRADIENTS[kind]() for kind in kinds]
    leaves = [torch.zeros_like(torch.ones(2) if x is None else x).requires_grad_() for x in given]

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: Tensor) -> Tensor:
            return torch.ones(())

        @staticmethod
        def backward(ctx: Any, _: Tensor) -> tuple[()]:
            assert native_steps.accumulate(ctx, [*given], True)
            return ()

    result: Any = Node.apply(*leaves)
    mode = Seen()
    with mode if is_watched else contextlib.nullcontext():
        result.backward()
    tensors = [x for x in given if x is not None]
    expected = [torch.empty_like(x).copy_(x) for x in tensors]
    grads = [x.grad for x in leaves if x.grad is not None]
    assert [(x.dtype, x.shape, x.stride(), x.is_conj()) for x in grads] == [
        (x.dtype, x.shape, x.stride(), False) for x in expected
    ]
    assert all(torch.equal(x, y) for x, y in zip(grads, expected, strict=True))
    assert mode.ops.count("empty_like") == (len(tensors) if is_watched else 0)
    for x in tensors:
        x.untyped_storage().fill_(0)
    assert all(torch.equal(x, y) for x, y in zip(grads, expected, strict=True))


def hook_of_a_tensor(model: nn.Module, seen: list[str]) -> None:
    next(model.parameters()).register_hook(lambda grad: seen.append("tensor"))


def hook_after_accumulation(model: nn.Module, seen: list[str]) -> None:
    next(model.parameters()).register_post_accumulate_grad_hook(lambda x: seen.append("accumulated"))


def hook_after_the_node(model: nn.Module, seen: list[str]) -> None:
    model.node = get_gradient_edge(next(model.parameters())).node
    model.node.register_hook(lambda *_: seen.append("node"))


def hook_before_the_node(model: nn.Module, seen: list[str]) -> None:
    model.node = get_gradient_edge(next(model.parameters())).node
    model.node.register_prehook(lambda *_: seen.append("before"))


HOOKS = [hook_of_a_tensor, hook_after_accumulation, hook_after_the_node, hook_before_the_node]


@pytest.mark.parametrize("add", HOOKS, ids=lambda add: add.__name__)
def test_hooks_of_leaves_are_called(add: Any, pair: tuple[nn.Module, nn.Module], handled: list[bool]) -> None:
    """By autograd's engine, in its order."""
    seen: tuple[list[str], list[str]] = [], []
    for each, names in zip(pair, seen, strict=True):
        add(each, names)
        each(batch(3)[0]).square().sum().backward()
    assert seen[0] == seen[1] != []
    torch.testing.assert_close(*map(grads, pair))
    assert handled == [False]


def penalty(model: nn.Module) -> None:
    """The same leaves wait for gradients of other nodes."""
    (model(batch(3)[0]).square().sum() + sum(x.square().sum() for x in model.parameters())).backward()


def penalty_of_one(model: nn.Module) -> None:
    last = list(model.parameters())[-1]
    (model(batch(3)[0]).square().sum() + last.sum()).backward()


def of_some(model: nn.Module) -> None:
    model(batch(3)[0]).square().sum().backward(inputs=list(model.parameters())[1:3])


def with_the_images(model: nn.Module) -> None:
    """Which are not a leaf."""
    x = batch(3)[0].requires_grad_()
    model(2 * x).square().sum().backward()
    assert x.grad is not None
    model.images = x.grad


def debugged(model: nn.Module) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        model(batch(3)[0]).square().sum().backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    "run", [penalty, penalty_of_one, of_some, with_the_images, debugged], ids=lambda run: run.__name__
)
def test_the_engine_accumulates(run: Look, pair: tuple[nn.Module, nn.Module], handled: list[bool]) -> None:
    if run is with_the_images:  # inputs of another kind are captured first
        for each in pair:
            for _ in range(4):
                run(each)
            each.zero_grad()
    handled.clear()
    for each in pair:
        run(each)
    torch.testing.assert_close(*map(grads, pair))
    if run is with_the_images:
        torch.testing.assert_close(*(each.images for each in pair))
    assert handled == [False]


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="this PyTorch gives gradients the dtype of their tensors")
def test_gradients_of_another_dtype(pair: tuple[nn.Module, nn.Module], handled: list[bool]) -> None:
    for each in pair:
        next(each.parameters()).grad_dtype = torch.float64
        each(batch(3)[0]).square().sum().backward()
    torch.testing.assert_close(*map(grads, pair), rtol=1e-5, atol=1e-5)
    assert [x.dtype for x in grads(pair[0])[:2] if x is not None] == [torch.float64, torch.float32]
    assert handled == [True]


def test_gradients_of_some(pair: tuple[nn.Module, nn.Module], handled: list[bool]) -> None:
    found = [torch.autograd.grad(each(batch(3)[0]).square().sum(), list(each.parameters())[:2]) for each in pair]
    torch.testing.assert_close(*found)
    assert grads(pair[0]) == [None] * len(grads(pair[0]))
    assert handled == [False]


def test_two_models_in_one_backward(handled: list[bool]) -> None:
    """The generator's gradients wait for those of the discriminator, whose input is no leaf."""
    model = Halves()
    ours: Any = copy.deepcopy(model)
    genesis.torch.compile(ours.generator)
    genesis.torch.compile(ours.discriminator)
    for index in range(6):
        for each in (ours, model):
            each.zero_grad()
            each.discriminator(each.generator(batch(index)[0])).square().sum().backward()
        torch.testing.assert_close(grads(ours), grads(model))


def test_the_graph_leads_to_the_leaves(pair: tuple[nn.Module, nn.Module], handled: list[bool]) -> None:
    """Until the backward has run: DistributedDataParallel looks there for parameters without a use."""
    short, _ = pair
    result = short(batch(3)[0])
    node: Any = result.grad_fn
    leaves = [edge.variable for edge, _ in node.next_functions if edge is not None]
    assert {id(x) for x in leaves} == {id(x) for x in short.parameters()}


def test_a_backward_twice(pair: tuple[nn.Module, nn.Module], handled: list[bool]) -> None:
    short, _ = pair
    loss = short(batch(3)[0]).square().sum()
    loss.backward()
    assert handled == [True]
    before = grads(short)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    torch.testing.assert_close(grads(short), before)
    short.zero_grad()
    short(batch(3)[0]).square().sum().backward()  # goes on
    torch.testing.assert_close(grads(short), before)


def test_outside_of_a_backward(compiled: None) -> None:
    accumulate = native_steps._accumulate
    assert accumulate is not None
    for arguments in [(None, [], True), (object(), [None], True), (torch.ones(1), [], False)]:
        with pytest.raises(TypeError, match="accumulate"):
            accumulate(*arguments)


@pytest.mark.parametrize("is_native", [False, True])
def test_looks_of_tensors(is_native: bool, compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes from both, as one may be asked before the module is there, and the other after it."""
    if not is_native:
        monkeypatch.setattr(native_steps, "_addresses", None)
        monkeypatch.setattr(native_steps, "_looks", None)
    one, other = nn.Parameter(torch.ones(3)), torch.empty(0)
    other.fill_(1)
    tensors = [one, other, one[1:]]
    places = [x.data_ptr() for x in tensors]
    assert native_steps.addresses(tensors) == native_steps.as_bytes(places)
    assert native_steps.looks(tensors) == native_steps.as_bytes([*places, 0, 1, 0])
    assert native_steps.addresses([]) == native_steps.looks([]) == b""


def test_looks_of_what_is_no_tensor(compiled: None) -> None:
    for name in ("addresses", "looks"):
        for given in (None, [None], (torch.ones(1),)):
            with pytest.raises(TypeError, match="not a list of tensors"):
                getattr(native_steps, f"_{name}")(given)


@pytest.mark.parametrize("how", ["fails", "is missing"])
def test_without_a_compiler(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine accumulates, and nothing is left in the cache."""

    def run(command: list[str], **_: object) -> None:
        if how == "is missing":
            raise FileNotFoundError(command[0])
        raise subprocess.CalledProcessError(1, command, stderr="Python.h: No such file or directory")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(native_steps, "_thread", None)
    monkeypatch.setattr(native_steps, "_accumulate", None)
    with override(cache_dir=tmp_path / "genesis"):
        assert not native_steps.wait()
    assert not native_steps.accumulate(object(), [], True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_it_is_compiled_once(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert native_steps._compiled().exists()


# --- DistributedDataParallel, whose hooks are C++ functions ---
def accumulation(model: nn.Module) -> Steps:
    """In every second step gradients are not reduced."""
    for index in range(8):
        with model.no_sync() if index % 2 else contextlib.nullcontext():  # type: ignore[operator]
            model(batch(index)[0]).square().sum().backward()
        yield grads(model)


def reduced_by_a_hook(model: nn.Module) -> Steps:
    def double(_, bucket):  # type: ignore[no-untyped-def]  # PyTorch wants its own types, or none
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(2 * bucket.buffer())
        return done

    model.register_comm_hook(None, double)  # type: ignore[operator]
    yield from plain(model)
    yield from plain(model)


def twice(model: nn.Module) -> Steps:
    for _ in range(2):
        yield from plain(model)


def one_head(model: nn.Module) -> Steps:
    """Parameters without a gradient are ready, too."""
    for index in range(6):
        model.zero_grad()
        model(batch(index)[0])[index % 2].square().sum().backward()
        yield grads(model)


VIEWS = {"gradient_as_bucket_view": True}


@pytest.mark.filterwarnings("ignore")  # of torch.distributed itself
@pytest.mark.parametrize(
    ("make", "loop", "how"),
    [
        (Net, twice, {}), (Net, twice, {"static_graph": True}), (Net, accumulation, VIEWS),
        (Net, reduced_by_a_hook, VIEWS), (lambda: TwoHeads(False), one_head, {"find_unused_parameters": True, **VIEWS}),
    ],
    ids=["plain", "static", "accumulated", "hook", "unused"],
)  # fmt: skip
def test_data_parallel(
    small_buckets: float, handled: list[bool], make: Callable[[], nn.Module], loop: Callable[[nn.Module], Steps],
    how: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(compiling, "_is_on_cuda", lambda model: True)  # there, one graph fills all buckets
    how, models = {"bucket_cap_mb": small_buckets, **how}, [make()]
    models.append(copy.deepcopy(models[0]))
    wrapped = [nn.parallel.DistributedDataParallel(model, **how) for model in models]
    genesis.torch.compile(wrapped[0].module)
    agree(outcome(loop, wrapped[0]), outcome(loop, wrapped[1]))
    assert handled.count(True) >= 3, handled
