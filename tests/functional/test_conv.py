"""Convolutions: what OpInfo's samples don't cover, and the message of every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import DeviceError, DTypeError, ShapeError
from genesis.settings import override
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis

GEOMETRIES: list[dict[str, Any]] = [
    {},
    {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
    {"padding": "same", "dilation": (2, 3)},
    {"padding": "valid", "stride": 3},
    {"groups": 2, "padding": 1},
    {"groups": 4},
]


@pytest.mark.parametrize("options", GEOMETRIES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_conv2d(options: dict[str, Any], channels_last: bool) -> None:
    x = normal(2, 4, 9, 8)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    weight = normal(8, 4 // options.get("groups", 1), 3, 5 if options.get("padding") == "same" else 2)
    assert_agreement(
        lambda x, w, b: F.conv2d(x, w, b, **options),
        lambda x, w, b: TF.conv2d(x, w, b, **options),
        x,
        weight,
        normal(8),
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch's, about a copy that it makes
@pytest.mark.parametrize("kernel", [(2, 3), (4, 4), (1, 2)])
def test_same_padding_of_even_kernels(kernel: tuple[int, int]) -> None:
    assert_agreement(
        lambda x, w: F.conv2d(x, w, padding="same"),
        lambda x, w: TF.conv2d(x, w, padding="same"),
        normal(2, 3, 6, 5), normal(4, 3, *kernel),
    )  # fmt: skip


def test_unbatched() -> None:
    assert_agreement(F.conv2d, TF.conv2d, normal(3, 6, 5), normal(4, 3, 3, 2), normal(4))
    assert_agreement(F.conv1d, TF.conv1d, normal(3, 6), normal(4, 3, 2), normal(4))
    assert_agreement(F.conv_transpose2d, TF.conv_transpose2d, normal(3, 6, 5), normal(3, 4, 3, 2), normal(4))
    assert_agreement(F.conv_transpose1d, TF.conv_transpose1d, normal(3, 6), normal(3, 4, 2), normal(4))


def test_empty_batch() -> None:
    assert_agreement(F.conv2d, TF.conv2d, normal(0, 3, 6, 5), normal(4, 3, 3, 2), normal(4))
    assert_agreement(F.conv_transpose2d, TF.conv_transpose2d, normal(0, 3, 6, 5), normal(3, 4, 3, 2), normal(4))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "output_padding": 1},
        {"stride": (3, 2), "padding": (1, 2), "output_padding": (2, 1), "groups": 2},
        {"dilation": (2, 3), "output_padding": (1, 2), "padding": 1},  # output_padding beyond the stride
    ],
)
def test_conv_transpose2d(options: dict[str, Any], bias: bool) -> None:
    weight = normal(4, 6 // options.get("groups", 1), 3, 2)
    assert_agreement(
        lambda x, w, b: F.conv_transpose2d(x, w, b, **options),
        lambda x, w, b: TF.conv_transpose2d(x, w, b, **options),
        normal(2, 4, 5, 6), weight, normal(6) if bias else None,
    )  # fmt: skip


def test_non_contiguous_operands() -> None:
    assert_agreement(
        F.conv2d, TF.conv2d, normal(9, 2, 3, 8).permute(1, 2, 0, 3), normal(3, 3, 2, 4).permute(3, 0, 1, 2)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_16_bit_floats_are_as_accurate_as_pytorch(dtype: torch.dtype, transposed: bool) -> None:
    """Results and gradients are no farther from float64 than float32 arithmetic with one rounding at the end is."""
    x, weight, bias = normal(2, 32, 8, 8, dtype=dtype), normal(32, 32, 3, 3, dtype=dtype), normal(32, dtype=dtype)
    ours, theirs = (F.conv_transpose2d, TF.conv_transpose2d) if transposed else (F.conv2d, TF.conv2d)

    def reference(wide: torch.dtype) -> list[torch.Tensor]:
        operands = [operand.to(wide).requires_grad_() for operand in (x, weight, bias)]
        y = theirs(*operands, dilation=2)
        y.backward(y.detach().sign())
        return [y.detach(), *[operand.grad for operand in operands]]

    mine = [to_genesis(operand, True) for operand in (x, weight, bias)]
    y = ours(*mine, dilation=2)
    y.backward(to_genesis(reference(torch.float64)[0].sign().to(dtype)))
    for actual, exact, rounded in zip(
        (y, *[operand.grad for operand in mine]), reference(torch.float64), reference(torch.float32), strict=True
    ):
        allowed = (rounded.to(dtype).double() - exact).norm()
        assert (actual.detach().to_torch().double() - exact).norm() <= 1.02 * allowed


@pytest.mark.parametrize("op", [F.conv2d, F.conv_transpose2d])
def test_gradcheck(op: Any) -> None:
    operands = [to_genesis(normal(*shape), True) for shape in ((1, 2, 4, 4), (2, 2, 2, 3), (2,))]
    assert genesis.autograd.gradcheck(lambda *args: op(*args, stride=2, padding=1), operands)


def test_results_are_channels_last() -> None:
    y = F.conv2d(genesis.zeros(2, 3, 5, 6), genesis.zeros(4, 3, 3, 3))
    assert y.is_contiguous(memory_format=genesis.channels_last)


X, W, B = (2, 4, 6, 6), (8, 4, 3, 3), (8,)
REFUSALS = [
    (X, (8, 4, 3), None, {}, ShapeError, r"conv2d: argument 'weight': expected 4 dimensions, got shape \(8, 4, 3\)"),
    ((4, 6), W, None, {}, ShapeError, r"'input': expected 4 dimensions, or 3 without a batch, got shape \(4, 6\)"),
    ((2, 4, 0, 6), W, None, {}, ShapeError, r"'input': expected sizes >= 1 but for the batch"),
    (X, (8, 4, 0, 3), None, {}, ShapeError, r"'weight': expected sizes >= 1"),
    (X, (8, 3, 3, 3), None, {}, ShapeError, r"expected 3 channels, as weight \(8, 3, 3, 3\) takes in 1 group"),
    (X, (8, 4, 3, 3), None, {"groups": 2}, ShapeError, r"expected 8 channels, as weight \(8, 4, 3, 3\) takes in 2 g"),
    (X, (7, 2, 3, 3), None, {"groups": 2}, ShapeError, "'weight': expected output channels divisible by 2 groups"),
    (X, W, (7,), {}, ShapeError, r"'bias': expected shape \(8,\), one for each output channel, got \(7,\)"),
    (X, W, None, {"stride": 0}, ShapeError, r"'stride': expected numbers >= 1, got 0"),
    (X, W, None, {"stride": (1, 2, 3)}, ShapeError, r"'stride': expected 1 or 2 numbers, got \(1, 2, 3\)"),
    (X, W, None, {"stride": 1.5}, DTypeError, r"'stride': expected an int or a tuple of ints, got 1.5"),
    (X, W, None, {"padding": -1}, ShapeError, r"'padding': expected numbers >= 0, got -1"),
    (X, W, None, {"padding": "full"}, ValueError, r"'padding': expected \"same\", \"valid\" or numbers, got 'full'"),
    (X, W, None, {"padding": "same", "stride": 2}, ShapeError, r"'stride': expected 1, as padding is \"same\""),
    (X, W, None, {"dilation": 0}, ShapeError, r"'dilation': expected numbers >= 1, got 0"),
    (X, W, None, {"groups": 0}, ShapeError, r"'groups': expected numbers >= 1, got 0"),
    (X, W, None, {"dilation": 3}, ShapeError, r"padded size of at least the dilated kernel's, \(7, 7\), got"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "w", "b", "options", "error", "message"), REFUSALS)
def test_refusals(x: Any, w: Any, b: Any, options: Any, error: Any, message: str) -> None:
    bias = None if b is None else genesis.zeros(*b)
    with pytest.raises(error, match=message):
        F.conv2d(genesis.zeros(*x), genesis.zeros(*w), bias, **options)


def test_wrong_types_and_dtypes() -> None:
    x, w, b = genesis.zeros(*X), genesis.zeros(*W), genesis.zeros(*B)
    with pytest.raises(DTypeError, match="'input': expected a Tensor, got list"):
        F.conv2d([1.0], w)
    with pytest.raises(DTypeError, match="'bias': expected a Tensor, got int"):
        F.conv2d(x, w, 1)
    with pytest.raises(
        DTypeError, match=r"'weight': expected the dtype of input, genesis\.float32, got genesis.float64"
    ):
        F.conv2d(x, w.double())
    with pytest.raises(DTypeError, match=r"'bias': expected the dtype of input, genesis\.float32, got genesis.float16"):
        F.conv2d(x, w, b.half())
    with pytest.raises(DTypeError, match=r"'input': expected a floating dtype, got genesis\.int64"):
        F.conv2d(x.long(), w.long())


@pytest.mark.parametrize(
    ("w", "options", "message"),
    [
        (
            (3, 4, 3, 3),
            {},
            r"'input': expected 3 channels, as many as weight \(3, 4, 3, 3\) takes, divisible by 1 groups",
        ),
        ((4, 3, 3, 3), {"groups": 3}, "divisible by 3 groups, got 4"),
        ((4, 3, 3, 3), {"output_padding": 1}, "'output_padding': expected less than stride 1 or dilation 1, got 1"),
        ((4, 3, 3, 3), {"output_padding": -1}, "'output_padding': expected numbers >= 0, got -1"),
        ((4, 3, 3, 3), {"padding": 4}, r"'input': expected an output of sizes >= 1, not \(0, 0\), got shape"),
        ((4, 3, 3), {}, "'weight': expected 4 dimensions"),
    ],
)
def test_transposed_refusals(w: Any, options: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        F.conv_transpose2d(genesis.zeros(*X), genesis.zeros(*w), **options)


def test_one_dimension_agrees_with_a_plane_of_height_one() -> None:
    x, w = normal(2, 4, 9), normal(6, 4, 3)
    y = F.conv1d(to_genesis(x), to_genesis(w), stride=2, padding=1)
    assert_close(y, TF.conv2d(x[:, :, None], w[:, :, None], stride=(1, 2), padding=(0, 1))[:, :, 0])


@pytest.mark.parametrize("elsewhere", ["weight", "bias"])
def test_operands_on_two_devices_are_refused(elsewhere: str) -> None:
    with override(cuda="simulated"):
        weight, bias = (
            genesis.ones(shape, device="cuda" if name == elsewhere else "cpu")
            for name, shape in (("weight", (1, 1, 1, 1)), ("bias", (1,)))
        )
        with pytest.raises(DeviceError, match="conv_forward: expected all tensors on one device, got cpu and cuda:0"):
            F.conv2d(genesis.ones(1, 1, 3, 3), weight, bias)


def test_an_input_in_the_wanted_order_is_not_copied() -> None:
    """What backward keeps of a channels-last image is the image: there is no second one in memory."""
    x = genesis.ones(2, 3, 4, 4).contiguous("channels_last")
    y = F.conv2d(x, genesis.ones(1, 3, 1, 1).requires_grad_())
    assert y.grad_fn.ctx.saved[0] is x.array
