"""Module: what layers and networks are made of. It knows its parameters, buffers and submodules by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Self

from genesis.errors import DTypeError, describe
from genesis.frames import in_room
from genesis.nn.conversion import Convertible
from genesis.nn.hooks import HasForward, Hookable, P, Result_co, call_with_hooks
from genesis.nn.learnable import Learnable
from genesis.nn.lookup import Lookup, Member, Registry, buffers_of, parameters_of
from genesis.nn.parameter import Buffer, Parameter
from genesis.nn.printable import Printable
from genesis.nn.stateful import Stateful
from genesis.tensor import Tensor


class Module(Convertible, Hookable, Learnable, Lookup, Printable, Stateful):
    """Base class of all layers and networks: a subclass creates its parts in __init__ and computes in forward.

    A Parameter or Module that is assigned to an attribute is registered under that name. register_buffer registers
    tensors that belong to the state but are not learned, such as running statistics. A call takes and returns what
    forward does, for type checkers too.

    Example:
        >>> class Scale(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = nn.Parameter(genesis.tensor([2.0]))
        ...     def forward(self, x):
        ...         return self.factor * x
        >>> scale = Scale()
        >>> scale(genesis.ones(2)).tolist()
        [2.0, 2.0]
        >>> scale.state_dict()
        {'factor': tensor([2.])}
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers: set[str]

    def __init__(self) -> None:
        # Written past __setattr__, which needs them.
        self.__dict__.update(
            training=True, _parameters={}, _buffers={}, _modules={}, _non_persistent_buffers=set(),
            _forward_pre_hooks=[], _forward_hooks=[],
        )  # fmt: skip

    # --- the call -----------------------------------------------------------------------------------------------------

    def __call__(self: HasForward[P, Result_co], *args: P.args, **kwargs: P.kwargs) -> Result_co:
        if self._forward_pre_hooks or self._forward_hooks:
            return call_with_hooks(self, args, kwargs)
        if self._modules:
            return in_room(self.forward, *args, **kwargs)
        return self.forward(*args, **kwargs)

    def _missing_forward(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__}: a Module needs a method forward")

    forward: Callable[..., Any] = _missing_forward  # a variable, so that a subclass may give it any signature

    # --- attributes ---------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        # Python calls it only where there is no plain attribute of that name.
        own = self.__dict__
        if "_modules" not in own:
            raise AttributeError(f"{type(self).__name__}.{name}: __init__ must call super().__init__() before all else")
        for kind in ("_parameters", "_buffers", "_modules"):
            registry = own[kind]
            if name in registry:
                return registry[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Parameter):
            self._assign("_parameters", name, value)
        elif isinstance(value, Module):
            self._assign("_modules", name, value)
        elif isinstance(value, Buffer):
            if "_modules" in self.__dict__ and name not in self._buffers:
                self.__dict__.pop(name, None)
                self.register_buffer(name, value, value.persistent)
            else:
                self._assign("_buffers", name, value)
        elif name in self.__dict__ or "_modules" not in self.__dict__:
            object.__setattr__(self, name, value)
        elif name in self._parameters:
            if value is not None:
                raise DTypeError(
                    describe(type(self).__name__, name, "a Parameter or None", type(value).__name__)
                    + "; copy_ under no_grad() changes its values"
                )
            self._parameters[name] = None
        elif name in self._modules:
            if value is not None:
                raise DTypeError(describe(type(self).__name__, name, "a Module or None", type(value).__name__))
            self._modules[name] = None
        elif name in self._buffers:
            if not (value is None or isinstance(value, Tensor)):
                raise DTypeError(describe(type(self).__name__, name, "a Tensor or None", type(value).__name__))
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def _assign(self, kind: str, name: str, value: Parameter | Module | Buffer) -> None:
        """Register value under name, replacing whatever had that name."""
        if isinstance(getattr(type(self), name, None), property):
            return object.__setattr__(self, name, value)  # to its setter; it would hide what is registered
        registry = getattr(self, kind)
        _check_name(type(self).__name__, name)
        for other in (self.__dict__, self._parameters, self._buffers, self._modules):
            if other is not registry:
                other.pop(name, None)
        registry[name] = value

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            if name in registry:
                del registry[name]
                self._non_persistent_buffers.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter. None reserves the name, as for the bias of a layer without one.

        Args:
            name: an attribute's name, without dots.
            param: any shape and floating dtype, or None.
        Raises: KeyError: name is empty, has a dot, or is taken; DTypeError: param is not a Parameter.

        Example:
            >>> layer = nn.Module()
            >>> layer.register_parameter("scale", nn.Parameter(genesis.ones(1)))
            >>> [name for name, _ in layer.named_parameters()]
            ['scale']
        """
        self._check_new("register_parameter", name, self._parameters)
        if not (param is None or isinstance(param, Parameter)):
            raise DTypeError(describe("register_parameter", "param", "a Parameter or None", type(param).__name__))
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that moves with the module but is not learned, such as running statistics.

        Args:
            name: an attribute's name, without dots.
            tensor: any dtype and shape; None reserves the name.
            persistent: whether it is part of the state_dict.
        Raises: KeyError: name is empty, has a dot, or is taken; DTypeError: tensor is not a Tensor.

        Example:
            >>> layer = nn.Module()
            >>> layer.register_buffer("mean", genesis.zeros(2))
            >>> layer.mean, list(layer.state_dict())
            (tensor([0., 0.]), ['mean'])
        """
        self._check_new("register_buffer", name, self._buffers)
        if not (tensor is None or isinstance(tensor, Tensor)):
            raise DTypeError(describe("register_buffer", "tensor", "a Tensor or None", type(tensor).__name__))
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers.discard(name)
        else:
            self._non_persistent_buffers.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a submodule under a name that need not be an identifier, such as "0".

        Args:
            name: without dots.
            module: the submodule; None reserves the name.
        Raises: KeyError: name is empty, has a dot, or is taken; DTypeError: module is not a Module.

        Example:
            >>> net = nn.Module()
            >>> net.add_module("0", nn.ReLU())
            >>> net.get_submodule("0")
            ReLU()
        """
        self._check_new("add_module", name, self._modules)
        if not (module is None or isinstance(module, Module)):
            raise DTypeError(describe("add_module", "module", "a Module or None", type(module).__name__))
        self._modules[name] = module

    register_module = add_module

    def _check_new(self, op: str, name: str, registry: Mapping[str, object]) -> None:
        _check_name(op, name)
        if name not in registry and hasattr(self, name):
            raise KeyError(describe(op, "name", "a name that is not taken", repr(name)))

    # --- what it holds ------------------------------------------------------------------------------------------------

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Its parameters and (with recurse) those of its submodules, each once.

        Args:
            recurse: whether to include those of submodules.

        Example:
            >>> sum(parameter.numel() for parameter in nn.Linear(3, 2).parameters())
            8
        """
        return _members(self._and_below(recurse), parameters_of)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter) of each parameter; a shared one once, unless remove_duplicate is False.

        Args:
            prefix: put before each name.
            recurse: whether to include those of submodules.
            remove_duplicate: whether a shared parameter comes once or under each name.

        Example:
            >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
            >>> [(name, parameter.shape) for name, parameter in net.named_parameters()]
            [('0.weight', (2, 3)), ('0.bias', (2,))]
        """
        return self._named_members(parameters_of, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Its buffers and (with recurse) those of its submodules, each once.

        Args:
            recurse: whether to include those of submodules.

        Example:
            >>> [buffer.shape for buffer in nn.BatchNorm1d(2).buffers()]
            [(2,), (2,), ()]
        """
        return _members(self._and_below(recurse), buffers_of)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(dotted name, buffer) of each buffer. See `nn.Module.named_parameters`."""
        return self._named_members(buffers_of, prefix, recurse, remove_duplicate)

    def _and_below(self, recurse: bool) -> Iterable[Module]:
        return self.modules() if recurse else (self,)

    def _named_members(
        self, registry: Registry[Member], prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Member]]:
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for module_name, module in modules:
            for name, member in registry(module).items():
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield _join(module_name, name), member

    def children(self) -> Iterator[Module]:
        """Its direct submodules, each once. See `nn.Module.named_children`."""
        for _, module in self.named_children():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of its direct submodules, each once.

        Example:
            >>> [name for name, _ in nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())).named_children()]
            ['0', '1']
        """
        seen = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """The module and all its submodules, parents first, each once. See `nn.Module.named_modules`."""
        seen = set()
        waiting: list[Module | None] = [self]
        while waiting:
            module = waiting.pop()
            if module is not None and module not in seen:
                seen.add(module)
                yield module
                waiting += reversed(module.__dict__["_modules"].values())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of the module, whose name is "", and of all its submodules, parents first.

        Args:
            memo: modules to leave out; those that are returned are added to it.
            prefix: put before each name.
            remove_duplicate: give a module that is used in several places once only.
        Example:
            >>> [name for name, _ in nn.Sequential(nn.ReLU(), nn.Tanh()).named_modules()]
            ['', '0', '1']
        """
        memo = set() if memo is None else memo
        waiting = [(prefix, self)]  # a stack, as each level of a recursion would pass up all that lies below it
        while waiting:
            path, module = waiting.pop()
            if module in memo:
                continue
            if remove_duplicate:
                memo.add(module)
            yield path, module
            below = [(_join(path, name), part) for name, part in module._modules.items() if part is not None]
            waiting += reversed(below)

    def apply(self, fn: Callable[[Module], None]) -> Self:
        """Call fn on every submodule, then on the module itself; returns the module.

        Args:
            fn: called for its effect.

        Example:
            >>> net = nn.Linear(2, 1).apply(lambda module: nn.init.zeros_(module.weight))
            >>> net.weight.tolist()
            [[0.0, 0.0]]
        """
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # --- modes and state ---------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Put the module and all its submodules into training mode (batch statistics, dropout), or out of it.

        Args:
            mode: False for evaluation.
        Raises: DTypeError: mode is not a bool.

        Example:
            >>> net = nn.Sequential(nn.Dropout(0.5)).eval()
            >>> net[0].training, net.train()[0].training
            (False, True)
        """
        if not isinstance(mode, bool):
            raise DTypeError(describe("train", "mode", "a bool", type(mode).__name__))
        self.__dict__["training"] = mode  # past __setattr__: networks have hundreds of modules
        for module in self._modules.values():
            if module is not None:
                module.train(mode)
        return self

    def eval(self) -> Self:
        """Switch to evaluation mode: train(False). See `nn.Module.train`."""
        return self.train(False)

    def compile(self, *args: object, **kwargs: object) -> None:
        """Nothing: calls run eagerly, as before. `genesis.compile(module)` gives a callable that replays recordings.

        Args:
            args, kwargs: PyTorch's; not used.

        Example:
            >>> layer = nn.ReLU()
            >>> layer.compile()
            >>> layer(genesis.ones(1)).tolist()
            [1.0]
        """

    def _get_name(self) -> str:
        return type(self).__name__

    def _named_parts(self) -> Mapping[str, object]:
        return self._modules


def _members(modules: Iterable[Module], registry: Registry[Member]) -> Iterator[Member]:
    """The entries of a registry of each module, each once."""
    seen = set()
    for module in modules:
        for member in registry(module).values():
            if member is not None and id(member) not in seen:
                seen.add(id(member))
                yield member


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _check_name(op: str, name: object) -> None:
    if not isinstance(name, str):
        raise DTypeError(describe(op, "name", "a str", type(name).__name__))
    if not name or "." in name:
        raise KeyError(describe(op, "name", "a name without dots", repr(name)))
