"""The CUDA backend with launches that do nothing: what calls cost on the host, on machines without a GPU.

PyTorch's tensors are in host memory and are taken for tensors of the device, on its default stream.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from cuda.bindings import driver as cu

import genesis
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import cuda_kernel, launching
from genesis.backends.cuda.driver.native_kernel import NativeKernel
from genesis.backends.cuda.driver.simulated import SimulatedDriver
from genesis.cuda import arguments
from genesis.cuda.frameworks.interface import Operand
from genesis.cuda.frameworks.torch import TorchTensors
from genesis.cuda.kernel import Kernel
from genesis.torch import bridge, conv_act, entries, modules, ops

_DONE = (cu.CUresult.CUDA_SUCCESS,)


class StubbedDriver(SimulatedDriver):
    """The simulated device, but kernels are packed as for a GPU, and launching them does nothing."""

    watches_memory = False
    watch_launches = False

    def load_kernel(self, device: int, kernel: Any, signature: Any) -> Any:
        types_ = [kind for kind, param in zip(signature.types, kernel.params, strict=True) if not param.is_constexpr]
        metadata = types.SimpleNamespace(num_warps=4, num_ctas=1, shared=0, global_scratch_size=0)
        function = cu.CUfunction(0)
        return cuda_kernel.CudaKernel(self, device, kernel.__name__, function, types_, metadata)  # type: ignore[arg-type]

    def check(self, device: int, result: tuple[Any, ...], doing: str) -> Any:
        return result[1]

    def activate(self, device: int) -> None:
        pass

    def recorder(self, device: int) -> Callable[[str], None]:
        return lambda name: None


class _HostTensors(TorchTensors):
    """PyTorch's tensors, wherever they are, as those of device 0."""

    def device_of(self, tensor: Any) -> int | None:
        return 0

    current_stream = staticmethod(lambda device: 0)

    def describe(self, tensor: Any) -> Operand:
        return super().describe(tensor)._replace(device=0)


class _StubbedKernel(Kernel):
    """A user's kernel of which nothing is compiled."""

    def _load(self, device: int) -> Any:
        slots = [kind.slot for kind in self._kinds]  # type: ignore[union-attr]
        return NativeKernel(driver.get(), device, cu.CUfunction(0), self.name, slots)


def install() -> None:
    """From now on "cuda" is the stubbed device."""
    launching.driver_call = lambda: lambda *args: 0
    cu.cuFuncGetAttribute = lambda *args: (*_DONE, 1024)
    driver._drivers["simulated"] = StubbedDriver()
    genesis.settings.settings.cuda = "simulated"
    for module in (conv_act, entries, modules, ops):
        module.call = bridge.call_cuda
    ops.call_arrays = bridge.call_cuda_arrays
    bridge.prepare, bridge.prepare_inference = bridge.prepare_cuda, bridge.prepare_inference_cuda
    bridge.activates = bridge.trains = lambda x: True
    bridge.keeps_folds = lambda x: False
    bridge.prepare_activation = bridge.prepare_activation_cuda
    arguments._frameworks[torch.Tensor] = _HostTensors()
    genesis.cuda.modules.Kernel = _StubbedKernel
