"""torch.library: declarations for PyTorch's dispatcher, which isn't here; the ops themselves raise when called."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Library:
    """Declarations that nobody reads."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, *args: object, **kwargs: object) -> str:
        """Return the name that the schema declares."""
        return schema.partition("(")[0]

    def impl(self, *args: object, **kwargs: object) -> None:
        """Do nothing."""


def register_fake(op: object, *args: object, **kwargs: object) -> object:
    """Return a decorator that gives back its function."""
    return _itself


def register_autograd(op: object, backward: object, *args: object, **kwargs: object) -> None:
    """Do nothing."""


def _itself(fn: T) -> T:
    return fn


impl_abstract = register_fake
