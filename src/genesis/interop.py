"""Zero-copy exchange with other libraries, by DLPack; PyTorch's checkpoints."""

from __future__ import annotations

import errno
import os
import pickle
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from genesis import dtypes
from genesis.autograd import Variable
from genesis.autograd.modes import unrecordable
from genesis.errors import CheckpointError, DeviceError, DTypeError, OutOfMemoryError, describe
from genesis.files import Source, kind_of_start, reading
from genesis.ndarray import CPU, Device, NDArray, backend_of

if TYPE_CHECKING:
    import torch

    from genesis.tensor import Tensor

HANDS_OUT_MEMORY = "exports its memory to another library (to_torch, DLPack)"
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu"}  # DLDeviceType: CPU, CUDA, pinned host memory


class SupportsDLPack(Protocol):
    """An object with memory to share: tensors and arrays of NumPy, PyTorch, JAX, CuPy …"""

    def __dlpack__(self, *, stream: None = None) -> object: ...


def from_dlpack(ext_tensor: SupportsDLPack, /) -> Tensor:
    """Share the memory of any object with `__dlpack__`: NumPy, PyTorch, JAX, CuPy …

    Args:
        ext_tensor: an array on the CPU or a CUDA device, of a dtype that Genesis has.
    Returns: its shape, dtype and device.
    Raises: DTypeError: no `__dlpack__`, or another dtype. DeviceError: another kind of memory.

    Example:
        >>> import numpy
        >>> genesis.from_dlpack(numpy.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError(describe("from_dlpack", "ext_tensor", "an object with __dlpack__", type(ext_tensor).__name__))
    kind, index = ext_tensor.__dlpack_device__()  # type: ignore[attr-defined]  # the protocol's second half
    if kind not in _DLPACK_DEVICES:
        raise DeviceError(
            describe("from_dlpack", "ext_tensor", "memory on the CPU or a CUDA device", f"device type {kind}")
        )
    device = Device(_DLPACK_DEVICES[kind], index if kind == 2 else None)
    array = NDArray.from_dlpack(ext_tensor, device)
    array.changes.export()
    return Variable._result_class(array)


def from_torch(tensor: torch.Tensor) -> Tensor:
    """Share the memory of a PyTorch tensor, detached from its graph.

    On CUDA, later launches on Genesis' current stream wait for the work on PyTorch's.

    Args:
        tensor: any shape and strides, of a dtype that Genesis has.
    Returns: its shape, dtype and device.

    Example:
        >>> import torch
        >>> genesis.from_torch(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    result = from_dlpack(tensor.detach())
    if tensor.is_cuda:
        _hold_memory(tensor, result.array.device)
    return result


def _hold_memory(tensor: torch.Tensor, device: Device) -> None:
    """Let PyTorch reuse the tensor's memory only after what our stream does with it, if that is not its own."""
    import torch

    ours = backend_of(device).current_stream(device.index)
    if ours != torch.cuda.current_stream(device.index).cuda_stream:
        default = torch.cuda.default_stream(device.index)
        tensor.record_stream(torch.cuda.ExternalStream(ours, device.index) if ours else default)


def to_torch(tensor: Tensor) -> torch.Tensor:
    """Share a tensor's memory with PyTorch, detached from its graph.

    On CUDA, later launches on PyTorch's current stream wait for the work on Genesis'.

    Args:
        tensor: any shape, dtype and strides.
    Returns: a torch.Tensor of the same shape, dtype and strides.

    Example:
        >>> genesis.ones(2).to_torch()
        tensor([1., 1.])
    """
    import torch

    unrecordable(HANDS_OUT_MEMORY)
    array = tensor.array
    if array.device is not CPU:
        return torch.from_dlpack(tensor.detach())
    result = torch.from_dlpack(array.handle)
    array.changes.export(result.untyped_storage())  # which lives as long as anything of PyTorch's on this memory
    return result


def load_torch(path: Source, device: str | Device | None = None) -> Any:
    """Load what torch.save() wrote to path, as Genesis tensors: checkpoints of PyTorch and torchvision.

    torch.load(weights_only=True) reads the file; it builds tensors and plain values and runs no code from it.

    Args:
        path: the file, or a binary file object.
        device: of the tensors; default: the CPU.
    Returns: its dictionaries, lists and values, with Genesis tensors.
    Raises: CheckpointError: the file is damaged, or contains objects that only running its code could restore.
        FileNotFoundError: there is none.

    Example:
        >>> import tempfile, torch
        >>> path = tempfile.mkdtemp() + "/state.pt"
        >>> torch.save({"weight": torch.ones(2)}, path)
        >>> genesis.load_torch(path)
        {'weight': tensor([1., 1.])}
    """
    with reading(path) as (name, file):
        return read_torch(name, file, CPU if device is None else Device(device))


def read_torch(path: str, file: BinaryIO, device: Device) -> object:
    """Read what torch.save() wrote to a file that is open; path is its name in messages. See load_torch."""
    import torch

    is_safetensors = kind_of_start(file.read(9)) == "safetensors"
    file.seek(0)
    if is_safetensors:
        raise CheckpointError(f"{path}: not a PyTorch checkpoint, but a safetensors file; use genesis.load")
    _check_archive(path, file)
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0] or str(error)
        raise CheckpointError(
            f"{path}: refused: it is damaged, or contains objects that only running its code could restore ({reason})"
        ) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # which is a place before the beginning, where a part is missing
            error.filename = path
            raise
        raise CheckpointError(f"{path}: not a complete PyTorch checkpoint (its end is missing)") from None
    except Exception as error:  # a damaged archive fails in as many ways as there are places in it
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise OutOfMemoryError(f"{path}: not enough memory for its tensors") from None
        raise CheckpointError(f"{path}: not a complete PyTorch checkpoint ({error})") from None
    try:
        return _from_torch_tree(loaded, path, device, {})
    except RecursionError:
        raise CheckpointError(f"{path}: its containers are nested too deeply, or contain themselves") from None


def _check_archive(path: str, file: BinaryIO) -> None:
    """Raise for an archive whose parts would take more memory than the file has bytes: torch.save() packs nothing."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):  # no archive, or damaged: torch.load says so
        unpacked = 0
    if unpacked > file.seek(0, os.SEEK_END):
        raise CheckpointError(f"{path}: refused: it is compressed, which PyTorch checkpoints never are")
    file.seek(0)


def _from_torch_tree(value: object, path: str, device: Device, known: dict[int, Tensor]) -> object:
    """value with its tensors as Genesis'; one that occurs several times stays one."""
    import torch

    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            if value.layout is not torch.strided or str(value.dtype).removeprefix("torch.") not in dtypes.NAMED:
                raise CheckpointError(f"{path}: contains an unsupported tensor: {value.layout}, {value.dtype}")
            # Nobody else holds this memory, so that it counts as our own.
            array = NDArray.from_dlpack(value.detach(), CPU).to_device(device)
            known[id(value)] = Variable._result_class(array)
        return known[id(value)]
    if isinstance(value, dict):
        return {key: _from_torch_tree(item, path, device, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_from_torch_tree(item, path, device, known) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value
