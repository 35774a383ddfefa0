"""Names of PyTorch's that redirected code finds among the stand-ins, beside PyTorch's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import genesis
from genesis.port import facade
from genesis.settings import settings

X = torch.arange(12.0).reshape(1, 3, 4) - 5
OURS = facade.facade("torch")

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "conv1d": lambda t, x: t.conv1d(x, x[:, :, :2], padding=1),
    "celu_": lambda t, x: t.celu_(x.clone()),
    "layer_norm": lambda t, x: t.layer_norm(x, (4,)),
    "dropout": lambda t, x: t.dropout(x, 0.5, False),
    "threshold": lambda t, x: t.threshold(x, 0.5, 2.0),
    "max_pool1d": lambda t, x: t.max_pool1d(x, 2),
    "real": lambda t, x: t.real(t.conj(t.resolve_conj(t.resolve_neg(t.conj_physical(x))))),
    "nan_to_num_": lambda t, x: t.nan_to_num_((x - x) / (x - x), 3.0),
    "frombuffer": lambda t, x: t.frombuffer(bytearray(range(8)), dtype=t.int16, count=2, offset=4),
    "frombuffer read only": lambda t, x: t.frombuffer(bytes(8), dtype=t.float32) + 1,
    "_shape_as_tensor": lambda t, x: t._shape_as_tensor(x),
    "dlpack": lambda t, x: t.utils.dlpack.from_dlpack(t.utils.dlpack.to_dlpack(x)),
    "functional_call": lambda t, x: t.func.functional_call(
        t.nn.Linear(4, 1, bias=False), {"weight": x[0, :1]}, (x,)
    ),
    "pytree": lambda t, x: t.utils._pytree.tree_map(lambda y: y + 1, {"a": [x]})["a"][0],
}  # fmt: skip
VALUES: dict[str, Callable[[Any], Any]] = {
    "autocast": lambda t: [
        (t.is_autocast_enabled("cpu"), t.amp.is_autocast_available("cpu"), t.is_autocast_cpu_enabled()),
        [str(t.get_autocast_dtype(each)).split(".")[1] for each in ("cpu", "cuda")],
        t.get_autocast_cpu_dtype() == t.bfloat16, t.get_autocast_gpu_dtype() == t.float16,
    ],
    "devices": lambda t: (str(t.get_default_device()), t.get_num_threads(), t.mps.device_count()),
    "attention": lambda t: [t.nn.attention.SDPBackend.MATH.name, t.nn.attention.SDPBackend.CUDNN_ATTENTION.value],
    "accelerator": lambda t: (
        t.accelerator.is_available(), t.accelerator.device_count(), str(t.accelerator.current_accelerator()),
    ),
    "kinds of tensors": lambda t: [
        getattr(t.ones(1), f"is_{kind}")
        for kind in ("xpu", "mps", "xla", "ipu", "mtia", "meta", "sparse", "quantized", "mkldnn", "nested")
    ],
    "bounds that are tensors": lambda t: [
        t.manual_seed(3) and None, t.empty(3).uniform_(t.tensor(1.0), t.tensor(2.0)).tolist(),
        t.empty(3).normal_(t.tensor(1.0), t.tensor(2.0)).tolist(),
    ],
    "sym": lambda t: (t.sym_int(2.5), isinstance(2, t.SymInt), isinstance(2.0, t.SymFloat)),
    "deterministic": lambda t: (
        t.are_deterministic_algorithms_enabled(), t.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "seed": lambda t: (t.initial_seed(), t.random.initial_seed()),
    "precision": lambda t: t.get_float32_matmul_precision(),
}  # fmt: skip


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before = genesis.get_float32_precision(), settings.deterministic
    yield
    genesis.set_float32_precision(before[0])
    settings.deterministic = before[1]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_calls_as_in_pytorch(name: str) -> None:
    for each in ("torch.utils.dlpack", "torch.func", "torch.utils._pytree"):
        importlib.import_module(each)
    expected, actual = CALLS[name](torch, X), CALLS[name](OURS, genesis.from_torch(X.clone()))
    assert isinstance(actual, genesis.Tensor)
    torch.testing.assert_close(actual.detach().to_torch(), expected.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.filterwarnings("ignore")
def test_values_as_in_pytorch(name: str) -> None:
    genesis.manual_seed(7)
    assert repr(VALUES[name](OURS)) == repr(VALUES[name](torch))


def test_settings_are_genesis_own() -> None:
    OURS.set_float32_matmul_precision("medium")
    assert genesis.get_float32_precision() == "medium"
    OURS.use_deterministic_algorithms(True, warn_only=True)
    assert settings.deterministic
    with pytest.raises(ValueError, match="use_deterministic_algorithms: argument 'mode': expected a bool, got 1"):
        OURS.use_deterministic_algorithms(1)


def test_generators_are_forked() -> None:
    genesis.manual_seed(3)
    with OURS.random.fork_rng():
        first = genesis.rand(2).tolist()
    with OURS.random.fork_rng(devices=[], enabled=False):
        assert genesis.rand(2).tolist() == first
    assert genesis.rand(2).tolist() != first


def test_checks() -> None:
    with pytest.raises(RuntimeError, match="too few"):
        OURS._check(False, lambda: "too few")
    OURS._check(True)
    OURS._check_value(True)
    with pytest.raises(KeyError, match="which"):
        OURS._check_with(KeyError, False, lambda: "which")
    for name, error in {"index": IndexError, "value": ValueError, "type": TypeError}.items():
        with pytest.raises(error, match="Expected cond to be True"):
            getattr(OURS, f"_check_{name}")(False)
    OURS.testing.assert_close({"a": [genesis.ones(2)]}, {"a": [genesis.ones(2)]})
    with pytest.raises(AssertionError, match="not close"):
        OURS.testing.assert_close(genesis.ones(2), genesis.zeros(2))


def test_an_optimizer_of_ones_own() -> None:
    required, decorate = OURS.optim.optimizer.required, OURS.optim.optimizer._use_grad_for_differentiable

    class Sign(genesis.optim.Optimizer):
        def __init__(self, params: Any, lr: Any = required) -> None:
            if lr is required:
                raise ValueError(f"lr: {lr}")
            super().__init__(params, {"lr": lr})

        @decorate
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    p.add_(p.grad.sign(), alpha=-group["lr"])

    weight = genesis.nn.Parameter(genesis.ones(2))
    with pytest.raises(ValueError, match="<required parameter>"):
        Sign([weight])
    optimizer = Sign([weight], lr=0.25)
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.75, 0.75]
    assert optimizer.state_dict()["state"][0]["step"] == 1


def test_libraries_import_that_name_placements_and_small_floats_and_ask_for_accelerators() -> None:
    tensor = OURS.distributed.tensor
    assert (tensor.Shard(1).dim, tensor.Partial().reduce_op) == (1, "sum")
    assert tensor.Replicate() == tensor.Replicate() != tensor.Shard(0)
    assert OURS.finfo(OURS.float8_e4m3fn).max == torch.finfo(torch.float8_e4m3fn).max == 448
    assert OURS.finfo(genesis.float16).max == 65504
    with pytest.raises(genesis.errors.DTypeError, match="finfo: argument 'type'"):
        OURS.finfo(genesis.int8)
    assert OURS._dynamo.assume_constant_result(len) is len
    assert not OURS.xpu.is_available()
    expected = genesis.device("cuda") if genesis.cuda.is_available() else None
    assert OURS.accelerator.current_accelerator() == expected
