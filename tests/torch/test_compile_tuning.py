"""Tuning beside compilation: the calls of graphs, the process that tunes them, and what is remembered."""

from __future__ import annotations

import copy
import importlib
import itertools
import logging
import math
import multiprocessing
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_leaves

import genesis.torch
from genesis.backends.cuda.driver.compile_processes import start_server
from genesis.backends.cuda.engine import builders, planner, platform
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.settings import override
from genesis.torch import capturing, compiling, opaque, tuning, tuning_server
from genesis.torch.capturing import Backend
from genesis.torch.graph_calls import Call, Operand, calls_of
from genesis.torch.recordings import Recordings
from genesis.torch.tuning import Tuning
from genesis.torch.tuning_messages import TUNED, Needed, Told, Tuned
from tests.torch.loops import Net, batch

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("without_vectors")]
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


@pytest.fixture(autouse=True)
def untuned() -> None:
    """Compiled models are tuned as they are elsewhere."""


class Listener:
    """In a Tuning's place: what a graph's compilation tells it, in order."""

    def __init__(self) -> None:
        self.told: list[list[Call]] = []
        self.finished: list[bool] = []  # whether each graph seemed to be the last
        self.is_closed = False

    def add(self, calls: Sequence[Call]) -> None:
        self.told.append(list(calls))

    def finish(self, is_last: bool) -> None:
        self.finished.append(is_last)

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
        assert listener.finished == [True]  # when the graph ran
        if training:
            y.sum().backward()
    return listener


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.parametrize("training", [True, False])
def test_compilation_tells_the_calls_of_a_graph_which_can_be_made_again(training: bool) -> None:
    """Compiled, and from the cache."""
    told = recorded(training).told
    both = ["conv_bn_relu", "conv_bn_relu_backward"]
    ops = [[call.op for call in calls] for calls in told]
    assert ops == ([both, *[[each] for each in both]] if training else [["conv_bn_relu_inference"]])
    if training:
        assert told[0] == told[1] + told[2]  # before Inductor is asked for either
        told = told[1:]
    assert recorded(training).told == told
    calls = [call for calls in told for call in calls]
    shapes = [tuple(batch(0)[0].shape), (4, 3, 3, 3), *[(4,)] * 5]
    assert [each.shape for each in operands(calls[0])] == shapes  # also statistics, which the op changes
    for call in calls:
        call.make()


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.parametrize("seconds", [0, 5])
def test_functions_are_tuned_by_their_graphs(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the current device, if none of the arguments lies on one: a step may have its model from elsewhere."""
    (listener,), hints = tuned_when_called(monkeypatch, tune=seconds)
    assert {call.op for calls in listener.told for call in calls} == {"conv_bn_relu", "conv_bn_relu_backward"}
    assert (listener.finished, listener.is_closed) == ([True], True)
    assert (hints == [None]) == (seconds == 0)  # whether a process starts before there is something to tune


@pytest.mark.parametrize("compiler", ["inductor", "eager"])
def test_deterministic_runs_measure_what_they_are_told_to(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [] if compiler == "inductor" else ["not tuned: a function needs compiler='inductor'"]
    with override(deterministic=True):
        assert not tuned_when_called(monkeypatch, compiler=compiler)[0]
        assert len(tuned_when_called(monkeypatch, notes, compiler=compiler, tune=5)[0]) == (compiler == "inductor")


def test_nothing_is_tuned_where_genesis_has_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch may have it all the same: GENESIS_CUDA=off."""
    assert not tuned_when_called(monkeypatch, has_cuda=False)[0]
    assert not tuned_when_called(monkeypatch, ["not tuned: Genesis has no CUDA"], has_cuda=False, tune=5)[0]


def tuned_when_called(
    monkeypatch: pytest.MonkeyPatch, notes: Sequence[str] = (), has_cuda: bool = True, **arguments: Any
) -> tuple[list[Listener], list[str | None]]:
    """What tuning is told of a compiled function, and its hints."""
    listeners: list[Listener] = []
    hints: list[str | None] = []

    def begin(seconds: float, recordings: Recordings, device: int | None, hint: str | None) -> Listener:
        assert (seconds, device) == (arguments.get("tune", 0), 1)
        hints.append(hint)
        listeners.append(Listener())
        return listeners[-1]

    monkeypatch.setattr(tuning, "Tuning", begin)
    monkeypatch.setattr(compiling, "is_available", lambda: has_cuda)
    monkeypatch.setattr(capturing, "start_compilers", lambda captures: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    step: Any = genesis.torch.compile(lambda x: model(x).sum(), mode="default", **arguments)
    step(batch(0)[0]).backward()
    assert step.report().notes == list(notes)
    return listeners, hints


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


# --- in the process ---------------------------------------------------------------------------------------------------
def told(*messages: Told) -> tuning_server._Graph:
    """A graph of which the parent tells this."""
    here, there = multiprocessing.Pipe()
    for message in messages:
        there.send(message)
    graph = tuning_server._Graph(here)  # type: ignore[arg-type]
    graph.parent = there  # type: ignore[attr-defined]  (else it is closed)
    return graph


def test_measuring_ends_when_the_graph_is_needed_and_there_was_the_time() -> None:
    now = time.monotonic()
    began = now - 10
    assert told().end(began) == math.inf
    assert now <= told(Needed(5.0)).end(began) <= time.monotonic()
    assert told(Needed(1000.0)).end(began) == began + 1000
    assert told([CHAIN]).end(began) == told([CHAIN], Needed(1000.0)).end(began) == began  # it begins anew


@pytest.mark.parametrize("seconds", [0, 60])
def test_all_problems_of_calls_are_tuned(seconds: float, cuda_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
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
    guessed: list[str] = []
    monkeypatch.setattr(planner, "build_guess", lambda plan: guessed.append(plan.problem.direction))
    tuned = tuning_server.tuned(told(calls[:1], calls[1:], Needed(seconds)))
    assert set(guessed) == {"forward", "input_grad", "weight_grad"}  # kernels that may be launched without a result
    assert (tuned.num_tuned, tuned.num_left) == ((3, 0) if seconds else (0, 3))
    assert set(tuned.problems) == set(platform.store(0).all())
    assert len(tuned.problems) == tuned.num_tuned


def test_the_process_takes_over_the_compilers_that_its_parent_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "_shared", None)
    server, sockets = start_server(1)
    assert not tuning_server._prepare(None, [each.detach() for each in sockets])
    assert (builders.compilers().number, server.poll()) == (1, None)
    builders.close()
    assert server.wait(10) == 0


def test_the_process_knows_all_ops() -> None:
    for module in pkgutil.iter_modules(genesis.torch.__path__, "genesis.torch."):
        importlib.import_module(module.name)
    script = "import genesis.torch.tuning_server; print(*sorted(genesis.torch.opaque._names))"
    known = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert known.split() == sorted(opaque._names)


# --- what is told to it -----------------------------------------------------------------------------------------------
class Fake:
    """In the process' place: finds what it is to find."""

    def __init__(self, *found: Tuned | Exception) -> None:
        self.told: list[list[Call]] = []
        self.seconds: list[float] = []
        self.num_begun = self.num_closed = 0
        self._found = list(found)

    def __call__(self, device: int | None) -> Fake:
        self.num_begun += 1
        return self

    def tell(self, calls: Sequence[Call]) -> None:
        self.told.append(list(calls))

    def result(self, seconds: float) -> Tuned:
        self.seconds.append(seconds)
        found = self._found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.num_closed += 1


OTHER = CHAIN._replace(args=(*CHAIN.args[:-1], None))


def begun(
    monkeypatch: pytest.MonkeyPatch, seconds: float, hint: str | None, *found: Tuned | Exception
) -> tuple[Tuning, Fake]:
    fake = Fake(*found)
    monkeypatch.setattr(tuning, "_Process", fake)
    return Tuning(seconds, Recordings("model"), None, hint), fake


def test_calls_are_told_once_and_remembered_by_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """First those of both halves of a graph, then those of each, as AOTAutograd's cache brings them another time."""
    beside, fake = begun(monkeypatch, 5.0, "model", Tuned(2, 0, []))
    for calls in ([CHAIN, OTHER], [CHAIN], [OTHER], []):
        beside.add(calls)
    beside.finish(is_last=True)
    assert (fake.told, fake.seconds, fake.num_begun, fake.num_closed) == ([[CHAIN, OTHER]], [5.0], 1, 1)
    beside.close()
    assert beside._recordings.notes == ["tuned 2 problems"]
    for hint in ("model", "another", None):
        again, fake = begun(monkeypatch, 5.0, hint)
        again.add([CHAIN])
        again.add([OTHER])
        again.finish(is_last=True)
        again.close()
        assert (fake.told, fake.num_begun) == ([], int(hint == "another"))
        assert again._recordings.notes == ["tuned before"]


def test_a_graph_that_ends_early_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    beside, fake = begun(monkeypatch, 8.0, "model", Tuned(1, 0, []), Tuned(1, 1, []))
    beside.add([CHAIN])
    beside.finish(is_last=False)
    assert fake.num_closed == 0
    beside.add([CHAIN, OTHER])
    beside.finish(is_last=True)
    assert fake.told == [[CHAIN], [OTHER]]
    assert fake.seconds == pytest.approx([4, 8], rel=0.1)  # nothing was waited for
    beside.close()
    assert beside._recordings.notes == ["tuned 2 problems; 1 had no time"]
    again, fake = begun(monkeypatch, 8.0, "model", Tuned(1, 0, []))
    again.add([CHAIN])
    again.add([CHAIN, OTHER])
    assert fake.told == [[CHAIN, OTHER]]  # the second list was not tuned to the end


def test_without_seconds_it_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no call is to wait, a second process measures nothing; one that has the seconds goes on."""
    beside, fake = begun(monkeypatch, 0, None, Tuned(1, 1, []))
    assert fake.num_begun == 0  # before there is something to tune
    beside.add([CHAIN])
    beside.finish(is_last=True)
    beside.close()
    assert beside._recordings.notes == ["tuned 1 problems; 1 had no time"]
    for seconds in (0, 5):
        again, fake = begun(monkeypatch, seconds, None)
        again.add([CHAIN])
        assert fake.num_begun == (seconds > 0)


def test_a_process_with_seconds_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes of the model have met what the first had no time for, and measured nothing."""
    for found, num_begun in (((Tuned(1, 1, []),), 1), ((), 0), ((), 0)):
        beside, fake = begun(monkeypatch, 0, "model", *found)
        beside.add([CHAIN])
        beside.finish(is_last=True)
        beside.close()
        assert fake.num_begun == num_begun
    _, fake = begun(monkeypatch, 5, "model")
    assert fake.num_begun == 1  # before it is told of calls


@pytest.mark.parametrize("seconds", [0, 5])
def test_where_the_process_cannot_tune_this_one_does_if_it_may_wait(
    seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beside, _ = begun(monkeypatch, seconds, "model", tuning._UnableError("there is no memory"))
    beside.add([CHAIN])
    beside.finish(is_last=True)
    beside.close()
    assert [note.split()[0] for note in beside._recordings.notes] == (["tuned"] if seconds else [])
    assert ("there is no memory" in caplog.text) == (seconds > 0)  # else it is not worth a warning
    again, fake = begun(monkeypatch, seconds, "model")
    again.add([CHAIN])
    assert fake.num_begun == 0  # a GPU may be for one process at a time, and each would wait for the answer


def test_what_it_waited_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    beside, _ = begun(monkeypatch, 5.0, None, Tuned(3, 2, []))
    clock = iter([0.0, 1.5])
    monkeypatch.setattr(tuning.time, "monotonic", lambda: next(clock))
    beside.add([CHAIN])
    beside.finish(is_last=True)
    beside.close()
    assert beside._recordings.notes == ["tuned 3 problems; the first call waited 1.5 s for it; 2 had no time"]
    assert beside._left == 3.5


# --- the process ------------------------------------------------------------------------------------------------------
def tuned_by(calls: Sequence[Call]) -> list[str]:
    """The notes of a Tuning that has had a graph with these calls."""
    recordings = Recordings("model")
    beside = Tuning(5.0, recordings, None, "model")
    beside.add(calls)
    beside.finish(is_last=True)
    beside.close()
    return recordings.notes


def test_a_process_tunes_and_the_next_time_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = tuned_by([CHAIN, OTHER])
    assert note.startswith("tuned 0 problems")  # of CUDA's
    monkeypatch.setattr(tuning, "_Process", None)
    assert tuned_by([CHAIN, OTHER]) == ["tuned before"]
    with pytest.raises(TypeError):  # a model that looks alike, with other calls
        tuned_by([OTHER])


def test_a_process_that_dies_is_told_of(cache: Path) -> None:
    recordings = Recordings("model")
    beside = Tuning(5.0, recordings, None, "model")
    assert beside._process is not None
    os.kill(beside._process._process.pid, signal.SIGKILL)
    beside.add([CHAIN])
    beside.finish(is_last=True)
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
    there.send((TUNED, Tuned(1, 0, [])))
    process = object.__new__(tuning._Process)
    process._connection, process._messages = here, SimpleQueue()
    with caplog.at_level(logging.INFO, "genesis.tuning"):
        assert process.result(5.0) == Tuned(1, 0, [])
    assert process._messages.get() == Needed(5.0)
    assert [record.getMessage() for record in caplog.records] == ["half of it"]


def test_a_process_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = multiprocessing.Pipe()
    process = object.__new__(tuning._Process)
    process._connection, process._messages = here, SimpleQueue()
    monkeypatch.setattr(tuning, "_LONGEST", 0.01)
    with pytest.raises(TimeoutError, match=r"the process that tunes did not answer for 0.01 s"):
        process.result(0.0)
    there.close()
    beside, fake = begun(monkeypatch, 0.0, "model", TimeoutError("it did not answer"))
    beside.add([CHAIN])
    beside.finish(is_last=False)
    assert fake.num_closed == 1  # what it says later would be taken for the next graph's
    beside.close()
    assert beside._recordings.notes == ["not tuned: TimeoutError: it did not answer"]


def test_what_is_remembered_is_of_a_device_and_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be that of several machines."""
    digests = set()
    for name in ("NVIDIA H100", "NVIDIA H200"):
        monkeypatch.setattr(tuning, "_platform", lambda device, name=name: name)
        digests.add(Tuning(0.0, Recordings("model"), 0, None)._digest(["calls"]))
    assert len(digests) == 2


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
    beside.add([CHAIN])
    beside.finish(is_last=True)
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


@pytest.mark.gpu
@pytest.mark.parametrize("seconds", [0, 60])
def test_tuning_leaves_the_model_as_it_is(seconds: float) -> None:
    torch._dynamo.reset()
    model = genesis.torch.compile(Net().cuda(), tune=seconds)
    before = copy.deepcopy(model.state_dict())
    model.eval()
    with torch.no_grad():
        model(batch(0)[0].cuda())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    (note,) = genesis.torch.report(model).notes
    assert note.startswith("tuned ")
    assert seconds == 0 or not note.startswith("tuned 0 ")
