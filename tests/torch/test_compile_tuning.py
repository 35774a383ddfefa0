"""Tuning beside compilation: the calls of graphs, the process that tunes them, and what is remembered."""

from __future__ import annotations

import importlib
import itertools
import logging
import multiprocessing
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_leaves

import genesis.torch
from genesis.backends.cuda.engine import planner, platform
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.settings import override
from genesis.torch import captured_graphs, opaque, tuning, tuning_server
from genesis.torch.captured_graphs import Compilation, GraphFacts
from genesis.torch.capturing import Backend, Waiting
from genesis.torch.graph_calls import Call, Operand, calls_of
from genesis.torch.recordings import Recording, Recordings
from genesis.torch.step_plans import Steps
from genesis.torch.tuning import Tuning
from genesis.torch.tuning_messages import TUNED, Tuned
from genesis.torch.unused_outputs import NOTHING, UnusedOutputs
from tests.torch.loops import batch

pytestmark = pytest.mark.filterwarnings("ignore")
X = Operand((2, 8, 6, 6), (288, 1, 48, 8), torch.float32, "cpu", 0)
W = Operand((4, 8, 3, 3), (72, 1, 24, 8), torch.float32, "cpu", 0)
C = Operand((4,), (1,), torch.float32, "cpu", 0)
GEOMETRY = ([1, 1], [0, 0], [1, 1], 1, "relu")
CHAIN = Call("conv_bn_relu", (X, W, None, C, C, C, C, None, True, 0.1, 1e-5, *GEOMETRY))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with override(cache_dir=tmp_path / "genesis"):
        yield tmp_path / "genesis"


class Listener:
    """In a Tuning's place: what a graph's compilation tells it, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[list[Call], float]] = []
        self.num_finished = 0
        self.is_closed = False

    def add(self, calls: Sequence[Call], share: float) -> None:
        self.told.append((list(calls), share))

    def finish(self) -> None:
        self.num_finished += 1

    def close(self) -> None:
        self.is_closed = True


def operands(call: Call) -> list[Operand]:
    return [x for x in tree_leaves(call.args, is_leaf=lambda x: isinstance(x, Operand)) if isinstance(x, Operand)]


def recorded(training: bool) -> Listener:
    """The calls of a chain, compiled from the beginning."""
    listener = Listener()
    torch._dynamo.reset()
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
    model = nn.Sequential(*layers).train(training)
    backend = Backend(Recordings("model"), "inductor", "default", {}, listener)  # type: ignore[arg-type]
    with torch.set_grad_enabled(training):
        y = torch.compile(model, backend=backend, dynamic=False)(batch(0)[0])
        assert listener.num_finished == 1  # when the graph ran
        if training:
            y.sum().backward()
    return listener


@pytest.mark.usefixtures("without_vectors")
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.parametrize("training", [True, False])
def test_compilation_tells_the_calls_of_a_graph_which_can_be_made_again(training: bool) -> None:
    """Compiled, and from the cache."""
    listener = recorded(training)
    assert [share for _, share in listener.told] == ([1 / 3, 1] if training else [1])
    ops = [[call.op for call in calls] for calls, _ in listener.told]
    assert ops == ([["conv_bn_relu"], ["conv_bn_relu_backward"]] if training else [["conv_bn_relu_inference"]])
    assert recorded(training).told == listener.told
    calls = [call for calls, _ in listener.told for call in calls]
    shapes = [tuple(batch(0)[0].shape), (4, 3, 3, 3), *[(4,)] * 5]
    assert [each.shape for each in operands(calls[0])] == shapes  # also statistics, which the op changes
    for call in calls:
        call.make()


def test_a_graph_that_ends_early_leaves_time_for_the_next() -> None:
    listener = Listener()
    recording = Recording(True, "a call of print", "model.py:3")
    compilation = Compilation(recording, Waiting(), Steps(Waiting(), UnusedOutputs()), UnusedOutputs(), listener)  # type: ignore[arg-type]
    for mode in ("forward", "backward", "inference"):
        captured_graphs._hand_on(GraphFacts(mode, [], [], False, NOTHING, None, [CHAIN]), compilation)
    left = 1.0
    for _, share in listener.told[:2]:
        left -= share * left
    assert left == pytest.approx(0.5)
    assert [round(share, 3) for _, share in listener.told] == [0.167, 0.4, 0.5]


@pytest.mark.usefixtures("without_vectors")
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.parametrize("compiler", ["inductor", "eager"])
def test_functions_are_tuned_by_their_graphs(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the current device, if none of the arguments lies on one: a step may have its model from elsewhere."""
    listeners: list[Listener] = []

    def begin(budget: float, recordings: Recordings, device: int | None, hint: str) -> Listener:
        assert (budget, device) == (5, 1)
        listeners.append(Listener())
        return listeners[-1]

    monkeypatch.setattr(tuning, "Tuning", begin)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    step: Any = genesis.torch.compile(lambda x: model(x).sum(), tune=5, compiler=compiler, mode="default")
    step(batch(0)[0]).backward()
    if compiler == "inductor":
        assert [[call.op for call in calls] for calls, _ in listeners[0].told] == [
            ["conv_bn_relu"], ["conv_bn_relu_backward"]
        ]  # fmt: skip
        assert (listeners[0].num_finished, listeners[0].is_closed) == (1, True)
    else:
        assert not listeners
        assert step.report().notes == ["not tuned: a function needs compiler='inductor'"]


def test_an_operand_lies_as_the_tensor_did() -> None:
    x = torch.zeros(64)[3:35].reshape(4, 8).T
    y = Operand.of(x).zeros()
    assert (y.shape, y.stride(), y.storage_offset() % 4) == (x.shape, x.stride(), 3)
    assert Operand.of(torch.zeros(0, 3)).zeros().shape == (0, 3)


def test_calls_of_unknown_sizes_are_left_out() -> None:
    """What may change is what it is in the first call; what depends on values is nothing yet."""
    graph, sizes = torch.fx.Graph(), ShapeEnv()
    may_change = sizes.create_symintnode(
        sizes.create_symbol(7, ConstantSource("number"), DimDynamic.DYNAMIC), hint=7, source=ConstantSource("number")
    )
    with torch._subclasses.FakeTensorMode(shape_env=sizes):
        for number in (2, may_change, sizes.create_unbacked_symint()):
            x = graph.placeholder("x")
            x.meta["val"] = torch.empty((number, 3))
            graph.call_function(torch.ops.genesis.cast.default, ([x], torch.bfloat16))
    assert [operand.shape for call in calls_of(graph) for operand in operands(call)] == [(2, 3), (7, 3)]


def test_all_problems_of_calls_are_tuned(cuda_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the CUDA backend, whose device is simulated."""
    in_turns = CONV.in_turns
    monkeypatch.setattr(CONV, "in_turns", lambda problem: itertools.islice(in_turns(problem), 1))
    x, w = (each._replace(dtype=torch.bfloat16) for each in (X, W))
    kept = Operand((2, 4, 4, 4), (64, 1, 16, 4), torch.bfloat16, "cpu", 0)
    backward = (kept, x, w, None, C, C, C, C, kept, kept, True, *GEOMETRY, [True, True, False, True, True, False])
    calls = [
        Call("conv_bn_relu", (x, w, None, C, C, C, C, None, *CHAIN.args[8:])),
        Call("conv_bn_relu_backward", backward),
    ]
    tuned = tuning_server.tune(calls, 60)
    assert (tuned.num_tuned, tuned.num_left) == (3, 0)
    assert set(tuned.problems) == set(platform.store(0).all())


def test_the_process_knows_all_ops() -> None:
    for module in pkgutil.iter_modules(genesis.torch.__path__, "genesis.torch."):
        importlib.import_module(module.name)
    script = "import genesis.torch.tuning_server; print(*sorted(genesis.torch.opaque._names))"
    known = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert known.split() == sorted(opaque._names)


# --- the process ------------------------------------------------------------------------------------------------------
def tuned_by(calls: Sequence[Call], hint: str = "model") -> list[str]:
    """The notes of a Tuning that has had a graph with these calls."""
    recordings = Recordings("model")
    beside = Tuning(5.0, recordings, None, hint)
    beside.add(calls[:1], 1 / 3)
    beside.add(calls[1:], 1)
    beside.finish()
    beside.close()
    return recordings.notes


def test_a_process_tunes_and_the_next_time_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (note,) = tuned_by([CHAIN, CHAIN])
    assert note.startswith("tuned ")
    assert note.endswith(" problems in 5 s; 0 had no time")
    monkeypatch.setattr(tuning, "_Process", None)
    assert tuned_by([CHAIN, CHAIN]) == ["tuned before"]
    with pytest.raises(TypeError):  # a model that looks alike, with other calls
        tuned_by([CHAIN, CHAIN._replace(args=(*CHAIN.args[:-1], None))])
    monkeypatch.setattr(tuning, "_Process", lambda device: None)
    assert tuned_by([CHAIN, CHAIN], "another model") == ["tuned before"]


def test_a_process_that_dies_is_told_of(cache: Path) -> None:
    recordings = Recordings("model")
    beside = Tuning(5.0, recordings, None, "model")
    assert beside._process is not None
    os.kill(beside._process._process.pid, signal.SIGKILL)
    beside.add([CHAIN], 1)
    beside.finish()
    beside.close()
    assert recordings.notes == ["not tuned: RuntimeError: the process that tunes has ended with exit code -9"]
    assert not (cache / "tuned").exists()


def test_what_the_process_logs_is_logged_here(caplog: pytest.LogCaptureFixture) -> None:
    here, there = multiprocessing.Pipe()
    logger = logging.getLogger("genesis.tuning")
    propagate, level, handlers = logger.propagate, logger.level, list(logger.handlers)
    try:
        tuning_server._relay_to(there)
        logger.info("half of %s", "it")
    finally:
        logger.propagate, logger.handlers = propagate, handlers
        logger.setLevel(level)
    there.send((TUNED, Tuned(1, 0, 0.5, [])))
    process = object.__new__(tuning._Process)
    process._connection = here
    with caplog.at_level(logging.INFO, "genesis.tuning"):
        assert process.result() == Tuned(1, 0, 0.5, [])
    assert [record.getMessage() for record in caplog.records] == ["half of it"]


def test_what_fails_there_is_tried_here(cache: Path) -> None:
    (note,) = tuned_by([Call("no_such_op", ())])
    assert note.startswith("not tuned: AttributeError: ")
    assert "no_such_op" in note
    assert not (cache / "tuned").exists()


def test_where_its_device_is_not_to_be_had_this_process_tunes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recordings = Recordings("model")
    monkeypatch.setattr(tuning, "_setting", lambda device, setting=tuning._setting: setting(99))
    beside = Tuning(5.0, recordings, None, "model")
    beside.add([CHAIN], 1)
    beside.finish()
    beside.close()
    assert recordings.notes[0].startswith("tuned ")
    assert "tuning in a process of its own: " in caplog.text


def test_where_no_process_can_be_started_this_one_tunes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "")
    (note,) = tuned_by([CHAIN])
    assert note.startswith("tuned ")


def test_guesses_are_forgotten_for_what_another_process_has_tuned(cuda_kernels: None) -> None:
    CHAIN.make()
    assert {plan.origin for plan in planner.all_plans()} == {planner.HEURISTIC}
    planner.forget_guesses()
    assert not planner.all_plans()
