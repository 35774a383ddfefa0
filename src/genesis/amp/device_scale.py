"""The scale of a GradScaler in device memory, for CUDA graphs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, SupportsIndex
from weakref import WeakKeyDictionary

from genesis import dtypes
from genesis.callsite import user_line
from genesis.errors import CaptureError, GraphError
from genesis.ndarray import Device, NDArray, ops
from genesis.ndarray.capturing import Capture, capture_of, lasting, outside
from genesis.tensor import Tensor


class Scaling(NamedTuple):
    """The state of a GradScaler on the host; growth_tracker: steps in a row without overflow."""

    scale: float
    growth_tracker: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


@dataclasses.dataclass
class Round:
    """The calls since the last update, by the id of the optimizer.

    Attributes:
        stepped: those whose step() was called.
        found: flags on the device: was a gradient not finite?
        is_captured: the calls go into a CUDA graph, instead of being run.
    """

    stepped: set[int] = dataclasses.field(default_factory=set)
    found: dict[int, list[NDArray]] = dataclasses.field(default_factory=dict)
    is_captured: bool = False


class DeviceScale:
    """The scale and its growth tracker in device memory, where replays read and change them.

    A replay takes over what the host has changed; the host, when it asks for the scale, what replays have changed.
    """

    def __init__(self, on_host: Callable[[], Scaling], device: Device) -> None:
        self._on_host, self.device = on_host, device
        self._known = on_host()  # on both sides
        self._is_newer = False  # than what the host knows
        self._rounds: WeakKeyDictionary[Capture, Round] = WeakKeyDictionary()
        with outside(device):
            self.scale = lasting(NDArray.full((), self._known.scale, dtypes.float64, device))
            self._tracker = lasting(NDArray.full((), self._known.growth_tracker, dtypes.int64, device))

    def round_of(self, device: Device, capture: Capture) -> Round:
        """The round of a capture, which may be one of several. Raises: CaptureError: of another device."""
        self._require(device)
        found = self._rounds.get(capture)
        if found is None:
            found = self._rounds[capture] = Round(is_captured=True)
            self._begin(capture)
        return found

    @property
    def arrays(self) -> tuple[NDArray, NDArray]:
        return self.scale, self._tracker

    def attach(self, capture: Capture) -> None:
        """Tell a capture of calls that were recorded: its replays read the scale, and change it."""
        self._begin(capture)
        capture.before_replay.append(self._note_update)

    def _begin(self, capture: Capture) -> None:
        capture.kept.append(self)
        capture.before_replay.insert(0, functools.partial(self._prepare, self._on_host()[2:]))

    def inverse(self, devices: Iterable[Device]) -> NDArray:
        """The factor of gradients on these devices."""
        for device in devices:
            self._require(device)
        return ops.div(1.0, self.scale)

    def update(self, present: Round, new_scale: float | Tensor | None) -> None:
        """Adapt the scale to whether any flag is true, or set it to new_scale; in each replay."""
        found = [flag for flags in present.found.values() for flag in flags]
        if new_scale is not None:
            self.scale.copy_into(new_scale.array if isinstance(new_scale, Tensor) else float(new_scale))
        elif found:
            any_found = functools.reduce(ops.logical_or, found)
            ops.update_scale(self.scale, self._tracker, any_found, *self._on_host()[2:])
        else:
            raise GraphError("GradScaler.update: no step() or unscale_() has been called since the last update()")
        present.stepped.clear()
        present.found.clear()
        capture = capture_of(self.device)
        if capture is None:  # a rehearsal
            self._note_update(0)
        else:
            capture.before_replay.append(self._note_update)

    def read(self, attributes: dict[str, object]) -> None:
        """Write what replays have changed to the scaler's attributes; waits for the device if there were any."""
        if self._is_newer:
            scale, tracker = self.scale.item(), self._tracker.item()
            attributes.update(_scale=scale, _growth_tracker=tracker)
            self._known = self._known._replace(scale=scale, growth_tracker=tracker)
            self._is_newer = False  # last: who is interrupted reads once more

    def _require(self, device: Device) -> None:
        if device is not self.device:
            raise CaptureError(
                f"{user_line()}: GradScaler: its scale is captured on {self.device}; use another scaler on {device}"
            )

    def _prepare(self, factors: tuple[float, ...], stream: int) -> None:
        """Before a replay on the current stream."""
        present = self._on_host()
        if present[2:] != factors:
            raise CaptureError(
                f"{user_line()}: replay: the factors of the GradScaler have changed since the capture: capture anew"
            )
        if not self._is_newer and present != self._known:
            self.scale.copy_into(present.scale)
            self._tracker.copy_into(present.growth_tracker)
            self._known = present

    def _note_update(self, stream: int) -> None:
        self._is_newer = True


class Rehearsal:
    """Stands in for a capture while a run is recorded whose calls are captured later.

    Its scalers already compute on the device. What a capture leaves to the next replay is done at once.

    Args:
        scales: those that take part; others compute on the host.
        paused: a block in which nothing is recorded.
    """

    def __init__(self, scales: Iterable[DeviceScale], paused: Callable[[], AbstractContextManager[None]]) -> None:
        self._scales = list(scales)
        self._paused = paused
        self.kept: list[object] = []
        self.before_replay: list[Callable[[int], None]] = _AtOnce(paused)
        self.after_replay: list[Callable[[int], None]] = _AtOnce(paused)

    def includes(self, scale: DeviceScale | None) -> bool:
        return any(each is scale for each in self._scales)

    @property
    def outside(self) -> Callable[[int], AbstractContextManager[None]]:
        return lambda device_index: self._paused()


class _AtOnce(list[Callable[[int], None]]):
    """A list of what is to be done before or after a replay, which is now."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._paused = paused

    def insert(self, index: SupportsIndex, prepare: Callable[[int], None]) -> None:
        with self._paused():
            prepare(0)
