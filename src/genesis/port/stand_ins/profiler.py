"""torch.profiler: what genesis.profiler leaves out."""

from __future__ import annotations

from contextlib import ContextDecorator


class record_function(ContextDecorator):  # noqa: N801 PyTorch's name
    """A named range, which Genesis' profiler does not show."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args

    def __enter__(self) -> record_function:
        return self

    def __exit__(self, *exception: object) -> None:
        pass
