"""Checkpointing gives the gradients of the plain pass, keeps less, and notices what has changed."""

from __future__ import annotations

from typing import Any

import pytest

import genesis
from genesis import nn
from genesis.autograd.graph import Node
from genesis.errors import GraphError
from genesis.utils.checkpoint import checkpoint, checkpoint_sequential


def gradients(run: Any, *leaves: Any) -> list[Any]:
    for leaf in leaves:
        leaf.grad = None
    genesis.manual_seed(3)
    run().sum().backward()
    return [None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_gradients_are_those_of_the_plain_pass(requires_grad: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
    x = genesis.randn(3, 4, requires_grad=requires_grad)
    leaves = [x, *block.parameters()]
    plain = gradients(lambda: block(x * 2) ** 2, *leaves)
    assert gradients(lambda: checkpoint(block, x * 2, use_reentrant=False) ** 2, *leaves) == plain


def test_captured_results_and_structures_are_inputs_too() -> None:
    a, b = genesis.randn(3, requires_grad=True), genesis.randn(3, requires_grad=True)

    def run(wrap: Any) -> Any:
        captured = (a * b).exp()

        def step(values: Any, *, scale: Any) -> Any:
            return {"sum": values["x"] * captured + scale, "pair": (captured.sin(), 3)}

        result = wrap(step, {"x": a}, scale=b)
        return result["sum"] * result["pair"][0] + captured

    plain = gradients(lambda: run(lambda f, *args, **kwargs: f(*args, **kwargs)), a, b)
    for found, wanted in zip(gradients(lambda: run(checkpoint), a, b), plain, strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)  # sums in another order


def test_nested_checkpoints() -> None:
    x = genesis.randn(3, requires_grad=True)
    plain = gradients(lambda: x.sin().exp().cos(), x)
    assert gradients(lambda: checkpoint(lambda v: checkpoint(lambda w: w.sin().exp(), v).cos(), x), x) == plain


def test_only_one_node_remains() -> None:
    x = genesis.randn(3, requires_grad=True)
    y = checkpoint(lambda v: v.sin().exp().cos(), x)
    assert isinstance(y.grad_fn, Node)
    assert [edge[0] is x for edge in y.grad_fn.edges if edge] == [True]
    (found,) = genesis.autograd.grad(y.sum(), x)
    assert found.shape == (3,)


def test_without_a_graph_it_is_a_call() -> None:
    x = genesis.ones(2, requires_grad=True)
    with genesis.no_grad():
        assert not checkpoint(genesis.exp, x).requires_grad
    assert not checkpoint(genesis.exp, x.detach()).requires_grad
    assert checkpoint(lambda v: v, x) is x


def test_sequential_runs_in_segments() -> None:
    chain = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.Tanh())))
    x = genesis.randn(2, 4, requires_grad=True)
    leaves = [x, *chain.parameters()]
    assert gradients(lambda: checkpoint_sequential(chain, 3, x), *leaves) == gradients(lambda: chain(x), *leaves)
    with pytest.raises(ValueError, match="checkpoint_sequential: argument 'segments': expected from 1 to 6"):
        checkpoint_sequential(chain, 7, x)


def test_what_changed_between_the_runs_is_an_error() -> None:
    x, calls = genesis.ones(2, requires_grad=True), []
    y = checkpoint(lambda v: calls.append(1) or (v * 2 if len(calls) == 1 else (v * 2).sum()), x)
    with pytest.raises(GraphError, match="checkpoint: the function computed something else"):
        y.sum().backward()
    z = x * 1
    y = checkpoint(genesis.exp, z)
    z.add_(1)
    with pytest.raises(GraphError, match="changed in place"):
        y.sum().backward()


def test_the_generator_goes_on_where_it_was() -> None:
    x = genesis.ones(8, requires_grad=True)
    y = checkpoint(lambda v: nn.functional.dropout(v), x)
    before = genesis.get_rng_state().tolist()
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
    assert genesis.get_rng_state().tolist() == before
