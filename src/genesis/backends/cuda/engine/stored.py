"""Read the keys of the store back into problems: is an entry from elsewhere true, and which libraries does it want?"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, cublaslt, cudnn
from genesis.backends.cuda.engine import platform
from genesis.backends.cuda.engine.candidate import AnyCandidate
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.engine.store import Entry, Store

AnyOperation = Operation[Any]  # of whatever problem
_LIBRARIES = {"cublaslt": cublaslt, "cudnn": cudnn}  # by the prefix of their candidates
_operations: list[AnyOperation] = []


def register(operation: AnyOperation) -> None:
    """Its problems may be in the store."""
    _operations.append(operation)


def fits(key: str, entry: Entry, device: int) -> bool:
    """Is there a candidate as an entry from elsewhere says, for the problem of this key?"""
    for problem, candidate in _named(key, entry.candidate, device):
        with contextlib.suppress(KernelError):
            return candidate.workspace(problem) >= 0  # for which cuDNN must have the plan
    return False


def _named(key: str, name: str, device: int) -> Iterator[tuple[Any, AnyCandidate]]:
    """The problem of this key, and its candidate of this name, if there are such."""
    for operation in _operations:
        with contextlib.suppress(KernelError, ValueError):
            problem = operation.problem(key, device)
            candidate = operation.named(problem, name)
            if candidate is not None:
                yield problem, candidate


def warm_up(device: int = 0) -> None:
    """Load the libraries that the store will ask for in the background, before the first convolution waits for them.

    cuDNN's take about 100 ms to load: time that a process spends on other things before it convolves.
    """
    if driver.get().name == "simulated":
        return
    known = [store for store in (platform.store(device), platform.guesses(device)) if store.path.is_file()]
    if known:
        threading.Thread(target=_load_libraries, args=(known, device), name="genesis warm-up").start()


def load_libraries(device: int) -> None:
    """Load all libraries, for guesses that may ask any of them."""
    for library in _LIBRARIES.values():
        with contextlib.suppress(KernelError):  # whoever needs it gets the error
            library.warm_up(device)


def _load_libraries(known: Sequence[Store], device: int) -> None:
    entries = [item for store in known for item in store.all().items()]
    for prefix, library in _LIBRARIES.items():
        asks = [(key, entry.candidate) for key, entry in entries if f"{prefix}/" in entry.candidate]  # or after a pass
        if not asks:
            continue
        with contextlib.suppress(KernelError):  # then the first op that needs it will say so
            library.warm_up(device)
            choice = (found for key, name in asks for found in _named(key, name, device))
            for problem, candidate in choice:
                if not candidate.builds_slowly:  # which would keep the interpreter to itself for long
                    candidate.prepare(problem)
                    break
