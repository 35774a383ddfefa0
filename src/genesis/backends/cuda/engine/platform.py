"""Choose a device's store of tuned plans: the fastest ones depend on the device and the libraries."""

from __future__ import annotations

import functools
import hashlib
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
    return _store("plans", _described(driver.get().name, device))


def guesses(device: int) -> Store:
    """The store of what was only guessed for a device, by these sources; see guesses.py."""
    return _store("guesses", f"{_described(driver.get().name, device)}, {_sources()}")


def _store(folder: str, name: str) -> Store:
    key = (settings.cache_dir / folder, name)
    found = _stores.get(key)
    if found is None:
        with _lock:
            found = _stores.setdefault(key, Store(*key))
    return found


@functools.cache
def _sources() -> str:
    """A hash of the files that decide on guesses: they may change while the version stays."""
    root, found = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(path for folder in ("engine", "ops") for path in (root / folder).rglob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"genesis {found.hexdigest()[:16]}"
