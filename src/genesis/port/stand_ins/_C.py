"""torch._C: the parts that public code asks PyTorch's core for."""

from __future__ import annotations

from enum import Flag


class DispatchKey(Flag):
    """Keys of a dispatcher that isn't here."""

    AutocastCPU = 1
    AutocastCUDA = 2
    AutocastXPU = 4


def DispatchKeySet(key: DispatchKey) -> DispatchKey:  # noqa: N802 a class of PyTorch's
    """The set of this key: sets are united by `|`, as flags are."""
    return key


def _log_api_usage_once(event: str) -> None:
    """Log nothing."""


def _get_tracing_state() -> None:
    """Say that nothing is being traced."""
