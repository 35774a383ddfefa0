"""conv, transposed_conv and their _into forms: against PyTorch, on every device, and the message of every refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
from genesis.errors import DeviceError, DTypeError, GraphError, ShapeError
from genesis.settings import override
from tests.functional.agreement import assert_agreement, normal


def placed(*tensors: torch.Tensor, device: str) -> list[Any]:
    return [genesis.from_torch(tensor).to(device) for tensor in tensors]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 4, 7, 6), {"stride": (2, 1), "padding": (1, 0)}),
        ((4, 7, 6), {"padding": "same"}),
        ((2, 4, 7, 6), {"groups": 2, "dilation": 2}),
    ],
)
def test_conv(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    weight = normal(6, 4 // options.get("groups", 1), 3, 3)
    ours: Callable[..., Any] = lambda x, w, b: genesis.conv(x, w, b, **options)  # noqa: E731
    assert_agreement(ours, lambda x, w, b: TF.conv2d(x, w, b, **options), normal(*shape), weight, normal(6))


def test_transposed_conv() -> None:
    options: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1}
    ours: Callable[..., Any] = lambda x, w, b: genesis.transposed_conv(x, w, b, **options)  # noqa: E731
    theirs: Callable[..., Any] = lambda x, w, b: TF.conv_transpose2d(x, w, b, **options)  # noqa: E731
    assert_agreement(ours, theirs, normal(2, 4, 5, 6), normal(4, 3, 3, 2), normal(3))


def test_a_plane_is_an_image_of_one_channel() -> None:
    x, w = normal(5, 6), normal(2, 1, 3, 3)
    assert_agreement(genesis.conv, lambda x, w: TF.conv2d(x[None], w), x, w)
    assert_agreement(genesis.transposed_conv, lambda x, w: TF.conv_transpose2d(x[None], w), x, normal(1, 2, 3, 3))


def test_into(device: str) -> None:
    x, w, b = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    out = genesis.zeros(2, 4, 3, 3, device=device)
    assert genesis.conv_into(out, *placed(x, w, b, device=device), stride=2, padding=1) is out
    torch.testing.assert_close(out.cpu().to_torch(), TF.conv2d(x, w, b, 2, 1), rtol=1e-5, atol=1e-5)
    out = genesis.zeros(2, 4, 13, 11, device=device)
    v = torch.randn(3, 4, 3, 3)
    assert genesis.transposed_conv_into(out, *placed(x, v, b, device=device), stride=2) is out
    torch.testing.assert_close(out.cpu().to_torch(), TF.conv_transpose2d(x, v, b, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("stride", "padding", "output_padding", "dilation"),
    [(2, 0, (1, 0), 1), ((3, 1), 1, (2, 1), 2), (1, (2, 0), 0, 1), (3, 2, (0, 2), 1)],
)
def test_the_shape_of_out_determines_the_output_padding(
    stride: Any, padding: Any, output_padding: Any, dilation: int
) -> None:
    x, w = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 2)
    expected = TF.conv_transpose2d(x, w, None, stride, padding, output_padding, 1, dilation)
    out = genesis.zeros(*expected.shape)
    genesis.transposed_conv_into(out, *placed(x, w, device="cpu"), stride=stride, padding=padding, dilation=dilation)
    torch.testing.assert_close(out.to_torch(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "nearest"),
    [((2, 3, 20, 12), (2, 3, 12, 12)), ((2, 3, 1, 13), (2, 3, 11, 13)), ((3, 11, 12), (2, 3, 11, 12)), ((7,), None)],
)
def test_shapes_that_no_output_padding_gives(shape: tuple[int, ...], nearest: tuple[int, ...] | None) -> None:
    x, w = genesis.ones(2, 4, 5, 6), genesis.ones(4, 3, 3, 2)
    expected = re.escape(f"expected shape {nearest or (2, 3, 11, 12)}, got {shape}")
    with pytest.raises(ShapeError, match=f"transposed_conv_into: argument 'out': {expected}"):
        genesis.transposed_conv_into(genesis.zeros(*shape), x, w, stride=2)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": (1, 2)}, {"padding": "same"}, {"dilation": 2}])
@pytest.mark.parametrize("shape", [(9, 8), (3, 9, 8), (2, 3, 9, 8)])
def test_output_shapes(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    channels = 1 if len(shape) == 2 else 3
    x, w = genesis.zeros(*shape), genesis.zeros(4, channels, 3, 2)
    assert genesis.conv(x, w, **options).shape == genesis.conv_output_shape(shape, w.shape, **options)
    if options.get("padding") != "same":
        v = genesis.zeros(channels, 4, 3, 2)
        expected = genesis.transposed_conv_output_shape(shape, v.shape, **options)
        assert genesis.transposed_conv(x, v, **options).shape == expected


def test_a_precision_per_call() -> None:
    x, w = genesis.ones(1, 2, 4, 4), genesis.ones(3, 2, 3, 3)
    assert genesis.conv(x, w, precision="medium").shape == (1, 3, 2, 2)
    out = genesis.empty(1, 3, 2, 2)
    with genesis.float32_precision("medium"):
        assert genesis.conv_into(out, x, w) is out
    with pytest.raises(
        ValueError, match=r"float32_precision: argument 'precision': expected one of highest, high, med"
    ):
        genesis.conv(x, w, precision="low")


X, W = (2, 3, 6, 5), (4, 3, 3, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, w: genesis.conv(x[0, 0, 0], w), ShapeError, "'input': expected 2, 3 or 4 dimensions"),
        (lambda x, w: genesis.conv(x, w[0]), ShapeError, "'weight': expected 4 dimensions, got shape (3, 3, 3)"),
        (lambda x, w: genesis.conv(x[:0], w), ShapeError, "'input': expected storage with elements"),
        (lambda x, w: genesis.conv(x, w[:, :2]), ShapeError, "'input': expected 2 channels"),
        (lambda x, w: genesis.conv(x, w, stride=0), ShapeError, "'stride': expected numbers >= 1, got 0"),
        (lambda x, w: genesis.conv(x, w, padding=-1), ShapeError, "'padding': expected numbers >= 0, got -1"),
        (lambda x, w: genesis.conv(x, w, dilation=4), ShapeError, "'input': expected a padded size of at least"),
        (lambda x, w: genesis.conv(x.to(genesis.int32), w), DTypeError, "'input': expected a floating dtype"),
        (lambda x, w: genesis.conv(x, w.to(genesis.float64)), DTypeError, "'weight': expected the dtype of input"),
        (lambda x, w: genesis.conv(x, 3), DTypeError, "'weight': expected a Tensor, got int"),
        (lambda x, w: genesis.conv(x, w, w[:2, 0, 0, 0]), ShapeError, "'bias': expected shape (4,)"),
    ],
)
def test_refusals(call: Callable[..., Any], error: type[Exception], message: str, device: str) -> None:
    with pytest.raises(error) as caught:
        call(genesis.zeros(*X, device=device), genesis.zeros(*W, device=device))
    assert str(caught.value).startswith(("conv: ", "conv2d: "))
    assert message in str(caught.value)


def test_operands_on_two_devices() -> None:
    with override(cuda="simulated"):
        w = genesis.zeros(*W, device="cuda")
        with pytest.raises(DeviceError, match="conv: argument 'weight': expected the device of input, cpu, got cuda:0"):
            genesis.conv(genesis.zeros(*X), w)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (lambda x: genesis.zeros(2, 4, 4, 4), ShapeError, r"expected shape \(2, 4, 4, 3\), got \(2, 4, 4, 4\)"),
        (lambda x: genesis.zeros(2, 4, 4, 3, dtype=genesis.float64), DTypeError, "expected the dtype of input"),
        (lambda x: genesis.zeros(2, 1, 4, 3).expand(2, 4, 4, 3), ShapeError, "memory of its own for each element"),
        (lambda x: x.flatten()[:96].view(2, 4, 4, 3), ValueError, "expected memory apart from input, got an overlap"),
        (lambda x: 0, DTypeError, "expected a Tensor, got int"),
    ],
)
def test_results_that_cannot_be_written(out: Callable[..., Any], error: type[Exception], message: str) -> None:
    x, w = genesis.ones(*X), genesis.ones(*W)
    with pytest.raises(error, match=message):
        genesis.conv_into(out(x), x, w)
    assert x.sum().item() == 180


def test_a_result_on_another_device() -> None:
    with override(cuda="simulated"):
        out = genesis.zeros(2, 4, 4, 3, device="cuda")
        with pytest.raises(DeviceError, match="'out': expected the device of input, cpu, got cuda:0"):
            genesis.conv_into(out, genesis.ones(*X), genesis.ones(*W))


def test_into_has_no_gradients() -> None:
    x, w, out = genesis.ones(*X), genesis.ones(*W, requires_grad=True), genesis.zeros(2, 4, 4, 3)
    with pytest.raises(GraphError, match=r"conv_into: has no gradients; call it under no_grad\(\), or use conv\(\)"):
        genesis.conv_into(out, x, w)
    with genesis.no_grad():
        genesis.conv_into(out, x, w)
    assert out[0, 0, 0, 0].item() == 27
