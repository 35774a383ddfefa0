"""The CUDA backend: own memory, own launches, Triton kernels; also on a simulated device (GENESIS_CUDA=simulated).

    ops/        the ops, a folder per family: launch.py holds functions of the contract, kernels what they launch
    engine/     choosing among several implementations of one problem, by heuristics or by measurement
    launch/     what launchers share; triton.py says how to add a kernel
    nvrtc/      kernels in CUDA C++: their signatures, compiling and keeping them
    runtime/    arrays, memory, streams and events, CUDA graphs, DLPack
    driver/     NVIDIA's libraries, and their stand-in on host memory

load() finds the contract's functions in ops/<family>/launch.py, and those on memory and streams in runtime/.
"""

from __future__ import annotations

import importlib
import pkgutil

from genesis.backends.backend import Backend

_RUNTIME = ("clock", "generators", "replay")  # modules of runtime/ with functions of the contract


def load() -> Backend:
    """The backend as a value. Raises: DeviceError: there is no device."""
    from genesis.backends.cuda import driver, ops

    driver.get()
    names = [f"{__name__}.runtime.{name}" for name in _RUNTIME]
    names += [f"{ops.__name__}.{family.name}.launch" for family in pkgutil.iter_modules(ops.__path__)]
    backend = Backend.from_modules("cuda", map(importlib.import_module, names))
    importlib.import_module(f"{__name__}.engine.stored").warm_up()
    return backend
