"""conv_bn_relu of 1×1 convolutions to more channels, whose output is never written: against float64 and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv_bn_relu.expand_1x1 import state_shape, supports
from genesis.records import ConvGeometry, NormOptions, NormState, SavedConvNorm
from tests.fused_activations import activated

Put = Callable[[Any], Any]
Get = Callable[[Any], Tensor]

GEOMETRY = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
NAMES = ("input", "weight", "bias", "gamma", "beta", "residual")
OPTIONS = NormOptions(True, 0.1, 1e-5)

CASES = [  # inputs, outputs, mean of the input in its deviations, operands left out, activation
    (16, 32, 1.0, ("residual",), "relu"),
    (24, 40, 0.5, ("bias",), "relu"),
    (56, 160, 30.0, ("gamma", "beta"), None),
    (16, 16, 1e4, ("bias", "residual"), "relu"),
    (24, 40, 0.5, ("bias",), "silu"),
    (16, 48, 1.0, ("gamma", "residual"), "leaky_relu(0.2)"),
    (64, 64, 0.5, ("bias", "residual"), "relu"),
    (40, 112, 1.0, ("residual",), "hardswish"),
    (64, 256, 0.5, ("bias", "residual"), "relu"),  # from here on, Hopper GPUs have kernels of their own
    (56, 512, 30.0, ("bias",), "relu"),
    (64, 256, 1e4, ("gamma", "beta", "residual"), None),
    (32, 256, 1.0, ("bias", "gamma"), "relu"),
]
SIZES = [(17, 19), (16, 16)]  # blocks of rows that are cut off, and whole ones


def operands(
    num_inputs: int, num_outputs: int, mean: float, without: tuple[str, ...], size: tuple[int, int] = (17, 19)
) -> dict[str, Tensor]:
    torch.manual_seed(0)
    given = {
        "input": (torch.randn(2, num_inputs, *size) + mean).bfloat16().contiguous(memory_format=torch.channels_last),
        "weight": (torch.randn(num_outputs, num_inputs, 1, 1) / num_inputs**0.5).bfloat16(),
        "bias": torch.randn(num_outputs).bfloat16(),
        "gamma": torch.rand(num_outputs) + 0.5,
        "beta": torch.randn(num_outputs),
        "residual": torch.randn(2, num_outputs, *size).bfloat16(),
    }
    return {name: value for name, value in given.items() if name not in without}


def unfused(given: dict[str, Tensor], activation: str | None, grad: Tensor, dtype: torch.dtype | None) -> list[Tensor]:
    """Result, running statistics and gradients by PyTorch's own layers, in dtype or as the operands are."""
    leaves = {name: value.to(dtype, copy=True).requires_grad_() for name, value in given.items()}
    num_outputs = given["weight"].shape[0]
    running = [torch.zeros(num_outputs, dtype=dtype), torch.ones(num_outputs, dtype=dtype)]
    y = F.conv2d(leaves["input"], leaves["weight"], leaves.get("bias"))
    y = F.batch_norm(y, *running, leaves.get("gamma"), leaves.get("beta"), *OPTIONS)
    y = y + leaves["residual"] if "residual" in leaves else y
    y = activated(y, activation)
    return [y.detach(), *running, *torch.autograd.grad(y, list(leaves.values()), grad.to(y.dtype))]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_farther_from_the_truth_than_unfused_layers(
    cuda: Backend, put: Put, get: Get, case: Any, size: tuple[int, int]
) -> None:
    compare(cuda, put, get, case, size)


@pytest.mark.parametrize("cuda", [pytest.param("auto", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("case", CASES[8:], ids=str)
def test_many_tiles_a_program(cuda: Backend, put: Put, get: Get, case: Any) -> None:
    """So many that places in shared memory are used again and again: 11 tiles of 64 rows or more."""
    compare(cuda, put, get, case, (220, 221))


def compare(cuda: Backend, put: Put, get: Get, case: Any, size: tuple[int, int]) -> None:
    num_inputs, num_outputs, mean, without, activation = case
    given = operands(num_inputs, num_outputs, mean, without, size)
    grad = torch.randn(2, num_outputs, *size).bfloat16()
    exact, theirs = (unfused(given, activation, grad, dtype) for dtype in (torch.float64, None))

    arrays = [put(given.get(name)) for name in NAMES]
    running = [put(torch.zeros(num_outputs)), put(torch.ones(num_outputs))]
    norm = NormState(*arrays[3:5], *running)
    y, *saved = cuda.conv_bn_relu(*arrays[:3], norm, arrays[5], OPTIONS, GEOMETRY, activation)
    assert tuple(saved[2].shape) == state_shape(num_inputs, num_outputs)  # in the place of the convolution's output
    needs = tuple(name in given for name in NAMES)
    grads = cuda.conv_bn_relu_backward(put(grad), SavedConvNorm(*arrays[:5], *saved), True, GEOMETRY, activation, needs)
    for name, result in zip(NAMES, grads, strict=True):
        assert (result is None) == (name not in given)

    ours = [get(x) for x in (y, *running, *[g for g in grads if g is not None])]
    for name, mine, truth, other in zip(("y", "mean", "var", *given), ours, exact, theirs, strict=True):
        if name == "bias":  # it has no effect: exactly 0 here, rounding there
            assert not mine.any()
        elif truth.norm() > 1e-6:
            error, allowed = ((x.double() - truth).norm() / truth.norm() for x in (mine, other))
            statistic = name in ("mean", "var")  # from an input rounded once; bfloat16 resolves 4e-3
            assert error <= (2e-4 if statistic else 1.1 * allowed), f"{name}: {error:.1e}, unfused {allowed:.1e}"


def test_gradients_one_at_a_time(cuda: Backend, put: Put, get: Get) -> None:
    given = operands(16, 32, 1.0, ())
    grad = torch.randn(2, 32, 17, 19).bfloat16()
    arrays = [put(given[name]) for name in NAMES]
    norm = NormState(*arrays[3:5], None, None)
    _, *saved = cuda.conv_bn_relu(*arrays[:3], norm, arrays[5], OPTIONS, GEOMETRY, "relu")
    rest = (SavedConvNorm(*arrays[:5], *saved), True, GEOMETRY, "relu")
    every = cuda.conv_bn_relu_backward(put(grad), *rest, (True,) * 6)
    addend = put(torch.zeros_like(given["input"]))  # of no effect where no such gradient is wanted
    for i, name in enumerate(NAMES):
        alone = cuda.conv_bn_relu_backward(put(grad), *rest, tuple(name == other for other in NAMES), False, addend)
        assert [x is not None for x in alone] == [name == other for other in NAMES]
        assert torch.equal(get(alone[i]), get(every[i]))


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[6]], ids=str)
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
def test_added_to_the_inputs_gradient(cuda: Backend, put: Put, get: Get, case: Any, order: torch.memory_format) -> None:
    num_inputs, num_outputs, mean, without, activation = case
    given = operands(num_inputs, num_outputs, mean, without)
    grad = torch.randn(2, num_outputs, 17, 19).bfloat16()
    addend = torch.randn(2, num_inputs, 17, 19).bfloat16().contiguous(memory_format=order)
    arrays = [put(given.get(name)) for name in NAMES]
    norm = NormState(*arrays[3:5], None, None)
    _, *saved = cuda.conv_bn_relu(*arrays[:3], norm, arrays[5], OPTIONS, GEOMETRY, activation)
    kept, needs = SavedConvNorm(*arrays[:5], *saved), tuple(name in given for name in NAMES)
    rest = (kept, True, GEOMETRY, activation, needs)
    plain = cuda.conv_bn_relu_backward(put(grad), *rest)
    summed = cuda.conv_bn_relu_backward(put(grad), *rest, False, put(addend))
    exact = get(plain[0]).double() + addend.double()
    error = (get(summed[0]).double() - exact).norm()
    # The exact sum is of a gradient that was rounded: half a unit of that, and of the result.
    assert error <= 2.0**-9 * (get(plain[0]).double().norm() + exact.norm())
    for other, result in zip(plain[1:], summed[1:], strict=True):
        assert (other is None) == (result is None)
        assert other is None or torch.equal(get(other), get(result))


def test_batches_are_counted(cuda: Backend, put: Put, get: Get) -> None:
    given = operands(16, 32, 1.0, ())
    count = put(torch.tensor(2**40))
    running = [put(torch.zeros(32)), put(torch.ones(32))]
    arrays = [put(given[name]) for name in NAMES]
    for training in (True, False, True):
        norm, options = NormState(*arrays[3:5], *running, count), OPTIONS._replace(training=training)
        cuda.conv_bn_relu(*arrays[:3], norm, arrays[5], options, GEOMETRY, "relu")
    assert get(count) == 2**40 + 2


@pytest.mark.parametrize(
    ("shape", "num_rows", "expected"),
    [
        ((96, 16, 1, 1), 1 << 15, True),
        ((96, 16, 1, 1), (1 << 15) - 1, False),  # what is computed twice would take longer than to write it
        ((50, 33, 1, 1), 1 << 20, False),  # not in eights
        ((96, 72, 1, 1), 1 << 20, False),
        ((16, 24, 1, 1), 1 << 20, False),
        ((96, 16, 3, 3), 1 << 20, False),
    ],
)
def test_chosen_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], num_rows: int, expected: bool
) -> None:
    monkeypatch.undo()
    images = (num_rows, shape[1], 1, 1)
    assert supports(dtypes.bfloat16, images, shape, GEOMETRY) is expected
    assert not supports(dtypes.float16, images, shape, GEOMETRY)
