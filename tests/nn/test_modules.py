"""Each layer against PyTorch's of the same name: output, gradients, state both ways, repr, initial values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis import nn
from tests.nn.table import CASES, Case

DTYPES = {torch.float32: genesis.float32, torch.float64: genesis.float64}
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
NAMES = sorted({case.name for case in CASES})
# PyTorch's subclass of Linear that stands here only keeps quantisation away.
OTHER_NAMES = {"NonDynamicallyQuantizableLinear": "Linear"}


def pair_of(case: Case, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, nn.Module]:
    """PyTorch's layer with random parameters and statistics, and Genesis' after loading its state_dict."""
    theirs = getattr(torch.nn, case.name)(*case.args, **case.kwargs).to(dtype)
    for tensor in (*theirs.parameters(), *theirs.buffers()):
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand_like(tensor) + 0.5)
    ours = getattr(nn, case.name)(*case.args, **case.kwargs).to(DTYPES[dtype])
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs_of(case: Case, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[genesis.Tensor]]:
    theirs = [torch.randn(make, dtype=dtype) if isinstance(make, tuple) else make(dtype) for make in case.inputs]
    ours = [genesis.tensor(x.numpy()) for x in theirs]
    for x, y in zip(theirs, ours, strict=True):
        if x.is_floating_point():
            x.requires_grad_()
            y.requires_grad_()
    return theirs, ours


def outputs(result: Any) -> list[Any]:
    return [each for part in result for each in outputs(part)] if isinstance(result, tuple) else [result]


def results(layer: Any, inputs: list[Any], convert: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """Outputs, gradients of a weighted sum of them, and buffers; convert: of the weights to what the layer takes."""
    made, loss = outputs(layer(*inputs)), convert(torch.zeros(()))
    for index, y in enumerate(made):
        generator = torch.Generator().manual_seed(index)
        loss = loss + (y * convert(torch.randn(tuple(y.shape), generator=generator))).sum()
    loss.backward()
    found = {f"output {index}": y.detach() for index, y in enumerate(made)}
    found |= {f"gradient of input {index}": x.grad for index, x in enumerate(inputs)}
    found |= {f"gradient of {name}": parameter.grad for name, parameter in layer.named_parameters()}
    return found | dict(layer.named_buffers())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_gradients_and_statistics(case: Case, training: bool, dtype: torch.dtype) -> None:
    """No farther from float64 than twice PyTorch's layer, plus a tolerance beside the largest element."""
    torch.manual_seed(0)
    theirs, ours = pair_of(case, dtype)
    exact = copy.deepcopy(theirs).double()
    their_inputs, our_inputs = inputs_of(case, dtype)
    exact_inputs = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in their_inputs]
    for layer in (theirs, ours, exact):
        layer.train(training)
    expected = results(theirs, their_inputs, lambda x: x.to(dtype))
    actual = results(ours, our_inputs, lambda x: genesis.tensor(x.to(dtype).numpy()))
    truths = results(exact, exact_inputs, torch.Tensor.double)
    assert actual.keys() == expected.keys()
    for name, truth in truths.items():
        if truth is None:
            assert actual[name] is None, name
        else:
            assert actual[name].to_torch().dtype is expected[name].dtype, name
            assert actual[name].shape == truth.shape, name
            differences = (x.double() - truth for x in (actual[name].to_torch(), expected[name]))
            error, allowed = (float(x.abs().max()) if x.numel() else 0.0 for x in differences)
            scale = max(1.0, float(truth.abs().max())) if truth.numel() else 1.0
            assert error <= 2 * allowed + TOLERANCES[dtype] * scale, f"{name}: {error:.1e}, PyTorch's {allowed:.1e}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_state_goes_to_pytorch(case: Case) -> None:
    theirs = getattr(torch.nn, case.name)(*case.args, **case.kwargs)
    ours = getattr(nn, case.name)(*case.args, **case.kwargs)
    theirs.load_state_dict({key: value.to_torch() for key, value in ours.state_dict().items()})
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key].to_torch(), value), key


@pytest.mark.parametrize("case", CASES, ids=str)
def test_repr(case: Case) -> None:
    expected = repr(getattr(torch.nn, case.name)(*case.args, **case.kwargs))
    for theirs, ours in OTHER_NAMES.items():
        expected = expected.replace(theirs, ours)
    assert repr(getattr(nn, case.name)(*case.args, **case.kwargs)) == expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_initial_values_under_the_same_seed(case: Case) -> None:
    torch.manual_seed(7)
    theirs = getattr(torch.nn, case.name)(*case.args, **case.kwargs).state_dict()
    genesis.manual_seed(7)
    ours = getattr(nn, case.name)(*case.args, **case.kwargs).state_dict()
    assert sorted(ours) == sorted(theirs)
    for key, value in theirs.items():
        if torch.backends.cpu.get_cpu_capability() == "DEFAULT":  # PyTorch rounds twice there, see nn/draws.py
            torch.testing.assert_close(ours[key].to_torch(), value, rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(ours[key].to_torch(), value), key


def test_every_layer_of_both_is_in_the_table() -> None:
    """Layers without a counterpart, or that need more than a call, have tests of their own."""
    elsewhere = {
        "AdaptiveLogSoftmaxWithLoss",
        "Buffer",
        "CTCLoss",
        "CrossMapLRN2d",
        "DataParallel",
        "EmbeddingBag",
        "FractionalMaxPool2d",
        "LinearCrossEntropyLoss",
        "NLLLoss2d",
        "SyncBatchNorm",
        "RNNBase",
        "RNNCellBase",
        "TransformerEncoder",
        "TransformerDecoder",
        "UninitializedBuffer",
        "UninitializedParameter",
        "Module",
        "Parameter",
        "Sequential",
        "ModuleList",
        "ModuleDict",
        "ParameterDict",
        "ParameterList",
    }
    both = {name for name in dir(nn) if name[0].isupper() and hasattr(torch.nn, name)}
    assert {name for name in both - elsewhere if not name.startswith("Lazy")} == set(NAMES)
