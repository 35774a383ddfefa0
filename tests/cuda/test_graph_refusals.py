"""CUDA graphs: what is refused by name, and what an error leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import genesis
from genesis import Tensor, nn, optim
from genesis.backends.cuda.runtime.memory import LentBy
from genesis.cuda import CaptureError, Graph, graph
from genesis.settings import override
from genesis.torch import handles
from tests.cuda.capturing import captured, captured_value

pytestmark = pytest.mark.usefixtures("cuda")


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
    "dampening": (lambda x: dampened_step(x), "every replay would make a first step"),
    "profiling": (lambda x: profiled(x), "takes the time"),
    "checks": (lambda x: checked(x), "waits for the device"),
    "tune": (lambda x: genesis.cuda.tune(lambda: x + 1), "tune measures kernels"),
    "tuning": (lambda x: tuned(x), "tuning measures kernels"),
}


def profiled(x: Tensor) -> None:
    with genesis.profiler.profile():
        x + 1


def checked(x: Tensor) -> None:
    with override(check="cpu"):
        x + 1


def tuned(x: Tensor) -> None:
    with genesis.tuning(budget=1):
        x + 1


def dampened_step(x: Tensor) -> None:
    weight = nn.Parameter(x)
    weight.grad = x * 1
    optim.SGD([weight], lr=0.1, momentum=0.9, dampening=0.5).step()


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


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
def test_memory_of_another_library_is_refused() -> None:
    """Its allocator knows nothing of Genesis' capture."""
    lender = handles.Device(torch.device("cpu"))
    x = genesis.ones(4, device="cuda")

    def borrow() -> Tensor:
        with LentBy(lender):
            return x + 1

    with pytest.raises(CaptureError, match="add takes PyTorch's memory"):
        captured(borrow)
    assert borrow()[0].item() == 2
