"""CUDA graphs: what a replay computes, and the objects themselves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import genesis
from genesis import Tensor, nn, optim
from genesis import functional as F
from genesis.backends.cuda.engine import planner, tuner
from genesis.backends.cuda.ops.random import launch as random
from genesis.cuda import CaptureError, Graph, graph
from tests.cuda.capturing import OPS, captured, captured_value, seeded

pytestmark = pytest.mark.usefixtures("cuda")


# --- replays ----------------------------------------------------------------------------------------------------------
def test_a_replay_reads_its_inputs_where_they_lay() -> None:
    x = genesis.zeros(4, device="cuda")
    g, y = captured(lambda: (x * 2 + 1).relu())
    for value in (1.0, -3.0, 5.0):
        x.fill_(value)
        g.replay()
        assert y.tolist() == [max(value * 2 + 1, 0)] * 4


def test_a_capture_runs_nothing() -> None:
    x = genesis.ones(4, device="cuda")
    g, _ = captured(lambda: x.add_(1))
    assert x.tolist() == [1.0] * 4
    g.replay()
    g.replay()
    assert x.tolist() == [3.0] * 4


class Net(nn.Module):
    """Convolution, norm, ReLU, pooling, a linear layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.features(x).mean((2, 3))))


def made(dropout: float = 0.0) -> Net:
    genesis.manual_seed(1)
    return Net(dropout).to("cuda")


def test_inference_equals_eager_bit_for_bit() -> None:
    net, x = made().eval(), seeded(2, 3, 4, 4)
    with genesis.no_grad():
        net(x)
        g, y = captured(lambda: net(x))
        for seed in (1, 2):
            x.copy_(seeded(2, 3, 4, 4, seed=seed))
            g.replay()
            assert y.tolist() == net(x).tolist()


def trainer(dropout: float = 0.0) -> tuple[Net, optim.SGD, Callable[[Tensor, Tensor], Tensor]]:
    net = made(dropout)
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)

    def step(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return net, optimizer, step


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_training_step_equals_eager_bit_for_bit(dropout: float) -> None:
    target = genesis.tensor([0, 2], device="cuda")
    batches = [seeded(2, 3, 4, 4, seed=seed) for seed in range(4)]
    net, _, step = trainer(dropout)
    expected = [step(x, target).item() for x in batches]
    expected_net = net.state_dict()

    net, _, step = trainer(dropout)
    losses = [step(batches[0], target).item()]
    x = batches[0].clone()
    g, loss = captured(lambda: step(x, target))
    for batch in batches[1:]:
        x.copy_(batch)
        g.replay()
        losses.append(loss.item())
    assert losses == expected
    for name, value in net.state_dict().items():
        assert value.tolist() == expected_net[name].tolist(), name
    net.train()
    step(x, target)  # eager steps go on where the replays have left


def test_eager_steps_and_replays_take_turns() -> None:
    """A table of addresses belongs to the graph, or to eager steps, and never to both."""
    weight = nn.Parameter(genesis.zeros(3, device="cuda"))
    optimizer = optim.SGD([weight], lr=1.0)
    weight.grad = genesis.ones(3, device="cuda")
    optimizer.step()
    kept = weight.grad  # which the graph goes on reading
    g = Graph()
    with graph(g):
        optimizer.step()
    weight.grad = genesis.full((3,), 10.0, device="cuda")
    optimizer.step()
    g.replay()
    optimizer.step()
    assert weight.tolist() == [-22.0] * 3
    assert kept.tolist() == [1.0] * 3


@pytest.mark.parametrize("name", OPS)
def test_ops_that_are_not_warm(name: str) -> None:
    """What they make once, such as tables, is not made in the graph."""
    x = seeded(2, 2, 4, 5)
    g, y = captured(lambda: OPS[name](x))
    x.copy_(seeded(2, 2, 4, 5, seed=1))
    for _ in range(2):
        g.replay()
        assert y.tolist() == OPS[name](x).tolist()


def test_a_capture_chooses_kernels_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within a block that tunes: nothing could be timed, and a choice by heuristics must not outlast it."""
    image, weight, x = seeded(1, 3, 6, 6), seeded(2, 3, 3, 3), seeded(16, 24)
    planner.forget()
    with monkeypatch.context() as patch, genesis.tuning(budget=60):
        patch.setattr(tuner.Contest, "visit", lambda self, *args: pytest.fail("kernels are timed"))
        g, y = captured(lambda: F.conv2d(image, weight).sum() + (x @ x.T).sum())
    assert planner.all_plans() == [], "what is called next may tune"
    g.replay()
    assert y.item() == pytest.approx((F.conv2d(image, weight).sum() + (x @ x.T).sum()).item(), rel=1e-5)


def test_a_graph_that_goes_while_it_is_replayed() -> None:
    x = genesis.ones(1 << 12, device="cuda")

    def steps() -> Tensor:
        y = x
        for _ in range(50):
            y = y + 1
        return y

    g, y = captured(steps)
    for _ in range(3):
        g.replay()
    del g
    others = [genesis.full((1 << 12,), -1.0, device="cuda") for _ in range(60)]
    assert y.tolist() == [51.0] * (1 << 12)
    assert others[-1][0].item() == -1


# --- random numbers ---------------------------------------------------------------------------------------------------
DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: genesis.rand(9, device="cuda"),
    "rand float64": lambda: genesis.rand(9, dtype=genesis.float64, device="cuda"),
    "randn": lambda: genesis.randn(9, device="cuda"),
    "randint": lambda: genesis.randint(0, 1000, (9,), device="cuda"),
    "randperm": lambda: genesis.randperm(50, device="cuda"),
    "randperm of many": lambda: genesis.randperm(50, device="cuda") + 0,
    "dropout": lambda: F.dropout(genesis.ones(64, device="cuda"), 0.5),
    "two": lambda: genesis.rand(9, device="cuda") - genesis.rand(9, device="cuda"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_replays_draw_what_eager_calls_would(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "randperm of many":
        monkeypatch.setattr(random, "_RANKED", 10)
    g, drawn = captured(DRAWS[name])
    genesis.manual_seed(5)
    expected = [DRAWS[name]().tolist() for _ in range(3)]
    assert expected[0] != expected[1]
    genesis.manual_seed(5)
    g.replay()
    first = drawn.tolist()
    second = DRAWS[name]().tolist()  # an eager call in between
    g.replay()
    assert [first, second, drawn.tolist()] == expected


def test_replays_draw_from_a_generator_of_ones_own() -> None:
    mine, theirs = (genesis.Generator("cuda").manual_seed(3) for _ in range(2))

    def draw(generator: genesis.Generator) -> genesis.Tensor:
        first = genesis.rand(9, device="cuda", generator=generator) + genesis.rand(9, device="cuda")
        return first + genesis.empty(9, device="cuda").normal_(generator=generator)

    genesis.manual_seed(5)
    expected = [draw(theirs).tolist() for _ in range(3)]
    state = theirs.get_state().tolist()
    g, drawn = captured(lambda: draw(mine))
    mine.manual_seed(3)
    genesis.manual_seed(5)
    found = []
    for _ in range(2):
        g.replay()
        found.append(drawn.tolist())
    assert [*found, draw(mine).tolist()] == expected
    assert mine.get_state().tolist() == state


def test_a_capture_draws_nothing() -> None:
    state = genesis.cuda.get_rng_state()
    captured(DRAWS["rand"])
    assert genesis.cuda.get_rng_state().tolist() == state.tolist()


# --- the objects ------------------------------------------------------------------------------------------------------
def test_is_current_stream_capturing() -> None:
    assert not genesis.cuda.is_current_stream_capturing()
    x = genesis.ones(1, device="cuda")
    with graph(Graph()):
        x + 1
        assert genesis.cuda.is_current_stream_capturing()
    assert not genesis.cuda.is_current_stream_capturing()


def test_an_empty_capture_warns() -> None:
    with pytest.warns(UserWarning, match="nothing was captured"), graph(Graph()):
        pass


def test_events_of_a_graph_have_no_time() -> None:
    x, event = genesis.ones(4, device="cuda"), genesis.cuda.Event(enable_timing=True)
    with graph(Graph()):
        x + 1
        event.record()
    with pytest.raises(CaptureError, match="query asks for an event of a graph"):
        event.query()
    with pytest.raises(CaptureError, match="elapsed_time asks for an event of a graph"):
        event.elapsed_time(event)
    with pytest.raises(CaptureError, match="wait_event waits for an event of a graph"):
        genesis.cuda.current_stream().wait_event(event)
    event.record()
    event.synchronize()
    assert event.query()


def test_misuse() -> None:
    x, g = genesis.ones(4, device="cuda"), Graph()
    with pytest.raises(CaptureError, match="replay: expected a graph that has been captured"):
        g.replay()
    with pytest.raises(CaptureError, match="pool: expected a graph that has been captured"):
        g.pool()
    with pytest.raises(CaptureError, match="capture_end: expected a capture to be underway"):
        g.capture_end()
    with pytest.raises(CaptureError, match="the default stream cannot be captured"):
        g.capture_begin()
    with pytest.raises(TypeError, match=r"argument 'cuda_graph': expected a genesis\.cuda\.Graph, got int"):
        graph(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="argument 'pool': expected a graph's pool"), graph(g, pool=g):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="argument 'capture_error_mode'"), graph(g, None, None, "strict"):  # type: ignore[arg-type]
        pass
    assert genesis.cuda.current_stream() == genesis.cuda.default_stream()
    with graph(g):
        x + 1
        with pytest.raises(CaptureError, match="already being captured"):
            Graph().capture_begin()
        with pytest.raises(CaptureError, match="replay launches a graph"):
            other_graph(x).replay()
        with pytest.raises(CaptureError, match="reset: expected the capture to have ended"):
            g.reset()
        with ThreadPoolExecutor(1) as pool, pytest.raises(CaptureError, match="the thread in which the capture began"):
            pool.submit(g.capture_end).result()
    with pytest.raises(CaptureError, match="holds no capture; reset"), graph(g):
        pass
    with pytest.raises(CaptureError, match="capture_end: expected a capture to be underway"):
        g.capture_end()
    g.replay()


def test_a_graph_that_is_dropped_ends_its_capture() -> None:
    x, side = genesis.ones(4, device="cuda"), genesis.cuda.Stream()
    with genesis.cuda.stream(side):
        g = Graph()
        g.capture_begin()
        y = x + 1
        del g, y
        assert not genesis.cuda.is_current_stream_capturing()
        assert (x + 1).tolist() == [2.0] * 4


def other_graph(x: Tensor) -> Graph:
    """Captured on another stream, in the middle of a capture."""
    g = Graph()
    with graph(g, stream=genesis.cuda.Stream(), capture_error_mode="relaxed"):
        x + 1
    return g


def test_one_capture_at_a_time_in_a_pool() -> None:
    x, pool = genesis.ones(4, device="cuda"), genesis.cuda.graph_pool_handle()
    with graph(Graph(), pool=pool):
        y = x + 1
        other = graph(Graph(), pool=pool, stream=genesis.cuda.Stream())
        with pytest.raises(CaptureError, match="argument 'pool': expected one that no other capture is using"), other:
            pass
        y = y + 1


def test_an_exception_of_the_users() -> None:
    x, g = genesis.ones(4, device="cuda"), Graph()
    with pytest.raises(ZeroDivisionError), graph(g):
        x + 1 / 0
    assert genesis.cuda.current_stream() == genesis.cuda.default_stream()
    assert captured_value(x) == 2
    with graph(g):
        y = x + 4
    g.replay()
    assert y[0].item() == 5
