"""Generator: a stream of random numbers of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import numpy as np

from genesis.autograd.modes import unrecordable
from genesis.creation import tensor
from genesis.errors import DTypeError, describe
from genesis.ndarray import Device, random
from genesis.tensor import Tensor

SETS_STATE, READS_STATE = "sets the state of a random generator", "reads the state of a random generator"
_lock = threading.RLock()  # while a generator draws, the device's own stands aside


class Generator:
    """A stream of random numbers, apart from the device's own; on the CPU, PyTorch's with the same seed.

    Args:
        device: "cpu" or "cuda".
    Raises: DeviceError: there is no such device.

    Example:
        >>> generator = genesis.Generator().manual_seed(0)
        >>> genesis.rand(1, generator=generator).tolist() == genesis.rand(1, generator=generator).tolist()
        False
        >>> genesis.randperm(3, generator=generator.manual_seed(0)).tolist()
        [2, 0, 1]
        >>> generator.initial_seed(), generator.seed() == generator.initial_seed()
        (0, True)
    """

    def __init__(self, device: Device | str = "cpu") -> None:
        self.device = Device(device)
        self._stream = random.RandomStream()
        self.manual_seed(int.from_bytes(os.urandom(7), "little"))

    def manual_seed(self, seed: int) -> Generator:
        """Begin the stream of a seed; returns self.

        Args:
            seed: any int.
        Raises: DTypeError: seed is no int.
        """
        if isinstance(seed, float) or not hasattr(seed, "__index__"):
            raise DTypeError(describe("manual_seed", "seed", "an int", repr(seed)))
        unrecordable(SETS_STATE)
        with self._in_place_of_the_devices():
            random.manual_seed_of(seed.__index__(), self.device)
        self._seed = seed.__index__()
        return self

    def seed(self) -> int:
        """Begin the stream of a random seed, which is returned. See `genesis.manual_seed`."""
        self.manual_seed(int.from_bytes(os.urandom(7), "little"))
        return self._seed

    def initial_seed(self) -> int:
        """The seed of the stream. See `genesis.manual_seed`."""
        return self._seed

    def get_state(self) -> Tensor:
        """The state as bytes. See `genesis.get_rng_state`."""
        unrecordable(READS_STATE)
        return tensor(np.frombuffer(self._stream.state, dtype=np.uint8), device="cpu")

    def set_state(self, new_state: Tensor) -> None:
        """Restore a state. See `genesis.get_rng_state`."""
        unrecordable(SETS_STATE)
        self._stream.state = new_state.numpy().tobytes()

    @contextlib.contextmanager
    def _in_place_of_the_devices(self) -> Iterator[None]:
        """Inside, the device draws from this stream."""
        with _lock, random.drawing_from(self._stream, self.device):
            yield


_NONE = contextlib.nullcontext()


def drawing(op: str, generator: Generator | None, device: Device) -> contextlib.AbstractContextManager[None]:
    """Inside, random numbers are the generator's, if there is one."""
    if generator is None:
        return _NONE
    if not isinstance(generator, Generator) or generator.device is not device:
        raise DTypeError(describe(op, "generator", f"a Generator of {device}", repr(generator)))
    return generator._in_place_of_the_devices()
