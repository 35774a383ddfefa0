"""Parametrizations: a parameter that is computed by modules from other parameters, whenever it is read.

The class of a parametrized module becomes a subclass of its own, which has a property in the parameter's place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from genesis.autograd import no_grad
from genesis.errors import DTypeError, ShapeError, describe
from genesis.nn.module import Module
from genesis.nn.modules.container import ModuleDict, ModuleList
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

M = TypeVar("M", bound=Module)

_PREFIX = "Parametrized"


class _Cache:
    """Values of parametrized tensors inside of cached(), by module and name."""

    depth = 0
    values: dict[tuple[int, str], Tensor] = {}


@contextmanager
def cached() -> Iterator[None]:
    """Inside, each parametrized tensor is computed once.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        >>> with nn.utils.parametrize.cached():
        ...     layer.weight is layer.weight
        True
    """
    _Cache.depth += 1
    try:
        yield
    finally:
        _Cache.depth -= 1
        if not _Cache.depth:
            _Cache.values.clear()


class ParametrizationList(ModuleList[Module]):
    """The parametrizations of one tensor, and what it is computed from: `original`, or `original0`, `original1`, …

    Args:
        modules: applied one after the other.
        original: the parameter or buffer, of any shape; the modules' right_inverse, if they have one, gives what to
            keep of it.
        unsafe: whether shape and dtype may change.
    Raises: ValueError: no modules.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        >>> [name for name, _ in layer.parametrizations.weight.named_parameters()]
        ['original0', 'original1']
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError(describe("ParametrizationList", "modules", "at least one", "none"))
        super().__init__(modules)
        self.unsafe = unsafe
        kept: Tensor | Sequence[Tensor] = original
        with no_grad():
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    kept = module.right_inverse(kept)
        self.is_tensor = isinstance(kept, Tensor)
        self.ntensors = 1 if isinstance(kept, Tensor) else len(kept)
        if isinstance(kept, Tensor):
            if kept is not original:
                original.data = kept.detach()
            _register(self, "original", original)
        else:
            for index, part in enumerate(kept):
                learned = isinstance(original, Parameter)
                _register(self, f"original{index}", Parameter(part, original.requires_grad) if learned else part)

    def right_inverse(self, value: Tensor) -> None:
        """Set what the tensor is computed from, so that the tensor gets this value.

        Args:
            value: the shape of the tensor.
        Raises: RuntimeError: a parametrization has no right_inverse.
        """
        kept: Tensor | Sequence[Tensor] = value
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"{type(module).__name__} has no right_inverse, which setting a value needs")
                kept = module.right_inverse(kept)
            parts = [kept] if isinstance(kept, Tensor) else list(kept)
            if len(parts) != self.ntensors:
                raise ValueError(describe("right_inverse", "value", f"{self.ntensors} tensors", len(parts)))
            for own, part in zip(self._originals(), parts, strict=True):
                own.data = part.detach().to(own.dtype)

    def _originals(self) -> list[Tensor]:
        names = ["original"] if self.is_tensor else [f"original{index}" for index in range(self.ntensors)]
        return [getattr(self, name) for name in names]

    def forward(self) -> Tensor:
        first, *others = self
        value = first(*self._originals())
        for module in others:
            value = module(value)
        return cast(Tensor, value)


def register_parametrization(module: M, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> M:
    """Compute a parameter or buffer by a module, from what it was, whenever it is read.

    Args:
        module: has the tensor; a further parametrization is applied after those that there are.
        tensor_name: of a parameter or buffer.
        parametrization: its forward gives the tensor; its right_inverse, if it has one, what to compute it from.
        unsafe: don't check that shape and dtype stay as they are.
    Returns: module.
    Raises: ValueError: there is no such tensor. ShapeError, DTypeError: shape or dtype would change.

    Example:
        >>> class Symmetric(nn.Module):
        ...     def forward(self, x):
        ...         return x.triu() + x.triu(1).transpose(-1, -2)
        >>> layer = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
        >>> bool((layer.weight == layer.weight.t()).all())
        True
    """
    op = "register_parametrization"
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        chain = module.parametrizations[tensor_name]
        if not unsafe:
            before = getattr(module, tensor_name)
            _check_fits(op, parametrization(before), before)
        chain.append(parametrization)
        chain.unsafe |= unsafe
        return module
    registry = module._parameters if tensor_name in module._parameters else module._buffers
    original = registry.get(tensor_name)
    if original is None:
        raise ValueError(describe(op, "tensor_name", "a parameter or buffer of the module", repr(tensor_name)))
    if not unsafe:
        with no_grad():
            kept = parametrization.right_inverse(original) if hasattr(parametrization, "right_inverse") else original
            value = parametrization(*kept) if isinstance(kept, tuple | list) else parametrization(kept)
            _check_fits(op, value, original)
    chain = ParametrizationList([parametrization], original, unsafe)
    del registry[tensor_name]
    if not is_parametrized(module):
        _give_own_class(module)
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = chain
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has parametrizations, or one for this tensor.

    Args:
        module: any.
        tensor_name: of a parameter or buffer; None: any.

    Example:
        >>> nn.utils.parametrize.is_parametrized(nn.Linear(1, 1))
        False
    """
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(module: M, tensor_name: str, leave_parametrized: bool = True) -> M:
    """Make a parametrized tensor a parameter or buffer again.

    Args:
        module: has the parametrized tensor.
        tensor_name: its name.
        leave_parametrized: keep its computed value; False: what it is computed from, if that is one tensor.
    Returns: module.
    Raises: ValueError: the tensor is not parametrized, or is computed from several.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        >>> layer = nn.utils.parametrize.remove_parametrizations(layer, "weight")
        >>> sorted(name for name, _ in layer.named_parameters()), type(layer).__name__
        (['bias', 'weight'], 'Linear')
    """
    op = "remove_parametrizations"
    if not is_parametrized(module, tensor_name):
        raise ValueError(describe(op, "tensor_name", "a parametrized tensor", repr(tensor_name)))
    chain = module.parametrizations[tensor_name]
    if not leave_parametrized and not chain.is_tensor:
        raise ValueError(describe(op, "leave_parametrized", "True, as the tensor is computed from several", False))
    original = chain._originals()[0]
    result = original
    if leave_parametrized:
        with no_grad():
            value = getattr(module, tensor_name).detach()
        if chain.is_tensor:
            original.data = value
        else:
            result = Parameter(value, original.requires_grad) if isinstance(original, Parameter) else value
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, result)
    if not is_parametrized(module):
        del module.parametrizations
        object.__setattr__(module, "__class__", type(module).__bases__[0])
    return module


def type_before_parametrizations(module: Module) -> type[Module]:
    """The class that a module has without its parametrizations.

    Args:
        module: any.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        >>> nn.utils.parametrize.type_before_parametrizations(layer).__name__
        'Linear'
    """
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(from_module: Module, to_module: M, tensor_name: str | None = None) -> M:
    """Give a module copies of another one's parametrizations, and of what the tensors are computed from.

    Args:
        from_module: has parametrizations.
        to_module: gets them.
        tensor_name: of the tensor; None: all.
    Returns: to_module.
    Raises: ValueError: from_module has no such parametrization.

    Example:
        >>> first = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        >>> second = nn.utils.parametrize.transfer_parametrizations_and_params(first, nn.Linear(3, 2))
        >>> bool((first.weight == second.weight).all())
        True
    """
    if not is_parametrized(from_module, tensor_name):
        expected = "a module with this parametrization"
        raise ValueError(describe("transfer_parametrizations_and_params", "from_module", expected, repr(tensor_name)))
    for name in list(from_module.parametrizations) if tensor_name is None else [tensor_name]:
        chain = copy.deepcopy(from_module.parametrizations[name])
        if is_parametrized(to_module, name):
            to_module.parametrizations[name] = chain
            continue
        to_module._parameters.pop(name, None)
        to_module._buffers.pop(name, None)
        if not is_parametrized(to_module):
            _give_own_class(to_module)
            to_module.parametrizations = ModuleDict()
        setattr(type(to_module), name, _property(name))
        to_module.parametrizations[name] = chain
    return to_module


def _check_fits(op: str, value: object, original: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise DTypeError(describe(op, "parametrization", "a module that gives a Tensor", type(value).__name__))
    if value.dtype is not original.dtype:
        expected = f"results of {original.dtype}; unsafe=True allows others"
        raise DTypeError(describe(op, "parametrization", expected, value.dtype))
    if value.shape != original.shape:
        expected = f"results of shape {original.shape}; unsafe=True allows others"
        raise ShapeError(describe(op, "parametrization", expected, value.shape))


def _register(module: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _property(name: str) -> property:
    def read(module: Module) -> Tensor:
        chain = module.parametrizations[name]
        if not _Cache.depth:
            return cast(Tensor, chain())
        key = (id(module), name)
        if key not in _Cache.values:
            _Cache.values[key] = chain()
        return _Cache.values[key]

    def write(module: Module, value: Tensor) -> None:
        module.parametrizations[name].right_inverse(value)

    return property(read, write)


def _give_own_class(module: Module) -> None:
    """Make the module's class a subclass that only it has."""
    base = type(module)

    def refuse_pickling(self: Module) -> dict[str, object]:
        raise RuntimeError("a parametrized module cannot be pickled: save its state_dict")

    def copied(self: Module, memo: dict[int, object]) -> Module:
        twin = base.__new__(base)
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        _give_own_class(twin)
        for name in self.parametrizations:
            setattr(type(twin), name, _property(name))
        return twin

    namespace = {"__getstate__": refuse_pickling, "__deepcopy__": copied, "__module__": base.__module__}
    object.__setattr__(module, "__class__", type(f"{_PREFIX}{base.__name__}", (base,), namespace))
