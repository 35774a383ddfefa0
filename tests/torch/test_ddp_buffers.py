"""Buffers of PyTorch's DistributedDataParallel around a compiled model; two ranks are in tests/distributed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import genesis.torch
from genesis.torch import ddp_buffers

X = torch.randn(4, 3, 6, 6)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_default_broadcast_coalesced", "_assign_modules_buffers"):  # patched by the first that is compiled
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def sent(group: None, monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtypes of calls; rank 0 is another process, where all buffers are larger by 1."""
    dtypes: list[torch.dtype] = []

    def broadcast(x: torch.Tensor, group: object, group_src: int) -> None:
        assert group is not None
        assert group_src == 0
        dtypes.append(x.dtype)
        x += 1

    monkeypatch.setattr(ddp_buffers, "broadcast", broadcast)
    return dtypes


def wrapped(faster: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, nn.BatchNorm2d]:
    norm = nn.BatchNorm2d(4, momentum=0.0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(norm, nn.ReLU()))
    wrapper = DistributedDataParallel(faster(model))
    with warnings.catch_warnings(action="ignore"):
        wrapper(X)
    return wrapper, norm


def compiled(model: nn.Module) -> nn.Module:
    return genesis.torch.compile(model, compiler="eager")


def test_all_of_a_dtype_are_sent_in_one_call(sent: list[torch.dtype]) -> None:
    wrapper, norm = wrapped(compiled)
    assert not sent  # PyTorch sent them before the first call
    wrapper(X)
    assert sorted(sent, key=str) == [torch.float32, torch.int64]
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [1.0] * 4
    assert norm.num_batches_tracked == 3  # two batches, and 1 more on rank 0
    wrapper.eval()(X)  # in inference too, as PyTorch does
    assert len(sent) == 4


def test_buffers_and_modules_that_are_replaced_are_found(sent: list[torch.dtype]) -> None:
    wrapper, norm = wrapped(compiled)
    norm.running_mean = torch.full((4,), 5.0)
    wrapper(X)
    assert norm.running_mean.tolist() == [6.0] * 4
    wrapper.module[1] = nn.Sequential(nn.BatchNorm2d(4, momentum=0.0))
    wrapper(X)
    assert wrapper.module[1][0].running_mean.tolist() == [1.0] * 4
    assert norm.running_mean.tolist() == [6.0] * 4


def test_other_kinds_of_buffers_and_other_wrappers_are_left_to_pytorch(sent: list[torch.dtype]) -> None:
    wrapper, _ = wrapped(compiled)
    other, _ = wrapped(lambda model: model)
    other(X)
    wrapper.module.register_buffer("rotation", torch.ones(2, dtype=torch.complex64))
    wrapper(X)
    assert not sent
