"""Report of a compiled target: its recordings, and why it ran eagerly or was recorded anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from genesis.tensor import Tensor


class RecordingReport(NamedTuple):
    """The recording of one input signature.

    Attributes:
        signature: dtypes and shapes of the arguments.
        num_calls: ops, and updates of optimizers, that a replay makes.
        num_replays: so far.
        num_bytes: memory that belongs to it alone: on CUDA, that of inputs, results and gradients.
        host_seconds: what a replay took on the host, with guards, on average; None: there was none.
        device_seconds: what the latest measured replay took on the device; None: on the CPU, and before the first one.
    """

    signature: str
    num_calls: int
    num_replays: int
    num_bytes: int
    host_seconds: float | None
    device_seconds: float | None

    def __str__(self) -> str:
        parts = [f"{self.num_calls} calls", f"{self.num_replays} replays"]
        if self.host_seconds is not None:
            parts.append(f"{self.host_seconds * 1e6:.1f} µs on the host")
        if self.device_seconds is not None:
            parts.append(f"{self.device_seconds * 1e6:.1f} µs on the device")
        if self.num_bytes:
            parts.append(f"{self.num_bytes / 2**20:.1f} MiB")
        return f"{self.signature}: {', '.join(parts)}"


class Report(NamedTuple):
    """Return what became of a compiled target; see genesis.compile.

    Attributes:
        recordings: one per input signature.
        reasons: why it runs eagerly, as its warnings said.
        changes: what has changed so that it was recorded anew, and how often.
        num_shared_bytes: memory that all recordings compute in, on CUDA.
    """

    recordings: tuple[RecordingReport, ...]
    reasons: tuple[str, ...]
    changes: dict[str, int]
    num_shared_bytes: int

    def __str__(self) -> str:
        lines = [f"{len(self.recordings)} recordings, {self.num_shared_bytes / 2**20:.1f} MiB shared"]
        lines += [f"  {recording}" for recording in self.recordings]
        lines += [f"  runs eagerly: it {reason}" for reason in self.reasons]
        lines += [f"  recorded anew {count} times: {change}" for change, count in self.changes.items()]
        return "\n".join(lines)


def signature_of(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{tensor.dtype.name} {tensor.shape}" for tensor in tensors)
