"""torch.device as redirected code sees it: Genesis' devices, and names of PyTorch's that nothing can be made on."""

from __future__ import annotations

from dataclasses import dataclass

from genesis.ndarray import Device


@dataclass(frozen=True)
class OtherDevice:
    """A device of PyTorch's that Genesis lacks, as "meta": to be compared with. Making a tensor there is an error."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class _Devices(type):
    def __call__(cls, type: str | Device | OtherDevice, index: int | None = None) -> Device | OtherDevice:
        if isinstance(type, OtherDevice):
            return type
        name, _, digits = str(type).partition(":")
        if name in ("meta", "mps", "xpu", "hpu", "mtia"):
            return OtherDevice(name, int(digits) if digits else index)
        return Device(type, index)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (Device, OtherDevice))


class device(metaclass=_Devices):  # noqa: N801 a class of PyTorch's
    """A tensor's place; the devices are genesis.device's."""
