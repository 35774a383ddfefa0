"""Choose a device's store of tuned plans: the fastest ones depend on the device and the libraries."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import triton

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import cublaslt, cudnn
from genesis.backends.engine.store import Store
from genesis.settings import settings

_stores: dict[tuple[Path, str], Store] = {}
_lock = threading.Lock()


@functools.cache
def _described(driver_name: str, device: int) -> str:
    return describe(device)


def describe(device: int) -> str:
    """The device and the versions, in words that also name the file."""
    properties = driver.get().properties(device)
    found = [cudnn.installed(), cublaslt.installed()] if driver.get().name == "cuda" else []
    libraries = ", ".join(filter(None, [f"triton {triton.__version__}", *found]))
    return f"{properties.name} sm_{properties.compute_capability}, {libraries}"


def store(device: int) -> Store:
    """The store of a device."""
    name = _described(driver.get().name, device)
    key = (settings.cache_dir, name)
    found = _stores.get(key)
    if found is None:
        with _lock:
            found = _stores.setdefault(key, Store(settings.cache_dir / "plans", name))
    return found
