"""Print what GENESIS_DEBUG asks for on stderr: 1 the device and its choices, 3 launches, 4 what kernels compile to."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from genesis.backends.cuda.driver.interface import Grid, Properties
from genesis.settings import settings


def show_device(device: int, properties: Properties) -> None:
    if settings.debug >= 1:
        gib = properties.total_memory / (1 << 30)
        _show(
            f"cuda:{device}: {properties.name}, sm_{properties.compute_capability}, "
            f"{properties.multiprocessor_count} multiprocessors, {gib:.1f} GiB"
        )


def show_choice(subject: str, choice: str) -> None:
    """choice: which way to compute the subject was taken, and why."""
    if settings.debug >= 1:
        _show(f"{subject}: {choice}")


def show_launch(name: str, grid: Grid, stream: int, values: Sequence[object]) -> None:
    """values: the kernel's arguments as they are packed: addresses, numbers."""
    if settings.debug >= 3:
        shown = ", ".join(f"{v:#x}" if isinstance(v, int) and v >= 1 << 32 else repr(v) for v in values)
        _show(f"launch {name}{grid} on stream {stream:#x}: {shown}")


def show_code(name: str, code: str) -> None:
    """code: PTX, or the source of a kernel that is interpreted."""
    if settings.debug >= 4:
        _show(f"kernel {name}:\n{code.rstrip()}")


def _show(text: str) -> None:
    print(f"genesis: {text}", file=sys.stderr)
