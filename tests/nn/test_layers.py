"""What the table cannot say: masks of attention, random dropout, pretrained tables, layers that PyTorch lacks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import ShapeError


def close(actual: genesis.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.detach().to_torch(), expected.detach(), rtol=tolerance, atol=tolerance)


def ours(x: torch.Tensor) -> genesis.Tensor:
    return genesis.tensor(x.detach().numpy())


# --- attention ---

N, L, S, E, H = 3, 5, 6, 8, 2
MASKS: dict[str, Any] = {
    "attn bool": {"attn_mask": torch.rand(L, S) < 0.3},
    "attn float": {"attn_mask": torch.randn(L, S)},
    "attn per head": {"attn_mask": torch.randn(N * H, L, S)},
    "padding bool": {"key_padding_mask": torch.arange(S).expand(N, S) >= torch.tensor([[6], [4], [2]])},
    "padding float": {"key_padding_mask": torch.randn(N, S)},
    "both": {
        "key_padding_mask": torch.arange(S).expand(N, S) >= 4,
        "attn_mask": torch.ones(L, S).triu(2).bool(),
    },
}


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["", "extra keys"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
def test_attention_masks(masks: dict[str, torch.Tensor], need_weights: bool, extra: dict[str, bool]) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, H, batch_first=True, **extra)
    layer = nn.MultiheadAttention(E, H, batch_first=True, **extra)
    layer.load_state_dict(theirs.state_dict())
    q, k, v = torch.randn(N, L, E), torch.randn(N, S, E), torch.randn(N, S, E)
    for average in (True, False):
        options = {"need_weights": need_weights, "average_attn_weights": average}
        expected, expected_weights = theirs(q, k, v, **masks, **options)
        y, weights = layer(ours(q), ours(k), ours(v), **{key: ours(m) for key, m in masks.items()}, **options)
        close(y, expected)
        if need_weights:
            close(weights, expected_weights)
        else:
            assert weights is None


@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention_under_the_causal_mask(need_weights: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, H)
    layer = nn.MultiheadAttention(E, H)
    layer.load_state_dict(theirs.state_dict())
    x = torch.randn(L, N, E, requires_grad=True)
    mine = ours(x).requires_grad_()
    causal = torch.ones(L, L).triu(1).bool()
    expected, _ = theirs(x, x, x, attn_mask=causal, is_causal=True, need_weights=need_weights)
    y, _ = layer(mine, mine, mine, is_causal=True, need_weights=need_weights)
    close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    close(mine.grad, x.grad)
    close(layer.in_proj_weight.grad, theirs.in_proj_weight.grad)
    hinted, _ = layer(mine, mine, mine, attn_mask=ours(causal), is_causal=True, need_weights=need_weights)
    close(hinted, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_dropout_only_in_training(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(E, H, dropout=0.5)
    x = genesis.randn(L, N, E)
    draws = [layer(x, x, x, need_weights=need_weights)[0].tolist() for _ in range(2)]
    assert draws[0] != draws[1]
    layer.eval()
    draws = [layer(x, x, x, need_weights=need_weights)[0].tolist() for _ in range(2)]
    assert draws[0] == draws[1]


def test_attention_refusals() -> None:
    layer = nn.MultiheadAttention(E, H, kdim=4)
    q, k, v = genesis.ones(L, N, E), genesis.ones(S, N, 4), genesis.ones(S, N, E)
    with pytest.raises(ShapeError, match="'embed_dim': expected a multiple of 3 heads, got 8"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(ShapeError, match=r"'query': expected 3 \(or 2\) dimensions, as key and value, got \(3, 2, 3\)"):
        layer(q, k[0], v)
    with pytest.raises(ShapeError, match="'key': expected 4 features, got 8"):
        layer(q, v, v)
    with pytest.raises(ShapeError, match=r"'attn_mask': expected shape \(5, 6\) or \(6, 5, 6\), got \(6, 5\)"):
        layer(q, k, v, attn_mask=genesis.ones(6, 5))
    with pytest.raises(ShapeError, match=r"'key_padding_mask': expected shape \(3, 6\), got \(6, 3\)"):
        layer(q, k, v, key_padding_mask=genesis.ones(6, 3))


# --- dropout ---


@pytest.mark.parametrize("name", ["Dropout", "Dropout2d"])
def test_dropout_draws_what_pytorch_draws(name: str) -> None:
    x = torch.randn(4, 6, 5, 5)
    torch.manual_seed(1)
    expected = getattr(torch.nn, name)(0.3)(x)
    genesis.manual_seed(1)
    close(getattr(nn, name)(0.3)(ours(x)), expected)


def test_dropout_refuses_what_is_no_probability() -> None:
    with pytest.raises(ValueError, match="Dropout: argument 'p': expected a probability from 0 to 1, got 1.5"):  # noqa: RUF043
        nn.Dropout(1.5)


# --- activations in place ---


@pytest.mark.parametrize("name", ["ReLU", "ReLU6", "SiLU", "Hardswish", "Hardsigmoid", "LeakyReLU", "ELU", "Hardtanh"])
def test_in_place_activations_overwrite_their_input(name: str) -> None:
    x = genesis.randn(3, 4)
    expected = getattr(nn, name)()(x).tolist()
    layer = getattr(nn, name)(inplace=True)
    y = layer(x)
    assert y is x
    assert x.tolist() == expected
    assert repr(layer) == repr(getattr(torch.nn, name)(inplace=True))


# --- pooling with indices, transposed convolution with a size ---


@pytest.mark.parametrize("name", ["MaxPool1d", "MaxPool2d", "AdaptiveMaxPool2d"])
def test_indices_of_maxima(name: str) -> None:
    x = torch.randn((2, 3, 8) if name.endswith("1d") else (2, 3, 8, 8))
    expected, expected_indices = getattr(torch.nn, name)(2, return_indices=True)(x)
    y, indices = getattr(nn, name)(2, return_indices=True)(ours(x))
    close(y, expected)
    assert indices.tolist() == expected_indices.tolist()


@pytest.mark.parametrize("size", [(15, 14), (16, 16), (2, 6, 16, 15)])
def test_transposed_convolution_to_a_size(size: tuple[int, ...]) -> None:
    theirs = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    layer.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 8, 8)
    if size == (15, 14):
        with pytest.raises(
            ShapeError, match=r"'output_size': expected sizes from \(15, 15\) to \(16, 16\), got \(15, 14\)"
        ):
            layer(ours(x), output_size=size)
    else:
        close(layer(ours(x), output_size=size), theirs(x, output_size=size))


# --- refusals of layers ---


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"Conv2d: argument 'in_channels': expected a multiple of groups \(2\), got 3"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ShapeError, match="Conv1d: argument 'out_channels'"):
        nn.Conv1d(4, 3, 3, groups=2)
    with pytest.raises(ValueError, match="'padding_mode': expected one of"):
        nn.Conv2d(3, 4, 3, padding_mode="mirror")
    with pytest.raises(ValueError, match="ConvTranspose2d: argument 'padding_mode'"):
        nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect")
    with pytest.raises(ValueError, match="'padding': expected a number, \"same\" or \"valid\", got 'full'"):
        nn.Conv2d(3, 4, 3, padding="full")
    with pytest.raises(ValueError, match="'stride': expected 1 with padding=\"same\", got 2"):
        nn.Conv2d(3, 4, 3, stride=2, padding="same")
    with pytest.raises(ShapeError, match="'kernel_size'"):
        nn.Conv2d(3, 4, (3, 3, 3))
    with pytest.raises(ShapeError, match="BatchNorm2d: argument 'input': expected 4 dimensions, got shape"):
        nn.BatchNorm2d(3)(genesis.ones(2, 3))
    with pytest.raises(ShapeError, match="InstanceNorm1d: argument 'input': expected 2 or 3 dimensions"):
        nn.InstanceNorm1d(3)(genesis.ones(1, 3, 2, 2))
    with pytest.raises(ShapeError, match="'num_channels': expected a multiple of 3 groups, got 4"):
        nn.GroupNorm(3, 4)
    with pytest.raises(ValueError, match="'padding_idx': expected a row of 10, got 10"):
        nn.Embedding(10, 3, padding_idx=10)
    with pytest.raises(ValueError, match="MSELoss: argument 'reduction': expected"):
        nn.MSELoss(reduction="average")


# --- embeddings ---


def test_pretrained_table() -> None:
    table = genesis.randn(4, 3)
    layer = nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad
    assert layer(genesis.tensor([2])).tolist() == [table.tolist()[2]]
    assert nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad
    with pytest.raises(ShapeError, match="'embeddings': expected 2 dimensions, got 1"):
        nn.Embedding.from_pretrained(genesis.ones(3))


@pytest.mark.parametrize("offset", [0, 3])
def test_rotary_embedding(offset: int) -> None:
    """Each pair is a complex number, turned by its position."""
    dim, length = 8, 5
    x = torch.randn(2, 3, length, dim, dtype=torch.float64, requires_grad=True)
    pairs = torch.complex(x[..., : dim // 2], x[..., dim // 2 :])
    speeds = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(offset, offset + length, dtype=torch.float64)[:, None] * speeds
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag), -1)
    mine = ours(x).requires_grad_()
    y = nn.RotaryEmbedding(dim)(mine, offset)
    close(y, expected, 1e-12)
    expected.pow(3).sum().backward()
    y.pow(3).sum().backward()
    close(mine.grad, x.grad, 1e-10)
    assert nn.RotaryEmbedding(dim)(mine.half()).dtype is genesis.float16
    assert repr(nn.RotaryEmbedding(dim)) == "RotaryEmbedding(dim=8, base=10000.0)"


def test_rotary_embedding_refusals() -> None:
    with pytest.raises(ShapeError, match="'dim': expected an even number from 2, got 5"):
        nn.RotaryEmbedding(5)
    with pytest.raises(ShapeError, match=r"'input': expected shape \(…, L, 4\), got \(2, 6\)"):
        nn.RotaryEmbedding(4)(genesis.ones(2, 6))


# --- layers that PyTorch lacks ---


def test_feed_forward_swiglu() -> None:
    layer = nn.FeedForwardSwiGLU(6, 10, bias=True)
    assert list(layer.state_dict()) == ["gate.weight", "gate.bias", "up.weight", "up.bias", "down.weight", "down.bias"]
    x = torch.randn(2, 6)
    weights = {key: value.to_torch() for key, value in layer.state_dict().items()}
    gate = torch.nn.functional.linear(x, weights["gate.weight"], weights["gate.bias"])
    up = torch.nn.functional.linear(x, weights["up.weight"], weights["up.bias"])
    hidden = torch.nn.functional.silu(gate) * up
    close(layer(ours(x)), torch.nn.functional.linear(hidden, weights["down.weight"], weights["down.bias"]))
    assert nn.FeedForwardSwiGLU(768).gate.out_features == 2048
    assert nn.FeedForwardSwiGLU(10).gate.out_features == 32  # 26.67, to the next multiple of 8
    assert nn.FeedForwardSwiGLU(10).gate.bias is None


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_dice_loss(reduction: str) -> None:
    x = torch.randn(2, 3, 5, 4, requires_grad=True)
    target = (torch.rand(2, 3, 5, 4) < 0.3).float()
    p = torch.sigmoid(x)
    dims = (2, 3)
    losses = 1 - (2 * (p * target).sum(dims) + 0.5) / (p.sum(dims) + target.sum(dims) + 0.5)
    expected = losses if reduction == "none" else getattr(losses, reduction)()
    mine = ours(x).requires_grad_()
    y = nn.DiceLoss(0.5, reduction=reduction)(mine, ours(target.bool()))
    close(y, expected)
    expected.sum().backward()
    y.sum().backward()
    close(mine.grad, x.grad)


def test_dice_loss_of_perfect_answers_and_refusals() -> None:
    loss = nn.DiceLoss()
    nothing = genesis.zeros(1, 1, 4, 4)
    assert loss(nothing - 40.0, nothing).item() == pytest.approx(0.0, abs=1e-6)
    assert loss(nothing + 40.0, nothing + 1.0).item() == pytest.approx(0.0, abs=1e-6)
    assert loss(nothing + 40.0, nothing).item() == pytest.approx(1 - 1 / 17)
    with pytest.raises(ShapeError, match="DiceLoss: argument 'target': expected the input's shape"):
        loss(nothing, genesis.zeros(1, 4, 4))


def test_losses_with_weights_move_with_the_module() -> None:
    weight = torch.tensor([0.2, 0.5, 2.0])
    x, target = torch.randn(6, 3), torch.randint(3, (6,))
    for name in ("CrossEntropyLoss", "NLLLoss"):
        expected = getattr(torch.nn, name)(weight)(x, target)
        loss = getattr(nn, name)(ours(weight))
        close(loss(ours(x), ours(target)), expected)
        assert list(loss.state_dict()) == ["weight"]
        assert loss.double().weight.dtype is genesis.float64
    logits, probability = torch.randn(4, 3), torch.rand(4, 3)
    loss = nn.BCEWithLogitsLoss(ours(weight), pos_weight=ours(weight * 3))
    close(
        loss(ours(logits), ours(probability)),
        torch.nn.BCEWithLogitsLoss(weight, pos_weight=weight * 3)(logits, probability),
    )
    close(
        nn.BCELoss(ours(weight))(ours(probability), ours(probability)),
        torch.nn.BCELoss(weight)(probability, probability),
    )
    assert math.isfinite(loss(ours(logits) * 1e4, ours(probability)).item())
