"""Transformers beside PyTorch's: masks, stacks, devices, refusals. See also table.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(len(shape)).standard_normal(shape) for shape in shapes]


def masks(batch: int, source: int, target: int) -> dict[str, np.ndarray]:
    """One of each kind, bool and floating; no row is masked as a whole."""
    padding = np.zeros((batch, source), bool)
    padding[0, -2:] = True
    causal = np.triu(np.full((target, target), -np.inf), 1)
    return {
        "src_mask": np.triu(np.ones((source, source), bool), 1),
        "tgt_mask": causal,
        "src_key_padding_mask": padding,
        "memory_key_padding_mask": padding,
    }


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # PyTorch's
@pytest.mark.parametrize("norm_first", [False, True])
def test_masks_as_pytorch(norm_first: bool) -> None:
    theirs = torch.nn.Transformer(8, 2, 2, 2, 12, 0.0, norm_first=norm_first).double()
    ours = nn.Transformer(8, 2, 2, 2, 12, 0.0, norm_first=norm_first).double()
    ours.load_state_dict(theirs.state_dict())
    source, target = arrays((5, 3, 8), (4, 3, 8))
    given = masks(3, 5, 4)
    our_masks: dict[str, Any] = {name: genesis.tensor(mask) for name, mask in given.items()}
    their_masks: dict[str, Any] = {name: torch.tensor(mask) for name, mask in given.items()}
    x, y = genesis.tensor(source, requires_grad=True), torch.tensor(source, requires_grad=True)
    found, expected = ours(x, genesis.tensor(target), **our_masks), theirs(y, torch.tensor(target), **their_masks)
    np.testing.assert_allclose(found.numpy(force=True), expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    (found * found).sum().backward()
    (expected * expected).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-8, atol=1e-11)
    made = nn.Transformer.generate_square_subsequent_mask(4, dtype=genesis.float64)
    np.testing.assert_array_equal(made.numpy(), given["tgt_mask"])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # PyTorch's
@pytest.mark.parametrize("norm", [False, True])
def test_stacks_as_pytorch(norm: bool) -> None:
    theirs, ours = [], []
    for space, models in ((torch.nn, theirs), (nn, ours)):
        norms = [space.LayerNorm(8) if norm else None for _ in range(2)]
        encoder = space.TransformerEncoder(space.TransformerEncoderLayer(8, 2, 12, 0.0), 2, norms[0])
        models += [encoder, space.TransformerDecoder(space.TransformerDecoderLayer(8, 2, 12, 0.0), 2, norms[1])]
    results = []
    source, target = arrays((5, 3, 8), (4, 3, 8))
    for mine, other in zip(ours, theirs, strict=True):
        mine.double().load_state_dict(other.double().state_dict())
    for convert, (encoder, decoder) in ((genesis.tensor, ours), (torch.tensor, theirs)):
        memory = encoder(convert(source))
        results.append(decoder(convert(target), memory).detach().numpy())
    np.testing.assert_allclose(*results, rtol=1e-9, atol=1e-12)


def test_layers_of_a_stack_are_copies() -> None:
    layer = nn.TransformerEncoderLayer(4, 1, 4)
    stack = nn.TransformerEncoder(layer, 2)
    weights = [layer.linear1.weight, *(each.linear1.weight for each in stack.layers)]
    assert len({id(weight) for weight in weights}) == 3


def test_stacks_of_ones_own() -> None:
    class Twice(nn.Module):
        def forward(self, src: genesis.Tensor, **masks: Any) -> genesis.Tensor:
            return src * 2

    model = nn.Transformer(4, 1, num_decoder_layers=1, custom_encoder=Twice())
    assert isinstance(model.encoder, Twice)
    assert model(genesis.ones(2, 1, 4), genesis.ones(3, 1, 4)).shape == (3, 1, 4)


def test_on_a_cuda_device(cuda: str) -> None:
    model = nn.Transformer(4, 2, 1, 1, 6, 0.0)
    source, target = (array.astype("float32") for array in arrays((3, 2, 4), (2, 2, 4)))
    results = []
    for device in ("cpu", "cuda"):
        model.to(device)
        output = model(genesis.tensor(source, device=device), genesis.tensor(target, device=device))
        results.append(output.detach().cpu().numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


x = genesis.zeros(2, 1, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.TransformerEncoderLayer(4, 3), "expected a multiple of 3 heads, got 4"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="tanh"), '\'activation\': expected "relu", "gelu" or a'),
        (lambda: nn.Transformer(4, 2, 1, 1)(x, x[0]), "Transformer: argument 'tgt': expected a batch as that of src"),
        (lambda: nn.Transformer(6, 2, 1, 1)(x, x), "Transformer: argument 'src': expected 6 features, got 4"),
    ],
)
def test_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match="argument") as raised:
        call()
    assert message in str(raised.value)
