"""The fixture `cuda`: a test that asks for it runs on the simulated device, and with -m gpu on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from genesis import backends, dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.settings import override

torch.set_num_threads(1)


@pytest.fixture(params=["simulated", pytest.param("auto", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield from _backend(request.param)


@pytest.fixture
def gpu() -> Iterator[Backend]:
    """A real device only."""
    yield from _backend("auto")


@pytest.fixture
def simulated() -> Iterator[Backend]:
    """The simulated device only: what it does beyond a real one."""
    yield from _backend("simulated")


def _backend(choice: str) -> Iterator[Backend]:
    with override(cuda=choice):
        if not driver.is_available():
            pytest.skip("no GPU")
        yield backends.get("cuda")


@pytest.fixture
def put(cuda: Backend) -> Callable[[Any], Any]:
    """A torch tensor as a DeviceArray with the same strides and offset; anything else as it is."""

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = dtypes.BY_NAME[str(value.dtype).removeprefix("torch.")]
        memory = torch.as_strided(value, (value.untyped_storage().nbytes() // value.itemsize,), (1,), 0)
        bits = memory.view(torch.uint16) if value.dtype is torch.bfloat16 else memory
        whole = cuda.from_cpu(bits.numpy(), dtype)
        return cuda.view(whole, tuple(value.shape), value.stride(), value.storage_offset())

    return put


@pytest.fixture
def get(cuda: Backend) -> Callable[[DeviceArray], torch.Tensor]:
    """A DeviceArray as a torch tensor."""

    def get(x: DeviceArray) -> torch.Tensor:
        host = torch.from_numpy(cuda.to_cpu(x))
        return host.view(torch.bfloat16) if x.dtype is dtypes.bfloat16 else host

    return get
