"""Norms of weights, parametrizations, folding, vectors of parameters: the same program in both libraries."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import DTypeError, ShapeError

INPUT = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype("float32")
LAYERS = ["Conv2d(3, 4, 3)", "ConvTranspose2d(3, 4, 3)", "Linear(6, 5)"]


def layer_of(lib: Any, text: str) -> Any:
    lib.manual_seed(3)
    return eval(f"lib.nn.{text}", {"lib": lib})


def trained(lib: Any, layer: Any) -> list[Any]:
    """Outputs and states over three steps of SGD, and the output in eval mode."""
    optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
    found = []
    x = lib.tensor(INPUT)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (layer(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    layer.eval()
    state = layer.state_dict()
    return [list(state), *found, layer(x).detach(), *state.values()]


def same(found: list[Any], expected: list[Any]) -> None:
    for mine, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-5, atol=1e-5)
        else:
            assert mine == other


def new(kind: str, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda lib, layer: getattr(lib.nn.utils.parametrizations, kind)(layer, **options)


def old(kind: str, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda lib, layer: getattr(lib.nn.utils, kind)(layer, **options)


NORMS = {
    "weight_norm": old("weight_norm"),
    "weight_norm of all": old("weight_norm", dim=None),
    "weight_norm of bias": old("weight_norm", name="bias"),
    "weight_norm along 1": old("weight_norm", dim=1),
    "spectral_norm": old("spectral_norm"),
    "spectral_norm of 3": old("spectral_norm", n_power_iterations=3, dim=0),
    "parametrized weight_norm": new("weight_norm"),
    "parametrized weight_norm of all": new("weight_norm", dim=None),
    "parametrized spectral_norm": new("spectral_norm"),
    "parametrized spectral_norm of 2": new("spectral_norm", n_power_iterations=2, dim=1),
    "parametrized spectral_norm of bias": new("spectral_norm", name="bias", dim=0),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("text", LAYERS)
@pytest.mark.parametrize("norm", NORMS)
def test_norms(norm: str, text: str) -> None:
    layers = [NORMS[norm](lib, layer_of(lib, text)) for lib in (genesis, torch)]
    ours, theirs = layers
    twin = copy.deepcopy(ours) if "parametrized" in norm else None
    results = trained(genesis, ours), trained(torch, theirs)
    same(*results)
    if twin is not None:  # trains by itself, and as the first one did
        same(trained(genesis, twin), results[1])


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_the_older_form_removed(kind: str) -> None:
    found = []
    for lib in (genesis, torch):
        layer = getattr(lib.nn.utils, kind)(layer_of(lib, "Linear(6, 5)"))
        layer(lib.tensor(INPUT))
        layer = getattr(lib.nn.utils, f"remove_{kind}")(layer)
        found.append([sorted(layer.state_dict()), layer(lib.tensor(INPUT)), layer.weight])
    same(*found)
    with pytest.raises(ValueError, match=f"remove_{kind}: argument 'name': expected a parameter with"):
        getattr(nn.utils, f"remove_{kind}")(nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match=f"{kind}: argument 'name': expected a parameter without"):
        getattr(nn.utils, kind)(getattr(nn.utils, kind)(nn.Linear(1, 1)))


@pytest.mark.parametrize("keep", [True, False])
def test_parametrizations_of_ones_own(keep: bool) -> None:
    found = []
    for lib in (genesis, torch):

        class Double(lib.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                return x * 2

            def right_inverse(self, x: Any) -> Any:
                return x / 2

        class Shift(lib.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                return x + 1

            def right_inverse(self, x: Any) -> Any:
                return x - 1

        parametrize = lib.nn.utils.parametrize
        layer = layer_of(lib, "Linear(6, 5)")
        first = layer.weight.detach().clone()
        parametrize.register_parametrization(layer, "weight", Double())
        parametrize.register_parametrization(layer, "weight", Shift())
        seen = [first, layer.weight, sorted(layer.state_dict()), type(layer).__name__]
        with parametrize.cached():
            seen.append(layer.weight is layer.weight)
        layer.weight = lib.ones(5, 6)
        seen += [layer.parametrizations.weight.original, parametrize.is_parametrized(layer, "bias")]
        seen.append(parametrize.type_before_parametrizations(layer) is lib.nn.Linear)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=keep)
        seen += [layer.weight, type(layer) is lib.nn.Linear, [name for name, _ in layer.named_parameters()]]
        found.append(seen)
    same(*found)


def test_wrong_parametrizations_change_nothing() -> None:
    class Longer(nn.Module):
        def forward(self, x: genesis.Tensor) -> genesis.Tensor:
            return genesis.cat([x, x])

    layer = nn.Linear(2, 1)
    with pytest.raises(ShapeError, match=r"expected results of shape \(1, 2\).*, got \(2, 2\)"):
        nn.utils.parametrize.register_parametrization(layer, "weight", Longer())
    assert type(layer) is nn.Linear
    assert list(layer.state_dict()) == ["weight", "bias"]
    with pytest.raises(ValueError, match="expected a parameter or buffer of the module, got 'kernel'"):
        nn.utils.parametrize.register_parametrization(layer, "kernel", Longer())
    with pytest.raises(ValueError, match="remove_parametrizations: argument 'tensor_name'"):
        nn.utils.parametrize.remove_parametrizations(layer, "weight")
    with pytest.raises(RuntimeError, match="save its state_dict"):
        pickle.dumps(nn.utils.parametrizations.weight_norm(layer))


def test_states_of_the_older_weight_norm_load() -> None:
    older, newer = nn.utils.weight_norm(nn.Linear(3, 2)), nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    newer.load_state_dict(older.state_dict())
    assert newer.weight.tolist() == older.weight.tolist()


@pytest.mark.parametrize(
    "text", ["Conv1d(3, 4, 3)", "Conv2d(3, 4, 3, bias=False)", "ConvTranspose2d(3, 4, 3)", "Linear(6, 4)"]
)
def test_folding_of_batch_norms(text: str) -> None:
    found = []
    for lib in (genesis, torch):
        kind = "Linear" if "Linear" in text else "1d" if "1d" in text else "2d"
        layer = layer_of(lib, text).eval()
        norm = (lib.nn.BatchNorm2d if kind == "2d" else lib.nn.BatchNorm1d)(4).eval()
        with lib.no_grad():
            norm.running_mean.fill_(0.5)
            norm.running_var.fill_(2.0)
            norm.weight.fill_(1.5)
        if kind == "Linear":
            fused = lib.nn.utils.fuse_linear_bn_eval(layer, norm)
        elif "Transpose" in text:
            fused = lib.nn.utils.fusion.fuse_conv_bn_eval(layer, norm, True)
        else:
            fused = lib.nn.utils.fuse_conv_bn_eval(layer, norm)
        found.append([fused.weight, fused.bias, fused.weight.requires_grad])
        with pytest.raises(Exception, match="eval"):
            lib.nn.utils.fuse_conv_bn_eval(layer.train(), norm)
    same(*found)


def test_vectors_of_parameters() -> None:
    found = []
    for lib in (genesis, torch):
        layer = layer_of(lib, "Linear(6, 5)")
        vector = lib.nn.utils.parameters_to_vector(layer.parameters())
        (vector * vector).sum().backward()
        lib.nn.utils.vector_to_parameters(lib.arange(35.0), layer.parameters())
        found.append([vector, layer.weight.grad, layer.weight, layer.bias])
    same(*found)
    with pytest.raises(ShapeError, match="vector_to_parameters: argument 'vec': expected a vector of 2 elements"):
        nn.utils.vector_to_parameters(genesis.ones(1), nn.Linear(1, 1).parameters())


def test_total_norms() -> None:
    arrays = [np.float32([3.0, -1.0]), np.float32([[4.0]])]
    for order in (1.0, 2.0, float("inf")):
        total, expected = (
            lib.nn.utils.get_total_norm([lib.tensor(array) for array in arrays], order) for lib in (genesis, torch)
        )
        assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    with pytest.raises(RuntimeError, match="get_total_norm: the norm of order 2 of the gradients is inf"):
        nn.utils.get_total_norm([genesis.tensor([genesis.inf])], error_if_nonfinite=True)
    with pytest.raises(DTypeError, match=r"get_total_norm: argument 'tensors\[0\]': expected a Tensor, got int"):
        nn.utils.get_total_norm([1])


def test_functional_call() -> None:
    found = []
    for lib in (genesis, torch):
        layer = layer_of(lib, "Linear(6, 5)")
        layer.other = layer.weight
        given = {"weight": lib.ones(5, 6, requires_grad=True)}
        call = lib.nn.utils.stateless.functional_call if lib is genesis else torch.func.functional_call
        result = call(layer, given, (lib.tensor(INPUT),))
        result.sum().backward()
        found.append([result, given["weight"].grad, layer.weight.grad, layer.other is layer.weight])
    same(*found)
    with pytest.raises(KeyError, match="functional_call: argument 'parameters_and_buffers': expected names of"):
        nn.utils.stateless.functional_call(nn.Linear(1, 1), {"kernel": genesis.ones(1)}, genesis.ones(1))
    with pytest.raises(KeyError, match="got none for 'bias'"):
        nn.utils.stateless.functional_call(
            nn.Linear(1, 1), {"weight": genesis.ones(1, 1)}, genesis.ones(1), strict=True
        )


def test_skip_init_draws_nothing() -> None:
    genesis.manual_seed(1)
    expected = genesis.rand(1).item()
    genesis.manual_seed(1)
    assert nn.utils.skip_init(nn.Linear, 3, 2, bias=False).weight.shape == (2, 3)
    assert genesis.rand(1).item() == expected
    with pytest.raises(DTypeError, match="skip_init: argument 'module_cls': expected a class of modules"):
        nn.utils.skip_init(3)
