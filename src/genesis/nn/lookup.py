"""Lookup: the parts of a module by their dotted names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from genesis.errors import DTypeError, describe
from genesis.nn import state
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.nn.module import Module

Member = TypeVar("Member", bound=Tensor)
Registry = Callable[["Module"], dict[str, Member | None]]

parameters_of: Registry[Parameter] = operator.attrgetter("_parameters")
buffers_of: Registry[Tensor] = operator.attrgetter("_buffers")


class _Named(Protocol):
    """Protocol of named_parameters and named_buffers."""

    def __call__(self, *, remove_duplicate: bool) -> Iterable[tuple[str, Tensor]]: ...


class Lookup:
    """Base of Module, which names its parts."""

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        raise NotImplementedError

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        raise NotImplementedError

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def get_submodule(self, target: str) -> Module:
        """The submodule of this dotted name, "layer1.0.conv"; "" is the module itself.

        Args:
            target: names joined by dots.
        Returns: the submodule.
        Raises: AttributeError: there is none; the message shows the closest name.

        Example:
            >>> nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())).get_submodule("1.0")
            Tanh()
        """
        module: Module | None = cast("Module", self)
        for name in target.split(".") if target else ():
            module = module._modules.get(name) if module is not None else None
        if module is None:
            known = [key for key, _ in self.named_modules()]
            raise AttributeError(state.unknown_name("get_submodule", type(self).__name__, target, known))
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module under this dotted name, in place of what is there.

        Args:
            target: names joined by dots; all but the last exist.
            module: the new submodule.
            strict: refuse a name that does not exist yet.
        Raises: ValueError: target is empty; AttributeError: there is no module to set it in, or to replace if strict;
            DTypeError: module is not a Module.

        Example:
            >>> net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))
            >>> net.set_submodule("1.0", nn.SiLU())
            >>> net.get_submodule("1.0")
            SiLU()
        """
        if not target:
            raise ValueError(describe("set_submodule", "target", "the name of a submodule", repr(target)))
        if not isinstance(module, Lookup):
            raise DTypeError(describe("set_submodule", "module", "a Module", type(module).__name__))
        path, _, name = target.rpartition(".")
        if strict:
            self.get_submodule(target)
        setattr(self.get_submodule(path), name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of this dotted name.

        Args:
            target: names joined by dots.
        Returns: the parameter.
        Raises: AttributeError: there is none; the message shows the closest name.

        Example:
            >>> nn.Sequential(nn.Linear(3, 2)).get_parameter("0.weight").shape
            (2, 3)
        """
        return self._member("get_parameter", target, parameters_of, self.named_parameters)

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of this dotted name.

        Args:
            target: names joined by dots.
        Returns: the buffer.
        Raises: AttributeError: there is none; the message shows the closest name.

        Example:
            >>> nn.Sequential(nn.BatchNorm2d(2)).get_buffer("0.running_var").tolist()
            [1.0, 1.0]
        """
        return self._member("get_buffer", target, buffers_of, self.named_buffers)

    def _member(self, op: str, target: str, registry: Registry[Member], named: _Named) -> Member:
        path, _, name = target.rpartition(".")
        member = registry(self.get_submodule(path)).get(name)
        if member is None:
            known = [key for key, _ in named(remove_duplicate=False)]
            raise AttributeError(state.unknown_name(op, type(self).__name__, target, known))
        return member
