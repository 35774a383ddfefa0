"""A backend is a value: an object with one attribute per op of the contract.

Because it is a value, tools are backends too: wrapped() gives the same backend with a function of yours around each op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from genesis.backends import contract
from genesis.backends.dispatch import Op as Op

OPS: tuple[str, ...] = tuple(contract.TRAITS)


class Backend:
    """One attribute per name in OPS, and the name of the backend.

    Example:
        >>> from genesis import backends
        >>> cpu = backends.get("cpu")
        >>> cpu.name, cpu.sqrt(cpu.full((), 9.0, genesis.float32)).item()
        ('cpu', 3.0)
    """

    def __init__(self, name: str, ops: dict[str, Op], missing: frozenset[str] = frozenset()) -> None:
        self.name, self._missing = name, missing
        self.__dict__.update(ops)

    if TYPE_CHECKING:  # at run time, it would make each look-up of an op slower

        def __getattr__(self, op: str) -> Op: ...

    def __repr__(self) -> str:
        return f"<backend {self.name}>"

    @classmethod
    def from_modules(cls, name: str, modules: Iterable[ModuleType]) -> Backend:
        """Collect the contract's functions; what no module defines raises NotImplementedError when called."""
        ops: dict[str, Op] = {}
        for module in modules:
            for op in OPS:
                function = vars(module).get(op)
                if function is not None and function.__module__ == module.__name__:
                    assert op not in ops, f"backend '{name}' defines '{op}' twice"
                    ops[op] = function
        missing = frozenset(OPS) - ops.keys()
        ops |= {op: _missing(name, op) for op in missing}
        return cls(name, ops, missing)

    def has(self, op: str) -> bool:
        """Whether it implements an op: those that are optional may be missing."""
        return op not in self._missing

    def wrapped(self, around: Callable[[str, Op], Op]) -> Backend:
        """This backend with around(op, function) in the place of every function."""
        return Backend(self.name, {op: around(op, getattr(self, op)) for op in OPS}, self._missing)


def _missing(backend: str, op: str) -> Op:
    def raise_missing(*args: object, **kwargs: object) -> NoReturn:
        kinds = ", ".join(str(getattr(arg, "dtype", type(arg).__name__)) for arg in args)
        raise NotImplementedError(f"{op} has no {backend} implementation (called with {kinds})")

    raise_missing.__name__ = op
    return raise_missing
