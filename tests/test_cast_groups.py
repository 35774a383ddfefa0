"""autocast on CUDA casts weights in groups: those that a block has used, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import backends
from genesis import functional as F
from genesis.amp import autocast
from genesis.autograd import Function, modes
from tests.test_amp import parameter


def launches(run: Callable[[], object]) -> list[int]:
    """How many weights each launch of a run casts to bfloat16."""
    made: list[int] = []

    def counted(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if op == "copy_all_into":
                made.append(len(args[0]))
            elif op == "cast" and args[1] is genesis.bfloat16:
                made.append(1)
            return function(*args, **kwargs)

        return call

    with backends.use("cuda", backends.get("cuda").wrapped(counted)):
        run()
    return made


def products(weights: Sequence[genesis.Tensor]) -> genesis.Tensor:
    """A product with each weight, under autocast; x needs no cast."""
    y = genesis.ones(2, 2, dtype=genesis.bfloat16, device="cuda")
    with autocast("cuda", dtype=genesis.bfloat16):
        for weight in weights:
            y = y @ weight
    return y


def weights_on_cuda(number: int) -> list[genesis.Tensor]:
    return [parameter(2, 2, seed=seed).detach().to("cuda").requires_grad_() for seed in range(number)]


def test_weights_are_cast_in_the_groups_that_blocks_use(cuda: str) -> None:
    weights = weights_on_cuda(5)
    assert launches(lambda: products(weights)) == [1] * 5
    assert launches(lambda: products(weights)) == [5]
    assert launches(lambda: products(weights[:2])) == [5]  # only now is it known that a block uses these alone
    assert launches(lambda: products(weights[2:])) == [3]
    assert launches(lambda: products(weights)) == [2, 3]
    assert launches(lambda: products(weights)) == [2, 3]
    with pytest.raises(TypeError):
        products([weights[3], "no weight"])  # type: ignore[list-item]
    assert launches(lambda: products(weights)) == [2, 3]  # a block that was left half way says nothing
    weights[3].requires_grad_(False)
    del weights[0]
    assert launches(lambda: products(weights)) == [1, 2, 1]  # the frozen one by itself
    with genesis.no_grad():
        assert launches(lambda: products(weights)) == [1, 2, 1]


def test_weights_cast_together_have_the_results_of_casts_one_by_one(cuda: str) -> None:
    def trained(weights: Sequence[genesis.Tensor]) -> list[Any]:
        products(weights).float().sum().backward()
        results = [weight.grad.cpu().numpy() for weight in weights]
        for weight in weights:
            weight.grad = None
        return results

    weights = weights_on_cuda(4)
    wide = parameter(2, 5, seed=9).detach().to("cuda")
    weights[0].data = wide[:, 1::3]  # with gaps
    weights[1].data = weights[1].detach().T.clone().T  # not row-major
    weights[3].data = genesis.ones(1, 2, device="cuda").expand(2, 2)
    weights[2].register_hook(lambda grad: 2 * grad)
    alone = trained(weights)
    assert launches(lambda: products(weights)) == [4]
    for one, together in zip(alone, trained(weights), strict=True):
        np.testing.assert_array_equal(one, together)


def test_gradients_of_weights_cast_together_come_in_the_order_of_their_layers(cuda: str) -> None:
    """DistributedDataParallel sends those of the last layers while backward makes the first ones'."""
    weights = weights_on_cuda(4)
    calls: list[str] = []
    for number, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(lambda leaf, number=number: calls.append(f"weight {number}"))

    def counted(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if op == "matmul":
                calls.append(op)
            return function(*args, **kwargs)

        return call

    for together in (False, True):
        loss = products(weights).float().sum()
        with backends.use("cuda", backends.get("cuda").wrapped(counted)):
            loss.backward()
        if not together:
            alone, calls[:] = list(calls), []
    assert calls == alone
    assert calls.index("weight 3") < calls.index("weight 0")
    assert "matmul" in calls[calls.index("weight 3") :]


def test_who_observes_functions_sees_each_cast(cuda: str) -> None:
    weights, seen = weights_on_cuda(3), []
    products(weights)

    def observer(function: type[Function], args: object, kwargs: dict[str, object], outputs: object) -> None:
        if function is F.conversion.Cast:
            seen.append(kwargs)

    with modes.observe(observer):
        products(weights)
    assert seen == [{"dtype": genesis.bfloat16}] * 3


def test_a_weight_of_a_group_that_changed_is_cast_anew(cuda: str) -> None:
    weights = weights_on_cuda(3)
    products(weights)
    with autocast("cuda", dtype=genesis.bfloat16):
        x = genesis.ones(2, 2, device="cuda")
        x @ weights[0]
        with genesis.no_grad():
            weights[1].fill_(3.0)
        weights[2].data = genesis.full((2, 2), 5.0, device="cuda")
        assert (x @ weights[1])[0, 0].item() == 6.0
        assert (x @ weights[2])[0, 0].item() == 10.0


def test_segments_of_a_checkpoint_cast_their_own_weights(cuda: str) -> None:
    """A segment is computed anew in a block of its own, and must not cast the weights of all others each time."""
    weights = weights_on_cuda(4)

    def step() -> None:
        with autocast("cuda", dtype=genesis.bfloat16):
            y = genesis.ones(2, 2, dtype=genesis.bfloat16, device="cuda", requires_grad=True)
            for pair in (weights[:2], weights[2:]):
                y = genesis.utils.checkpoint.checkpoint(lambda x, pair=pair: (x @ pair[0]) @ pair[1], y)
            loss = y.float().sum()
        loss.backward()

    step()
    step()
    assert sum(launches(step)) <= 8  # each weight in forward and in backward
