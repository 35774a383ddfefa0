"""torch.library: ops that Python code declares. They run eagerly, as functions; nothing is dispatched or traced."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import genesis
from genesis.errors import describe
from genesis.port.stand_ins import ops
from genesis.tensor import Tensor

T = TypeVar("T")
Implementation = Callable[..., object]


class Library:
    """Declarations that nobody reads."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, *args: object, **kwargs: object) -> str:
        """Return the name that the schema declares."""
        return schema.partition("(")[0]

    def impl(self, *args: object, **kwargs: object) -> None:
        """Do nothing."""


class CustomOp:
    """An op of custom_op(): calls its function; with register_autograd(), the gradient is the one given there."""

    def __init__(self, name: str, function: Implementation) -> None:
        self._name, self._function = name, function
        self._apply: Implementation = function
        self.__name__, self.__doc__ = name.partition("::")[2], function.__doc__

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._apply(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<CustomOp({self._name})>"

    def register_fake(self, fn: T, /) -> T:
        """Return fn: nothing is traced."""
        return fn

    def register_kernel(self, device_types: object, fn: Implementation | None = None, /) -> object:
        """Refuse a function of its own for a device."""
        raise NotImplementedError(f"{self._name}: register_kernel: one function runs on all devices; write it for them")

    def register_autograd(self, backward: Implementation, /, *, setup_context: Implementation | None = None) -> None:
        """Take backward(ctx, *grads) for the gradient, after setup_context(ctx, inputs, output)."""
        function = self._function

        class Declared(genesis.autograd.Function):
            @staticmethod
            def forward(ctx: object, *inputs: object) -> object:
                output = function(*inputs)
                if setup_context is not None:
                    setup_context(ctx=ctx, inputs=inputs, output=output)
                return output

            @staticmethod
            def backward(ctx: object, *grads: Tensor) -> object:
                return backward(ctx, *grads)

        def applied(*args: object, **kwargs: object) -> object:
            if kwargs:
                raise TypeError(describe(self._name, ", ".join(kwargs), "given by position", "by name"))
            return Declared.apply(*args)

        self._apply = applied


def custom_op(
    name: str, fn: Implementation | None = None, /, *, mutates_args: object = (), **kwargs: object
) -> CustomOp | Callable[[Implementation], CustomOp]:  # fmt: skip
    """Declare a function as an op, which torch.ops then has under its name.

    Args:
        name: "namespace::name".
        fn: the function; without it, a decorator is returned.
        mutates_args, kwargs: ignored, as devices and schema: one function runs everywhere.
    Returns: the op, a CustomOp.
    Raises: ValueError: the name has no namespace.
    """
    space, mark, short = name.partition("::")
    if not (space.isidentifier() and mark and short.isidentifier()):
        raise ValueError(describe("custom_op", "name", "'namespace::name'", repr(name)))

    def declare(function: Implementation) -> CustomOp:
        op = CustomOp(name, function)
        setattr(vars(ops).setdefault(space, SimpleNamespace()), short, op)
        return op

    return declare if fn is None else declare(fn)


def register_fake(op: object, fn: T | None = None, *args: object, **kwargs: object) -> object:
    """Return the function, or a decorator that gives back its function: nothing is traced."""
    return _itself if fn is None else fn


def register_autograd(
    op: str | CustomOp, backward: Implementation, *args: object, setup_context: Implementation | None = None,
    **kwargs: object,
) -> None:  # fmt: skip
    """Give an op its gradient. See CustomOp.register_autograd; an op of PyTorch's dispatcher is left alone."""
    if isinstance(op, str):
        space, _, short = op.partition("::")
        op = getattr(vars(ops).get(space), short, op)
    if isinstance(op, CustomOp):
        op.register_autograd(backward, setup_context=setup_context)


def _itself(fn: T) -> T:
    return fn


impl_abstract = register_fake
