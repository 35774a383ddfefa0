"""Normalisation against the CPU backend in float64: values, statistics, every gradient, orders of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import backends
from genesis.backends.backend import Backend
from genesis.backends.cuda.launch.reduction_grid import walk
from genesis.backends.cuda.ops.norm import launch as norm_module
from genesis.records import SavedGroupNorm

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

CPU = backends.get("cpu")
RELATIVE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "steps": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}
ALL = (True, True, True)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.manual_seed(seed)).to(dtype)


def check(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
    assert result.dtype == dtype
    tolerance = RELATIVE[dtype]
    torch.testing.assert_close(result.double(), expected.double(), rtol=tolerance, atol=tolerance * scale)


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def wide(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.double() if isinstance(value, torch.Tensor) else value for value in values)


def check_norm(
    cuda: Backend, put: Put, get: Get, op: str, args: tuple[Any, ...], grad: torch.Tensor, weight_at: int
) -> None:
    """Forward and backward of layer_norm, rms_norm or group_norm, all gradients and each alone."""
    x, number, weight = args[0], args[1], args[weight_at]
    results = getattr(cuda, op)(*map(put, args))
    expected = getattr(CPU, op)(*wide(args))
    check(get(results[0]), expected[0], x.dtype)
    for statistic, known in zip(results[1:], expected[1:], strict=True):
        assert statistic.shape == known.shape
        check(get(statistic), known, statistics_dtype(x.dtype))
    num_grads = 2 if op == "rms_norm" else 3
    ones = torch.ones(x.shape[1] if op == "group_norm" else x.shape[x.ndim - number :])
    known_weight = ones if weight is None else weight
    backward = getattr(CPU, f"{op}_backward")
    if op == "group_norm":
        known = backward(*wide((grad,)), SavedGroupNorm(*wide((x, known_weight, None, *expected[1:]))), number, ALL)
    else:
        known = backward(*wide((grad, x, number, known_weight, *expected[1:])), ALL[:num_grads])
    for needs in (ALL, (True, False, False), (False, True, False), (False, False, True)):
        if not any(needs[:num_grads]):
            continue
        saved = [put(s.to(statistics_dtype(x.dtype))) for s in expected[1:]]
        if op == "group_norm":
            call = (put(grad), SavedGroupNorm(put(x), put(weight), None, *saved), number, needs)
        else:
            call = (put(grad), put(x), number, put(weight), *saved, needs[:num_grads])
        grads = getattr(cuda, f"{op}_backward")(*call)
        for i, needed in enumerate(needs[:num_grads]):
            if not needed:
                assert grads[i] is None
            elif i == 0 or weight is not None:
                assert grads[i].shape == known[i].shape
                check(get(grads[i]), known[i], x.dtype if i == 0 else weight.dtype, scale=10)


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("normalized_ndim", [1, 2])
def test_layer_norm(cuda: Backend, put: Put, get: Get, dtype: torch.dtype, normalized_ndim: int) -> None:
    x = randn(3, 7, 5, 12, dtype=dtype)
    shape = x.shape[4 - normalized_ndim :]
    weight, bias = randn(*shape, dtype=dtype, seed=1), randn(*shape, dtype=dtype, seed=2)
    args = (x, normalized_ndim, weight, bias, 1e-5)
    check_norm(cuda, put, get, "layer_norm", args, randn(*x.shape, dtype=dtype, seed=3), 2)


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_rms_norm(cuda: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    x, weight = randn(30, 12, dtype=dtype), randn(12, dtype=dtype, seed=1)
    check_norm(cuda, put, get, "rms_norm", (x, 1, weight, 1e-5), randn(30, 12, dtype=dtype, seed=2), 2)


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("num_groups", [1, 3, 6])
def test_group_norm(cuda: Backend, put: Put, get: Get, dtype: torch.dtype, num_groups: int) -> None:
    x, weight, bias = randn(4, 6, 5, 7, dtype=dtype), randn(6, dtype=dtype, seed=1), randn(6, dtype=dtype, seed=2)
    grad = randn(*x.shape, dtype=dtype, seed=3)
    check_norm(cuda, put, get, "group_norm", (x, num_groups, weight, bias, 1e-5), grad, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "group_norm"])
def test_layouts_and_no_weight(cuda: Backend, put: Put, get: Get, op: str, layout: str) -> None:
    x, grad = (LAYOUTS[layout](randn(2, 4, 5, 6, seed=seed)) for seed in (0, 1))
    none = (None,) if op == "rms_norm" else (None, None)
    check_norm(cuda, put, get, op, (x, 2, *none, 1e-5), grad, 2)


def test_bias_without_weight(cuda: Backend, put: Put, get: Get) -> None:
    x, bias = randn(3, 8), randn(8, seed=1)
    y, mean, inverse_std = cuda.layer_norm(put(x), 1, None, put(bias), 1e-5)
    check(get(y), torch.nn.functional.layer_norm(x, (8,), None, bias), torch.float32)
    grad_bias = cuda.layer_norm_backward(put(x), put(x), 1, None, mean, inverse_std, ALL)[2]
    check(get(grad_bias), x.sum(0), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_rows_too_long_for_registers(
    cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm_module, "_LONGEST", 16)
    for shape in [(5, 20), (20,)]:
        x, weight, bias = randn(*shape, dtype=dtype), randn(20, dtype=dtype, seed=1), randn(20, dtype=dtype, seed=2)
        affine = (weight,) if op == "rms_norm" else (weight, bias)
        check_norm(cuda, put, get, op, (x, 1, *affine, 1e-5), randn(*shape, dtype=dtype, seed=3), 2)


def test_parameters_wider_than_the_input(cuda: Backend, put: Put, get: Get) -> None:
    x, weight, bias = randn(3, 8, dtype=torch.bfloat16), randn(8, seed=1), randn(8, seed=2)
    y, mean, inverse_std = cuda.layer_norm(put(x), 1, put(weight), put(bias), 1e-5)
    check(get(y), torch.nn.functional.layer_norm(x.double(), (8,), weight.double(), bias.double()), torch.bfloat16)
    grads = cuda.layer_norm_backward(put(x), put(x), 1, put(weight), mean, inverse_std, ALL)
    assert [str(grad.dtype) for grad in grads] == ["genesis.bfloat16", "genesis.float32", "genesis.float32"]


def test_empty(cuda: Backend, put: Put, get: Get) -> None:
    ones = put(torch.ones(5))
    y, mean, inverse_std = cuda.layer_norm(put(torch.empty(0, 5)), 1, ones, ones, 1e-5)
    assert (y.shape, mean.shape, inverse_std.shape) == ((0, 5), (0, 1), (0, 1))
    grads = cuda.layer_norm_backward(y, y, 1, ones, mean, inverse_std, ALL)
    assert grads[0].shape == (0, 5)
    assert get(grads[1]).tolist() == get(grads[2]).tolist() == [0] * 5
    running_mean, running_var = put(torch.zeros(5)), put(torch.ones(5))
    assert cuda.batch_norm(put(torch.empty(0, 5)), ones, ones, running_mean, running_var, True, 0.1, 1e-5)[0].shape == (
        0,
        5,
    )
    assert get(running_mean).tolist() == [0] * 5
    assert get(running_var).tolist() == [1] * 5
    y, mean, inverse_std = cuda.group_norm(put(torch.empty(0, 5, 2)), 1, ones, ones, 1e-5)
    grads = cuda.group_norm_backward(y, SavedGroupNorm(y, ones, None, mean, inverse_std), 1, ALL)
    assert get(grads[1]).tolist() == get(grads[2]).tolist() == [0] * 5


# --- batch norm -------------------------------------------------------------------------------------------------------
SHAPES = {
    "planes": (4, 6, 5, 7),
    "rows": (33, 6),
    "one channel": (3, 1, 5, 7),
    "one place": (8, 6, 1, 1),
    "one row": (1, 6, 9),
}


def check_batch_norm(cuda: Backend, put: Put, get: Get, x: torch.Tensor, affine: bool, grad: torch.Tensor) -> None:
    channels, dtype = x.shape[1], x.dtype
    weight = randn(channels, dtype=dtype, seed=1) if affine else None
    bias = randn(channels, dtype=dtype, seed=2) if affine else None
    for training in (True, False):
        running = (randn(channels, seed=4), randn(channels, seed=5).abs() + 0.5)
        if dtype is torch.float64:
            running = wide(running)
        known_running = [r.double() for r in running]
        held = [put(r.clone()) for r in running]
        y, mean, inverse_std = cuda.batch_norm(put(x), put(weight), put(bias), *held, training, 0.1, 1e-5)
        known = CPU.batch_norm(*wide((x, weight, bias)), *known_running, training, 0.1, 1e-5)
        check(get(y), known[0], dtype)
        check(get(mean), known[1], statistics_dtype(dtype))
        check(get(inverse_std), known[2], statistics_dtype(dtype))
        for r, expected in zip(held, known_running, strict=True):
            check(get(r), expected, statistics_dtype(dtype))
        saved = [s.to(statistics_dtype(dtype)) for s in known[1:]]
        expected = CPU.batch_norm_backward(*wide((grad, x, weight, *saved)), training, ALL)
        for needs in (ALL, (True, False, False), (False, True, False), (False, False, True)):
            grads = cuda.batch_norm_backward(put(grad), put(x), put(weight), *map(put, saved), training, needs)
            assert [g is not None for g in grads] == list(needs)
            for g, known_grad in zip(grads, expected, strict=True):
                if g is not None:
                    check(get(g), known_grad, dtype, scale=10)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_shapes(cuda: Backend, put: Put, get: Get, shape: str, affine: bool) -> None:
    check_batch_norm(cuda, put, get, randn(*SHAPES[shape]), affine, randn(*SHAPES[shape], seed=3))


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_batch_norm_dtypes(cuda: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    x = randn(4, 6, 5, 7, dtype=dtype)
    check_batch_norm(cuda, put, get, x, True, randn(*x.shape, dtype=dtype, seed=3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_norm_layouts(cuda: Backend, put: Put, get: Get, layout: str) -> None:
    x = LAYOUTS[layout](randn(4, 6, 5, 7))
    check_batch_norm(cuda, put, get, x, True, randn(*x.shape, seed=3))
    if layout != "steps":
        assert cuda.batch_norm(put(x), None, None, None, None, True, 0.1, 1e-5)[0].strides == x.stride()


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_batch_norm_in_splits(cuda: Backend, put: Put, get: Get, layout: str) -> None:
    x = LAYOUTS[layout](randn(16, 3, 16, 32) * 0.01 + 100)
    assert walk(put(x), (0, 2, 3)).num_splits > 1
    check_batch_norm(cuda, put, get, x.double(), True, randn(*x.shape, dtype=torch.float64, seed=3))
    mean, inverse_std = cuda.batch_norm(put(x), None, None, None, None, True, 0.1, 1e-5)[1:]
    exact = x.double().var((0, 2, 3), correction=0)
    torch.testing.assert_close(get(inverse_std).double(), (exact + 1e-5).rsqrt(), rtol=1e-4, atol=0)
    torch.testing.assert_close(get(mean).double(), x.double().mean((0, 2, 3)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("op", ["layer_norm", "group_norm", "rms_norm", "batch_norm"])
def test_integers_have_none(cuda: Backend, put: Put, op: str) -> None:
    args = {"layer_norm": (1, None, None, 1e-5), "group_norm": (1, None, None, 1e-5), "rms_norm": (1, None, 1e-5)}
    with pytest.raises(NotImplementedError, match=f"{op} has no cuda implementation for int32"):
        getattr(cuda, op)(
            put(torch.ones(2, 3, dtype=torch.int32)), *args.get(op, (None, None, None, None, True, 0.1, 1e-5))
        )
