"""PyTorch's torch.jit as far as models need it to run eagerly: decorators that return what they decorate."""

from __future__ import annotations

import builtins
from typing import Final as Final
from typing import NoReturn, TypeVar

T = TypeVar("T")


def is_scripting() -> bool:
    """False: there is no TorchScript here.

    Example:
        >>> genesis.jit.is_scripting(), genesis.jit.is_tracing()
        (False, False)
    """
    return False


def is_tracing() -> bool:
    """Return False. See `genesis.jit.is_scripting`."""
    return False


def script(obj: T, *args: object, **options: object) -> T:
    """Return obj, which runs eagerly. A decorator too.

    Args:
        obj: a function, a class or a module.
        args, options: PyTorch's, ignored.
    Returns: obj.

    Example:
        >>> genesis.jit.script(len) is len
        True
    """
    return obj


def script_if_tracing(fn: T) -> T:
    """Return fn. See `genesis.jit.script`."""
    return fn


def export(fn: T) -> T:
    """Return fn. See `genesis.jit.script`."""
    return fn


def interface(obj: T) -> T:
    """Return obj. See `genesis.jit.script`."""
    return obj


def unused(fn: T) -> T:
    """Return fn. See `genesis.jit.script`."""
    return fn


def ignore(drop: object = False, **options: object) -> object:
    """Return the decorated function; with parentheses or without.

    Args:
        drop: the function, or PyTorch's option, which is ignored.
        options: PyTorch's, ignored.
    Returns: the function, or a decorator that returns it.

    Example:
        >>> genesis.jit.ignore(len) is len, genesis.jit.ignore(drop=True)(len) is len
        (True, True)
    """
    return drop if callable(drop) else unused


def annotate(the_type: object, the_value: T) -> T:
    """Return the value.

    Args:
        the_type: ignored.
        the_value: any.
    Returns: the_value.

    Example:
        >>> genesis.jit.annotate(int, 3)
        3
    """
    return the_value


def isinstance(obj: object, target_type: type | tuple[type, ...]) -> bool:
    """Python's isinstance, by PyTorch's name.

    Args:
        obj: any.
        target_type: a class, or several.

    Example:
        >>> genesis.jit.isinstance(3, int)
        True
    """
    return builtins.isinstance(obj, target_type)


def trace(func: object, *args: object, **options: object) -> NoReturn:
    """Refuse: `genesis.export.onnx` writes a model to a file, `genesis.compile` makes it faster.

    Args:
        func: a function or module.
        args, options: PyTorch's.
    Returns: never.
    Raises: NotImplementedError: always.

    Example:
        >>> genesis.jit.trace(len)
        Traceback (most recent call last):
        ...
        NotImplementedError: jit.trace: there is no TorchScript; use genesis.export.onnx or genesis.compile
    """
    raise NotImplementedError("jit.trace: there is no TorchScript; use genesis.export.onnx or genesis.compile")


def _overload(func: T) -> T:
    return func


_overload_method = _overload
