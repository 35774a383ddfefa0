"""Recurrent layers beside PyTorch's: initial states, packed sequences, devices, refusals. See also table.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import rnn as their_rnn

import genesis
from genesis import nn
from genesis.backends.cpu import recurrent
from genesis.nn.utils import rnn

LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {"nonlinearity": "relu"}),
    ("LSTM", {"num_layers": 2}),
    ("LSTM", {"bidirectional": True, "proj_size": 2}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
]
LENGTHS = [2, 5, 1, 5, 3]


def pair(name: str, **options: Any) -> tuple[Any, Any]:
    theirs = getattr(torch.nn, name)(4, 3, **options).double()
    ours = getattr(nn, name)(4, 3, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def states(name: str, options: dict[str, Any], count: int) -> tuple[Any, Any]:
    """Initial states with gradients, in the form that the layer takes."""
    places = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    sizes = [options.get("proj_size") or 3] + [3] * (name == "LSTM")
    arrays = [np.random.default_rng(size).standard_normal((places, count, size)) for size in sizes]
    ours = [genesis.tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    return (tuple(ours), tuple(theirs)) if name == "LSTM" else (ours[0], theirs[0])


def flat(value: Any) -> list[Any]:
    if isinstance(value, rnn.PackedSequence | their_rnn.PackedSequence):
        return [value.data]
    return [each for part in value for each in flat(part)] if isinstance(value, tuple) else [value]


def same(ours: Any, theirs: Any) -> None:
    for mine, other in zip(flat(ours), flat(theirs), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-12)


def backward(ours: Any, theirs: Any) -> None:
    """From a sum in which every element counts differently."""
    total, other_total = 0, 0
    for mine, other in zip(flat(ours), flat(theirs), strict=True):
        weights = np.random.default_rng(other.numel()).standard_normal(tuple(other.shape))
        total = total + (mine * genesis.tensor(weights)).sum()
        other_total = other_total + (other * torch.tensor(weights)).sum()
    total.backward()
    other_total.backward()


@pytest.mark.parametrize("packed", ["tensor", "sorted", "unsorted"])
@pytest.mark.parametrize(("name", "options"), LAYERS, ids=str)
def test_initial_states_and_packed_sequences(name: str, options: dict[str, Any], packed: str) -> None:
    mine, other = pair(name, **options)
    x = np.random.default_rng(0).standard_normal((5, 5, 4))
    ours, theirs = genesis.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    our_state, their_state = states(name, options, 5)
    our_input: Any = ours
    their_input: Any = theirs
    if packed != "tensor":
        lengths = sorted(LENGTHS, reverse=True) if packed == "sorted" else LENGTHS
        our_input = rnn.pack_padded_sequence(ours, lengths, enforce_sorted=packed == "sorted")
        their_input = their_rnn.pack_padded_sequence(theirs, torch.tensor(lengths), enforce_sorted=packed == "sorted")
    our_output, their_output = mine(our_input, our_state), other(their_input, their_state)
    same(our_output, their_output)
    if packed != "tensor":
        padded = rnn.pad_packed_sequence(our_output[0], True, -1.0, 7)
        same(padded, their_rnn.pad_packed_sequence(their_output[0], True, -1.0, 7))
    backward(our_output, their_output)
    same(ours.grad, theirs.grad)
    for one, expected in zip(flat(our_state), flat(their_state), strict=True):
        same(one.grad, expected.grad)
    for key, parameter in other.named_parameters():
        same(mine.get_parameter(key).grad, parameter.grad)


def test_dropout_between_layers_draws_what_pytorch_draws() -> None:
    mine, other = pair("LSTM", num_layers=3, dropout=0.4)
    x = np.random.default_rng(0).standard_normal((6, 2, 4))
    genesis.manual_seed(5)
    found = mine(genesis.tensor(x))
    torch.manual_seed(5)
    same(found, other(torch.tensor(x)))
    same(mine.eval()(genesis.tensor(x)), other.eval()(torch.tensor(x)))


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_on_a_cuda_device(cuda: str, name: str) -> None:
    layer = getattr(nn, name)(2, 3, bidirectional=True)
    x = np.random.default_rng(0).standard_normal((3, 2, 2)).astype("float32")
    results = []
    for device in ("cpu", "cuda"):
        layer.to(device)
        layer.zero_grad()
        input = rnn.pack_padded_sequence(genesis.tensor(x, device=device), [2, 3], enforce_sorted=False)
        output = flat(layer(input))
        sum((part * part).sum() for part in output).backward()
        results.append([each.cpu().detach().numpy() for each in (*output, *(p.grad for p in layer.parameters()))])
    for found, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


SEQUENCES = [np.arange(6.0).reshape(3, 2), np.arange(2.0).reshape(1, 2), np.arange(4.0).reshape(2, 2)]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_sequences_are_padded_packed_and_back(batch_first: bool, side: str) -> None:
    ours, theirs = [genesis.tensor(x) for x in SEQUENCES], [torch.tensor(x) for x in SEQUENCES]
    padded = rnn.pad_sequence(ours, batch_first, 7.0, side)
    same(padded, their_rnn.pad_sequence(theirs, batch_first, 7.0, side))
    packed, other = rnn.pack_sequence(ours, False), their_rnn.pack_sequence(theirs, False)
    for mine, expected in zip(packed, other, strict=True):
        same(mine, expected)
    for mine, original in zip(rnn.unpack_sequence(packed), SEQUENCES, strict=True):
        np.testing.assert_array_equal(mine.numpy(), original)
    moved = packed.to(genesis.float32)
    assert (moved.data.dtype, moved.is_cuda, moved.sorted_indices) == (genesis.float32, False, packed.sorted_indices)


x = genesis.zeros(3, 2, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.LSTM(0, 3), "LSTM: argument 'input_size': expected an int >= 1, got 0"),
        (lambda: nn.GRU(4, 3, dropout=2.0), "GRU: argument 'dropout': expected a probability from 0 to 1, got 2.0"),
        (lambda: nn.GRU(4, 3, proj_size=2), "GRU: argument 'proj_size': expected 0, or for an LSTM an int below"),
        (lambda: nn.RNN(4, 3, nonlinearity="gelu"), 'RNN: argument \'nonlinearity\': expected "tanh" or "relu"'),
        (lambda: nn.LSTM(5, 3)(x), "LSTM: argument 'input': expected 5 features, got 4"),
        (lambda: nn.LSTM(4, 3)(x[None]), "LSTM: argument 'input': expected 3 dimensions, or 2 without a batch"),
        (lambda: nn.LSTM(4, 3)(x[:0]), "LSTM: argument 'input': expected at least one time step"),
        (lambda: nn.LSTM(4, 3)(x, x), "LSTM: argument 'hx': expected a pair of tensors, (h, c), got Tensor"),
        (lambda: nn.LSTM(4, 3)(x, (x, x)), "LSTM: argument 'hx[0]': expected shape (1, 2, 3), got (3, 2, 4)"),
        (lambda: nn.GRU(4, 3)(x[0], x), "GRU: argument 'hx': expected 2 dimensions, as the input has no batch"),
        (lambda: nn.LSTMCell(4, 3)(x), "LSTMCell: argument 'input': expected 1 or 2 dimensions"),
        (lambda: nn.GRUCell(4, 3)(x[0], x[0]), "GRUCell: argument 'hx': expected shape (2, 3), got (2, 4)"),
        (lambda: rnn.pack_padded_sequence(x, [1, 2]), "expected descending lengths, or enforce_sorted=False"),
        (lambda: rnn.pack_padded_sequence(x, [4, 2]), "argument 'lengths': expected lengths from 1 to 3, got [4, 2]"),
        (lambda: rnn.pack_padded_sequence(x, [1]), "'lengths': expected one for each of 2 sequences, got 1 lengths"),
        (lambda: rnn.pad_sequence([]), "pad_sequence: argument 'sequences': expected at least one, got none"),
        (lambda: rnn.pad_sequence([x, x[0]]), "argument 'sequences[1]': expected shape (L, …) as the first"),
        (lambda: rnn.pad_sequence([x], padding_side="top"), '\'padding_side\': expected "right" or "left"'),
        (
            lambda: rnn.pad_packed_sequence(rnn.pack_sequence([x]), total_length=2),
            "pad_packed_sequence: argument 'total_length': expected at least 3, the longest length, got 2",
        ),
    ],
)
def test_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        call()
    assert message in str(raised.value)


def test_a_single_layer_has_nothing_to_drop_out() -> None:
    with pytest.warns(UserWarning, match="LSTM: dropout acts between layers, of which there is only one"):
        nn.LSTM(4, 3, dropout=0.5)


SECOND: list[tuple[str, dict[str, Any], str]] = [
    ("RNN", {"nonlinearity": "tanh", "bias": False}, "tensor"),
    ("LSTM", {"bidirectional": True, "proj_size": 2}, "unsorted"),
    ("LSTM", {"num_layers": 2, "batch_first": True}, "tensor"),
    ("GRU", {"bidirectional": True}, "sorted"),
]


def penalty(library: Any, packing: Any, layer: Any, x: Any, state: Any, packed: str) -> Any:
    """The squared gradients of a sum of squares; the first state is made of the input too."""
    input = x
    if packed != "tensor":
        lengths = sorted(LENGTHS, reverse=True) if packed == "sorted" else LENGTHS
        input = packing.pack_padded_sequence(x, lengths, enforce_sorted=packed == "sorted")
    state = (state[0] + x.mean(), state[1]) if isinstance(state, tuple) else state + x.mean()
    total = sum((part * part).sum() for part in flat(layer(input, state)))
    grads = library.autograd.grad(total, [x, *layer.parameters()], create_graph=True)
    return sum((grad * grad).sum() for grad in grads)


@pytest.mark.parametrize(("name", "options", "packed"), SECOND, ids=str)
def test_gradients_of_gradients(name: str, options: dict[str, Any], packed: str) -> None:
    mine, other = pair(name, **options)
    x = np.random.default_rng(0).standard_normal((5, 5, 4))
    ours, theirs = genesis.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    our_state, their_state = states(name, options, 5)
    found = penalty(genesis, rnn, mine, ours, our_state, packed)
    expected = penalty(torch, their_rnn, other, theirs, their_state, packed)
    same(found, expected)
    found.backward()
    expected.backward()
    same(ours.grad, theirs.grad)
    for key, parameter in other.named_parameters():
        same(mine.get_parameter(key).grad, parameter.grad)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "options"), [*LAYERS, ("RNN", {"bias": False})], ids=str)
def test_autocast_computes_what_pytorch_computes(name: str, options: dict[str, Any], packed: bool) -> None:
    mine, other = (layer.float() for layer in pair(name, **options))
    x = np.random.default_rng(0).standard_normal((4, 3, 4)).astype("float32")
    if isinstance(other, torch.nn.LSTM) and not packed and not lower_lstms():
        pytest.skip("PyTorch has none for this processor")
    results = []
    for library, layer, packing in ((genesis, mine, rnn), (torch, other, their_rnn)):
        with library.autocast("cpu"), warnings.catch_warnings():
            warnings.filterwarnings("ignore" if library is torch else "error", message="LSTM with projections")
            input = library.tensor(x)
            output = flat(layer(packing.pack_padded_sequence(input, [4, 2, 1]) if packed else input))
        sum(part.float().sum() for part in output).backward()
        results.append([*output, *[parameter.grad for parameter in layer.parameters()]])
    for found, expected in zip(*results, strict=True):
        assert str(found.dtype).rpartition(".")[2] == str(expected.dtype).rpartition(".")[2]
        np.testing.assert_array_equal(found.float().detach().numpy(), expected.float().detach().numpy())


def lower_lstms() -> bool:
    """Whether PyTorch has LSTMs in bfloat16 for this processor; it gives them to oneDNN, which wants AVX-512."""
    try:
        with torch.autocast("cpu"):
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}], ids=str)
def test_autocast_where_the_processor_has_no_lower_lstm(
    options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in float32, to be rounded to the dtype that results have elsewhere."""
    lstm, calls = recurrent._VF.lstm, []

    def refusing(*args: Any) -> Any:
        calls.append(torch.is_autocast_enabled("cpu"))
        if calls[-1]:
            raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive.")
        return lstm(*args)

    monkeypatch.setattr(recurrent, "_VF", SimpleNamespace(lstm=refusing))
    monkeypatch.setattr(recurrent, "_refused", set())
    layer = nn.LSTM(4, 8, **options)
    x = genesis.tensor(np.random.default_rng(0).standard_normal((4, 3, 4)).astype("float32"), requires_grad=True)
    results = []
    for is_lower in (False, True, True):
        layer.zero_grad()
        x.grad = None
        with genesis.autocast("cpu", dtype=getattr(genesis, dtype), enabled=is_lower):
            output = flat(layer(x))
        assert {str(part.dtype) for part in output} == {f"genesis.{dtype}" if is_lower else "genesis.float32"}
        sum(part.float().sum() for part in output).backward()
        results.append([*output, x.grad, *[parameter.grad for parameter in layer.parameters()]])
    for expected, *found in zip(*results, strict=True):
        for each in found:
            limit = 4e-2 if dtype == "bfloat16" else 4e-3
            np.testing.assert_allclose(each.float().detach().numpy(), expected.detach().numpy(), rtol=limit, atol=limit)
    assert calls.count(True) == 1


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_a_layer_is_one_node(name: str) -> None:
    output = flat(getattr(nn, name)(4, 3, bidirectional=True)(genesis.zeros(5, 2, 4)))[0]
    assert repr(output.grad_fn) == "<RecurrentBackward>"
    assert {
        edge[0] for edge in output.grad_fn.edges if edge is not None and not isinstance(edge[0], nn.Parameter)
    } == set()


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_where_only_some_operands_get_gradients(name: str) -> None:
    mine, other = pair(name)
    mine.weight_ih_l0.requires_grad_(False)
    other.weight_ih_l0.requires_grad_(False)
    x = np.random.default_rng(0).standard_normal((5, 2, 4))
    for layer, library in ((mine, genesis), (other, torch)):
        flat(layer(library.tensor(x)))[-1].sum().backward()
    same(mine.weight_hh_l0.grad, other.weight_hh_l0.grad)
    assert mine.weight_ih_l0.grad is None


def test_a_graph_runs_backward_twice() -> None:
    layer = nn.LSTM(4, 3)
    total = layer(genesis.ones(5, 2, 4))[0].sum()
    total.backward(retain_graph=True)
    first = layer.weight_hh_l0.grad.clone()
    total.backward()
    assert genesis.equal(layer.weight_hh_l0.grad, first * 2)
    with pytest.raises(genesis.errors.GraphError, match="the graph was freed"):
        total.backward()


def test_a_weight_that_changed_since_is_refused() -> None:
    layer = nn.GRU(4, 3)
    total = layer(genesis.ones(5, 2, 4))[0].sum()
    with genesis.no_grad():
        layer.weight_hh_l0 += 1
    with pytest.raises(genesis.errors.GraphError, match="has been changed in place 1 time"):
        total.backward()


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_compiled(name: str) -> None:
    layer = getattr(nn, name)(4, 3)

    def run(x: genesis.Tensor) -> genesis.Tensor:
        total = sum((part * part).sum() for part in flat(layer(x)))
        total.backward()
        return total

    compiled = genesis.compile(run)
    for seed in range(4):
        x = genesis.tensor(np.random.default_rng(seed).standard_normal((5, 2, 4)).astype("float32"))
        results = []
        for function in (compiled, run):
            layer.zero_grad()
            results.append([function(x), *[parameter.grad for parameter in layer.parameters()]])
        for found, expected in zip(*results, strict=True):
            assert genesis.equal(found, expected)
