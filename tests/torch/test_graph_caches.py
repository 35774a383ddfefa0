"""Compiled graphs that come from PyTorch's caches, in this process and in another."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.autograd_cache import check_cacheable

import genesis.torch
from genesis.settings import override
from genesis.torch import captured_graphs, capturing, dynamo, graph_caches
from tests.torch.loops import Net, agree, batch, outcome, plain

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_vectors"),
]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Options with which graphs are taken for captured ones; they run as Inductor has compiled them."""
    monkeypatch.setattr(captured_graphs, "is_captured", lambda how: True)
    monkeypatch.setattr(captured_graphs, "_open_handles", lambda: None)
    return {"triton.cudagraphs": True}


def counted(run: Callable[[], object]) -> dict[str, int]:
    """How often AOTAutograd's cache was hit and missed, compiling from the beginning."""
    torch._dynamo.reset()
    counters["aot_autograd"].clear()
    run()
    found = counters["aot_autograd"]
    numbers = {name: found[f"autograd_cache_{name}"] for name in ("hit", "miss", "bypass")}
    return {name: number for name, number in numbers.items() if number}


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


@torch.no_grad()
def infer() -> Tensor:
    return genesis.torch.compile(chain())(batch(0)[0])


_SCRIPT = """
import copy, json, torch, genesis.torch
from torch._dynamo.utils import counters
from tests.torch.loops import Net, plain
model = genesis.torch.compile(Net())
losses = [float(x) for x in plain(model)]
(graph,) = genesis.torch.report(model).graphs
found = counters["aot_autograd"]
print(json.dumps([losses, found["autograd_cache_hit"], found["autograd_cache_miss"], graph.cached, str(graph)]))
"""


def test_another_process_compiles_nothing() -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    environment["TORCHINDUCTOR_VEC_ISA_OK"] = "0"  # to find what the compiler can, it compiles for ten seconds

    def process() -> Any:
        command = [sys.executable, "-c", _SCRIPT]
        result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
        return json.loads(result.stdout.splitlines()[-1])

    expected = [float(x) for x in plain(Net())]
    first, second = process(), process()
    assert first[1:4] == [0, 1, False]
    assert second[1:4] == [1, 0, True]
    assert "from the cache" in second[4]
    assert "from the cache" not in first[4]
    assert first[0] == second[0] == pytest.approx(expected, rel=1e-5)


def test_captured_graphs_come_back_with_their_copies(
    monkeypatch: pytest.MonkeyPatch, captures: dict[str, object]
) -> None:
    """Gradients and results are copied as at first; AOTAutograd's metadata are there."""
    model, expected = Net(), outcome(plain, Net())
    copied: list[list[int]] = []
    known: list[tuple[bool, bool, int]] = []
    copy_results, captured = captured_graphs._copy, captured_graphs.Steps.captured

    def copies(results: list[object], leaving: list[int]) -> None:
        copied.append(leaving)
        before = list(results)
        copy_results(results, leaving)
        assert all(results[index] is not before[index] for index in leaving)

    def capture(self: Any, capturable: bool, metadata: Any, compiled: object, is_backward: bool) -> None:
        known.append((capturable, is_backward, -1 if metadata is None else len(metadata.output_info)))
        captured(self, capturable, metadata, compiled, is_backward)

    monkeypatch.setattr(captured_graphs, "_copy", copies)
    monkeypatch.setattr(captured_graphs.Steps, "captured", capture)
    seen = []
    for count in ({"miss": 1}, {"hit": 1}):
        compiled = genesis.torch.compile(copy.deepcopy(model), options=captures)

        def train(compiled: nn.Module = compiled) -> None:
            agree(outcome(plain, compiled), expected)

        assert counted(train) == count
        (graph,) = genesis.torch.report(compiled).graphs
        assert (graph.captured, graph.obstacle, graph.cached) == (True, "", count == {"hit": 1})
        seen.append((copied.copy(), sorted(known)))
        copied.clear()
        known.clear()
    assert seen[0] == seen[1]
    assert [each[1:] for each in seen[0][1]] == [(False, 1), (True, -1)]
    assert {len(leaving) for leaving in seen[0][0]} == {1, len(list(model.parameters()))}


def test_a_captured_graph_is_of_no_use_to_others(captures: dict[str, object]) -> None:
    graph = captured_graphs.CapturedGraph.__new__(captured_graphs.CapturedGraph)
    graph.__dict__["compiled_fn_runner"] = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured_graphs.CompiledFxGraph, "post_compile", lambda *_: None)
        with pytest.raises(RuntimeError, match=r"compiled by genesis\.torch\.compile"):
            graph.post_compile([], None, captures)


def _version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(genesis, "__version__", "0.0.0")


def _sources(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph_caches, "_sources", lambda: "others")


def _vectors(patch: pytest.MonkeyPatch) -> None:
    """Loops over more numbers at a time would run with instructions for fewer, beyond the ends of arrays."""
    patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "of another processor")


@pytest.mark.parametrize("change", [_version, _sources, _vectors], ids=["version", "sources", "processor"])
def test_another_genesis_or_processor_compiles_anew(change: Callable[[pytest.MonkeyPatch], None]) -> None:
    assert counted(infer) == {"miss": 1}
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        assert counted(infer) == {"miss": 1}
    assert counted(infer) == {"hit": 1}


SETTINGS = [override(deterministic=True), override(check="nan"), override(cuda="off"), override(workspace=1)]


@pytest.mark.parametrize("changed", SETTINGS, ids=["deterministic", "check", "cuda", "workspace"])
def test_another_setting_compiles_anew(changed: AbstractContextManager[object]) -> None:
    assert counted(infer) == {"miss": 1}
    with changed:
        assert counted(infer) == {"miss": 1}


def test_settings_that_change_no_graph() -> None:
    assert counted(infer) == {"miss": 1}
    with override(debug=1, tune=1.0, compilers=0):
        assert counted(infer) == {"hit": 1}


def test_results_of_a_graph_that_comes_back() -> None:
    """Each of several models whose graphs are the same has its own parameters."""
    x = batch(0)[0]
    for seed in range(3):
        model = chain()
        with torch.no_grad():
            for each in model.parameters():
                each.add_(seed)
            expected = model(x)
            compiled = genesis.torch.compile(copy.deepcopy(model))
            torch.testing.assert_close(compiled(x), expected)
        assert genesis.torch.report(compiled).graphs[0].cached is (seed > 0)


class MakesOnes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.T).unsqueeze(0) * torch.ones(3, 1, 1)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: list[Callable[[], AbstractContextManager[object]]] = [
    contextlib.nullcontext,
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.autocast("cpu", torch.float16),
    lambda: default_dtype(torch.float64),
]


@pytest.mark.parametrize("compiled_by", [genesis.torch.compile, lambda f: torch.compile(f, backend=dynamo.genesis)])
def test_modes_in_which_a_graph_is_traced(compiled_by: Callable[[nn.Module], nn.Module]) -> None:
    """The graph of Dynamo's is the same in all of them, and so are some of PyTorch's keys."""
    x = torch.ones(2, 2, dtype=torch.float32)

    @torch.no_grad()
    def run(mode: Callable[[], AbstractContextManager[object]]) -> None:
        with mode():
            result, expected = compiled_by(MakesOnes())(x), MakesOnes()(x)
        torch.testing.assert_close(result, expected)

    assert [counted(functools.partial(run, mode)) for mode in MODES] == [{"miss": 1}] * len(MODES)
    assert [counted(functools.partial(run, mode)) for mode in MODES] == [{"hit": 1}] * len(MODES)


def test_training_and_inference_are_different_graphs() -> None:
    def train() -> None:
        genesis.torch.compile(chain())(batch(0)[0]).sum().backward()

    assert [counted(infer), counted(train), counted(infer), counted(train)] == [
        {"miss": 1}, {"miss": 1}, {"hit": 1}, {"hit": 1},
    ]  # fmt: skip


def test_the_backend_by_itself() -> None:
    """torch.compile(model, backend="genesis") has the same keys."""

    @torch.no_grad()
    def run() -> None:
        torch.compile(chain(), backend=dynamo.genesis)(batch(0)[0])

    assert [counted(run), counted(run)] == [{"miss": 1}, {"hit": 1}]
    with pytest.MonkeyPatch.context() as patch:
        _version(patch)
        assert counted(run) == {"miss": 1}


def test_functions_that_the_user_has_marked_stay() -> None:
    marked: Any = graph_caches.key({"unsafe_marked_cacheable_functions": {"mine": "1"}})
    assert marked["unsafe_marked_cacheable_functions"]["mine"] == "1"


# --- what cannot be kept ---
def _graph() -> fx.GraphModule:
    return fx.symbolic_trace(nn.Identity())


def test_graphs_with_symbols_are_left_to_inductors_cache() -> None:
    symbol = torch.SymInt.__new__(torch.SymInt)
    captured = {"triton.cudagraphs": True}
    config = torch._functorch.config
    with graph_caches.keeping(_graph(), [torch.ones(1)], captured):
        assert (config.bundled_autograd_cache, config.enable_autograd_cache) == (True, True)
    with graph_caches.keeping(_graph(), [symbol], captured):
        assert (config.bundled_autograd_cache, config.enable_autograd_cache) == (False, False)
    with config.patch(enable_autograd_cache=False), graph_caches.keeping(_graph(), [torch.ones(1)], captured):
        assert (config.bundled_autograd_cache, config.enable_autograd_cache) == (False, False)


@pytest.mark.parametrize("function", [counted, torch.Tensor.add], ids=["unknown", "a method"])
def test_graphs_that_aot_autograd_refuses(function: Any, captures: dict[str, object]) -> None:
    graph = _graph()
    with graph.graph.inserting_before(None):
        graph.graph.call_function(function, (None,))
    with graph_caches.keeping(graph, [torch.ones(1)], captures):
        assert not torch._functorch.config.enable_autograd_cache


class Branches(nn.Module):
    """Chains in each form in which they are fused, on images in either order of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.bare = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.groups = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x)) + x
        x = self.groups(torch.relu(self.bare(x) * self.scale.detach() + x))
        return nn.functional.max_pool2d(x, 2)


@pytest.mark.usefixtures("activates")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("in_training", [False, True])
def test_aot_autograd_takes_what_genesis_writes(dtype: torch.dtype, memory_format: Any, in_training: bool) -> None:
    fused = []

    def backend(graph: fx.GraphModule, _: object) -> Callable[..., object]:
        fused.append(dynamo.fuse_graph(graph))
        check_cacheable(graph)
        return graph.forward

    torch._dynamo.reset()
    model = Branches().train(in_training)
    step = torch.compile(model, backend=backend)
    with torch.set_grad_enabled(in_training), torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        step(torch.ones(2, 3, 8, 8).to(memory_format=memory_format))
    assert len(fused[0].fused) == (3 if dtype is torch.float32 else 2)


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def test_tritons_files_are_hashed_once() -> None:
    """Inductor's key finds what the thread has hashed."""
    compat = pytest.importorskip("torch._inductor.runtime.triton_compat")
    thread = capturing.hash_triton()
    if not compat.HAS_TRITON:
        assert thread is None
        return
    assert thread is not None
    thread.join(60)
    hits = compat.triton_key.cache_info().hits
    compat.triton_key()
    assert compat.triton_key.cache_info().hits == hits + 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_processor_is_asked_once(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread, beside which Dynamo traces; what it fails at, Inductor asks again, and reports."""
    cpu_vec_isa = pytest.importorskip("torch._inductor.cpu_vec_isa")
    calls = []

    def valid_vec_isa_list() -> list[object]:
        calls.append(threading.current_thread())
        if fails:
            raise RuntimeError("no compiler")
        return []

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", valid_vec_isa_list)
    monkeypatch.setattr(capturing, "_probe", None)
    thread = capturing.probe_processor()
    assert thread is capturing.probe_processor()
    assert thread is not None
    thread.join(60)
    assert calls == [thread]
