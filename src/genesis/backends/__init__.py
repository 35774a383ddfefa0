"""The backends by the type of the device they compute on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from genesis.backends.backend import OPS as OPS
from genesis.backends.backend import Backend as Backend
from genesis.errors import DeviceError

_MODULES = {"cpu": "genesis.backends.cpu", "cuda": "genesis.backends.cuda"}
active: dict[str, Backend] = {}  # what NDArray dispatches to; tools put their wrapped backend here


def get(device_type: str) -> Backend:
    """The backend of a device type, loaded on first use."""
    backend = active.get(device_type)
    if backend is None:
        if device_type not in _MODULES:
            raise DeviceError(
                f"backends.get: argument 'device_type': expected one of {sorted(_MODULES)}, got {device_type!r}"
            )
        backend = active[device_type] = importlib.import_module(_MODULES[device_type]).load()
    return backend


@contextmanager
def use(device_type: str, backend: Backend) -> Iterator[Backend]:
    """Compute with this backend instead, inside the with block."""
    before = get(device_type)
    active[device_type] = backend
    try:
        yield backend
    finally:
        active[device_type] = before
