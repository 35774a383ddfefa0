"""Every optimizer beside PyTorch's: the same parameters after 100 steps, the same state, the same refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import CheckpointError, DTypeError, GraphError, ShapeError

TOLERANCE = {"float32": 1e-5, "float64": 1e-9}


def values(*shape: int, seed: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Twin:
    """One small network, once in Genesis and once in PyTorch, with equal parameters."""

    def __init__(self, dtype: str) -> None:
        self.arrays = [
            values(3, 4, seed=1, dtype=dtype),
            values(4, seed=2, dtype=dtype),
            values(1, 4, seed=3, dtype=dtype),
        ]
        self.unused = np.ones(2, dtype)
        self.input, self.target = values(8, 3, 1, seed=4, dtype=dtype), values(8, 3, 4, seed=5, dtype=dtype)
        self.ours = [genesis.tensor(array, requires_grad=True) for array in [*self.arrays, self.unused]]
        self.theirs = [torch.tensor(array, requires_grad=True) for array in [*self.arrays, self.unused]]

    def backward(self) -> None:
        """The gradients of the squared error; the last parameter takes no part and has none."""
        for params, convert in ((self.ours, genesis.tensor), (self.theirs, torch.tensor)):
            weight, bias, scale, _ = params
            output = (convert(self.input) * weight + bias).tanh() * scale
            output.backward((output.detach() - convert(self.target)) / 24)

    def train(self, ours: Any, theirs: Any, steps: int) -> None:
        for _ in range(steps):
            ours.zero_grad()
            theirs.zero_grad()
            self.backward()
            ours.step()
            theirs.step()

    def check(self) -> None:
        for mine, other in zip(self.ours, self.theirs, strict=True):
            limit = TOLERANCE[str(other.dtype).removeprefix("torch.")]
            np.testing.assert_allclose(mine.numpy(force=True), other.detach().numpy(), rtol=limit, atol=limit)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.001, "momentum": 0.5, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("Adam", {"lr": 0.001, "maximize": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.3, "amsgrad": True}),
    ("AdamW", {"lr": 0.001, "maximize": True}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_100_steps_as_pytorch(name: str, options: dict[str, Any], dtype: str) -> None:
    twin = Twin(dtype)
    ours = getattr(genesis.optim, name)(twin.ours, **options)
    theirs = getattr(torch.optim, name)(twin.theirs, **options)
    twin.train(ours, theirs, 100)
    twin.check()
    assert any(
        abs(mine.numpy(force=True) - before).max() > 1e-3 for mine, before in zip(twin.ours, twin.arrays, strict=False)
    )


def lars_reference(params: list[np.ndarray], grads: list[np.ndarray], buffers: list[Any], **o: Any) -> None:
    """Algorithm 1 of the paper, a parameter at a time."""
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        g = -g if o["maximize"] else g
        p_norm, g_norm = np.linalg.norm(p), np.linalg.norm(g)
        rate = 1.0
        if o["trust_coefficient"] is not None and p_norm > 0 and g_norm > 0:
            rate = o["trust_coefficient"] * p_norm / (g_norm + o["weight_decay"] * p_norm + o["eps"])
        step = o["lr"] * rate * (g + o["weight_decay"] * p)
        buffers[i] = step if buffers[i] is None else o["momentum"] * buffers[i] + step
        p -= step + o["momentum"] * buffers[i] if o["nesterov"] else buffers[i]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.0},
        {"weight_decay": 0.1, "eps": 1e-3},
        {"nesterov": True},
        {"trust_coefficient": None},
        {"maximize": True},
    ],
    ids=str,
)
def test_lars_as_in_the_paper(options: dict[str, Any]) -> None:
    twin = Twin("float64")
    twin.ours[1].detach().zero_()  # its norm is 0 at first
    options = {
        "lr": 0.5, "momentum": 0.9, "weight_decay": 0.0, "trust_coefficient": 0.02, "eps": 0.0, "nesterov": False,
        "maximize": False,
    } | options  # fmt: skip
    optimizer = genesis.optim.LARS(twin.ours, **options)
    params = [p.numpy(force=True).copy() for p in twin.ours[:3]]
    buffers = [None] * 3
    for step in range(100):
        optimizer.param_groups[0]["lr"] = options["lr"] = 0.5 / (1 + step)  # the rate is part of the paper's momentum
        twin.backward()
        lars_reference(params, [p.grad.numpy().copy() for p in twin.ours[:3]], buffers, **options)
        optimizer.step()
        optimizer.zero_grad()
    for mine, expected in zip(twin.ours, params, strict=False):
        np.testing.assert_allclose(mine.numpy(force=True), expected, rtol=1e-9, atol=1e-12)


def test_groups_have_their_own_options() -> None:
    twin = Twin("float64")
    groups = lambda p: [{"params": p[:1]}, {"params": p[1:3], "lr": 0.2, "momentum": 0.0}]  # noqa: E731
    ours = genesis.optim.SGD(groups(twin.ours), lr=0.05, momentum=0.9)
    theirs = torch.optim.SGD(groups(twin.theirs), lr=0.05, momentum=0.9)
    twin.train(ours, theirs, 10)
    ours.add_param_group({"params": twin.ours[3], "lr": 1.0})
    theirs.add_param_group({"params": twin.theirs[3], "lr": 1.0})
    twin.train(ours, theirs, 10)
    twin.check()
    assert [group["lr"] for group in ours.param_groups] == [0.05, 0.2, 1.0]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_gradient_that_comes_later(name: str) -> None:
    """Parameters whose first gradient comes later have a shorter history: their own step count and first momentum."""
    options = {"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {}
    twin = Twin("float64")
    ours = getattr(genesis.optim, name)(twin.ours, lr=0.01, **options)
    theirs = getattr(torch.optim, name)(twin.theirs, lr=0.01, **options)
    twin.train(ours, theirs, 3)
    for _ in range(3):
        for params, ones in ((twin.ours, genesis.ones), (twin.theirs, torch.ones)):
            params[3].grad = ones(2, dtype=genesis.float64 if ones is genesis.ones else torch.float64)
        ours.step()
        theirs.step()
    twin.check()
    assert twin.ours[3].tolist() != [1.0, 1.0]


def test_dtypes_mix_in_one_group() -> None:
    params = [
        genesis.ones(2, dtype=dtype, requires_grad=True)
        for dtype in (genesis.float32, genesis.float64, genesis.bfloat16)
    ]
    for param in params:
        param.grad = genesis.ones_like(param)
    genesis.optim.AdamW(params, lr=0.5, weight_decay=0.0).step()
    assert [param.float().tolist() for param in params] == [[pytest.approx(0.5, abs=1e-6)] * 2] * 3


def test_memory_orders_mix() -> None:
    """A channels_last weight with a row-major gradient, and the other way round."""
    start, slope = values(2, 3, 4, 5, seed=1, dtype="float32"), values(2, 3, 4, 5, seed=2, dtype="float32")
    for param_format, grad_format in [("channels_last", "contiguous"), ("contiguous", "channels_last")]:
        param = genesis.tensor(start).contiguous(param_format).requires_grad_()
        param.grad = genesis.tensor(slope).contiguous(grad_format)
        optimizer = genesis.optim.SGD([param], lr=1.0, momentum=0.5)
        optimizer.step()
        optimizer.step()
        np.testing.assert_allclose(param.numpy(force=True), start - 2.5 * slope, rtol=1e-5, atol=1e-6)
        assert param.is_contiguous(param_format)
        assert optimizer.state[param]["momentum_buffer"].is_contiguous(param_format)


def test_a_closure_is_run_with_gradients() -> None:
    param = genesis.tensor([1.0], requires_grad=True)
    optimizer = genesis.optim.SGD([param], lr=0.25)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = param * param
        loss.backward()
        return loss

    with genesis.no_grad():
        assert optimizer.step(closure).item() == 1.0
    assert param.item() == 0.5


def test_zero_grad() -> None:
    param = genesis.ones(2, requires_grad=True)
    optimizer = genesis.optim.SGD([param], lr=0.1)
    (param * 2).backward(genesis.ones(2))
    optimizer.zero_grad(set_to_none=False)
    assert param.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert param.grad is None


# --- state_dict, both ways ------------------------------------------------------------------------------------------


def as_torch(value: Any) -> Any:
    """A state_dict of Genesis with PyTorch's tensors in it."""
    if isinstance(value, genesis.Tensor):
        return value.to_torch().clone()
    if isinstance(value, dict):
        return {key: as_torch(item) for key, item in value.items()}
    return [as_torch(item) for item in value] if isinstance(value, list) else value


STATEFUL = [
    ("SGD", {"lr": 0.05, "momentum": 0.9}),
    ("SGD", {"lr": 0.05}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("AdamW", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1}),
    ("Adadelta", {"lr": 0.5}),
    ("Adamax", {"lr": 0.01}),
    ("NAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01}),
    ("Rprop", {"lr": 0.01}),
    ("ASGD", {"lr": 0.01, "lambd": 0.1, "t0": 5}),
    ("Adafactor", {"lr": 0.01}),
]


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """PyTorch keeps some numbers of a state (NAdam's μ) in the default dtype, Genesis as Python does."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("way", ["from PyTorch", "to PyTorch", "to Genesis"])
@pytest.mark.parametrize(("name", "options"), STATEFUL, ids=str)
def test_training_goes_on_from_the_others_state(name: str, options: dict[str, Any], way: str) -> None:
    twin = Twin("float64")
    ours = getattr(genesis.optim, name)(twin.ours, **options)
    theirs = getattr(torch.optim, name)(twin.theirs, **options)
    twin.train(ours, theirs, 10)
    if way == "to PyTorch":
        new = getattr(torch.optim, name)(twin.theirs, lr=7.0)
        new.load_state_dict(as_torch(ours.state_dict()))
        theirs = new
    else:
        new = getattr(genesis.optim, name)(twin.ours, lr=7.0)
        new.load_state_dict(theirs.state_dict() if way == "from PyTorch" else ours.state_dict())
        ours = new
    assert new.param_groups[0]["lr"] == options["lr"]
    twin.train(ours, theirs, 10)
    twin.check()


def test_a_loaded_state_is_a_copy() -> None:
    twin = Twin("float32")
    first, second = (genesis.optim.Adam(twin.ours) for _ in range(2))
    twin.backward()
    first.step()
    second.load_state_dict(first.state_dict())
    first.step()
    assert first.state[twin.ours[0]]["step"] == 2
    assert second.state[twin.ours[0]]["step"] == 1
    assert second.state[twin.ours[0]]["exp_avg"].tolist() != first.state[twin.ours[0]]["exp_avg"].tolist()


@pytest.mark.parametrize("spoil", ["groups", "shape", "option"])
def test_a_state_that_does_not_fit_changes_nothing(spoil: str) -> None:
    twin = Twin("float32")
    optimizer = genesis.optim.Adam(twin.ours, lr=0.5)
    twin.backward()
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"] = {position: dict(entries) for position, entries in saved["state"].items()}
    if spoil == "groups":
        saved["param_groups"][0]["params"] = [0, 1]
        message = r"expected groups of \[4\] parameters, got \[2\]"
    elif spoil == "shape":
        saved["state"][2]["exp_avg"] = genesis.zeros(5)
        message = r"state\[2\]\['exp_avg'\]': expected the parameter's shape \(1, 4\), got \(5,\)"
    else:
        saved["param_groups"][0]["lr"] = -1.0
        message = "Adam: argument 'lr': expected a number >= 0, got -1.0"
    before = optimizer.state, optimizer.param_groups
    with pytest.raises(CheckpointError if spoil != "option" else ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert (optimizer.state, optimizer.param_groups) == before


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("SGD", {"lr": -0.1}, "SGD: argument 'lr': expected a number >= 0, got -0.1"),
        ("SGD", {"lr": "fast"}, "SGD: argument 'lr': expected a number, got str"),
        ("SGD", {"momentum": -1}, "argument 'momentum'"),
        ("SGD", {"weight_decay": -1}, "argument 'weight_decay'"),
        ("SGD", {"nesterov": True}, "'nesterov': expected momentum > 0 and dampening 0"),
        ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "got momentum 0.9 and dampening 0.1"),
        ("Adam", {"lr": float("nan")}, "argument 'lr'"),
        ("Adam", {"eps": -1e-8}, "argument 'eps'"),
        ("Adam", {"betas": (1.0, 0.9)}, r"argument 'betas\[0\]': expected a number >= 0 and < 1, got 1.0"),
        ("Adam", {"betas": 0.9}, "argument 'betas': expected two numbers, got 0.9"),
        ("AdamW", {"weight_decay": -1}, "AdamW: argument 'weight_decay'"),
        ("LARS", {"lr": 1.0, "trust_coefficient": -1}, "argument 'trust_coefficient'"),
        ("SGD", {"differentiable": True}, "'differentiable': expected False, as steps have no gradient, got True"),
        ("SGD", {"fused": True, "foreach": True}, "'fused': expected foreach not to be True beside it"),
        ("SGD", {"forech": True}, "SGD: argument 'forech': expected an argument of that name"),
        ("RMSprop", {"alpha": -1}, "RMSprop: argument 'alpha': expected a number >= 0, got -1"),
        ("Adagrad", {"lr_decay": -1}, "argument 'lr_decay'"),
        ("Adadelta", {"rho": 1.5}, "argument 'rho': expected a number >= 0 and <= 1, got 1.5"),
        ("Adamax", {"betas": (0.9, 1.0)}, r"argument 'betas\[1\]': expected a number >= 0 and < 1"),
        ("NAdam", {"momentum_decay": -1}, "argument 'momentum_decay'"),
        ("RAdam", {"eps": -1}, "argument 'eps'"),
        ("Rprop", {"etas": (0.5, 0.9)}, r"'etas': expected \(η⁻, η⁺\) with 0 < η⁻ < 1 < η⁺, got \(0.5, 0.9\)"),
        ("Rprop", {"step_sizes": 1}, "argument 'step_sizes': expected two numbers, got 1"),
        ("ASGD", {"t0": "late"}, "argument 't0': expected a number, got str"),
        ("Adafactor", {"beta2_decay": 0.5}, "argument 'beta2_decay': expected a number <= 0, got 0.5"),
        ("Adafactor", {"d": 0.5}, "argument 'd': expected a number >= 1, got 0.5"),
        ("Adafactor", {"eps": (None, -1)}, r"argument 'eps\[1\]'"),
        ("LARS", {"lr": 1.0, "momentum": 0, "nesterov": True}, "expected momentum > 0 beside it, got momentum 0"),
    ],
)  # fmt: skip
def test_options_out_of_range(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(genesis.optim, name)([genesis.ones(1, requires_grad=True)], **options)


def test_bad_parameters() -> None:
    param = genesis.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="SGD: argument 'params': expected at least one parameter, got none"):
        genesis.optim.SGD([])
    with pytest.raises(TypeError, match="expected parameters, or dictionaries, got Tensor"):
        genesis.optim.SGD(param)
    with pytest.raises(TypeError, match=r"argument 'params\[1\]': expected a Tensor, got int"):
        genesis.optim.SGD([param, 3])
    with pytest.raises(GraphError, match="expected a leaf, got a result of <MulBackward>"):
        genesis.optim.SGD([param * 2])
    with pytest.raises(DTypeError, match=r"expected a floating dtype, got genesis\.int64"):
        genesis.optim.SGD([genesis.tensor([1])])
    with pytest.raises(ValueError, match="expected each parameter once, got one twice"):
        genesis.optim.SGD([param, param])
    with pytest.raises(TypeError, match="in an order that stays, got a set"):
        genesis.optim.SGD([{"params": {param}}])
    optimizer = genesis.optim.SGD([param])
    with pytest.raises(ValueError, match="each parameter once"):
        optimizer.add_param_group({"params": [param]})
    with pytest.raises(TypeError, match="expected a dictionary with 'params'"):
        optimizer.add_param_group({"lr": 0.1})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda p: setattr(p, "grad", genesis.ones(3)), ShapeError, r"the parameter's shape \(2,\), got \(3,\)"),
        (lambda p: setattr(p, "grad", genesis.ones(2, dtype=genesis.float64)), DTypeError, "got genesis.float64"),
        (lambda p: setattr(p, "data", _every_other(4)), ShapeError, "got a view with strides"),
    ],
    ids=["shape", "dtype", "memory"],
)
def test_a_failed_step_changes_nothing(spoil: Any, error: type, message: str) -> None:
    params = [genesis.ones(2, requires_grad=True) for _ in range(3)]
    for param in params:
        param.grad = genesis.ones(2)
    optimizer = genesis.optim.Adam([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
    optimizer.step()
    before = [param.tolist() for param in params[:2]]
    spoil(params[2])
    with pytest.raises(error, match=message):
        optimizer.step()
    assert [param.tolist() for param in params[:2]] == before
    assert optimizer.state[params[0]]["step"] == 1


def _every_other(size: int) -> genesis.Tensor:
    array = genesis.arange(float(size)).array
    return genesis.Tensor(array.slice(0, 0, 2, size // 2))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "LARS", "Adafactor"])
def test_a_state_of_another_shape_than_its_parameter_is_refused(name: str) -> None:
    """As after a resize that the optimizer does not know of; a kernel would write beyond the end of the state."""
    param = genesis.ones(2, requires_grad=True)
    options = {"momentum": 0.9} if name in ("SGD", "LARS") else {}
    optimizer = getattr(genesis.optim, name)([param], lr=0.1, **options)
    param.grad = genesis.ones(2)
    optimizer.step()
    param.data, param.grad = genesis.ones(3), None
    param.grad = genesis.ones(3)
    with pytest.raises(ShapeError, match=r"step: argument '\w+': expected the parameter's shape \(3,\) .*, got \(2,\)"):
        optimizer.step()
    assert param.tolist() == [1, 1, 1]


def test_repr_shows_the_options() -> None:
    text = repr(genesis.optim.SGD([genesis.ones(1, requires_grad=True)], lr=0.5))
    assert text.startswith("SGD (\n  group 0: 1 parameters, lr=0.5, momentum=0")


@pytest.mark.parametrize("dtype", [genesis.bfloat16, genesis.float16], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_moves_long_16_bit_parameters(dtype: genesis.DType, momentum: float) -> None:
    """PyTorch's fused kernel does not, from 64 elements on."""
    parameter = genesis.ones(100, dtype=dtype, requires_grad=True)
    optimizer = genesis.optim.SGD([parameter], lr=0.25, momentum=momentum)
    for _ in range(2):
        parameter.grad = genesis.ones(100, dtype=dtype)
        optimizer.step()
    expected = 1 - 0.25 * (2 + momentum)
    assert all(abs(value - expected) <= 2**-8 for value in parameter.tolist())
