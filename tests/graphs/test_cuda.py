"""genesis.compile on CUDA: replays of CUDA graphs do what the eager calls do, bit for bit."""

from __future__ import annotations

import concurrent.futures
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import genesis
import genesis.nn.functional as F
from genesis import Tensor, nn, optim
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import memory
from tests.cuda.capturing import reserved
from tests.graphs import fuzz_cuda
from tests.graphs.fuzz_cuda import Case, history, is_same
from tests.graphs.fuzz_cuda_changes import CHANGES
from tests.graphs.fuzz_cuda_loop import OPTIMIZERS, STEPS, Loop, flat
from tests.graphs.steps import as_genesis

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    with genesis.settings.override(deterministic=True):
        yield


def assert_alike(case: Case, num_replays: int) -> None:
    expected, _ = history(case, False)
    found, replayed = history(case, True)
    for mine, theirs in zip(found, expected, strict=True):
        assert len(mine) == len(theirs)
        assert all(map(is_same, mine, theirs))
    assert replayed == num_replays


@pytest.mark.parametrize(
    ("step", "optimizer"),
    [
        ("descend", "momentum"),
        ("clip", "AdamW"),
        ("accumulate", "SGD"),
        ("accumulate_in_place", "amsgrad"),
        ("scaled", "AdamW"),
    ],
)
def test_bit_for_bit(step: str, optimizer: str) -> None:
    assert_alike(Case("mlp", optimizer, step, ("", "", "learning_rate", "")), 6)


@pytest.mark.parametrize(
    ("change", "num_replays"),
    [
        ("weight_decay", 4),
        ("held_gradients", 4),
        ("another_stream", 4),
        ("frozen", 2),
        ("other_alignment", 2),
        ("no_momentum", 2),
        ("replaced_state", 2),
        ("replaced_array_of_state", 2),
        ("past_setattr", 2),
        ("other_order", 2),
        ("grown", 2),
        ("a_hook", 2),
    ],
)  # fmt: skip
def test_a_change_between_steps(change: str, num_replays: int) -> None:
    """After two replays, so that the guards are one function; and two steps later, if it is recorded anew."""
    assert_alike(Case("mlp", "momentum", "descend", ("", "", change, "")), num_replays + 2)


@pytest.mark.parametrize("change", ["replaced_state", "replaced_array_of_state"])
def test_a_change_of_states_with_other_entries(change: str) -> None:
    """Adafactor's of matrices are rows and columns, those of biases are not."""
    assert_alike(Case("mlp", "Adafactor", "descend", ("", "", change, "")), 4)


@pytest.mark.parametrize("optimizer", [optim.RMSprop, optim.Rprop])
def test_optimizers_whose_formula_has_no_count(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device counts; options are constants of the recording."""
    monkeypatch.setitem(OPTIMIZERS, "it", lambda params: optimizer(params, lr=0.01))
    assert_alike(Case("mlp", "it", "descend", ("", "frozen", "", "", "")), 5)


def test_a_learning_rate_that_is_a_tensor() -> None:
    taken = []
    for is_compiled in (False, True):
        loop = Loop("mlp", "momentum", "descend", is_compiled)
        rate = loop.optimizer.param_groups[0]["lr"] = genesis.tensor(0.1)
        taken.append([])
        for _ in range(5):
            taken[-1] += loop.take()
            rate.mul_(0.5)
    assert all(map(is_same, *taken))
    assert loop.step.num_replays == 3


def test_parameters_that_are_frozen_are_no_longer_counted() -> None:
    """Adam's count lies on the device after a capture, for all parameters at first."""
    assert_alike(Case("mlp", "AdamW", "descend", ("frozen", "", "", "another_group", "", "")), 4)


@pytest.mark.parametrize("seed", [5, 44])
def test_random_loops(seed: int) -> None:
    assert fuzz_cuda.check(seed).wrong == ""


def test_every_change_and_step_is_drawn() -> None:
    cases = [fuzz_cuda.drawn(seed) for seed in range(300)]
    assert {change for case in cases for change in case.changes} == {*CHANGES, ""}
    assert {case.step for case in cases} == set(STEPS)


# --- results and gradients --------------------------------------------------------------------------------------------
class Shows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(genesis.ones(3))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        product = x * y * self.weight
        return product, product[1:].T, {"row": x[0], "x": x, "more": [product.view(-1), None, 3, y.view(2, -1)]}


def leaves(result: Any) -> list[Any]:
    return flat(result)


def test_results_show_what_eager_ones_show() -> None:
    module = Shows().to("cuda").eval()
    compiled, held = genesis.compile(module), []
    with genesis.no_grad():
        for _ in range(5):
            x, y = genesis.randn(4, 3, device="cuda"), genesis.randn(4, 3, device="cuda")
            mine, theirs = compiled(x, y), module(x, y)
            assert mine[2]["x"] is x
            mine[0].add_(1)  # what shows it changes with it
            theirs[0].add_(1)
            x.mul_(2)
            held.append((mine, theirs))
    for mine, theirs in held:
        assert all(map(is_same, leaves(list(mine)), leaves(list(theirs))))
    assert compiled.num_replays == 3


def test_inference_reads_weights_where_they_lie() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).to("cuda").eval()
    compiled, x = genesis.compile(module), genesis.randn(2, 1, 4, 4, device="cuda")
    with genesis.no_grad():
        for _ in range(5):
            assert compiled(x).tolist() == module(x).tolist()
            module[0].weight.mul_(0.5)
            module[1].running_mean.add_(0.1)
    assert compiled.num_replays == 3
    assert compiled.report().changes == {}


def test_a_gradient_that_nobody_holds_is_made_where_it_was() -> None:
    loop = Loop("mlp", "SGD", "descend", True)
    for _ in range(3):
        loop.take()
    grads = [param.grad.data_ptr() for param in loop.model.parameters()]
    loop.take()
    assert [param.grad.data_ptr() for param in loop.model.parameters()] == grads
    held = loop.model[0].bias.grad.detach()
    values = held.tolist()
    loop.held.append(held)
    loop.take()
    assert held.data_ptr() not in [param.grad.data_ptr() for param in loop.model.parameters()]
    assert held.tolist() == values


def test_argument_that_shows_a_parameter() -> None:
    """Its copy would not change with the parameter."""
    weight = nn.Parameter(genesis.ones(3, device="cuda"))
    optimizer = optim.SGD([weight], lr=0.5)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()
        return x * 1

    compiled = genesis.compile(step)
    for _ in range(3):
        compiled(genesis.zeros(3, device="cuda"))
    assert compiled(weight.detach()).tolist() == weight.tolist()
    assert compiled.num_replays == 1


# --- memory, streams, threads -----------------------------------------------------------------------------------------
def test_recordings_share_the_memory_in_between() -> None:
    model = nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(3)]).to("cuda").eval()
    compiled = genesis.compile(model)
    with genesis.no_grad():
        shared = []
        for batch in (16, 15, 14):
            for _ in range(3):
                x = genesis.randn(batch, 128, device="cuda")
                assert compiled(x).tolist() == model(x).tolist()
            shared.append(compiled.report().num_shared_bytes)
    assert shared[0] > 0
    assert shared == [shared[0]] * 3
    report = compiled.report()
    assert [each.signature for each in report.recordings] == [f"float32 ({batch}, 128)" for batch in (16, 15, 14)]
    assert report.recordings[0].num_bytes == 2 * 16 * 128 * 4
    assert "3 recordings" in str(report)
    assert all(each.host_seconds and each.device_seconds is not None for each in report.recordings)


def test_memory_is_given_back() -> None:
    model = nn.Linear(64, 64).to("cuda").eval()
    x = genesis.randn(512, 64, device="cuda")
    with genesis.no_grad():
        model(x)
        gc.collect()  # what the tests before have left
        before = genesis.cuda.memory_allocated()
        compiled = genesis.compile(model)
        for _ in range(3):
            compiled(x)
        assert genesis.cuda.memory_allocated() > before
        del compiled
        assert genesis.cuda.memory_allocated() == before


def result_of(compiled: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    try:
        return compiled(x).tolist()
    except genesis.errors.OutOfMemoryError:  # eagerly too
        return None


@pytest.mark.parametrize("room", [0, 256 << 10])  # for nothing; for the graph, but not for a result beside it
def test_out_of_memory(room: int) -> None:
    model = nn.ReLU().eval()
    compiled, x = genesis.compile(model), genesis.randn(128, 256, device="cuda")
    with genesis.no_grad():
        for _ in range(2):
            compiled(x)
        pool = memory.pool(0)
        pool.limit = reserved() + room
        try:
            with pytest.warns(RuntimeWarning, match="runs eagerly: it .*out of memory") as warned:
                found = result_of(compiled, x)
            assert found == (x.relu().tolist() if room else None)
        finally:
            pool.limit = None
        assert compiled(x).tolist() == x.relu().tolist()
    assert len(warned) == 1
    assert compiled.num_recordings == 0


def test_streams_and_threads() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to("cuda").eval()
    compiled = genesis.compile(model)

    def on_a_stream(seed: int) -> bool:
        stream = genesis.cuda.Stream()
        stream.wait_stream(genesis.cuda.default_stream())
        with genesis.no_grad(), genesis.cuda.stream(stream):
            for value in range(6):
                x = genesis.full((4, 8), float(seed * 10 + value), device="cuda")
                if compiled(x).tolist() != model(x).tolist():
                    return False
        return True

    with genesis.no_grad():
        for _ in range(3):
            compiled(genesis.ones(4, 8, device="cuda"))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert all(pool.map(on_a_stream, range(3)))
    assert compiled.num_replays == 1 + 18


def test_in_a_capture_by_hand() -> None:
    compiled = genesis.compile(lambda x: x * 2)
    x = genesis.ones(3, device="cuda")
    for _ in range(3):
        compiled(x)
    graph = genesis.cuda.Graph()
    with genesis.cuda.graph(graph):
        y = compiled(x)
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [8, 8, 8]


# --- what is not captured ---------------------------------------------------------------------------------------------
def item(x: Tensor) -> Tensor:
    return x * x.sum().item()


def host(x: Tensor) -> Tensor:
    return x + genesis.randn(3).to("cuda")


def synchronization(x: Tensor) -> Tensor:
    y = x * 2
    genesis.cuda.synchronize()
    return y


def stream(x: Tensor) -> Tensor:
    genesis.cuda.current_stream().wait_stream(genesis.cuda.default_stream())
    return x * 2


def event(x: Tensor) -> Tensor:
    genesis.cuda.current_stream().record_event()
    return x * 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (item, "reads values"),
        (host, "computes on the CPU with what is no constant"),
        (synchronization, "waits for the device"),
        (stream, "puts streams or events in order"),
        (event, "puts streams or events in order"),
    ],
)
def test_it_says_what_cannot_be_captured(function: Callable[[Tensor], Tensor], reason: str) -> None:
    weight = nn.Parameter(genesis.ones(3, device="cuda"))
    optimizer = optim.AdamW([weight], lr=0.1)
    runs = []

    @as_genesis
    def count() -> None:
        runs.append(1)

    def step(x: Tensor) -> Tensor:
        count()
        optimizer.zero_grad()
        loss = function(x * weight).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled, line = genesis.compile(step), function.__code__.co_firstlineno
    x = genesis.ones(3, device="cuda")
    with pytest.warns(RuntimeWarning, match=f"runs eagerly: it {reason}") as warned:
        _ = [compiled(x) for _ in range(4)]
    assert len(warned) == 1
    named = int(str(warned[0].message).rpartition(":")[2].rstrip(")"))
    assert line < named <= line + 3
    assert warned[0].filename == __file__
    assert len(runs) == 4
    assert optimizer.state[weight]["step"] == 4
    assert compiled.report().reasons[0].startswith(reason)


def test_a_capture_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may refuse at any time: the call runs eagerly, once."""

    def refuse(*args: object) -> None:
        raise driver.KernelError("begin a capture: refused")

    taken = []
    for is_compiled in (False, True):
        loop = Loop("mlp", "AdamW", "average", is_compiled)
        taken.append([loop.take() for _ in range(2)])
        with monkeypatch.context() as patch:
            patch.setattr(type(driver.get()), "begin_capture", refuse)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                taken[-1] += [loop.take() for _ in range(2)]
        taken[-1] += [loop.take()]
    assert [str(each.message).partition(" (")[0] for each in warned] == [
        "genesis.compile: average runs eagerly: it cannot be captured into a CUDA graph"
    ]
    assert all(all(map(is_same, mine, theirs)) for mine, theirs in zip(*taken, strict=True))


def test_optimizers_that_count_on_the_host() -> None:
    assert_alike(Case("mlp", "NAdam", "descend", ("",)), 3)


def test_constants_are_part_of_the_recording() -> None:
    compiled = genesis.compile(lambda x: x + genesis.tensor([1.0, 2.0, 3.0], device="cuda").mul_(2))
    others = []  # whose memory is not the constants'
    for value in range(4):
        assert compiled(genesis.full((3,), float(value), device="cuda")).tolist() == [value + 2, value + 4, value + 6]
        others += [genesis.zeros(3, device="cuda") for _ in range(8)]
    assert compiled.num_replays == 2


def test_tensors_of_two_devices() -> None:
    compiled = genesis.compile(lambda x, y: x * y.item())
    with pytest.warns(RuntimeWarning, match="takes tensors of several devices"):
        assert compiled(genesis.ones(2, device="cuda"), genesis.full((), 3.0)).tolist() == [3, 3]


def test_replays_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the scale of a GradScaler either, whose optimizer skips a step that overflows."""
    model = nn.Linear(4, 3).to("cuda")
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.1, momentum=0.9), genesis.amp.GradScaler(init_scale=8.0)

    def step(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    compiled = genesis.compile(step)
    x, target = genesis.randn(5, 4, device="cuda"), genesis.tensor([0, 1, 2, 0, 1], device="cuda")
    for _ in range(3):
        compiled(x, target)
    before, infinite = model.weight.tolist(), x / 0.0
    with monkeypatch.context() as patch:
        for name in ("synchronize", "synchronize_stream", "synchronize_event"):
            patch.setattr(type(driver.get()), name, None)
        compiled(infinite, target)
    assert model.weight.tolist() == before
    assert scaler.get_scale() == 4.0
    compiled(x, target)
    assert model.weight.tolist() != before
    assert compiled.num_replays == 3
