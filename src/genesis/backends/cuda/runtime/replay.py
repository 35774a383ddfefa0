"""Prepare replays: nothing yet, since convolutions keep their plans themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis.backends.cuda.runtime.array import DeviceArray


def prepare(op: str, args: Sequence[object]) -> Callable[[DeviceArray], DeviceArray] | None:
    return None
