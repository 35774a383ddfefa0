"""nn.utils.prune against PyTorch's: masks, state dicts, gradients, what is pruned on top of what, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune

import genesis
from genesis.errors import DTypeError, ShapeError
from genesis.nn.utils import prune

PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "least elements": lambda p, a, b: p.l1_unstructured(a, "weight", 0.3),
    "by scores": lambda p, a, b: p.l1_unstructured(a, "weight", 4, importance_scores=-a.weight.detach().abs()),
    "none": lambda p, a, b: p.l1_unstructured(a, "weight", 0),
    "least channels": lambda p, a, b: p.ln_structured(a, "weight", 0.5, n=2, dim=0),
    "least columns": lambda p, a, b: p.ln_structured(a, "weight", 1, n=1, dim=-1),
    "identity": lambda p, a, b: p.identity(a, "bias"),
    "twice": lambda p, a, b: p.l1_unstructured(p.l1_unstructured(a, "weight", 0.3), "weight", 0.5),
    "channels, then elements": lambda p, a, b: p.l1_unstructured(p.ln_structured(a, "weight", 1, 2, 0), "weight", 3),
    "elements, then channels": lambda p, a, b: p.ln_structured(p.l1_unstructured(a, "weight", 3), "weight", 1, 2, 0),
    "of two layers": lambda p, a, b: p.global_unstructured([(a, "weight"), (b, "weight")], p.L1Unstructured, amount=9),
    "of two layers, again": lambda p, a, b: [
        p.global_unstructured([(a, "weight"), (b, "weight")], p.L1Unstructured, amount=0.3) for _ in range(2)
    ],
    "removed": lambda p, a, b: p.remove(p.l1_unstructured(a, "weight", 0.5), "weight"),
}


def layers(lib: Any, device: str = "cpu") -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    made = []
    for sizes in ((5, 4), (4, 3)):
        layer = lib.nn.Linear(*sizes)
        with lib.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(lib.tensor(rng.standard_normal(tuple(parameter.shape)).astype("float32")))
        made.append(layer.to(device))
    return made[0], made[1]


def run(lib: Any, name: str, device: str = "cpu") -> dict[str, Any]:
    first, second = layers(lib, device)
    PROGRAMS[name](lib.nn.utils.prune, first, second)
    for _ in range(2):  # a step, after which the hook prunes the new values
        second(first(lib.ones(2, 5, device=device))).square().mean().backward()
        with lib.no_grad():
            for parameter in (*first.parameters(), *second.parameters()):
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    first(lib.ones(1, 5, device=device))
    found = {**{f"a.{k}": v for k, v in first.state_dict().items()}, "weight": first.weight}
    found |= {f"b.{k}": v for k, v in second.state_dict().items()}
    assert lib.nn.utils.prune.is_pruned(first) == (name != "removed")
    return {key: value.detach().cpu().numpy() for key, value in found.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, device: str) -> None:
    mine, theirs = run(genesis, name, device), run(torch, name)
    assert sorted(mine) == sorted(theirs)
    for key, expected in theirs.items():
        np.testing.assert_allclose(mine[key], expected, rtol=1e-5, atol=1e-6, err_msg=key)


def test_random() -> None:
    layer = layers(genesis)[0]
    prune.random_unstructured(layer, "weight", 7)
    assert (layer.weight_mask == 0).sum().item() == 7
    other = prune.random_structured(layers(genesis)[0], "weight", 0.5, dim=1)
    assert sorted(other.weight_mask.sum(0).tolist()) == [0, 0, 4, 4, 4]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda a: prune.l1_unstructured(a, "weight", "half"), DTypeError, "'amount': expected an int or a float"),
        (lambda a: prune.l1_unstructured(a, "weight", 1.5), ValueError, "'amount': expected a float in"),
        (lambda a: prune.l1_unstructured(a, "weight", 21), ValueError, "'amount': expected at most 20"),
        (lambda a: prune.l1_unstructured(a, "weight", 1, genesis.ones(2)), ShapeError, "'importance_scores'"),
        (lambda a: prune.ln_structured(a, "bias", 1, 2, 0), ShapeError, "at least 2 dimensions"),
        (lambda a: prune.ln_structured(a, "weight", 1, 2, 2), IndexError, "'dim': expected a dimension of 2"),
        (lambda a: prune.custom_from_mask(a, "weight", genesis.ones(2)), ShapeError, "'mask': expected shape"),
        (lambda a: prune.remove(a, "weight"), ValueError, "expected a parameter that was pruned"),
        (lambda a: prune.l1_unstructured(a, "wait", 1), AttributeError, "wait"),
        (
            lambda a: prune.global_unstructured([(a, "weight")], prune.LnStructured, amount=1, n=2),
            DTypeError,
            "an unstructured one",
        ),
    ],
)
def test_what_is_refused_leaves_the_layer_as_it_was(call: Any, error: type, said: str) -> None:
    layer = layers(genesis)[0]
    before = layer.weight
    with pytest.raises(error, match=said):
        call(layer)
    assert layer.weight is before
    assert list(layer.state_dict()) == ["weight", "bias"]
