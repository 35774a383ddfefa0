"""Fixtures: the CUDA kernels on tensors in host memory; blocks, and fused copies of them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch
from genesis.settings import override
from genesis.torch import averaging, bridge, choosing, interpolating, linears, ops, pass_through
from genesis.torch.compiling import Compiled
from tests.expanded import expansions_of_small_images as expansions_of_small_images
from tests.torch.residual_blocks import BLOCKS
from tests.torch.simulated import PATCHES


@pytest.fixture(autouse=True, scope="session")
def guards_are_not_timed() -> Iterator[None]:
    """Dynamo would look how long each graph's guards take, for its log, with the processor's caches emptied: 15 ms."""
    from torch._dynamo import guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda root, scope, count: 0.0, raising=False)
        yield


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    make, number = BLOCKS[request.param]
    return make().double(), number


@pytest.fixture(params=["cpu", "simulated"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Averages, interpolations and linear layers in host memory: by the CPU backend, or the CUDA one, simulated."""
    if request.param == "cpu":
        yield
        return
    with override(cuda="simulated"):
        for module in (averaging, interpolating, linears):
            monkeypatch.setattr(module, "call", bridge.call_cuda)
        yield


@pytest.fixture
def without_vectors() -> Iterator[None]:
    """Inductor's code for CPUs computes element by element: to find how to vectorize, it takes longer than for all
    else, simplifying expressions. What is vectorized has been lowered, and its gradient derived, before."""
    with torch._inductor.config.patch({"cpp.simdlen": 1}):
        yield


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """PyTorch's process group, of one process. Returns: a size, in MB, of buckets for DistributedDataParallel that are
    so small that Dynamo ends graphs between them."""
    monkeypatch.setattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 100)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield 1e-4
    torch.distributed.destroy_process_group()


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each backward of a chain that could hand on its input: has a gradient come back?"""
    seen: list[bool] = []

    def watch(function: Any) -> None:
        of = function.backward

        def backward(ctx: Any, grad: Any, addend: Any = None) -> Any:
            seen.append(addend is not None)
            return of(ctx, grad, addend)

        monkeypatch.setattr(function, "backward", staticmethod(backward))

    for function in (ops._ConvBNReLUAndInput, ops._PreparedAndInput):
        watch(function)
    return seen


@pytest.fixture
def cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors in host memory go to the CUDA backend, whose device is simulated."""
    with override(cuda="simulated"):
        for patch in PATCHES:
            monkeypatch.setattr(*patch)
        yield


@pytest.fixture(autouse=True)
def trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains run as one op in training on the CPU too, where PyTorch's layers are faster, but tests are quick."""
    monkeypatch.setattr(bridge, "trains", lambda x: True)


@pytest.fixture(autouse=True)
def unchosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of fused models run fused, however small they are."""
    monkeypatch.setattr(choosing, "_UNTIMED", sys.maxsize)


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled models are tuned where a test names the seconds: a process takes 5 s to start."""
    tuning = Compiled._tuning
    monkeypatch.setattr(Compiled, "_tuning", lambda self, *given: tuning(self, *given) if self._how.tune else None)


@pytest.fixture
def activates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions run with their activation on the CPU too."""
    monkeypatch.setattr(bridge, "activates", lambda x: True)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module], nn.Module]:
    """Fuses a copy of a model none of whose chains hands on anything."""

    def fused(model: nn.Module) -> nn.Module:
        net = genesis.torch.fuse(copy.deepcopy(model))
        forward = net.forward

        def by_itself(*args: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(pass_through, "enabled", False)
                return forward(*args)

        net.forward = by_itself  # type: ignore[method-assign]
        return net

    return fused
