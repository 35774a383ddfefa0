"""DataParallel on the devices that one process has: one of them."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.errors import DeviceError, describe
from genesis.ndarray import Device
from genesis.nn.module import Module
from genesis.tensor import Tensor


class DataParallel(Module):
    """A module as it is, under PyTorch's name for many GPUs in one process: the batch is not split.

    With several GPUs, start one process for each and use `nn.parallel.DistributedDataParallel`, which is faster too.

    Args:
        module: is called as it is.
        device_ids: at most one device, where module lies.
        output_device: that one too.
        dim: the batch's dimension, which PyTorch would split.
    Raises: DeviceError: several devices.

    Example:
        >>> net = nn.DataParallel(nn.Linear(3, 2))
        >>> net(genesis.ones(4, 3)).shape, list(net.state_dict())
        ((4, 2), ['module.weight', 'module.bias'])
    """

    def __init__(
        self, module: Module, device_ids: Sequence[int | str | Device] | None = None,
        output_device: int | str | Device | None = None, dim: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            expected = "one device; of several, use a process for each and DistributedDataParallel"
            raise DeviceError(describe("DataParallel", "device_ids", expected, list(device_ids)))
        self.module, self.dim = module, dim
        self.device_ids = [] if device_ids is None else list(device_ids)
        self.output_device = output_device

    def forward(self, *inputs: object, **kwargs: object) -> Tensor:
        output: Tensor = self.module(*inputs, **kwargs)  # or what else it returns
        return output
