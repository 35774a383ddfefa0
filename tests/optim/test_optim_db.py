"""Every optimizer with the options of PyTorch's own tests: 20 steps are equal, on the CPU and on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import genesis
from genesis.errors import DTypeError, ShapeError
from tests.optim.test_optimizers import Twin

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
NOT_HERE = {
    "LBFGS": "takes a closure: below, and in test_lbfgs.py",
    "SparseAdam": "is for sparse gradients, which Genesis does not have",
    "Muon": "takes matrices only: below",
}
SAMPLES_OF = {info.optim_cls.__name__: info.optim_inputs_func(device="cpu") for info in optim_db}
SAMPLES = [
    pytest.param(name, sample, id=f"{name}-{sample.desc}")
    for info in optim_db
    if (name := info.optim_cls.__name__) not in NOT_HERE
    for sample in info.optim_inputs_func(device="cpu")
]


@pytest.fixture(params=TOLERANCE)
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    """PyTorch computes some numbers of a state (NAdam's μ) in the default dtype, Genesis as Python does."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield request.param
    torch.set_default_dtype(before)


def ours_of(options: dict[str, Any]) -> dict[str, Any]:
    return {
        key: genesis.from_torch(value) if isinstance(value, torch.Tensor) else value for key, value in options.items()
    }


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_20_steps(name: str, sample: Any, dtype: str) -> None:
    twin = Twin(dtype)
    ours = getattr(genesis.optim, name)(twin.ours, **ours_of(sample.kwargs))
    theirs = getattr(torch.optim, name)(twin.theirs, **sample.kwargs)
    twin.train(ours, theirs, 20)
    for mine, other in zip(twin.ours, twin.theirs, strict=True):
        limit = TOLERANCE[dtype]
        np.testing.assert_allclose(mine.numpy(force=True), other.detach().numpy(), rtol=limit, atol=limit)


def slopes(params: list[Any]) -> None:
    """Gradients that depend on the parameters."""
    for param in params:
        param.grad = (param.detach() * 3 + 1).cos()


@pytest.mark.parametrize("sample", SAMPLES_OF["Muon"], ids=lambda sample: sample.desc)
def test_20_steps_of_muon(sample: Any, dtype: str) -> None:
    """Its matrices are rounded to bfloat16 in between, whatever the parameters' dtype: 1e-5 for float64 too."""
    arrays = [np.random.default_rng(seed).standard_normal(shape) for seed, shape in enumerate([(3, 4), (7, 2), (1, 5)])]
    mine = [genesis.tensor(array.astype(dtype), requires_grad=True) for array in arrays]
    others = [torch.tensor(array.astype(dtype), requires_grad=True) for array in arrays]
    ours, theirs = genesis.optim.Muon(mine, **ours_of(sample.kwargs)), torch.optim.Muon(others, **sample.kwargs)
    # With other coefficients the iteration does not converge, and amplifies a bit that rounds the other way.
    for _ in range(5 if "ns_coefficients" in sample.kwargs else 20):
        slopes(mine)
        slopes(others)
        ours.step()
        theirs.step()
    for found, expected in zip(mine, others, strict=True):
        np.testing.assert_allclose(found.numpy(force=True), expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    for name, value in theirs.state_dict()["state"][0].items():
        np.testing.assert_allclose(ours.state_dict()["state"][0][name].numpy(), value.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sample", SAMPLES_OF["LBFGS"], ids=lambda sample: sample.desc)
def test_8_steps_of_lbfgs(sample: Any, dtype: str) -> None:
    """Of a bowl, whose rounding L-BFGS does not amplify. The sixth begins to drop differences from the history."""
    start, scale = np.array([3.0, -2.0, 0.5], dtype), np.array([1.0, 2.0, 4.0], dtype)

    def descend(lib: Any, options: dict[str, Any]) -> np.ndarray:
        param, scales = lib.tensor(start, requires_grad=True), lib.tensor(scale)
        optimizer = lib.optim.LBFGS([param], **options)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (scales * (param - 1) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(8):
            optimizer.step(closure)
        return param.detach().numpy()

    limit = TOLERANCE[dtype]
    found, expected = descend(genesis, ours_of(sample.kwargs)), descend(torch, sample.kwargs)
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit)


def test_muon_refuses() -> None:
    matrix = genesis.ones(2, 2, requires_grad=True)
    with pytest.raises(ShapeError, match=r"Muon: argument 'params\[0\]': expected 2 dimensions, got shape \(3,\)"):
        genesis.optim.Muon([genesis.ones(3, requires_grad=True)])
    with pytest.raises(ValueError, match="'adjust_lr_fn': expected"):
        genesis.optim.Muon([matrix], adjust_lr_fn="both")
    with pytest.raises(ValueError, match="'ns_steps': expected a number >= 0 and < 100, got 100"):
        genesis.optim.Muon([matrix], ns_steps=100)
    with pytest.raises(DTypeError, match="'ns_coefficients': expected three numbers"):
        genesis.optim.Muon([matrix], ns_coefficients=(1.0, 2.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RMSprop", {"momentum": 0.5, "centered": True, "weight_decay": 0.1}),
        ("Adagrad", {"lr_decay": 0.1}),
        ("Adadelta", {}),
        ("Adamax", {}),
        ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
        ("RAdam", {"maximize": True}),
        ("Rprop", {}),
        ("ASGD", {"t0": 2}),
        ("Adafactor", {"weight_decay": 0.1}),
        ("Muon", {"ns_steps": 1}),
    ],
)
def test_the_same_on_a_cuda_device(cuda: str, name: str, options: dict[str, Any]) -> None:
    start = np.random.default_rng(1).standard_normal((3, 4)).astype("float32")
    found = []
    for device in ("cpu", "cuda"):
        params = [genesis.tensor(start, device=device, requires_grad=True) for _ in range(2)]
        if name != "Muon":
            params[1] = params[1].detach()[0].clone().requires_grad_()
        optimizer = getattr(genesis.optim, name)(params, **options)
        for _ in range(6 if name == "RAdam" else 2):  # which rectifies from the sixth step on
            for param in params:
                param.grad = (param.detach() * 3 + 1).cos()
            optimizer.step()
        found.append([param.detach().cpu().numpy() for param in params])
    for mine, expected in zip(*found, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["RMSprop", "Adagrad", "NAdam", "Rprop", "Adafactor"])
@pytest.mark.parametrize("dtype", [genesis.bfloat16, genesis.float16], ids=str)
def test_16_bits_are_computed_in_float32(name: str, dtype: genesis.DType) -> None:
    """One step is that of float32, rounded once."""
    results = []
    for kind in (dtype, genesis.float32):
        param = genesis.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=kind, requires_grad=True)
        param.grad = genesis.tensor([[0.25, 1.0], [-4.0, 0.5]], dtype=kind)
        options: dict[str, Any] = {"eps": (1e-3, 1e-3)} if name == "Adafactor" else {}
        getattr(genesis.optim, name)([param], lr=0.1, **options).step()
        results.append(param.detach())
    state_is_rounded = 2.0**-7 if name != "Rprop" else 0.0  # what is stored of a state is rounded too
    expected = results[1].to(dtype).float().numpy()
    np.testing.assert_allclose(results[0].float().numpy(), expected, rtol=state_is_rounded)


@pytest.mark.parametrize("name", sorted({sample.values[0] for sample in SAMPLES}))
def test_groups_have_pytorchs_options(name: str) -> None:
    """But for those that say how PyTorch computes."""
    ours = getattr(genesis.optim, name)([genesis.ones(1, requires_grad=True)])
    theirs = getattr(torch.optim, name)([torch.ones(1, requires_grad=True)])
    how = {"foreach", "fused", "capturable", "differentiable"}
    wanted = {key: value for key, value in theirs.param_groups[0].items() if key not in {"params", *how}}
    found = {key: value for key, value in ours.param_groups[0].items() if key != "params"}
    assert found == wanted


@pytest.mark.parametrize("name", ["RMSprop", "Adagrad", "ASGD"])
def test_a_failed_step_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All new values are there before the first is written."""
    params = [genesis.ones(2, requires_grad=True) for _ in range(2)]
    optimizer = getattr(genesis.optim, name)(params)
    for param in params:
        param.grad = genesis.ones(2)
    optimizer.step()
    before = repr(optimizer.state_dict()), [param.tolist() for param in params]
    formula: Callable[..., Any] = optimizer._next
    calls: list[int] = []

    def fails_at_the_second(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return formula(*arguments)

    monkeypatch.setattr(optimizer, "_next", fails_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert (repr(optimizer.state_dict()), [param.tolist() for param in params]) == before
