"""Each layer against PyTorch's of the same name: output, gradients, state both ways, repr, initial values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import genesis
from genesis import nn
from tests.nn.table import CASES, Case

DTYPES = {torch.float32: genesis.float32, torch.float64: genesis.float64}
TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}
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


def check(actual: genesis.Tensor | None, expected: torch.Tensor | None, dtype: torch.dtype, what: str) -> None:
    assert (actual is None) == (expected is None), what
    if actual is not None and expected is not None:
        torch.testing.assert_close(
            actual.detach().to_torch(), expected.detach(), **TOLERANCES[dtype], msg=lambda text: f"{what}: {text}"
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_gradients_and_statistics(case: Case, training: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    theirs, ours = pair_of(case, dtype)
    theirs.train(training)
    ours.train(training)
    their_inputs, our_inputs = inputs_of(case, dtype)
    their_outputs, our_outputs = outputs(theirs(*their_inputs)), outputs(ours(*our_inputs))
    assert len(our_outputs) == len(their_outputs)
    their_loss, our_loss = torch.zeros((), dtype=dtype), genesis.zeros((), dtype=DTYPES[dtype])
    for index, (y, expected) in enumerate(zip(our_outputs, their_outputs, strict=True)):
        check(y, expected, dtype, f"output {index}")
        weights = torch.randn(expected.shape, dtype=dtype)
        their_loss = their_loss + (expected * weights).sum()
        our_loss = our_loss + (y * genesis.tensor(weights.numpy())).sum()
    their_loss.backward()
    our_loss.backward()
    for index, (x, expected) in enumerate(zip(our_inputs, their_inputs, strict=True)):
        check(x.grad, expected.grad, dtype, f"gradient of input {index}")
    our_parameters = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        check(our_parameters[name].grad, parameter.grad, dtype, f"gradient of {name}")
    our_buffers = dict(ours.named_buffers())
    for name, buffer in theirs.named_buffers():
        check(our_buffers[name], buffer, dtype, name)


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
