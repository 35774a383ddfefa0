"""Device: where an array lives."""

from __future__ import annotations

from typing import Any

from genesis.errors import DeviceError


class Device:
    """A device type and an index; equal devices are one object, so `is` compares them.

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
        key = (name, index or 0)
        device = cls._known.get(key)
        if device is None:
            device = super().__new__(cls)
            device.type, device.index = key
            device = cls._known.setdefault(key, device)
        return device

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return Device, (self.type, self.index)

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return (
            f"device(type='{self.type}')" if self.type == "cpu" else f"device(type='{self.type}', index={self.index})"
        )


CPU = Device("cpu")
