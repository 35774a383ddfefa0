"""TimedCall: one op that ran, with its times in seconds."""

from __future__ import annotations

from typing import NamedTuple

from genesis.backends import Call


class TimedCall(NamedTuple):
    """One op that ran."""

    name: str
    device: str  # "cpu", "cuda:0"
    queue: int  # the stream, or on the CPU the thread
    start: float  # seconds from the beginning of the profile
    seconds: float
    num_bytes: int
    num_flops: int  # 0 where they are not counted
    arrays: str  # dtypes and shapes, in and out

    @classmethod
    def of(cls, call: Call, start: float, seconds: float) -> TimedCall:
        device = "cpu" if call.backend.name == "cpu" else f"{call.backend.name}:{call.device_index}"
        return cls(call.op, device, call.queue, start, seconds, call.num_bytes, call.num_flops, call.arrays)
