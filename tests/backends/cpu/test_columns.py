"""The gradient of a weight as a matrix product, against oneDNN's kernel and in float64."""

from __future__ import annotations

import pytest
import torch

from genesis import backends
from genesis.backends.cpu import columns, weight_gradient
from genesis.records import ConvGeometry, NormOptions, NormState, SavedConvNorm

aten = torch.ops.aten
cpu = backends.get("cpu")


@pytest.mark.parametrize(
    ("size", "outputs", "kernel", "stride", "padding", "dilation"),
    [
        ((7, 7), 128, (3, 3), (1, 1), (1, 1), (1, 1)),
        ((9, 6), 128, (3, 2), (2, 1), (1, 0), (1, 1)),
        ((9, 11), 128, (3, 3), (1, 2), (2, 3), (2, 3)),
        ((5, 4), 128, (5, 4), (1, 1), (0, 0), (1, 1)),
        ((2, 1), 128, (1, 3), (3, 1), (0, 1), (1, 1)),
        ((9, 8), 1, (1, 1), (1, 1), (0, 0), (1, 1)),
        ((9, 8), 4, (1, 1), (2, 3), (1, 0), (1, 1)),
    ],
)
def test_weight_grad(size: tuple, outputs: int, kernel: tuple, stride: tuple, padding: tuple, dilation: tuple) -> None:
    generator = torch.Generator().manual_seed(0)
    input = torch.randn(2, 4, *size, generator=generator, dtype=torch.float64)
    weight = torch.randn(outputs, 4, *kernel, generator=generator, dtype=torch.float64)
    output = torch.conv2d(input, weight, None, stride, padding, dilation)
    grad = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    options = (None, stride, padding, dilation, False, (0, 0), 1, (False, True, False))
    expected = aten.convolution_backward(grad, input, weight, *options)[1]

    grad, input = grad.float(), input.float()  # channels first: the op reorders them
    assert columns.pays(grad.shape, weight.shape)
    found = cpu.conv_weight_grad(grad, input, tuple(weight.shape), ConvGeometry(stride, padding, dilation, 1))
    assert found.shape == weight.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_where_it_pays() -> None:
    few = 2, 64, 4, 8
    assert columns.pays(few, (64, 16, 3, 3))
    assert columns.pays((2, 4, 4, 8), (4, 16, 1, 1))
    assert not columns.pays((2, 5, 4, 8), (5, 16, 1, 1))
    assert not columns.pays((3, 64, 4, 8), (64, 16, 3, 3))


def test_of_one_group_in_float32() -> None:
    geometry = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    assert is_chosen(torch.float32, geometry)
    assert not is_chosen(torch.float64, geometry)
    assert not is_chosen(torch.bfloat16, geometry)
    assert not is_chosen(torch.float32, geometry._replace(groups=2))


def is_chosen(dtype: torch.dtype, geometry: ConvGeometry) -> bool:
    def plain(*args: object) -> torch.Tensor:
        raise AssertionError("nothing is measured unasked")

    grad, x = torch.zeros(2, 64, 4, 8, dtype=dtype), torch.zeros(2, 16, 4, 8, dtype=dtype)
    last = torch.channels_last
    operands = grad.contiguous(memory_format=last), x.contiguous(memory_format=last), (64, 16, 3, 3), geometry
    return weight_gradient.compute(*operands, plain) is not None


@pytest.mark.parametrize("needs_input", [True, False])
@pytest.mark.parametrize("needs_bias", [True, False])
def test_in_the_fused_backward(needs_input: bool, needs_bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    arrays = [torch.randn(*shape, generator=generator) for shape in ((1, 3, 5, 5), (64, 3, 3, 3), (64,), (64,), (64,))]
    geometry, options = ConvGeometry((1, 1), (1, 1), (1, 1), 1), NormOptions(True, 0.1, 1e-5)
    norm = NormState(*arrays[3:], None, None)
    _, *kept = cpu.conv_bn_relu(*arrays[:3], norm, None, options, geometry, None)
    grad = torch.randn(1, 64, 5, 5, generator=generator)
    needs = (needs_input, True, needs_bias, False, False, False)
    found = cpu.conv_bn_relu_backward(grad, SavedConvNorm(*arrays, *kept), True, geometry, None, needs)

    doubles = [array.double().requires_grad_() for array in arrays]
    conv_output = torch.conv2d(*doubles[:3], padding=1)
    y = torch.nn.functional.batch_norm(conv_output, None, None, *doubles[3:], training=True, eps=1e-5)
    y.backward(grad.double())
    for gradient, operand, needed in zip(found[:3], doubles, needs, strict=False):
        assert (gradient is not None) == needed
        if needed:
            torch.testing.assert_close(gradient.double(), operand.grad, rtol=1e-4, atol=1e-4)
