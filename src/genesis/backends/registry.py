"""Choose the backend for each type of device, and the tools that stand in front of it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from genesis.backends.backend import Backend
from genesis.backends.dispatch import active as active
from genesis.errors import DeviceError

_MODULES = {"cpu": "genesis.backends.cpu", "cuda": "genesis.backends.cuda"}
_plain: dict[str, Backend] = {}  # the backends themselves
_stands_in: dict[str, list[Backend]] = {}  # by use(), in the order in which the blocks began
_lock = threading.RLock()  # of all that changes these
_seed: int | None = None


def get(device_type: str) -> Backend:
    """The backend of a device type, loaded on first use; without the tools that the settings put around it."""
    if device_type not in _plain:
        if device_type not in _MODULES:
            raise DeviceError(
                f"backends.get: argument 'device_type': expected one of {sorted(_MODULES)}, got {device_type!r}"
            )
        _set(device_type, importlib.import_module(_MODULES[device_type]).load())
        if _seed is not None:
            _plain[device_type].manual_seed(_seed)
    return _plain[device_type]


def loaded() -> dict[str, Backend]:
    """The backends that have been used, by the type of their device."""
    return dict(_plain)


def manual_seed(seed: int) -> None:
    """Seed the generators of every backend, also of those that are loaded later."""
    global _seed
    _seed = seed
    for backend in _plain.values():
        backend.manual_seed(seed)


@contextmanager
def use(device_type: str, backend: Backend) -> Iterator[Backend]:
    """Compute with this backend instead, inside the with block, in all threads; of several blocks the last rules."""
    own = get(device_type)
    with _lock:
        chain = _stands_in.setdefault(device_type, [])
        if not chain:
            chain.append(own)
        chain.append(backend)
        _set(device_type, backend)
    try:
        yield backend
    finally:
        with _lock:
            del chain[len(chain) - 1 - [each is backend for each in reversed(chain)].index(True)]
            _set(device_type, chain[-1])
            if len(chain) == 1:
                chain.clear()


def equip(tools: Callable[[Backend], Backend]) -> None:
    """Put tools(backend) in front of every backend from now on, in the place of the tools that were there."""
    global _tools
    with _lock:
        _tools = tools
        for device_type, backend in _plain.items():
            active[device_type] = tools(backend)


def _set(device_type: str, backend: Backend) -> None:
    with _lock:
        _plain[device_type] = backend
        active[device_type] = _tools(backend)


def _no_tools(backend: Backend) -> Backend:
    return backend


_tools: Callable[[Backend], Backend] = _no_tools
active.load = get
