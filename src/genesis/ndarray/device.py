"""Device: where an array lives."""

from __future__ import annotations

import threading
from collections.abc import Callable

from genesis.errors import DeviceError


class Device:
    """A device type and an index; equal devices are one object, so `is` compares them.

    "cuda" without an index is the device that is current in this thread (genesis.cuda.set_device), at first the first.

    Example:
        >>> genesis.device("cpu"), genesis.device("cuda", 1), genesis.device("cuda:0").type
        (device(type='cpu'), device(type='cuda', index=1), 'cuda')
    """

    __slots__ = ("index", "type")
    type: str
    index: int
    _known: dict[tuple[str, int], Device] = {}

    def __new__(cls, type: str | Device, index: int | None = None) -> Device:
        if isinstance(type, Device):
            return type
        name, colon, digits = str(type).partition(":")
        if colon:
            if index is not None or not digits.isdigit():
                raise DeviceError(f"device: argument 'type': expected 'cpu', 'cuda' or 'cuda:N', got {type!r}")
            index = int(digits)
        if name not in ("cpu", "cuda"):
            raise DeviceError(f"device: argument 'type': expected 'cpu', 'cuda' or 'cuda:N', got {type!r}")
        key = (name, (_current.index if name == "cuda" else 0) if index is None else index)
        device = cls._known.get(key)
        if device is None:
            device = super().__new__(cls)
            device.type, device.index = key
            device = cls._known.setdefault(key, device)
        return device

    def __reduce__(self) -> tuple[Callable[[str, int], Device], tuple[str, int]]:
        return Device, (self.type, self.index)

    def __enter__(self) -> Device:
        """Make tensors here inside, unless they are told otherwise."""
        _current.entered.append(_current.default)
        _current.default = self
        return self

    def __exit__(self, *exception: object) -> None:
        _current.default = _current.entered.pop()

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return (
            f"device(type='{self.type}')" if self.type == "cpu" else f"device(type='{self.type}', index={self.index})"
        )


class _Current(threading.local):
    """This thread's choices: which device "cuda" is, and on which one tensors are made."""

    index = 0
    default: Device | None = None  # the CPU

    def __init__(self) -> None:
        self.entered: list[Device | None] = []


_current = _Current()


def current_index() -> int:
    """The index of the device that "cuda" means in this thread."""
    return _current.index


def set_current_index(index: int) -> None:
    _current.index = index


def default_device() -> Device:
    """The device on which this thread makes tensors unless another one is named."""
    return _current.default or CPU


def set_default_device(device: Device | None) -> None:
    _current.default = device


CPU = Device("cpu")
CUDA = Device("cuda", 0)
