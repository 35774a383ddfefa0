"""Convolution: what oneDNN's kernels would get wrong, or would end the process with."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import torch

import genesis
from genesis import nn
from genesis.backends.cpu import conv
from genesis.functional.conv import conv_geometry
from genesis.nn import functional as F
from genesis.records import ConvGeometry

GATHERING = """
import torch
from genesis.backends.cpu import conv
from genesis.records import ConvGeometry
input, grad = torch.randn(4, 3, 12, 10), torch.randn(4, 12, 6, 5)
exact = torch.einsum("nkpq,ncpq->kc", grad.double(), input[:, :, ::2, ::2].double())
for _ in range(300):
    found = conv.conv_weight_grad(grad, input, (12, 3, 1, 1), ConvGeometry((2, 2), (0, 0), (1, 1), 1))
    between = [torch.empty(size) for size in range(90, 130)]
assert (found[:, :, 0, 0] - exact).norm() < 1e-6 * exact.norm()
"""


def test_gathering_pixels_stays_inside_its_memory() -> None:
    """Under AVX2, oneDNN's kernel for the weight's gradient of a strided 1×1 convolution wrote 436 bytes behind it."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", GATHERING], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("in_channels", [3, 16, 20])
@pytest.mark.parametrize("stride", [(2, 2), (1, 3), (2, 1)])
def test_gradients_of_a_strided_1x1_kernel(stride: tuple[int, int], in_channels: int) -> None:
    torch.manual_seed(0)
    weight, input = torch.randn(12, in_channels, 1, 1), torch.randn(2, in_channels, 9, 10)
    grad = torch.randn(torch.conv2d(input, weight, None, stride).shape)
    options = (None, stride, (0, 0), (1, 1), False, (0, 0), 1, (False, True, False))
    exact = torch.ops.aten.convolution_backward(grad.double(), input.double(), weight.double(), *options)[1]
    found = conv.conv_weight_grad(grad, input, weight.shape, ConvGeometry(stride, (0, 0), (1, 1), 1))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_dilation_of_a_single_tap() -> None:
    """Ended in a segmentation fault: oneDNN's packed 1×1 kernels don't expect it."""
    genesis.manual_seed(0)
    layer, x = nn.ConvBNReLU(8, 33, 1, stride=2, padding=1, dilation=2).eval(), genesis.randn(1, 8, 5, 1)
    expected = layer(x).detach().numpy()
    with genesis.no_grad():
        found = layer(x).numpy()
    assert abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_single_image_may_have_any_stride_over_images(dtype: torch.dtype, groups: int) -> None:
    """A view of one image has other strides than the image, and torch's gradient in groups was wrong for them."""
    torch.manual_seed(0)
    x, grad = (torch.randn(1, 4, 5, 4, dtype=dtype).contiguous(memory_format=torch.channels_last) for _ in range(2))
    view = x.as_strided(x.shape, (4, 1, 16, 4))
    assert torch.equal(x, view)
    how = ((4, 4 // groups, 3, 3), ConvGeometry((1, 1), (1, 1), (1, 1), groups))
    assert torch.equal(conv.conv_weight_grad(grad, view, *how), conv.conv_weight_grad(grad, x, *how))
    weight = torch.randn(4, 4 // groups, 3, 3, dtype=dtype, requires_grad=True)
    torch.conv2d(x.contiguous(), weight, None, 1, 1, 1, groups).backward(grad.contiguous())
    torch.testing.assert_close(conv.conv_weight_grad(grad, view, *how), weight.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("needs", [*itertools.product([True, False], repeat=3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_that_are_needed(stride: int, needs: tuple[bool, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    geometry = ConvGeometry((stride,) * 2, (1, 1), (1, 1), 1)
    operands = torch.randn(2, 32, 9, 8), torch.randn(48, 32, 3, 3), torch.randn(48)
    exact = [each.double().requires_grad_() for each in operands]
    y = torch.conv2d(*exact, *geometry)
    grad = torch.randn(y.shape)
    expected = torch.autograd.grad(y, exact, grad.double())
    x, weight, grad = (each.to(dtype).contiguous(memory_format=torch.channels_last) for each in (*operands[:2], grad))
    found = conv.conv_gradients(grad, x, weight, geometry, needs, None)
    for ours, theirs, needed in zip(found, expected, needs, strict=True):
        assert (ours is not None) == needed
        if ours is not None:
            assert (ours - theirs).norm() <= 3e-7 * theirs.norm()


def test_a_dilation_of_one_element_is_none() -> None:
    """With it, oneDNN's kernel for a single pixel crashes the process."""
    x, weight, bias = (torch.randn(shape) for shape in ((3, 5, 1, 1), (2, 5, 3, 1), (2,)))
    settings = (2, (2, 1), (1, 3))
    wanted = torch.conv2d(x.double(), weight.double(), bias.double(), *settings)
    geometry, *_ = conv_geometry("conv2d", tuple(x.shape), tuple(weight.shape), *settings, 1)
    assert geometry.dilation == (1, 1)
    found = F.conv2d(*(genesis.from_torch(each) for each in (x, weight, bias)), *settings)
    torch.testing.assert_close(found.to_torch().double(), wanted, rtol=1e-5, atol=1e-5)
    found = F.conv_transpose2d(
        genesis.from_torch(wanted.float()), genesis.from_torch(weight), None, 2, (2, 1), 0, 1, (1, 3)
    )
    assert found.shape == torch.conv_transpose2d(wanted.float(), weight, None, 2, (2, 1), 0, 1, (1, 3)).shape


def test_weight_gradient_in_groups_of_strided_rows() -> None:
    """Of one row, every third is that row, with a stride that misleads torch's weight gradient."""
    x, grad = torch.randn(1, 4, 1, 33).double(), torch.randn(1, 14, 1, 33).double()
    found = conv.conv_weight_grad(grad, x, (14, 2, 1, 1), ConvGeometry((3, 1), (0, 0), (1, 1), 2))
    wanted = torch.einsum("gkw,gcw->gkc", grad.view(2, 7, 33), x.view(2, 2, 33)).reshape(14, 2, 1, 1)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10, check_stride=False)
