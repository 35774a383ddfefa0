"""Why a recording is not replayed."""

from __future__ import annotations


class CannotReplayError(Exception):
    """A replay was not begun, and nothing has changed: the call runs eagerly. The message begins with a verb.

    Args:
        is_stale: the recording belongs to a state that is over: the target is recorded anew.
        is_final: no later call will be replayed either.
    """

    def __init__(self, reason: str, is_stale: bool = False, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_stale, self.is_final = is_stale, is_final
