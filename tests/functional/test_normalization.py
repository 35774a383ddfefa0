"""Norms: running statistics, memory order, missing operands, and the message of every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.errors import DTypeError, GraphError, ShapeError
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis
from tests.fused_activations import FUNCTIONS, activated

X = normal(3, 4, 5, 6)
MEAN, VAR = normal(4, seed=5), normal(4, seed=6).abs() + 0.5
PAIRS = [(normal(4, seed=1), normal(4, seed=2)), (None, normal(4, seed=2)), (normal(4, seed=1), None), (None, None)]


@pytest.mark.parametrize(("weight", "bias"), PAIRS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(weight: Any, bias: Any, channels_last: bool, training: bool) -> None:
    x = X.contiguous(memory_format=torch.channels_last) if channels_last else X
    assert_agreement(
        lambda x, w, b: F.batch_norm(x, to_genesis(MEAN), to_genesis(VAR), w, b, training),
        lambda x, w, b: TF.batch_norm(x, MEAN.clone(), VAR.clone(), w, b, training),
        x, weight, bias,
    )  # fmt: skip


@pytest.mark.parametrize(("weight", "bias"), PAIRS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_group_and_instance_norm(weight: Any, bias: Any, channels_last: bool) -> None:
    x = X.contiguous(memory_format=torch.channels_last) if channels_last else X
    one, zero = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)

    def filled(call: Any) -> Any:  # PyTorch has no gradient of a bias without a weight
        return lambda x, w, b: call(x, one if w is None else w, zero if b is None else b)

    assert_agreement(
        lambda x, w, b: F.group_norm(x, 2, w, b), filled(lambda x, w, b: TF.group_norm(x, 2, w, b)), x, weight, bias
    )
    assert_agreement(
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        filled(lambda x, w, b: TF.instance_norm(x, None, None, w, b)),
        x, weight, bias,
    )  # fmt: skip


@pytest.mark.parametrize("activation", [*FUNCTIONS, None])
@pytest.mark.parametrize("channels_last", [False, True])
def test_group_norm_act(activation: str | None, channels_last: bool) -> None:
    apply = TF.hardsigmoid if activation == "hardsigmoid" else lambda y: activated(y, activation)
    x = X.contiguous(memory_format=torch.channels_last) if channels_last else X
    for weight, bias in (PAIRS[0], PAIRS[3]):
        assert_agreement(
            lambda x, w, b: F.group_norm_act(x, 2, w, b, activation=activation),
            lambda x, w, b: apply(TF.group_norm(x, 2, w, b)),
            x, weight, bias,
        )  # fmt: skip


def test_group_norm_act_twice() -> None:
    """Its gradient's gradient, by that of the parts; and the layer, which is a GroupNorm to who looks for one."""
    layer = nn.GroupNormAct(2, 4, activation="gelu_tanh", dtype=genesis.float64)
    parts = nn.Sequential(nn.GroupNorm(2, 4, dtype=genesis.float64), nn.GELU("tanh"))
    results = []
    for module in (layer, parts):
        x = to_genesis(X, True)
        (grad,) = genesis.autograd.grad(module(x).square().sum(), x, create_graph=True)
        results.append(genesis.autograd.grad(grad.square().sum(), x)[0])
    assert_close(results[0], torch.from_numpy(results[1].numpy()))
    assert isinstance(layer, nn.GroupNorm)
    assert repr(layer) == "GroupNormAct(2, 4, eps=1e-05, affine=True, bias=True, activation='gelu_tanh')"


@pytest.mark.parametrize(("weight", "bias"), [(p and p[:4], q and q[:4]) for p, q in [(None, None)]] + PAIRS)
def test_layer_norm(weight: Any, bias: Any) -> None:
    one = torch.ones(4, dtype=torch.float64)
    assert_agreement(
        lambda x, w, b: F.layer_norm(x, 4, w, b) if x.ndim == 1 else F.layer_norm(x, (4,), w, b),
        lambda x, w, b: TF.layer_norm(x, (4,), one if w is None else w, b),
        normal(2, 3, 4), weight, bias,
    )  # fmt: skip


def test_rms_norm() -> None:
    call = {"normalized_shape": (5, 6), "eps": 1e-3}
    assert_agreement(
        lambda x, w: F.rms_norm(x, weight=w, **call), lambda x, w: TF.rms_norm(x, weight=w, **call), X, normal(5, 6)
    )
    assert_agreement(lambda x: F.rms_norm(x, 6), lambda x: TF.rms_norm(x, (6,)), X)


def test_channels_last_is_kept() -> None:
    x = to_genesis(X.contiguous(memory_format=torch.channels_last), True)
    for y in (
        F.batch_norm(x, None, None, training=True),
        F.group_norm(x, 2),
        F.group_norm_act(x, 2),
        F.instance_norm(x),
    ):
        assert y.is_contiguous(memory_format=genesis.channels_last)
        (grad,) = genesis.autograd.grad(y, x, genesis.ones_like(y))
        assert grad.is_contiguous(memory_format=genesis.channels_last)


@pytest.mark.parametrize("op", ["batch_norm", "instance_norm"])
def test_running_statistics(op: str) -> None:
    mine, theirs = [to_genesis(MEAN), to_genesis(VAR)], [MEAN.clone(), VAR.clone()]
    options = {"training": True} if op == "batch_norm" else {"use_input_stats": True}
    getattr(F, op)(to_genesis(X), *mine, momentum=0.3, **options)
    getattr(TF, op)(X, *theirs, momentum=0.3, **options)
    for actual, expected in zip(mine, theirs, strict=True):
        assert_close(actual, expected)


def test_instance_norm_by_running_statistics() -> None:
    assert_agreement(
        lambda x: F.instance_norm(x, to_genesis(MEAN), to_genesis(VAR), use_input_stats=False),
        lambda x: TF.instance_norm(x, MEAN, VAR, use_input_stats=False),
        X,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_parameters_beside_16_bit_inputs(dtype: torch.dtype) -> None:
    x, weight, mean, var = X.to(dtype), normal(4, dtype=torch.float32), MEAN.float(), VAR.float()
    for training in (True, False):
        y = F.batch_norm(*map(to_genesis, (x, mean, var, weight)), training=training)
        assert y.dtype.itemsize == 2
        assert_close(y.float(), TF.batch_norm(x, mean.clone(), var.clone(), weight, training=training).float(), 1e-2)


def test_statistics_changed_before_backward_are_noticed() -> None:
    mean = to_genesis(MEAN)
    y = F.batch_norm(to_genesis(X, True), mean, to_genesis(VAR))
    mean.zero_()
    with pytest.raises(GraphError, match="changed in place"):
        y.sum().backward()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        lambda x, w, b: F.layer_norm(x, (3, 4), w.reshape(1, 4).expand(3, 4), b.reshape(1, 4).expand(3, 4)),
        lambda x, w, b: F.rms_norm(x, (4,), w) + b,
    ],
)
def test_gradcheck(call: Any) -> None:
    operands = [to_genesis(normal(*shape), True) for shape in ((2, 4, 3, 4), (4,), (4,))]
    assert genesis.autograd.gradcheck(call, operands)


ONES = genesis.ones(4)
REFUSALS = [
    (lambda x: F.batch_norm(x[0, 0, 0], None, None, training=True), ShapeError, "'input': expected at least 2 dim"),
    (lambda x: F.batch_norm(x.long(), None, None, training=True), DTypeError, "'input': expected a floating dtype"),
    (lambda x: F.batch_norm(x, None, None), ValueError, "'running_mean': expected a Tensor, as the running stat"),
    (lambda x: F.batch_norm(x, ONES, None), ValueError, "'running_var': expected a Tensor, as the running stat"),
    (lambda x: F.batch_norm(x, ONES, None, training=True), ValueError, "'running_var': expected to be given or None"),
    (lambda x: F.batch_norm(x, ONES[:3], ONES), ShapeError, r"'running_mean': expected shape \(4,\), one for each"),
    (lambda x: F.batch_norm(x, ONES, ONES, ONES[:2]), ShapeError, r"'weight': expected shape \(4,\)"),
    (lambda x: F.batch_norm(x, ONES, ONES, ONES, 1.0), DTypeError, "'bias': expected a Tensor, got float"),
    (lambda x: F.batch_norm(x, ONES, ONES, eps=-1), ValueError, "'eps': expected a positive number"),
    (lambda x: F.batch_norm(x[:1, :, 0, 0], None, None, training=True), ShapeError, "more than 1 value per channel"),
    (lambda x: F.group_norm(x, 3), ShapeError, "'num_groups': expected a divisor of the 4 channels, got 3"),
    (lambda x: F.group_norm(x, 2.0), DTypeError, "'num_groups': expected an int, got float"),
    (lambda x: F.group_norm(x[:1, :, 0, 0], 4), ShapeError, "more than 1 value per group"),
    (
        lambda x: F.group_norm_act(x, 3),
        ShapeError,
        "group_norm_act: argument 'num_groups': expected a divisor",
    ),
    (
        lambda x: F.group_norm_act(x, 2, activation="step"),
        ValueError,
        "group_norm_act: argument 'activation'",
    ),
    (lambda x: F.group_norm(x, 2, bias=ONES[:2]), ShapeError, r"'bias': expected shape \(4,\)"),
    (lambda x: F.instance_norm(x[:, :, :1, :1]), ShapeError, "more than 1 value per plane"),
    (lambda x: F.instance_norm(x, use_input_stats=False), ValueError, "'running_mean': expected a Tensor"),
    (lambda x: F.layer_norm(x, (5, 5)), ShapeError, r"'normalized_shape': expected the last dimensions of input"),
    (lambda x: F.layer_norm(x, ()), ShapeError, "'normalized_shape': expected at least 1 dimension"),
    (lambda x: F.layer_norm(x, (6,), ONES), ShapeError, r"'weight': expected shape \(6,\), got \(4,\)"),
    (lambda x: F.rms_norm(x, 6, ONES), ShapeError, r"'weight': expected shape \(6,\), got \(4,\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(genesis.zeros(3, 4, 5, 6))
