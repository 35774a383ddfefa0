"""The exceptions, and the one sentence in which they speak: op, argument, expected, actual."""

from __future__ import annotations


class GenesisError(Exception):
    """Base of the errors that only Genesis raises."""


class ShapeError(GenesisError, ValueError):
    """A shape, size, rank or dimension that the op cannot take."""


class DTypeError(GenesisError, TypeError):
    """A dtype or Python type that the op cannot take."""


class DeviceError(GenesisError, ValueError):
    """Tensors on different devices, or a device that is not there."""


class GraphError(GenesisError, RuntimeError):
    """A misuse of autograd: backward twice, a saved value that was changed, a leaf changed in place."""


class CheckpointError(GenesisError, ValueError):
    """A file that is no complete checkpoint, or that does not fit the model."""


class GrowthError(GenesisError, ValueError):
    """A growth step that cannot be done; the network and its optimizer are as they were before it."""


class OutOfMemoryError(GenesisError, RuntimeError):
    """The device has no room for what was asked."""


class CompileError(GenesisError, RuntimeError):
    """Source of a kernel that does not compile; the message is the compiler's."""


class MismatchError(GenesisError, ArithmeticError):
    """GENESIS_CHECK=cpu: an op gave another result than on the CPU."""


def describe(op: str, argument: str, expected: object, actual: object) -> str:
    """The sentence of every argument error.

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
    """Whether an error says that there was no room, be it Genesis', Python's, numpy's or torch's.

    Example:
        >>> from genesis.errors import is_out_of_memory
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(KeyError())
        (True, False)
    """
    if isinstance(error, MemoryError | OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | ValueError) and any(part in str(error) for part in _NO_ROOM)
