"""torch.fx: nothing is traced symbolically, so its marks give back what they are given."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def wrap(fn_or_name: T) -> T:
    """Return the function, or its name, itself."""
    return fn_or_name


class Proxy:
    """No value is one."""


class GraphModule:
    """No module is one."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("fx.GraphModule: Genesis has no symbolic tracing; genesis.export.onnx records a run")
