"""Memory that several processes share: Tensor.share_memory_(), and shared tensors on their way through queues.

Python's multiprocessing pickles what it sends. A tensor in shared memory is sent as a handle of that memory, so that
each process sees what the others write; any other tensor as a copy.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TypeVar

from genesis.autograd import Tensor, Variable
from genesis.autograd.modes import unrecordable
from genesis.errors import GraphError
from genesis.ndarray import CPU, NDArray, backend_of

T = TypeVar("T", bound=Tensor)


def share_memory_(self: T) -> T:
    """Move the memory, with all its views, to where other processes see it once the tensor is sent to them.

    Returns: self, with the same values. CUDA tensors stay where they are.
    Raises: OSError: there is no room for shared memory.

    Example:
        >>> genesis.ones(2).share_memory_().is_shared()
        True
    """
    unrecordable("shares memory with other processes")
    self.array.share_memory()
    return self


def is_shared(self: Tensor) -> bool:
    """Whether other processes may see the memory, as all of a CUDA device's. See `genesis.Tensor.share_memory_`."""
    return self.array.is_shared()


def register(kind: type[Tensor]) -> None:
    """Send tensors of this class by the handle of their memory where that is shared."""
    ForkingPickler.register(kind, _reduced)  # type: ignore[arg-type]  # typeshed lists the lengths of tuples


def _reduced(tensor: Tensor) -> tuple[object, ...]:
    if tensor.device.type != "cpu" or not tensor.array.is_shared():
        reduced: tuple[object, ...] = tensor.__reduce__()
        return reduced
    if tensor.requires_grad and not tensor.is_leaf:
        raise GraphError("pickle: only leaves can be pickled; use .detach()")
    tensor.array.changes.export()  # others may write into it from now on
    state = tensor._given_attributes() or None
    return _attached, (type(tensor), tensor.array.handle, tensor.requires_grad), state


def _attached(kind: type[Tensor], handle: object, requires_grad: bool) -> Tensor:
    """A tensor on memory of another process."""
    backend_of(CPU)  # in a process that has just begun, nothing has loaded it yet
    array = NDArray(handle, CPU)
    array.changes.export()
    tensor = kind.__new__(kind)
    Variable.__init__(tensor, array, requires_grad)
    return tensor
