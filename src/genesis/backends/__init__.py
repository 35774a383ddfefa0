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
_seed: int | None = None


def get(device_type: str) -> Backend:
    """The backend of a device type, loaded on first use."""
    backend = active.get(device_type)
    if backend is None:
        if device_type not in _MODULES:
            raise DeviceError(
                f"backends.get: argument 'device_type': expected one of {sorted(_MODULES)}, got {device_type!r}"
            )
        backend = active[device_type] = importlib.import_module(_MODULES[device_type]).load()
        if _seed is not None:
            backend.manual_seed(_seed)
    return backend


def manual_seed(seed: int) -> None:
    """Seed the generators of every backend, also of those that are loaded later."""
    global _seed
    _seed = seed
    for backend in active.values():
        backend.manual_seed(seed)


@contextmanager
def use(device_type: str, backend: Backend) -> Iterator[Backend]:
    """Compute with this backend instead, inside the with block."""
    before = get(device_type)
    active[device_type] = backend
    try:
        yield backend
    finally:
        active[device_type] = before
