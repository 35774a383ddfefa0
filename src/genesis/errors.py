"""The exceptions, and the form of their messages: op, argument, expected, actual."""

from __future__ import annotations

import errno


class GenesisError(Exception):
    """Base of the errors that only Genesis raises."""


class ShapeError(GenesisError, ValueError):
    """A shape, size, rank or dimension that the op does not support."""


class DTypeError(GenesisError, TypeError):
    """A dtype or Python type that the op does not support."""


class DeviceError(GenesisError, ValueError):
    """Tensors on different devices, or a device that does not exist."""


class GraphError(GenesisError, RuntimeError):
    """Misuse of autograd: backward twice, a saved value changed in place, a leaf changed in place."""


class CheckpointError(GenesisError, ValueError, RuntimeError):  # the latter as PyTorch's load_state_dict raises it
    """A file that is not a complete checkpoint, or that does not match the model."""


class GrowthError(GenesisError, ValueError):
    """A growth step that cannot be done; network and optimizer are unchanged."""


class OutOfMemoryError(GenesisError, RuntimeError):
    """The device does not have enough memory."""


class CaptureError(GenesisError, RuntimeError):
    """Work that no CUDA graph can hold, or the misuse of one; the message has the user's line."""


class CompileError(GenesisError, RuntimeError):
    """Kernel source that does not compile; the message is the compiler's."""


class DistributedError(GenesisError, RuntimeError):
    """A collective call that cannot be made: ranks disagree, one has died, one did not come in time."""


class LinAlgError(GenesisError, RuntimeError):
    """A matrix that is singular, or not positive definite, or whose decomposition does not converge."""


class MissingNameError(GenesisError, AttributeError):
    """A name of PyTorch's that Genesis lacks, used by code that was written for PyTorch."""


class MismatchError(GenesisError, ArithmeticError):
    """GENESIS_CHECK=cpu: an op's result differs from the CPU's."""


def describe(op: str, argument: str, expected: object, actual: object) -> str:
    """Format the message of an argument error.

    Example:
        >>> describe("conv2d", "weight", "4 dimensions", "2")
        "conv2d: argument 'weight': expected 4 dimensions, got 2"
    """
    return f"{op}: argument '{argument}': expected {expected}, got {actual}"


# What torch and numpy say where they raise an error of a general kind; the last three are of sizes beyond any memory.
_NO_ROOM = (
    "can't allocate memory",
    "bad_alloc",
    "_ArrayMemoryError in DataLoader worker",
    "out of shared memory",
    "Storage size calculation overflowed",
    "integer multiplication overflow",
    "array is too big",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Genesis, Python, the system, NumPy or torch means that memory ran out.

    Example:
        >>> from genesis.errors import is_out_of_memory
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(KeyError())
        (True, False)
    """
    if isinstance(error, MemoryError | OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError | ValueError) and any(part in str(error) for part in _NO_ROOM)
