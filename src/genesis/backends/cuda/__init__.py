"""The CUDA backend: own memory, own launches, Triton kernels; also on a simulated device (GENESIS_CUDA=simulated).

A launcher module <family>.py holds functions of the contract, kernels/<family>.py what they launch; launch.py says how
to add one. load() collects whatever families there are.
"""

from __future__ import annotations

import importlib
import pkgutil

from genesis.backends.backend import Backend


def load() -> Backend:
    """The backend as a value. Raises: DeviceError: there is no device."""
    from genesis.backends.cuda import driver

    driver.get()
    families = sorted({module.name for module in pkgutil.iter_modules(__path__)} - _PARTS)
    backend = Backend.from_modules("cuda", [importlib.import_module(f"{__name__}.{name}") for name in families])
    importlib.import_module(f"{__name__}.conv.plans").warm_up()
    return backend


# What the families stand on.
_PARTS = {
    "array", "cache", "driver", "interpreter", "kernels", "launch", "memory", "pointwise", "simulated", "streams",
    "tiles", "tuning", "walk",
}  # fmt: skip
