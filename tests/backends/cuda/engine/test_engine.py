"""What the engine promises: accuracy in all ranges of float32, a quick start from the store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import genesis
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.records import ConvGeometry
from genesis.settings import override
from tests.backends.cuda.ops.conv.fuzz import ways

Put = Callable[[Any], Any]
Get = Callable[[DeviceArray], torch.Tensor]

# kernel, stride, padding
NAMED = {
    "k3s1p0": (3, 1, 0), "k3s1p1": (3, 1, 1), "k3s2p1": (3, 2, 1), "k1s1p0": (1, 1, 0), "k1s2p0": (1, 2, 0),
    "k7s2p3": (7, 2, 3),
}  # fmt: skip
BOUND = 3e-7

FIRST_CONVOLUTION = """
import sys
from genesis import backends, dtypes
from genesis.backends.cuda.engine import planner as plans, rounds
from genesis.records import ConvGeometry

def counted(owner, name):
    calls, function = [], getattr(owner, name)
    setattr(owner, name, lambda *args: (calls.append(name), function(*args))[1])
    return calls

from triton import knobs
from genesis.backends.cuda.nvrtc.program import Program
misses = counted(Program, "compile")
knobs.compilation.listener = lambda **told: None if told["cache_hit"] else misses.append(told["src"])
tuned, built = counted(rounds, "share_out"), counted(plans.Plan, "use")
cuda = backends.get("cuda")
shape, taps = (32, 64, 28, 28), (64, 64, 3, 3)
order = lambda s: (s[1] * s[2] * s[3], 1, s[1] * s[3], s[1])
x, w = (cuda.copy(cuda.full(s, 0.5, dtypes.BY_NAME[sys.argv[1]]), order(s)) for s in (shape, taps))
if sys.argv[2] == "tune":
    session = plans.Session(60)
    plans.begin(session)
cuda.conv_forward(x, w, None, ConvGeometry((1, 1), (1, 1), (1, 1), 1))
cuda.synchronize()
print(len(tuned), len(built), len(misses), *[plan.origin for plan in plans.all_plans()])
"""


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def distance(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", NAMED)
def test_named_cases(cuda: Backend, put: Put, get: Get, name: str) -> None:
    taps, stride, padding = NAMED[name]
    torch.manual_seed(0)
    x, w = channels_last(torch.randn(2, 32, 11, 11)), channels_last(torch.randn(24, 32, taps, taps))
    geometry = ConvGeometry((stride, stride), (padding, padding), (1, 1), 1)
    x64, w64 = x.double().requires_grad_(), w.double().requires_grad_()
    y64 = F.conv2d(x64, w64, None, stride, padding)
    assert distance(get(cuda.conv_forward(put(x), put(w), None, geometry)), y64.detach()) <= BOUND
    grad = channels_last(torch.randn(y64.shape))
    dx, dw = torch.autograd.grad(y64, (x64, w64), grad.double())
    assert distance(get(cuda.conv_input_grad(put(grad), put(w), tuple(x.shape), geometry)), dx) <= BOUND
    assert distance(get(cuda.conv_weight_grad(put(grad), put(x), tuple(w.shape), geometry)), dw) <= BOUND


@pytest.mark.gpu
@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
@pytest.mark.parametrize(
    "scales", [(1e-30, 1.0), (1e-30, 1e30), (1e30, 1e-3), (1e-20, 1e-15), (1e15, 1e15), (1.0, 1.0)]
)
def test_never_worse_than_pytorch(gpu: Backend, scales: tuple[float, float]) -> None:
    put, get = ways(gpu)
    torch.manual_seed(0)
    x = channels_last(torch.randn(4, 64, 14, 14)) * scales[0]
    w = channels_last(torch.randn(64, 64, 3, 3)) * scales[1]
    expected = F.conv2d(x.double(), w.double(), padding=1)
    theirs = F.conv2d(x.cuda(), w.cuda(), padding=1).cpu()
    ours = get(gpu.conv_forward(put(x), put(w), None, ConvGeometry((1, 1), (1, 1), (1, 1), 1)))
    assert distance(ours, expected) <= distance(theirs, expected)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4028e38, 1e-42, 0.0])
def test_special_values(cuda: Backend, put: Put, get: Get, value: float) -> None:
    torch.manual_seed(0)
    x, w = channels_last(torch.randn(1, 16, 6, 6)), channels_last(torch.randn(16, 16, 3, 3))
    x[0, 3, 2, 2] = value
    expected = F.conv2d(x.double(), w.double(), padding=1).float()
    result = get(cuda.conv_forward(put(x), put(w), None, ConvGeometry((1, 1), (1, 1), (1, 1), 1)))
    finite = expected.isfinite()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result[~finite].nan_to_num(0), expected[~finite].nan_to_num(0))
    assert distance(result[finite], expected[finite].double()) <= BOUND


def test_denormals(cuda: Backend, put: Put, get: Get) -> None:
    torch.manual_seed(0)
    x = channels_last(torch.randint(-100, 100, (1, 16, 6, 6)) * 2.0**-149)
    w = channels_last(torch.randint(-8, 8, (16, 16, 3, 3)).float())
    expected = F.conv2d(x.double(), w.double(), padding=1)
    result = get(cuda.conv_forward(put(x), put(w), None, ConvGeometry((1, 1), (1, 1), (1, 1), 1)))
    assert torch.equal(result.double(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_convolution_from_the_store_is_not_tuned_again(tmp_path: Path, dtype: str) -> None:
    environment = {**os.environ, "GENESIS_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}

    def process(mode: str) -> list[str]:
        command = [sys.executable, "-c", FIRST_CONVOLUTION, dtype, mode]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    num_tuned, *_, origin = process("tune")
    assert (num_tuned, origin) == ("1", plans.TUNED)
    assert process("use") == [
        "0",
        "1",
        "0",
        plans.STORED,
    ]  # nothing is measured or compiled, and only what won is built


def test_gradients_follow_the_precision_of_their_forward(simulated: Backend, tmp_path: Path) -> None:
    x = genesis.randn(1, 4, 5, 5, device="cuda", requires_grad=True)
    w = genesis.randn(4, 4, 3, 3, device="cuda", requires_grad=True)
    with override(cache_dir=tmp_path):
        plans.forget()
        y = genesis.conv(x, w, precision="high")
        z = genesis.conv(y, w)
        z.sum().backward()
        made = {
            (plan.problem.direction, plan.problem.input_shape[-1]): plan.problem.precision
            for plan in plans.all_plans(CONV)
        }
    directions = ("forward", "input_grad", "weight_grad")
    assert made == {(d, size): p for d in directions for size, p in ((5, "high"), (3, "highest"))}
