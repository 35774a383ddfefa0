"""PyTorch's tensors as the CUDA backend's arrays: whose memory they show, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.settings import override
from genesis.torch import handles
from genesis.torch.bridge import call_cuda


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    """Tensors in host memory go to the CUDA backend, whose device is simulated."""
    with override(cuda="simulated"):
        yield


def test_new_arrays_are_tensors_of_pytorch() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    y = call_cuda("add", x, x.t().contiguous().t())
    assert type(y) is torch.Tensor
    assert torch.equal(y, x + x)


def test_a_view_comes_back_as_a_view() -> None:
    x = torch.arange(12.0)[2:]
    y = call_cuda("view", x, (2, 3), (4, 1), 1)
    assert y.data_ptr() == x.data_ptr() + 4
    assert torch.equal(y, x.as_strided((2, 3), (4, 1), x.storage_offset() + 1))


def test_an_operand_that_comes_back_is_the_very_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)

    class _Backend:
        def itself(self, x: DeviceArray) -> tuple[DeviceArray, None]:
            return x, None

    monkeypatch.setattr(handles, "backend_of", lambda device_type: _Backend())
    y, nothing = call_cuda("itself", x)
    assert y is x
    assert nothing is None


def test_a_storage_reaches_to_the_end_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DeviceArray] = []

    class _Backend:
        def look(self, x: DeviceArray, number: int) -> DeviceArray:
            seen.append(x)
            return x

    monkeypatch.setattr(handles, "backend_of", lambda device_type: _Backend())
    block = torch.zeros(16)
    call_cuda("look", block[4:8:2], 3)
    (x,) = seen
    assert (x.shape, x.strides, x.offset, x.device_index) == ((2,), (2,), 0, 0)
    assert x.data_pointer == x.storage.pointer == block.data_ptr() + 16
    assert x.storage.nbytes == 48
    assert x.storage is x.storage
