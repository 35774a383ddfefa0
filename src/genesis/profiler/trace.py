"""The calls as a timeline in Chrome's trace format: a process per device, a row per stream or thread."""

from __future__ import annotations

import json
from collections.abc import Iterable

from genesis.profiler.timed import TimedCall


def to_json(calls: Iterable[TimedCall]) -> str:
    """Format calls as JSON for chrome://tracing and ui.perfetto.dev, in microseconds."""
    events: list[dict[str, object]] = []
    devices: dict[str, int] = {}
    queues: dict[tuple[str, int], int] = {}
    for call in calls:
        if call.device not in devices:
            devices[call.device] = len(devices) + 1
            events.append(_named("process_name", devices[call.device], 0, call.device))
        pid, queue = devices[call.device], (call.device, call.queue)
        if queue not in queues:
            queues[queue] = len(queues) + 1
            kind = "thread" if call.device == "cpu" else "stream"
            events.append(_named("thread_name", pid, queues[queue], f"{kind} {call.queue:#x}"))
        events.append(
            {
                "name": call.name,
                "cat": "op",
                "ph": "X",  # with a beginning and a duration
                "pid": pid,
                "tid": queues[queue],
                "ts": call.start * 1e6,
                "dur": call.seconds * 1e6,
                "args": {"arrays": call.arrays, "bytes": call.num_bytes, "flops": call.num_flops},
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, object]:
    """An event that names a process or thread."""
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
