"""CUDA graphs: nothing that was computed from a weight goes stale, in a capture, in replays, or beside them."""

from __future__ import annotations

import numpy as np
import pytest

import genesis
from genesis import Tensor, nn, optim
from genesis.autograd.modes import without_folding
from genesis.cuda import Graph, graph
from tests.cuda.capturing import captured, seeded

pytestmark = pytest.mark.usefixtures("cuda")


def linear() -> nn.Linear:
    genesis.manual_seed(3)
    return nn.Linear(4, 4).to("cuda")


# --- autocast's casts -------------------------------------------------------------------------------------------------
def test_a_capture_does_not_read_casts_from_before() -> None:
    """They go with autocast's block, and are not of the weights that a replay finds."""
    net, x = linear(), seeded(2, 4)
    with genesis.no_grad(), genesis.autocast("cuda", genesis.bfloat16):
        net(x)  # casts the weight, and keeps the cast
        g, y = captured(lambda: net(x))
    net.weight.detach().copy_(net.weight.detach() * 3)
    genesis.full((4, 4), 9.0, device="cuda")  # takes memory that has become free
    g.replay()
    with genesis.no_grad(), genesis.autocast("cuda", genesis.bfloat16):
        assert y.tolist() == net(x).tolist()


def test_eager_calls_do_not_read_casts_of_a_capture() -> None:
    net, x = linear(), seeded(2, 4)
    with genesis.no_grad(), genesis.autocast("cuda", genesis.bfloat16):
        expected = net(x).tolist()
    with genesis.no_grad(), genesis.autocast("cuda", genesis.bfloat16):
        captured(lambda: net(x))  # which has cast nothing yet
        assert net(x).tolist() == expected


def test_a_replay_makes_casts_stale() -> None:
    """A replayed step changes weights without a call that would count it."""
    net, x = linear(), seeded(2, 4)
    optimizer = optim.SGD(net.parameters(), lr=1.0)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    g, _ = captured(step)
    with genesis.no_grad(), genesis.autocast("cuda", genesis.bfloat16):
        before = net(x).tolist()
        g.replay()
        after = net(x).tolist()
    with genesis.no_grad(), genesis.autocast("cuda", genesis.bfloat16):
        assert net(x).tolist() == after != before


def test_autocast_is_as_it_was_after_a_capture() -> None:
    net, x = linear(), seeded(2, 4)
    with genesis.autocast("cuda", genesis.bfloat16):
        with pytest.raises(ZeroDivisionError), graph(Graph()):
            net(x) / (1 / 0)
        assert net(x).dtype is genesis.bfloat16
        with graph(Graph()):
            y = net(x)
        assert y.dtype is genesis.bfloat16
    assert net(x).dtype is genesis.float32


def close(x: Tensor, y: Tensor) -> bool:
    return np.allclose(x.detach().numpy(force=True), y.detach().numpy(force=True), rtol=1e-5, atol=1e-5)


# --- folded batch norms -----------------------------------------------------------------------------------------------
def fused() -> tuple[nn.Module, Tensor]:
    genesis.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()).to("cuda")
    x = seeded(2, 3, 4, 4)
    return genesis.fuse(net, x), x


@pytest.mark.parametrize("is_warm", [False, True])
def test_folded_weights_do_not_pass_between_graphs_and_eager_calls(is_warm: bool) -> None:
    net, x = fused()
    net.eval()
    with genesis.no_grad():
        if is_warm:
            net(x)
        g, y = captured(lambda: net(x))
        expected = net(x).clone()
        g.replay()
        assert close(y, expected)
        for parameter in net.parameters():
            parameter.detach().mul_(2)
        genesis.full((4, 3, 3, 3), 9.0, device="cuda")
        g.replay()
        assert close(y, net(x))
        assert not close(y, expected)


def test_a_replayed_step_makes_folded_weights_stale() -> None:
    net, x = fused()
    optimizer = optim.SGD(net.parameters(), lr=0.5)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def evaluated() -> Tensor:
        net.eval()
        with genesis.no_grad():
            result = net(x)
        net.train()
        return result

    step()
    g, _ = captured(step)
    before = evaluated()
    g.replay()
    after = evaluated()
    assert not close(before, after)
    net.eval()
    with without_folding(), genesis.no_grad():
        assert close(after, net(x))


def test_draws_do_not_depend_on_what_the_graph_computes_before_them() -> None:
    """The seed is written before a replay: it must not lie where the graph computes something else by then."""
    x = genesis.ones(2, device="cuda")

    def draw() -> Tensor:
        for _ in range(3):  # these leave free memory of the size of the seed
            (x + 1).sum()
        return genesis.rand(8, device="cuda")

    draw()
    g, drawn = captured(draw)
    genesis.manual_seed(3)
    expected = [draw().tolist() for _ in range(2)]
    genesis.manual_seed(3)
    for values in expected:
        g.replay()
        assert drawn.tolist() == values


# --- streams of replays -----------------------------------------------------------------------------------------------
def test_replays_on_several_streams_draw_one_after_the_other() -> None:
    """CUDA runs replays of one graph in turn; the state of a replay's draws must not be written before its turn."""
    total = genesis.zeros(1 << 12, device="cuda")
    g, _ = captured(lambda: total.add_(genesis.rand(1 << 12, device="cuda")))
    genesis.manual_seed(5)
    expected = genesis.zeros(1 << 12, device="cuda")
    for _ in range(20):
        expected.add_(genesis.rand(1 << 12, device="cuda"))
    genesis.manual_seed(5)
    streams = [genesis.cuda.Stream(), genesis.cuda.Stream()]
    for number in range(20):
        with genesis.cuda.stream(streams[number % 2]):
            g.replay()
    genesis.cuda.synchronize()
    assert total.tolist() == expected.tolist()
