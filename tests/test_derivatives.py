"""Jacobians, Hessians and their products beside torch.autograd.functional."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import derivatives
from genesis.port import names

X, Y = (np.random.default_rng(seed).standard_normal(shape) for seed, shape in enumerate([(2, 3), (3,)]))
V = np.random.default_rng(3).standard_normal((2, 3))


def one(x: Any) -> Any:
    return x.sin() * x.sum(1, keepdim=True)


def several(x: Any, y: Any) -> Any:
    return x @ y, (y * y).exp()


def total(x: Any) -> Any:
    return (x**3).sum() * x.cos().sum()


def of_both(x: Any, y: Any) -> Any:
    return ((x @ y) ** 2).sum() + (y**3).sum()


PRODUCTS = {
    "vjp": (one, [X], [V]), "jvp": (one, [X], [V]), "vhp": (total, [X], [V]), "hvp": (total, [X], [V]),
    "vjp several": (several, [X, Y], [Y[:2], Y]), "jvp several": (several, [X, Y], [V, Y]),
    "vhp several": (of_both, [X, Y], [V, Y]), "hvp several": (of_both, [X, Y], [V, Y]),
    "jacobian": (one, [X], None), "jacobian several": (several, [X, Y], None),
    "hessian": (total, [X], None), "hessian several": (of_both, [X, Y], None),
}  # fmt: skip


def flat(value: Any) -> list[Any]:
    return [each for part in value for each in flat(part)] if isinstance(value, tuple) else [value]


def structure(value: Any) -> Any:
    return tuple(map(structure, value)) if isinstance(value, tuple) else tuple(value.shape)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("case", PRODUCTS)
def test_as_pytorch(case: str, create_graph: bool) -> None:
    function, arrays, vectors = PRODUCTS[case]
    results, grads = [], []
    for library, functional in ((genesis, derivatives), (torch, torch.autograd.functional)):
        inputs = tuple(library.tensor(array, requires_grad=True) for array in arrays)
        v = None if vectors is None else tuple(library.tensor(array) for array in vectors)
        given = [each[0] if each is not None and len(each) == 1 else each for each in (inputs, v)]
        found = getattr(functional, case.partition(" ")[0])(
            function, *(given if v is not None else given[:1]), create_graph=create_graph
        )
        results.append(found)
        assert flat(found)[0].requires_grad is create_graph
        if create_graph:
            grads.append(library.autograd.grad(sum((each * each).sum() for each in flat(found)), inputs))
    assert structure(results[0]) == structure(results[1])
    for ours, theirs in (results, *([grads] if grads else [])):
        for mine, other in zip(flat(ours), flat(theirs), strict=True):
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-10, atol=1e-12)


def test_strict_refuses_what_is_independent() -> None:
    x = genesis.ones(2)
    assert derivatives.vjp(lambda x: genesis.ones(2), x, x)[1].tolist() == [0.0, 0.0]
    with pytest.raises(genesis.errors.GraphError, match="vjp: strict=True: an output does not depend on an input"):
        derivatives.vjp(lambda x: genesis.ones(2), x, x, strict=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: derivatives.vjp(one, x), "vjp: argument 'v': expected tensors of the shapes of the results"),
        (lambda x: derivatives.jvp(one, x, x[:1]), "jvp: argument 'v': expected the shapes of the inputs, [(2, 3)]"),
        (lambda x: derivatives.vhp(one, x, x), "vhp: argument 'func': expected a function that returns one tensor"),
        (lambda x: derivatives.vjp(one, 3), "vjp: argument 'inputs': expected a tensor or a tuple of tensors, got int"),
        (lambda x: derivatives.jacobian(one, x, strategy="forward-mode"), "strategy='forward-mode' is not supported"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as raised:
        call(genesis.ones(2, 3))
    assert message in str(raised.value)


def test_it_stands_for_pytorchs() -> None:
    assert names.find("torch.autograd.functional", "jacobian") is derivatives.jacobian
