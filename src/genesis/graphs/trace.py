"""Traces which Python code a run executes, and calls whose effects a replay would drop."""

from __future__ import annotations

import builtins
import functools
import gc
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Protocol, runtime_checkable

from genesis.backends.backend import Op
from genesis.callsite import COMPILED
from genesis.graphs.pure import is_pure
from genesis.ndarray import NDArray
from genesis.optim import Optimizer
from genesis.optim.batch import Batch

_PACKAGE = __name__.partition(".")[0]
_STDLIB = str(Path(sysconfig.get_paths()["stdlib"])) + "/"
# What calls and is called by Genesis without being the user's; where the user's code calls it, it is part of that.
_LIBRARIES = frozenset({"numpy", "torch", "triton"})
_IMPORT = "<frozen importlib._bootstrap>"
_GENESIS, _LIBRARY, _USER = "genesis", "library", "user"


@runtime_checkable
class _Profiler(Protocol):
    """A profiler written in C, such as cProfile's."""

    def enable(self) -> None: ...
    def disable(self) -> None: ...


Executed = dict[tuple[CodeType, int], dict[str, object]]  # code that ran, with its globals


class Trace:
    """Traces the user's code that this thread executes inside runs().

    `executed` maps each code object to its globals; `refusal` names the first call that a replay would drop.
    """

    rehearsal = None

    def __init__(self) -> None:
        self.executed: Executed = {}
        self.refusal = ""
        self._is_paused = False
        self._belongs: dict[CodeType, str] = {}
        self._outermost: FrameType | None = None  # the one that runs() is called in

    @contextmanager
    def runs(self) -> Iterator[None]:
        before = sys.getprofile()
        profiler = before if isinstance(before, _Profiler) else None
        if profiler is not None:
            profiler.disable()
        collects = gc.isenabled()
        gc.disable()  # callbacks of the collector are no part of the run
        self._outermost = sys._getframe(2)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._outermost = None
            if collects:
                gc.enable()
            if profiler is not None:
                profiler.enable()
            elif before is not None:
                sys.setprofile(before)

    def refuse(self, reason: str) -> None:
        """Ignore the refusal; nothing is recorded."""

    def update(self, optimizer: Optimizer, batch: Batch) -> None:
        """Ignore the update; optimizers run in replays too, so their code is not traced."""
        with self.paused():
            optimizer.update(batch)

    def repeat(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray],
        is_wait: bool = False,
    ) -> None:  # fmt: skip
        with self.paused():
            call(arrays)

    def launch(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray]
    ) -> None:
        self.repeat(call, arrays, written)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _event(self, frame: FrameType, event: str, arg: BuiltinFunctionType) -> None:
        if event == "call":
            key = (frame.f_code, id(frame.f_globals))
            if key not in self.executed and self._is_users(frame):
                self.executed[key] = frame.f_globals
        elif event == "c_call" and not self.refusal and self._is_users(frame) and not is_pure(arg):
            self.refusal = (
                f"calls {_name_of(arg)}, which a replay would not ({frame.f_code.co_filename}:{frame.f_lineno})"
            )

    def _is_users(self, frame: FrameType | None) -> bool:
        """Whether user's code runs in this frame, or code that it calls without knowing what is in it.

        A package that Genesis imports at its first use is neither.
        """
        while frame is not None and not self._is_paused:
            kind = self._kind(frame)
            if kind == _GENESIS:
                return False
            if kind == _USER and (frame := self._importing(frame)) is None:
                return True
            frame = frame.f_back
        return False

    def _importing(self, frame: FrameType | None) -> FrameType | None:
        """The frame of the import statement's machinery that this one runs in, if any began during the run."""
        while frame is not None and frame is not self._outermost:
            if frame.f_code.co_filename == _IMPORT:
                return frame
            frame = frame.f_back
        return None

    def _kind(self, frame: FrameType) -> str:
        code = frame.f_code
        known = self._belongs.get(code)
        if known is None:
            known = self._belongs[code] = _kind_of(str(frame.f_globals.get("__name__", "")), code.co_filename)
        return known


def untraced(op: str, function: Op) -> Op:
    """Around an op inside runs(): nothing in it is the user's code, so tracing it would only cost time."""

    def run(*args: object, **kwargs: object) -> object:
        trace = sys.getprofile()
        sys.setprofile(None)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(trace)

    return run


def is_ours(name: str | None) -> bool:
    """Whether this is the name of a module of Genesis."""
    return str(name).partition(".")[0] == _PACKAGE


def _kind_of(module: str, file: str) -> str:
    if is_ours(module) or file == COMPILED:
        return _GENESIS
    root = module.partition(".")[0]
    is_standard = root in sys.stdlib_module_names and (file.startswith((_STDLIB, "<frozen")))
    is_made = root.startswith("namedtuple_") and file == "<string>"  # a named tuple's __new__, whoever's it is
    return _LIBRARY if is_standard or is_made or root in _LIBRARIES else _USER


def _name_of(function: BuiltinFunctionType) -> str:
    owner = function.__self__
    if isinstance(owner, ModuleType):
        return function.__name__ if owner is builtins else f"{owner.__name__}.{function.__name__}"
    owner = owner if isinstance(owner, type) else type(owner)
    return f"{owner.__name__}.{function.__name__}"


def name_of(function: object) -> str:
    """The name of a callable for messages."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__name__))
