"""Tensors between devices and between libraries: copies in the right order, no copies where none are needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import genesis
from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.errors import DeviceError, GraphError
from genesis.settings import override

# --- to and from the device -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_there_and_back(cuda: str, dtype: genesis.DType) -> None:
    x = genesis.arange(24).reshape(2, 3, 4).to(dtype)
    there = x.to("cuda")
    assert (there.dtype, there.shape, there.stride()) == (dtype, x.shape, x.stride())
    assert there.cpu().float().tolist() == x.float().tolist()


def test_the_order_of_memory_travels_along(cuda: str) -> None:
    x = genesis.randn(2, 3, 4, 5).contiguous(memory_format=genesis.channels_last)
    there = x.cuda()
    assert there.stride() == x.stride()
    assert there.tolist() == x.tolist()
    assert there.cpu().stride() == x.stride()
    expanded = genesis.arange(3).expand(2, 3)
    assert expanded.cuda().tolist() == expanded.tolist()
    assert x[:, 1:, ::2].cuda().tolist() == x[:, 1:, ::2].tolist()


def test_the_gradient_comes_back(cuda: str) -> None:
    x = genesis.ones(3, requires_grad=True)
    (x.to("cuda", non_blocking=True) * 2).sum().backward()
    assert x.grad.device == genesis.device("cpu")
    assert x.grad.tolist() == [2, 2, 2]


def test_between_devices_nothing_passes_through_the_host(simulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = genesis.randn(2, 3, 4, 5, device="cuda:0").contiguous(memory_format=genesis.channels_last)
    expected = x.tolist()
    backend = genesis.backends.get("cuda")
    monkeypatch.setattr(backend, "to_cpu", None)
    y = x.to("cuda:1")
    z = x[:, ::2].to("cuda:1")
    monkeypatch.undo()
    assert (y.device, y.stride(), y.tolist()) == (genesis.device("cuda:1"), x.stride(), expected)
    assert z.tolist() == x[:, ::2].tolist()


@pytest.mark.parametrize(
    ("args", "options", "waits"),
    [
        (("cuda",), {"non_blocking": True}, False),
        (("cuda", None, True), {}, False),
        (("cuda", True), {}, False),
        (("cuda",), {}, True),
        (("cuda", False), {}, True),
    ],
)
def test_who_waits_for_a_copy(
    cuda: str, monkeypatch: pytest.MonkeyPatch, args: tuple, options: dict, waits: bool
) -> None:
    waited = []
    active = driver.get()
    wait = active.synchronize_stream
    monkeypatch.setattr(active, "synchronize_stream", lambda *which: (waited.append(which), wait(*which)))
    x = genesis.arange(6.0).reshape(2, 3).pin_memory()
    there = x.to(*args, **options)
    assert bool(waited) == waits
    assert there.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_pinned_memory(cuda: str) -> None:
    x = genesis.randn(2, 3, requires_grad=True)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert pinned.tolist() == x.tolist()
    assert pinned.pin_memory() is pinned
    pinned.sum().backward()
    assert x.grad.tolist() == [[1, 1, 1], [1, 1, 1]]
    turned = genesis.arange(6).reshape(2, 3).t().bfloat16().pin_memory()
    assert turned.stride() == (1, 3)
    assert turned.float().tolist() == [[0, 3], [1, 4], [2, 5]]
    there = x.detach().cuda()
    assert not there.is_pinned()
    with pytest.raises(
        DeviceError, match="pin_memory: argument 'self': expected a tensor on the CPU, got one on cuda:0"
    ):
        there.pin_memory()


def test_there_is_nothing_to_pin_for() -> None:
    with override(cuda="off"):
        assert not genesis.ones(2).is_pinned()
        with pytest.raises(DeviceError, match="switched off"):
            genesis.ones(2).pin_memory()


def test_memory_used_on_another_stream_is_held_back(cuda: str) -> None:
    x = genesis.ones(5, device="cuda")
    side = genesis.cuda.Stream()
    x.record_stream(side)
    assert x.array.handle.storage.block.others == (side.cuda_stream,)
    genesis.ones(5).record_stream(side)  # on the CPU nothing waits


# --- other libraries --------------------------------------------------------------------------------------------------


def test_cuda_array_interface_is_for_gpus() -> None:
    assert not hasattr(genesis.ones(2), "__cuda_array_interface__")
    with override(cuda="simulated"):
        assert not hasattr(genesis.ones(2, device="cuda"), "__cuda_array_interface__")
    with pytest.raises(GraphError, match="the tensor requires grad"):
        genesis.ones(2, requires_grad=True).__cuda_array_interface__  # noqa: B018


def test_cuda_array_interface(simulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.get(), "dlpack_device_type", 2)
    names = {"float32": "<f4", "bool": "|b1", "uint8": "|u1", "int8": "|i1", "int16": "<i2", "bfloat16": "<V2"}
    for name, expected in names.items():
        shown = genesis.zeros(2, dtype=dtypes.BY_NAME[name], device="cuda").__cuda_array_interface__
        assert shown["typestr"] == expected
    x = genesis.zeros(4, 6, device="cuda")[1:, ::2]
    shown = x.__cuda_array_interface__
    assert shown["shape"] == (3, 3)
    assert shown["strides"] == (24, 8)
    assert shown["data"] == (x.data_ptr(), False)
    assert (shown["version"], shown["stream"]) == (3, 1)
    side = genesis.cuda.Stream()
    with genesis.cuda.stream(side):
        assert x.__cuda_array_interface__["stream"] == side.cuda_stream
    assert genesis.zeros(0, 3, device="cuda").__cuda_array_interface__["data"][0] == 0


def test_without_a_stream_the_consumer_is_on_the_default_one(simulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.get(), "dlpack_device_type", 2)
    waits = []
    monkeypatch.setattr(driver.get(), "wait_event", lambda device, stream, event: waits.append(stream))
    side = genesis.cuda.Stream()
    with genesis.cuda.stream(side):
        x = genesis.ones(4, device="cuda")
        for stream, expected in ((None, [0]), (1, [0]), (-1, []), (side.cuda_stream, []), (2, [2])):
            waits.clear()
            x.__dlpack__(stream=stream)
            assert waits == expected, stream


def test_to_torch_and_back_share_memory(simulated: None) -> None:
    x = genesis.arange(6.0, device="cuda").reshape(2, 3)
    theirs = x.to_torch()
    theirs[0, 0] = 9
    assert x[0, 0].item() == 9
    np.testing.assert_array_equal(theirs.numpy(), x.cpu().numpy())


@pytest.mark.gpu
def test_torch_cuda_tensors_share_memory() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        theirs = torch.arange(6, device="cuda").reshape(2, 3).to(dtype).t()
        ours = genesis.from_torch(theirs)
        assert ours.device == genesis.device("cuda")
        assert (ours.data_ptr(), ours.stride()) == (theirs.data_ptr(), theirs.stride())
        back = ours.to_torch()
        assert (back.data_ptr(), back.dtype, back.stride()) == (theirs.data_ptr(), dtype, theirs.stride())
        assert torch.equal(back, theirs)


@pytest.mark.gpu
def test_torch_reads_the_cuda_array_interface() -> None:
    x = genesis.arange(12.0, device="cuda").reshape(3, 4)[:, ::2]
    theirs = torch.as_tensor(x, device="cuda")
    assert theirs.data_ptr() == x.data_ptr()
    assert theirs.tolist() == x.tolist()


@pytest.mark.gpu
def test_streams_of_torch_and_of_genesis_wait_for_each_other() -> None:
    size = 1 << 24
    theirs_stream, ours_stream = torch.cuda.Stream(), genesis.cuda.Stream()
    for i in range(20):
        with torch.cuda.stream(theirs_stream), genesis.cuda.stream(ours_stream):
            theirs = torch.full((size,), float(i), device="cuda")
            for _ in range(5):
                theirs = theirs + 1
            ours = genesis.from_torch(theirs)
            del theirs  # its memory must not be given to the next round while we read it
            for _ in range(5):
                ours = ours * 1 + 1
            back = ours.to_torch()
            del ours
            assert (back == i + 10).all().item(), f"round {i}"


@pytest.mark.gpu
def test_pinned_memory_of_torch_is_known() -> None:
    theirs = torch.arange(1000.0).pin_memory()
    ours = genesis.from_torch(theirs)
    assert ours.is_pinned()
    there = ours.to("cuda", non_blocking=True)
    del theirs, ours
    assert there.sum().item() == 499_500
