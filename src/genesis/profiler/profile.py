"""profile(): record the ops that run inside a with block, on all devices and threads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

from genesis import backends
from genesis.profiler import table, trace
from genesis.profiler.timed import TimedCall


class profile:  # noqa: N801  (PyTorch's name)
    """Record every op inside the with block: its time, bytes and floating-point operations.

    On CUDA the times are taken by events on the stream of each op, so nothing waits; on the CPU by the clock. An op's
    time is from when the device gets to it until it is done with it: where the device waits for the host, that waiting
    is in it.

    Example:
        >>> x = genesis.ones(64, 64)
        >>> with genesis.profiler.profile() as profiled:
        ...     for _ in range(3):
        ...         y = (x @ x).relu()
        >>> [(row.name, row.calls) for row in profiled.rows(sort_by="name")]
        [('matmul', 3), ('relu', 3)]
    """

    def __init__(self) -> None:
        self._recorded: list[backends.Call] = []
        self._origins: dict[tuple[str, int], tuple[object, float]] = {}  # device → a mark, and the host's time there
        self._timed: list[TimedCall] = []

    def __enter__(self) -> profile:
        self._began = time.perf_counter()
        self._recording = backends.recording(self._record)
        self._recording.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recording.__exit__(kind, error, trace)
        self._take_times()

    def rows(self, sort_by: str = "total") -> list[table.Row]:
        """Return the table's rows, largest first; for "name", in alphabetical order.

        Args:
            sort_by: "total" | "mean" | "calls" | "bandwidth" | "flops" | "name".
        Returns: a row per op and device.
        Raises: ValueError: another sort_by.
        """
        return table.rows(self.calls(), sort_by)

    def table(self, sort_by: str = "total", row_limit: int | None = None) -> str:
        """Format a line per op and device: calls, time, share of all time, GB/s, and GFLOP/s where they are counted.

        Args:
            sort_by: "total" | "mean" | "calls" | "bandwidth" | "flops" | "name".
            row_limit: show so many lines at most.
        Returns: the text.
        Raises: ValueError: another sort_by.

        Example:
            >>> with genesis.profiler.profile() as profiled:
            ...     y = genesis.ones(4) + 1
            >>> print(profiled.table())
            op ... total ...
        """
        return table.text(self.rows(sort_by), row_limit)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as JSON, for chrome://tracing or ui.perfetto.dev: a row per stream and thread.

        Args:
            path: the file.

        Example:
            >>> import json, pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp(), "trace.json")
            >>> with genesis.profiler.profile() as profiled:
            ...     y = genesis.ones(4).relu()
            >>> profiled.export_chrome_trace(path)
            >>> [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
            ['full', 'relu']
        """
        Path(path).write_text(trace.to_json(self.calls()), encoding="utf-8")

    def calls(self) -> list[TimedCall]:
        """Return every call in the order of recording.

        Returns: their op, device, shapes and times; `start` is in seconds since the beginning of the with block.
        """
        self._take_times()
        return self._timed

    def _record(self, call: backends.Call) -> None:
        key = (call.backend.name, call.device_index)
        if key not in self._origins:
            call.backend.synchronize(call.device_index)  # so that the mark is passed at the time on the clock
            self._origins[key] = call.backend.time_mark(call.device_index), time.perf_counter() - self._began
        self._recorded.append(call)

    def _take_times(self) -> None:
        """Convert marks to seconds; nothing before this has waited for the device."""
        recorded, self._recorded = self._recorded, []
        for call in recorded:
            origin, offset = self._origins[call.backend.name, call.device_index]
            start = offset + call.backend.seconds_between(origin, call.start)
            self._timed.append(TimedCall.of(call, start, call.backend.seconds_between(call.start, call.end)))
