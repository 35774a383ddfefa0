"""conv_bn_relu against PyTorch's unfused layers in float64, and the folded form for inference."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import DTypeError, GraphError, ShapeError
from genesis.functional.fused import ConvBNReLU
from genesis.records import ConvSettings, NormOptions, NormState
from genesis.settings import override
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis
from tests.fused_activations import FUNCTIONS, activated

N, C, K, SIZE = 3, 4, 6, 7
RUNNING_MEAN, RUNNING_VAR = normal(K, seed=5), normal(K, seed=6).abs() + 0.5


def unfused(
    x: Any, w: Any, b: Any, gamma: Any, beta: Any, residual: Any, *, running: Any, training: bool, activation: Any,
    **geometry: Any,
) -> Any:  # fmt: skip
    y = TF.batch_norm(TF.conv2d(x, w, b, **geometry), *running, gamma, beta, training, 0.1, 1e-5)
    y = y if residual is None else y + residual
    return activated(y, activation)


def conv_bn_relu(
    input: Any, weight: Any, bias: Any, gamma: Any, beta: Any, mean: Any, var: Any, training: bool = False, *,
    num_batches_tracked: Any = None, momentum: float = 0.1, residual: Any = None, activation: Any = "relu",
    **settings: Any,
) -> Any:  # fmt: skip
    norm, options = NormState(gamma, beta, mean, var, num_batches_tracked), NormOptions(training, momentum)
    return F.conv_bn_relu(input, weight, bias, norm, options, ConvSettings(**settings), residual, activation)


def operands(bias: bool, affine: bool, residual: bool, groups: int = 1, out: int = 4) -> list[torch.Tensor | None]:
    return [
        normal(N, C, SIZE, SIZE),
        normal(K, C // groups, 3, 3),
        normal(K) if bias else None,
        normal(K, seed=2) if affine else None,
        normal(K, seed=3) if affine else None,
        normal(N, K, out, out, seed=4) if residual else None,
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("bias", "affine", "residual"), list(itertools.product([True, False], repeat=3)))
def test_agreement_with_unfused_layers(training: bool, bias: bool, affine: bool, residual: bool) -> None:
    def ours(x: Any, w: Any, b: Any, gamma: Any, beta: Any, res: Any) -> Any:
        running = to_genesis(RUNNING_MEAN), to_genesis(RUNNING_VAR)
        return conv_bn_relu(x, w, b, gamma, beta, *running, training, stride=2, padding=1, residual=res)

    def theirs(*args: Any) -> Any:
        running = RUNNING_MEAN.clone(), RUNNING_VAR.clone()
        return unfused(*args, running=running, training=training, activation="relu", stride=2, padding=1)

    assert_agreement(ours, theirs, *operands(bias, affine, residual))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_activations(activation: str, training: bool, residual: bool) -> None:
    def ours(x: Any, w: Any, b: Any, gamma: Any, beta: Any, res: Any) -> Any:
        running = to_genesis(RUNNING_MEAN), to_genesis(RUNNING_VAR)
        return conv_bn_relu(x, w, b, gamma, beta, *running, training, residual=res, activation=activation)

    def theirs(*args: Any) -> Any:
        return unfused(
            *args, running=(RUNNING_MEAN.clone(), RUNNING_VAR.clone()), training=training, activation=activation
        )

    tolerance = 1e-7 if activation == "hardsigmoid" else 1e-9  # torch's derivative is 1/6 of float32
    assert_agreement(ours, theirs, *operands(True, True, residual, out=5), tolerance=tolerance)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("geometry", [{"groups": 2}, {"dilation": 2, "padding": "same"}, {"stride": (1, 2)}])
def test_geometries_without_activation(training: bool, geometry: dict[str, Any]) -> None:
    running = (RUNNING_MEAN, RUNNING_VAR)
    assert_agreement(
        lambda *a: conv_bn_relu(*a[:5], *map(to_genesis, running), training, activation=None, **geometry),
        lambda *a: unfused(
            *a, running=[r.clone() for r in running], training=training, activation=None, **geometry
        ),
        *operands(True, True, False, groups=geometry.get("groups", 1)),
    )  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", None])
def test_gradients_of_others_stay_as_they_are(activation: str | None) -> None:
    """The ReLU's gradient is written over the gradient that comes in, but only where nobody else holds that."""
    x, w = to_genesis(normal(N, C, SIZE, SIZE)), to_genesis(normal(C, C, 3, 3))
    x, w = (tensor.contiguous(memory_format=genesis.channels_last).requires_grad_() for tensor in (x, w))
    ones = genesis.ones(C, dtype=genesis.float64)

    def layer(input: Any, residual: Any) -> Any:
        options = {"padding": 1, "residual": residual, "activation": activation}
        return conv_bn_relu(input, w, None, ones, None, None, None, True, **options)

    seed = normal(N, C, SIZE, SIZE, seed=7).contiguous(memory_format=torch.channels_last)
    given = genesis.from_torch(seed.clone(memory_format=torch.preserve_format))
    y = layer(layer(x, None), x)
    seen: list[Any] = []
    y.register_hook(lambda grad: seen.extend((grad, grad.clone())))
    (layer(y, None) * y).backward(given, retain_graph=True)
    first = x.grad.clone(), w.grad.clone()
    assert_close(given, seed)
    x.grad = w.grad = None
    (layer(y, None) * y).backward(given)
    assert_close(seen[0], seen[1].to_torch())
    for again, before in zip((x.grad, w.grad), first, strict=True):
        assert_close(again, before.to_torch())


def used_twice(x: Any, w: Any, seen: list[Any], as_leaf: bool, activation: str | None) -> Any:
    """x goes to the op, whose gradient comes last, and to two others; it is noted what a hook sees."""
    h = x if as_leaf else x * 1.0
    h.register_hook(lambda grad: seen.append(grad.clone()))
    y = conv_bn_relu(h, w, None, None, None, None, None, True, padding=1, activation=activation)
    return (y * y).sum() + (h * h * 0.5).sum() + (y * h).sum(), h


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("as_leaf", [True, False])
@pytest.mark.parametrize("activation", ["relu", None])
def test_what_its_input_has_already_is_added_to(
    monkeypatch: pytest.MonkeyPatch, device: str, as_leaf: bool, activation: str | None
) -> None:
    torch.manual_seed(0)
    values, weights = torch.randn(2, 4, 5, 5, dtype=torch.float64), torch.randn(4, 4, 3, 3, dtype=torch.float64)
    added: list[bool] = []
    backward = ConvBNReLU.backward

    def watched(ctx: Any, grad: Any) -> Any:
        added.append(ctx.addend is not None)
        return backward(ctx, grad)

    monkeypatch.setattr(ConvBNReLU, "backward", staticmethod(watched))
    with override(cuda="simulated"):
        found = []
        for adds_up in (True, False):
            monkeypatch.setattr(ConvBNReLU, "adds_up", adds_up)
            x, w = (to_genesis(value).to(device).requires_grad_() for value in (values, weights))
            seen: list[Any] = []
            loss, h = used_twice(x, w, seen, as_leaf, activation)
            h.retain_grad()
            loss.backward(retain_graph=True)
            assert len(seen) == 1  # of the whole gradient
            assert_close(seen[0], h.grad.to_torch())
            given = h.grad.clone()
            loss.backward()
            assert_close(h.grad, 2 * given.to_torch())
            loss, h = used_twice(x, w, seen, as_leaf, activation)
            (asked,) = genesis.autograd.grad(loss, h)
            found.append([each.cpu().to_torch() for each in (given, asked, x.grad, w.grad)])
        assert added == [True] * 3 + [False] * 3
        for mine, other in zip(*found, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
        leaf, weight = values.clone().requires_grad_(), weights.clone().requires_grad_()
        y = TF.batch_norm(TF.conv2d(leaf, weight, padding=1), None, None, training=True)
        y = y.relu() if activation else y
        ((y * y).sum() + (leaf * leaf * 0.5).sum() + (y * leaf).sum()).backward()
        torch.testing.assert_close(found[0][0], leaf.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_gradcheck(training: bool) -> None:
    shapes = ((2, 2, 4, 4), (3, 2, 3, 3), (3,), (3,), (3,), (2, 3, 2, 2))
    leaves = [to_genesis(normal(*shape, seed=i), True) for i, shape in enumerate(shapes)]
    mean, var = to_genesis(RUNNING_MEAN[:3]), to_genesis(RUNNING_VAR[:3])

    def call(*args: Any) -> Any:
        running = mean.clone(), var.clone()
        return conv_bn_relu(*args[:5], *running, training, stride=2, padding=1, residual=args[5])

    assert genesis.autograd.gradcheck(call, leaves)


def test_running_statistics_are_updated() -> None:
    x, w, b, gamma, beta, _ = operands(True, True, False)
    mine, theirs = [to_genesis(r) for r in (RUNNING_MEAN, RUNNING_VAR)], [RUNNING_MEAN.clone(), RUNNING_VAR.clone()]
    conv_bn_relu(*map(to_genesis, (x, w, b, gamma, beta)), *mine, training=True, momentum=0.3)
    TF.batch_norm(TF.conv2d(x, w, b), *theirs, gamma, beta, True, 0.3)
    for actual, expected in zip(mine, theirs, strict=True):
        assert_close(actual, expected)


def test_large_mean() -> None:
    """Statistics survive a mean of 1e4 standard deviations."""
    x = normal(N, C, SIZE, SIZE, dtype=torch.float32) + 1e4
    w = normal(K, C, 1, 1, dtype=torch.float32)
    running = to_genesis(torch.zeros(K)), to_genesis(torch.ones(K))
    y = conv_bn_relu(to_genesis(x), to_genesis(w), None, None, None, *running, training=True, activation=None)
    exact = TF.batch_norm(TF.conv2d(x.double(), w.double()), None, None, training=True)
    reference = TF.batch_norm(TF.conv2d(x.contiguous(memory_format=torch.channels_last), w), None, None, training=True)
    assert (y.detach().to_torch() - exact).norm() <= 1.1 * (reference - exact).norm()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_empty_batch_changes_nothing(device: str) -> None:
    with override(cuda="simulated"):
        x, w = genesis.ones(0, C, SIZE, SIZE, device=device), genesis.ones(K, C, 3, 3, device=device).requires_grad_()
        mean, var = genesis.zeros(K, device=device), genesis.ones(K, device=device)
        y = conv_bn_relu(x, w, None, None, None, mean, var, training=True)
        assert y.shape == (0, K, SIZE - 2, SIZE - 2)
        y.sum().backward()
        assert not w.grad.any().item()
        assert var.tolist() == [1.0] * K


def test_statistics_changed_before_backward_are_noticed() -> None:
    x, w, b, gamma, beta, _ = [to_genesis(t) for t in operands(True, True, False)]
    mean, var = to_genesis(RUNNING_MEAN), to_genesis(RUNNING_VAR)
    y = conv_bn_relu(x, w.requires_grad_(), b, gamma, beta, mean, var)
    mean.zero_()
    with pytest.raises(GraphError, match="changed in place"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("activation", "device"), [*[(each, "cpu") for each in FUNCTIONS], ("relu", "cuda"), ("relu6", "cuda")]
)
def test_a_result_changed_before_backward(activation: str, device: str) -> None:
    """Gradients are right; or, where the CPU's backward reads the result as the activation's own would, it is said."""
    with override(cuda="simulated"):
        for training, residual in itertools.product((True, False), repeat=2):
            given = [None if t is None else to_genesis(t).to(device) for t in operands(True, True, residual)]
            running = [to_genesis(t).to(device) for t in (RUNNING_MEAN, RUNNING_VAR)]
            grads, weights = [], to_genesis(normal(N, K, 4, 4, seed=8)).to(device)
            for change in (False, True):
                x, *parameters, res = [None if t is None else t.detach().requires_grad_() for t in given]
                statistics = [each.clone() for each in running]
                y = conv_bn_relu(
                    x, *parameters, *statistics, training, stride=2, padding=1, residual=res, activation=activation
                )
                if change:
                    y.view(-1).sub_(100)
                if change and device == "cpu" and activation in ("relu", "sigmoid", "tanh"):
                    with pytest.raises(GraphError, match="changed in place"):
                        y.sum().backward()
                    break
                y.backward(weights)
                grads.append([t.grad.to("cpu") for t in (x, *parameters, res) if t is not None])
            for exact, found in zip(grads[0], grads[-1], strict=True):
                assert_close(found, exact.to_torch())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("activation", [*FUNCTIONS, None])
def test_folded_and_prepacked(dtype: torch.dtype, residual: bool, activation: str | None) -> None:
    args = [t if t is None else t.to(dtype) for t in operands(True, True, residual)]
    x, w, b, gamma, beta, res = map(to_genesis, args)
    mean, var = to_genesis(RUNNING_MEAN.to(dtype)), to_genesis(RUNNING_VAR.to(dtype))
    weight, bias = F.fold_batch_norm(w, b, gamma, beta, mean, var, 1e-5)
    packed = F.conv_prepack(weight, bias, x.shape, stride=2, padding=1)
    y = F.conv_prepacked(x, packed, res, activation)
    exact = unfused(
        *[t if t is None else t.double() for t in args],
        running=(RUNNING_MEAN.to(dtype).double(), RUNNING_VAR.to(dtype).double()),
        training=False, activation=activation, stride=2, padding=1,
    )  # fmt: skip
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    assert (y.to_torch().double() - exact).norm() <= tolerance * exact.norm()
    assert y.dtype is x.dtype
    assert not y.requires_grad


def test_prepacked_takes_another_batch() -> None:
    w = normal(K, C, 3, 3, dtype=torch.float32)
    packed = F.conv_prepack(to_genesis(w), None, (1, C, 8, 8))
    x = normal(2, C, 5, 6, dtype=torch.float32)
    assert_close(F.conv_prepacked(to_genesis(x), packed), TF.conv2d(x, w), 1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("images", [N, 0])
def test_batches_are_counted_in_training(training: bool, images: int) -> None:
    x, w, *_ = [to_genesis(t) for t in operands(False, False, False)]
    running = to_genesis(RUNNING_MEAN), to_genesis(RUNNING_VAR)
    count = genesis.tensor(7)
    y = conv_bn_relu(x[:images], w, None, None, None, *running, training, num_batches_tracked=count)
    assert y.shape[0] == images
    assert count.item() == 7 + training
    assert count.array.changes.count == training


def test_refusals() -> None:
    x, w, b, gamma, beta, res = [to_genesis(t) for t in operands(True, True, True)]
    mean, var = to_genesis(RUNNING_MEAN), to_genesis(RUNNING_VAR)
    args = (x, w, b, gamma, beta, mean, var)
    with pytest.raises(
        ShapeError, match=r"conv_bn_relu: argument 'residual': expected the result's shape \(3, 6, 5, 5\)"
    ):
        conv_bn_relu(*args, residual=res)
    for wrong in ("swish", "relu(1)", "elu(nan)", "elu(one)", "", 1):
        with pytest.raises(ValueError, match=r'conv_bn_relu: argument .activation.: expected "relu", .* or None, '):
            conv_bn_relu(*args, activation=wrong)
    with pytest.raises(ShapeError, match=r"'gamma': expected shape \(6,\), one for each channel, got \(4,\)"):
        conv_bn_relu(x, w, b, gamma[:4], beta, mean, var)
    with pytest.raises(ValueError, match="'running_mean': expected a Tensor, as the running statistics are used"):
        conv_bn_relu(x, w, b, gamma, beta, None, None)
    with pytest.raises(ShapeError, match="'input': expected more than 1 value per channel in training"):
        conv_bn_relu(x[:1, :, :3, :3], w, b, gamma, beta, mean, var, training=True)
    with pytest.raises(ShapeError, match="'padding': expected \"same\" with odd kernel sizes only"):
        conv_bn_relu(x, w[:, :, :2], b, gamma, beta, mean, var, padding="same")
    with pytest.raises(ShapeError, match="'input': expected 4 dimensions"):
        conv_bn_relu(x[0], *args[1:])
    with pytest.raises(DTypeError, match="'residual': expected a Tensor"):
        conv_bn_relu(*args, residual=1.0)
    with pytest.raises(DTypeError, match="'num_batches_tracked': expected a Tensor, got int"):
        conv_bn_relu(*args, num_batches_tracked=1)
    with pytest.raises(DTypeError, match=r"'num_batches_tracked': expected int64, got genesis\.float32"):
        conv_bn_relu(*args, num_batches_tracked=genesis.tensor(1.0))
    with pytest.raises(ShapeError, match=r"'num_batches_tracked': expected shape \(\), got \(1,\)"):
        conv_bn_relu(*args, num_batches_tracked=genesis.tensor([1]))
    records = NormState(gamma, beta, mean, var), NormOptions(False), ConvSettings()
    for i, name in enumerate(("NormState", "NormOptions", "ConvSettings")):
        with pytest.raises(DTypeError, match=rf"conv_bn_relu: argument '\w+': expected a {name}, got tuple"):
            F.conv_bn_relu(x, w, b, *records[:i], tuple(records[i]), *records[i + 1 :])
    with pytest.raises(DTypeError, match="'stride': expected an int or a tuple of ints, got True"):
        F.conv_bn_relu(x, w, b, *records[:2], ConvSettings(stride=True))
    packed = F.conv_prepack(w, b, x.shape)
    with pytest.raises(ShapeError, match="'input': expected 4 channels"):
        F.conv_prepacked(x[:, :3], packed)
    with pytest.raises(ShapeError, match="'input_shape': expected 4 sizes"):
        F.conv_prepack(w, b, (3, 4))
