"""conv_bn_relu and its backward against torch's separate layers in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from genesis.backends.backend import Backend
from genesis.records import ConvGeometry, NormOptions, NormState, SavedConvNorm
from tests.fused_activations import FUNCTIONS, activated

Put = Callable[[Any], Any]
Get = Callable[[Any], Tensor]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
GEOMETRY = ConvGeometry((2, 1), (1, 1), (1, 1), 1)
POINTWISE = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
NAMES = ("input", "weight", "bias", "gamma", "beta", "residual")
MOMENTUM, EPS = 0.1, 1e-5


def close(result: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert result.shape == expected.shape
    scale = expected.abs().max().clamp_min(1e-3).item()
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def operands(dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = ((3, 4, 6, 5), (7, 4, 3, 3), (7,), (7,), (7,), (3, 7, 3, 5))
    return {name: torch.randn(shape, dtype=torch.float64).to(dtype) for name, shape in zip(NAMES, shapes, strict=True)}


def reference(
    given: dict[str, Tensor], running: tuple[Tensor, Tensor] | None, training: bool, activation: str | None
) -> tuple[Tensor, Tensor]:
    """The result and the convolution's output."""
    x = F.conv2d(given["input"], given["weight"], given.get("bias"), *GEOMETRY)
    mean, var = running or (None, None)
    y = F.batch_norm(x, mean, var, given.get("gamma"), given.get("beta"), training, MOMENTUM, EPS)
    y = y + given["residual"] if "residual" in given else y
    return activated(y, activation), x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("without", [(), ("bias", "residual")], ids=str)
@pytest.mark.parametrize("activation", [each for each in FUNCTIONS if each != "relu"])
def test_activations(
    cuda: Backend, put: Put, get: Get, dtype: torch.dtype, without: tuple[str, ...], activation: str
) -> None:
    check(cuda, put, get, dtype, True, without, activation)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("without", [(), ("bias", "residual"), ("gamma", "beta")], ids=str)
@pytest.mark.parametrize("activation", ["relu", None])
def test_conv_bn_relu(
    cuda: Backend,
    put: Put,
    get: Get,
    dtype: torch.dtype,
    training: bool,
    without: tuple[str, ...],
    activation: str | None,
) -> None:
    check(cuda, put, get, dtype, training, without, activation)


def check(
    cuda: Backend,
    put: Put,
    get: Get,
    dtype: torch.dtype,
    training: bool,
    without: tuple[str, ...],
    activation: str | None,
) -> None:
    given = {name: value for name, value in operands(dtype).items() if name not in without}
    wide = {name: value.to(torch.float64, copy=True).requires_grad_() for name, value in given.items()}
    statistics = torch.float64 if dtype is torch.float64 else torch.float32
    running = torch.randn(7, dtype=statistics), torch.rand(7, dtype=statistics) + 0.5
    expected_running = tuple(value.to(torch.float64, copy=True) for value in running)
    expected, conv_output = reference(wide, expected_running, training, activation)  # type: ignore[arg-type]

    array = {name: put(given.get(name)) for name in NAMES}
    on_device = [put(value) for value in running]
    norm, options = NormState(array["gamma"], array["beta"], *on_device), NormOptions(training, MOMENTUM, EPS)
    y, mean, inverse_std, x, passed = cuda.conv_bn_relu(
        *(array[name] for name in NAMES[:3]), norm, array["residual"], options, GEOMETRY, activation
    )
    assert get(y).dtype == dtype
    assert get(mean).dtype == get(inverse_std).dtype == statistics
    close(get(y), expected.detach(), dtype)
    close(get(x), conv_output.detach(), dtype)
    for result, wanted in zip(on_device, expected_running, strict=True):
        close(get(result), wanted, dtype)

    grad = torch.randn_like(expected).to(dtype)
    names = [name for name in NAMES if name in given]
    wanted = dict(zip(names, torch.autograd.grad(expected, [wide[n] for n in names], grad.double()), strict=True))
    needs = tuple(name in given for name in NAMES)
    operands_of_forward = [array[name] for name in NAMES[:5]]
    saved = (SavedConvNorm(*operands_of_forward, mean, inverse_std, x, passed), training, GEOMETRY, activation)
    grads = cuda.conv_bn_relu_backward(put(grad), *saved, needs)
    for name, result in zip(NAMES, grads, strict=True):
        assert (result is None) == (name not in given)
        if name in given:
            assert get(result).dtype == dtype
            close(get(result), wanted[name], dtype)

    addend = torch.randn_like(given["input"])
    summed = cuda.conv_bn_relu_backward(put(grad), *saved, needs, False, put(addend))
    close(get(summed[0]), wanted["input"] + addend.double(), dtype)
    for result, other in zip(grads[1:], summed[1:], strict=True):
        assert (result is None) == (other is None)
        assert result is None or torch.equal(get(result), get(other))

    # One at a time; the activations in float32.
    for i, name in enumerate(names if activation in ("relu", None) or dtype is torch.float32 else ()):
        alone = cuda.conv_bn_relu_backward(put(grad), *saved, tuple(name == other for other in NAMES))
        assert [result is not None for result in alone] == [name == other for other in NAMES], i
        close(get(alone[NAMES.index(name)]), wanted[name], dtype)


def test_statistics_of_a_large_mean(cuda: Backend, put: Put, get: Get) -> None:
    torch.manual_seed(0)
    x = 1e4 + torch.randn(4, 3, 40, 40)
    weight = torch.eye(3).reshape(3, 3, 1, 1)
    _, mean, inverse_std, *_ = cuda.conv_bn_relu(
        put(x), put(weight), None, NormState(None, None, None, None), None, NormOptions(True, 0.1, 0.0), POINTWISE, None
    )
    torch.testing.assert_close(get(mean).double(), x.double().mean((0, 2, 3)), rtol=1e-7, atol=0)
    expected = x.double().var((0, 2, 3), correction=0).rsqrt()
    torch.testing.assert_close(get(inverse_std).double(), expected, rtol=1e-5, atol=0)


PARTS = [  # outputs, size of the images, activation, whether there is a residual
    (200, (15, 11), None, True),  # more channels than a program has, the last blocks cut off
    (12, (16, 16), "relu", True),  # here and below, several rows are taken as one, but where bits would not fit
    (24, (16, 16), "relu", True),
    (12, (16, 16), "relu", False),
    (18, (16, 32), "silu", False),
    (40, (8, 8), "silu", True),
    (7, (16, 16), None, False),
]


@pytest.mark.parametrize(("num_outputs", "size", "activation", "has_residual"), PARTS, ids=str)
def test_parts_put_together(
    cuda: Backend, put: Put, get: Get, num_outputs: int, size: tuple[int, int], activation: str | None,
    has_residual: bool,
) -> None:  # fmt: skip
    """More than one part."""
    torch.manual_seed(0)
    shape = (3, num_outputs, *size)
    x, weight, residual = torch.randn(3, 8, *size), torch.randn(num_outputs, 8, 1, 1), torch.randn(shape)
    gamma, beta, bias = torch.rand(num_outputs) + 0.5, torch.randn(num_outputs), 10 * torch.randn(num_outputs)
    every = zip(NAMES, (x, weight, bias, gamma, beta, residual), strict=True)
    given = {name: value for name, value in every if has_residual or name != "residual"}
    wide = {name: value.double().requires_grad_() for name, value in given.items()}
    running = [torch.zeros(num_outputs).double(), torch.ones(num_outputs).double()]
    u = F.conv2d(wide["input"], wide["weight"], wide["bias"])
    expected = F.batch_norm(u, *running, wide["gamma"], wide["beta"], True, MOMENTUM, EPS)
    expected = activated(expected + wide["residual"] if has_residual else expected, activation)
    array = {name: put(value) for name, value in given.items()}
    statistics, count = [put(torch.zeros(num_outputs)), put(torch.ones(num_outputs))], put(torch.tensor(3))
    norm = NormState(array["gamma"], array["beta"], *statistics, count)
    options = NormOptions(True, MOMENTUM, EPS)
    y, *saved = cuda.conv_bn_relu(
        *(array[name] for name in NAMES[:3]), norm, array.get("residual"), options, POINTWISE, activation
    )
    close(get(y), expected.detach(), torch.float32)
    for result, truth in zip(statistics, running, strict=True):
        close(get(result), truth, torch.float32)
    assert get(count) == 4
    grad = torch.randn(shape)
    kept = SavedConvNorm(*(array[name] for name in NAMES[:5]), *saved)
    needs = tuple(name in given for name in NAMES)
    grads = cuda.conv_bn_relu_backward(put(grad), kept, True, POINTWISE, activation, needs)
    wanted = torch.autograd.grad(expected, list(wide.values()), grad.double())
    for name, truth in zip(wide, wanted, strict=True):
        if name != "bias":
            close(get(grads[NAMES.index(name)]), truth, torch.float32)
    assert not get(grads[2]).any()


def test_gradients_of_parameters_that_met_no_images_are_zero(cuda: Backend, put: Put, get: Get) -> None:
    given = operands(torch.float32)
    array = {name: put(given[name]) for name in NAMES[1:5]} | {"input": put(torch.empty(0, 4, 6, 5))}
    running = put(torch.zeros(7)), put(torch.ones(7))
    operands_of_forward = [array[name] for name in NAMES[:5]]
    norm, options = NormState(*operands_of_forward[3:], *running), NormOptions(False, MOMENTUM, EPS)
    y, *saved = cuda.conv_bn_relu(*operands_of_forward[:3], norm, None, options, GEOMETRY, "relu")
    kept = SavedConvNorm(*operands_of_forward, *saved)
    grads = cuda.conv_bn_relu_backward(put(get(y)), kept, False, GEOMETRY, "relu", (True,) * 5 + (False,))
    assert get(grads[0]).shape == (0, 4, 6, 5)
    assert not any(get(grad).any() for grad in grads[1:5])


def test_calls_of_one_layout_have_each_their_momentum_and_are_counted(cuda: Backend, put: Put, get: Get) -> None:
    given = operands(torch.float32)
    expected = [torch.zeros(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64)]
    running, count = [put(statistic.float()) for statistic in expected], put(torch.tensor(5))
    x = F.conv2d(given["input"].double(), given["weight"].double(), None, *GEOMETRY)
    for momentum in (0.1, 0.5, 1):
        norm, options = NormState(None, None, *running, count), NormOptions(True, momentum, EPS)
        cuda.conv_bn_relu(put(given["input"]), put(given["weight"]), None, norm, None, options, GEOMETRY, "relu")
        F.batch_norm(x, *expected, training=True, momentum=momentum)
        for statistic, truth in zip(running, expected, strict=True):
            close(get(statistic), truth, torch.float32)
    assert get(count) == 8
