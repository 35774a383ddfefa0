"""Genesis' own tensors as arguments of kernels."""

from __future__ import annotations

from genesis.autograd import Variable
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.cuda.frameworks.interface import HOST, Operand


class GenesisTensors:
    current_stream = staticmethod(streams.current_handle)

    def read(self, tensor: Variable) -> tuple[object, int]:
        handle = tensor.array.handle
        if type(handle) is DeviceArray:
            return handle.layout, handle.data_pointer
        return HOST, 0

    def describe(self, tensor: Variable) -> Operand:
        array, device = tensor.array, self.device_of(tensor)
        return Operand(
            self, array.dtype.name, device, array.is_contiguous, array.strides, array.numel, array.data_pointer
        )

    def device_of(self, tensor: Variable) -> int | None:
        handle = tensor.array.handle
        return handle.device_index if type(handle) is DeviceArray else None

    def use_on(self, tensor: Variable, stream: int) -> None:
        tensor.array.handle.storage.record_stream(stream)

    def note_write(self, tensor: Variable) -> None:
        tensor.array.changes.note()


GENESIS = GenesisTensors()
