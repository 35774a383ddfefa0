"""CUDA graphs: what a replay computes, whose memory it is, what is refused, and what an error leaves behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch

import genesis
from genesis import Tensor, nn, optim
from genesis import functional as F
from genesis.backends.cuda.ops.random import launch as random
from genesis.backends.cuda.runtime.memory import LentBy
from genesis.cuda import CaptureError, Graph, graph
from genesis.settings import override
from genesis.torch import handles

pytestmark = pytest.mark.usefixtures("cuda")
SIZE = 1 << 14  # elements of a tensor of which each byte counts
KIB = 1 << 10


def captured(run: Callable[[], Tensor], g: Graph | None = None) -> tuple[Graph, Tensor]:
    g = Graph() if g is None else g
    with graph(g):
        result = run()
    return g, result


def seeded(*shape: int, seed: int = 0) -> Tensor:
    genesis.manual_seed(seed)
    return genesis.randn(*shape, device="cuda")


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


SHAPES_OF_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, size=(3, 7)),
    "max pooling": lambda x: F.max_pool2d(x, 2),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(-1)[0],
    "cumsum": lambda x: x.cumsum(2),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "sum": lambda x: x.sum((0, 2)),
    "cat": lambda x: genesis.cat([x, x * 2], 1),
    "to float64": lambda x: x.double().exp(),
    "zeros": lambda x: genesis.zeros(3, device="cuda") + genesis.full((3,), 2.0, device="cuda"),
    "group norm": lambda x: F.group_norm(x, 2),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "index": lambda x: x[:, genesis.arange(2, device="cuda")],
}


@pytest.mark.parametrize("name", SHAPES_OF_OPS)
def test_ops_that_are_not_warm(name: str) -> None:
    """What they make once, such as tables, is not made in the graph."""
    x = seeded(2, 2, 4, 5)
    g, y = captured(lambda: SHAPES_OF_OPS[name](x))
    x.copy_(seeded(2, 2, 4, 5, seed=1))
    for _ in range(2):
        g.replay()
        assert y.tolist() == SHAPES_OF_OPS[name](x).tolist()


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


def test_a_capture_draws_nothing() -> None:
    state = genesis.cuda.get_rng_state()
    captured(DRAWS["rand"])
    assert genesis.cuda.get_rng_state().tolist() == state.tolist()


# --- memory -----------------------------------------------------------------------------------------------------------
def test_nobody_else_gets_a_graphs_memory() -> None:
    x = genesis.ones(1000, device="cuda")
    g, y = captured(lambda: ((x + 1) * 2) - 1)  # with two intermediate results, which are free again
    others = [genesis.full((1000,), 7.0, device="cuda") for _ in range(20)]
    with genesis.cuda.stream(genesis.cuda.Stream()):
        others += [genesis.full((1000,), 7.0, device="cuda") for _ in range(20)]
    genesis.cuda.synchronize()
    g.replay()
    assert y[0].item() == 3
    genesis.cuda.synchronize()
    assert all((other == 7).all().item() for other in others)


def reserved() -> int:
    gc.collect()
    genesis.cuda.empty_cache()
    return genesis.cuda.memory_reserved()


def test_memory_that_is_freed_in_a_capture_is_reused_in_it() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()

    def chain() -> Tensor:
        y = x
        for _ in range(10):
            y = y + 1
        return y

    g, y = captured(chain)
    assert reserved() - before <= 2 * 64 * KIB
    g.replay()
    assert y[0].item() == 11


@pytest.mark.parametrize("how", ["reset", "del", "again"])
def test_memory_is_given_back(how: str) -> None:
    x = genesis.ones(SIZE, device="cuda")
    before, allocated = reserved(), genesis.cuda.memory_allocated()
    g, y = captured(lambda: x + 1)
    assert genesis.cuda.memory_allocated() == allocated + 64 * KIB
    assert reserved() == before + 64 * KIB
    if how == "del":
        del y, g
    else:
        del y
        g.reset()
        if how == "again":
            with graph(g):
                y = x * 3
            g.replay()
            assert y[0].item() == 3
            del y
            g.reset()
    assert genesis.cuda.memory_reserved() == before
    assert genesis.cuda.memory_allocated() == allocated


def test_a_result_outlives_its_graph() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()
    g, y = captured(lambda: x + 1)
    g.replay()
    del g
    genesis.full((SIZE,), 9.0, device="cuda")
    assert y[0].item() == 2
    assert reserved() == before + 64 * KIB
    del y
    assert reserved() == before


def test_graphs_share_a_pool() -> None:
    x = genesis.ones(SIZE, device="cuda")
    before = reserved()
    first, second = Graph(), Graph()
    with graph(first):
        y = (x + 1) * 2
    with graph(second, pool=first.pool()):
        z = (y + 1) * 2
    assert first.pool() == second.pool()
    assert reserved() == before + 3 * 64 * KIB, "the second takes what the first has freed"
    for _ in range(2):
        first.replay()
        second.replay()
        assert (y[0].item(), z[0].item()) == (4, 10)
    del y, first
    second.replay()
    assert z[0].item() == 10
    del z, second
    assert reserved() == before


def test_running_out_of_memory_ends_the_capture() -> None:
    x = genesis.ones(SIZE, device="cuda")
    g = Graph()
    before = reserved()
    genesis.cuda.set_memory_limit(before + 96 * KIB)
    try:
        with pytest.raises(genesis.cuda.OutOfMemoryError, match=r"asked for 64\.0 KiB"):
            captured(lambda: (x + 1) + 1, g)
    finally:
        genesis.cuda.set_memory_limit(None)
    assert not genesis.cuda.is_current_stream_capturing()
    assert reserved() == before
    _, y = captured(lambda: x + 2, g)
    g.replay()
    assert y[0].item() == 3


# --- streams, threads, devices ----------------------------------------------------------------------------------------
def test_streams_take_part_that_wait_for_the_capture() -> None:
    x, side = genesis.ones(64, device="cuda"), genesis.cuda.Stream()
    g = Graph()
    with graph(g):
        main = genesis.cuda.current_stream()
        y = x + 1
        side.wait_stream(main)
        with genesis.cuda.stream(side):
            assert genesis.cuda.is_current_stream_capturing()
            z = y * 3
            del y
        kept = x - 1
        main.wait_stream(side)
        result = z + kept
    del z, kept
    assert side.query()
    others = [genesis.full((64,), 9.0, device="cuda") for _ in range(9)]
    x.fill_(2)
    g.replay()
    assert result.tolist() == [10.0] * 64
    assert all(other[0].item() == 9 for other in others)


def test_a_stream_that_is_not_waited_for() -> None:
    x, side = genesis.ones(8, device="cuda"), genesis.cuda.Stream()

    def fork() -> Tensor:
        side.wait_stream(genesis.cuda.current_stream())
        with genesis.cuda.stream(side):
            return x * 3

    with pytest.raises(CaptureError, match="UNJOINED"):
        captured(fork)
    with genesis.cuda.stream(side):
        assert (x * 3)[0].item() == 3
    assert captured_value(x) == 2


def captured_value(x: Tensor) -> float:
    """What a graph of x + 1 computes."""
    g, y = captured(lambda: x + 1)
    g.replay()
    return float(y[0].item())


def test_work_on_other_streams_runs() -> None:
    x, other = genesis.ones(8, device="cuda"), genesis.cuda.Stream()
    g = Graph()
    with graph(g, capture_error_mode="relaxed"):
        y = x + 1
        with genesis.cuda.stream(other):
            assert not genesis.cuda.is_current_stream_capturing()
            assert (x * 5)[0].item() == 5
    g.replay()
    assert y[0].item() == 2


def test_a_given_stream() -> None:
    x, side = genesis.ones(8, device="cuda"), genesis.cuda.Stream()
    g = Graph()
    with graph(g, stream=side):
        assert genesis.cuda.current_stream() == side
        y = x + 1
    with genesis.cuda.stream(side):
        g.replay()
        assert y[0].item() == 2


def test_threads_capture_at_the_same_time() -> None:
    barrier, results, errors = threading.Barrier(3), {}, []

    def work(number: int) -> None:
        try:
            x = genesis.full((8,), float(number), device="cuda")
            g = Graph()
            with graph(g, capture_error_mode="thread_local"):
                barrier.wait(30)
                y = x
                for _ in range(20):
                    y = y + 1
                barrier.wait(30)
            g.replay()
            results[number] = y[0].item()
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    barrier.wait(30)
    ours = [genesis.full((8,), 7.0, device="cuda") for _ in range(20)]  # eager work in between
    values = [x.tolist() for x in ours]
    barrier.wait(30)
    for thread in threads:
        thread.join(30)
    assert not errors
    assert results == {0: 20, 1: 21}
    assert values == [[7.0] * 8] * 20


def test_another_thread_cannot_wait_for_the_device() -> None:
    x, errors = genesis.ones(8, device="cuda"), []

    def wait() -> None:
        try:
            genesis.cuda.synchronize()
        except CaptureError as error:
            errors.append(str(error))

    g = Graph()
    with graph(g):
        y = x + 1
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(30)
    assert "synchronize waits for the device" in errors[0]
    g.replay()
    assert y[0].item() == 2


# --- what is refused --------------------------------------------------------------------------------------------------
def a_batch() -> Tensor:
    return genesis.ones(4)


REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "item": (lambda x: x.sum().item(), "item waits for the device"),
    "tolist": (lambda x: x.tolist(), "tolist waits for the device"),
    "cpu": (lambda x: x.cpu(), "cpu waits for the device"),
    "numpy": (lambda x: x.numpy(force=True), "numpy waits for the device"),
    "if": (lambda x: bool(x.sum()), "__bool__ waits for the device"),
    "print": (lambda x: repr(x), "__repr__ waits for the device"),
    "mask": (lambda x: x[x > 0], "waits for the device"),
    "synchronize": (lambda x: genesis.cuda.synchronize(), "synchronize waits for the device"),
    "stream": (lambda x: genesis.cuda.current_stream().synchronize(), "synchronize waits"),
    "another stream": (lambda x: genesis.cuda.Stream().synchronize(), "synchronize waits"),
    "query": (lambda x: genesis.cuda.current_stream().query(), "query asks for an event of a graph"),
    "event": (lambda x: genesis.cuda.current_stream().record_event().synchronize(), "synchronize asks for an event"),
    "list": (lambda x: genesis.tensor([1.0], device="cuda"), "tensor copies from host memory"),
    "batch": (lambda x: a_batch().to("cuda"), "to copies from host memory"),
    "pinned": (lambda x: a_batch().pin_memory().to("cuda"), "to copies from host memory"),
    "seed": (lambda x: genesis.manual_seed(1), "manual_seed seeds the generator"),
    "seed of the device": (lambda x: genesis.cuda.manual_seed(1), "manual_seed seeds the generator"),
    "state": (
        lambda x: genesis.cuda.set_rng_state(genesis.cuda.get_rng_state()),
        "set_rng_state seeds the generator",
    ),
    "default stream": (
        lambda x: genesis.cuda.default_stream().wait_stream(genesis.cuda.current_stream()),
        "wait_stream has the default stream wait",
    ),
    "not in the capture": (
        lambda x: genesis.cuda.current_stream().wait_stream(genesis.cuda.Stream()),
        "wait_stream waits for work outside of the capture",
    ),
    "time": (lambda x: genesis.cuda.milliseconds(lambda: x + 1, 1), "milliseconds asks for an event"),
    "adam": (lambda x: adam_step(x), "step makes a step whose number the host counts"),
    "first momentum": (lambda x: first_step(x), "step makes the first step with momentum"),
    "tune": (lambda x: genesis.cuda.tune(lambda: x + 1), "tune measures kernels"),
    "tuning": (lambda x: tuned(x), "tuning measures kernels"),
}


def tuned(x: Tensor) -> None:
    with genesis.tuning(budget=1):
        x + 1


def adam_step(x: Tensor) -> None:
    weight = nn.Parameter(x)
    weight.grad = x * 1
    optim.Adam([weight]).step()


def first_step(x: Tensor) -> None:
    weight = nn.Parameter(x)
    weight.grad = x * 1
    optim.SGD([weight], lr=0.1, momentum=0.9).step()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("caught", [False, True], ids=["ends", "goes on"])
def test_what_a_graph_cannot_hold(name: str, caught: bool) -> None:
    x, (run, message) = genesis.ones(4, device="cuda"), REFUSED[name]
    g = Graph()
    if caught:  # nothing was broken
        with graph(g):
            y = x + 1
            with pytest.raises(CaptureError, match=message):
                run(x)
            y = y + 1
        g.replay()
        assert y.tolist() == [3.0] * 4
    else:
        with pytest.raises(CaptureError, match=message) as raised:
            captured(lambda: (x + 1, run(x))[0], g)
        assert f"{__file__}:" in str(raised.value)
    stream = graph(Graph()).capture_stream
    with genesis.cuda.stream(stream):
        assert (x + 1).tolist() == [2.0] * 4, "the stream works"
    assert captured_value(x) == 2


def test_pinned_memory_is_read_anew() -> None:
    batch = genesis.ones(4).pin_memory()
    g, y = captured(lambda: batch.to("cuda", non_blocking=True) * 2)
    g.replay()
    assert y.tolist() == [2.0] * 4
    batch.fill_(5)
    g.replay()
    assert y.tolist() == [10.0] * 4


def test_an_index_out_of_range_in_a_replay() -> None:
    x, index = genesis.ones(4, device="cuda"), genesis.zeros(2, dtype=genesis.int64, device="cuda")
    g, y = captured(lambda: x.gather(0, index))
    g.replay()
    assert y.tolist() == [1.0] * 2
    index.fill_(9)

    def replay() -> None:
        g.replay()
        genesis.cuda.synchronize()  # a GPU finds it later

    with pytest.raises(IndexError, match="gather: index 9 is out of range"):
        replay()


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
    x, event = genesis.ones(4, device="cuda"), genesis.cuda.Event()
    with graph(Graph()):
        x + 1
        event.record()
    with pytest.raises(CaptureError, match="query asks for an event of a graph"):
        event.query()
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
    with pytest.raises(CaptureError, match="holds no capture; reset"), graph(g):
        pass


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


# --- several devices, and what only one of them has -----------------------------------------------------------------
@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestSimulatedDevices:
    def test_a_graph_of_another_device(self) -> None:
        with genesis.cuda.device(1):
            x = genesis.ones(4, device="cuda")
            g, y = captured(lambda: x + genesis.rand(4, device="cuda"))
        first = genesis.cuda.memory_allocated(0)
        genesis.manual_seed(3)
        g.replay()
        genesis.manual_seed(3)
        assert y.tolist() == (x + genesis.rand(4, device="cuda:1")).tolist()
        assert y.device == genesis.device("cuda:1")
        assert genesis.cuda.memory_allocated(0) == first

    def test_a_graph_of_two_devices(self) -> None:
        x, there = genesis.ones(4, device="cuda:0"), genesis.ones(4, device="cuda:1")
        side = genesis.cuda.Stream(device=1)
        before = genesis.cuda.memory_reserved(1)
        g = Graph()
        with graph(g):
            main = genesis.cuda.current_stream()
            y = x + 1
            side.wait_stream(main)
            with genesis.cuda.stream(side):
                z = there * 3
            main.wait_stream(side)
        g.replay()
        assert (y[0].item(), z[0].item()) == (2, 3)
        del z
        g.reset()
        genesis.cuda.empty_cache()
        assert genesis.cuda.memory_reserved(1) <= before

    def test_copies_between_devices_wait_for_the_host(self) -> None:
        x = genesis.ones(4, device="cuda:0")
        with pytest.raises(CaptureError, match="to waits for the device"):
            captured(lambda: x.to("cuda:1"))
        assert captured_value(x) == 2


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
def test_memory_of_another_library_is_refused() -> None:
    """Its allocator knows nothing of Genesis' capture."""
    lender = handles._Device(torch.device("cpu"))
    x = genesis.ones(4, device="cuda")

    def borrow() -> Tensor:
        with LentBy(lender):
            return x + 1

    with pytest.raises(CaptureError, match="add takes PyTorch's memory"):
        captured(borrow)
    assert borrow()[0].item() == 2


# --- on a GPU ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cuda", [pytest.param("auto", marks=pytest.mark.gpu)], indirect=True)
class TestGpu:
    @pytest.mark.parametrize("dtype", [genesis.float32, genesis.bfloat16], ids=str)
    def test_a_resnets_inference(self, dtype: genesis.dtype) -> None:
        net = genesis.models.create("resnet18").to("cuda", dtype).eval()
        x = genesis.randn(4, 3, 64, 64, device="cuda").to(dtype)
        with genesis.no_grad():
            net(x)
            g, y = captured(lambda: net(x))
            for _ in range(3):
                x.copy_(genesis.randn(4, 3, 64, 64, device="cuda"))
                g.replay()
                assert y.tolist() == net(x).tolist()

    def test_a_resnets_training(self) -> None:
        """With deterministic kernels, replays are the eager steps."""
        with override(deterministic=True):
            target = genesis.arange(4, device="cuda")
            batches = [genesis.randn(4, 3, 64, 64, device="cuda") for _ in range(5)]

            def step(net: nn.Module, optimizer: optim.SGD, x: Tensor) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), target)
                loss.backward()
                optimizer.step()
                return loss.detach()

            runs = []
            for is_captured in (False, True):
                genesis.manual_seed(0)
                net = genesis.models.create("resnet18").to("cuda")
                optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
                losses = [step(net, optimizer, x).item() for x in batches[:2]]
                if is_captured:
                    x = batches[0].clone()
                    g, loss = captured(lambda: step(net, optimizer, x))  # noqa: B023
                    for batch in batches[2:]:
                        x.copy_(batch)
                        g.replay()
                        losses.append(loss.item())
                else:
                    losses += [step(net, optimizer, x).item() for x in batches[2:]]
                runs.append((losses, [value.tolist() for value in net.state_dict().values()]))
            assert runs[0] == runs[1]

    def test_its_memory_is_given_back(self) -> None:
        net = genesis.models.create("resnet18").to("cuda").eval()
        x = genesis.randn(4, 3, 64, 64, device="cuda")
        with genesis.no_grad():
            net(x)
            before, free = reserved(), genesis.cuda.mem_get_info()[0]
            for _ in range(5):
                g, y = captured(lambda: net(x))
                g.replay()
                del g, y
            assert reserved() == before
            assert genesis.cuda.mem_get_info()[0] > free - (32 << 20)

    def test_a_users_kernel(self) -> None:
        source = "__global__ void add_one(float *x, int n) { int i = threadIdx.x; if (i < n) x[i] += 1; }"
        module = genesis.cuda.load_inline("graphs_add_one", source)
        x = genesis.zeros(32, device="cuda")
        g = Graph()
        with graph(g):
            module.add_one(x, 32, grid=1, block=32)
        for _ in range(3):
            g.replay()
        assert x.tolist() == [3.0] * 32

    @pytest.mark.parametrize("name", ["matmul", "attention"])
    def test_libraries(self, name: str) -> None:
        x = genesis.randn(2, 4, 128, 64, device="cuda").to(genesis.bfloat16)
        expected = SHAPES_OF_OPS[name](x).tolist()
        g, y = captured(lambda: SHAPES_OF_OPS[name](x))
        g.replay()
        assert y.tolist() == expected

    def test_a_replay_costs_little_on_the_host(self) -> None:
        x = genesis.zeros(16, device="cuda")
        g, _ = captured(lambda: x.add_(1))
        g.replay()
        genesis.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(100):
            g.replay()
        assert (time.perf_counter() - began) / 100 < 50e-6
        assert x[0].item() == 101
