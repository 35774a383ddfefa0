"""Prepare replays: nothing yet, since convolutions keep their plans themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis.backends.cuda.runtime.array import DeviceArray

_Prepared = Callable[[DeviceArray], DeviceArray]


def prepare(op: str, args: Sequence[object]) -> _Prepared | None:
    return None


def join(first: _Prepared, second: _Prepared) -> _Prepared | None:
    return None
