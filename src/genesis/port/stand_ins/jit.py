"""torch.jit: nothing is scripted here, so its decorators give back what they are given."""

from __future__ import annotations

from typing import Any, TypeVar
from typing import Final as Final

T = TypeVar("T")


def is_scripting() -> bool:
    """Say that nothing is being scripted."""
    return False


def is_tracing() -> bool:
    """Say that nothing is being traced."""
    return False


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Return the function itself, as a decorator with or without arguments."""
    return drop if callable(drop) else _itself


def script(obj: T, *args: object, **kwargs: object) -> T:
    """Return the function, class or module itself: it runs eagerly, with the same results."""
    return obj


def annotate(the_type: object, the_value: T) -> T:
    """Return the value."""
    return the_value


def _itself(obj: T) -> T:
    return obj


export = unused = interface = script_if_tracing = _script_if_tracing = _overload = _overload_method = _itself


class ScriptModule:
    """No module is one."""


class ScriptFunction:
    """No function is one."""
