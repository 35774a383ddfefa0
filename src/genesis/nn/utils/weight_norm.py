"""Weight norm by a hook, PyTorch's older form: a weight is recomputed from length and direction before each forward."""

from __future__ import annotations

from typing import Protocol, TypeVar

from genesis import functional as F
from genesis.errors import describe
from genesis.nn.hooks import ForwardPreHook
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

M = TypeVar("M", bound=Module)


class OfParameter(Protocol):
    """A pre-hook's function that computes the parameter of this name."""

    name: str


def norm_except_dim(v: Tensor, dim: int | None) -> Tensor:
    """The norm over all dimensions but dim, which are kept with size 1; over all where dim is −1 or None.

    Args:
        v: any shape, a floating dtype.
        dim: a dimension, −1 or None.
    Returns: () or (1, …, size of dim, …, 1).
    """
    if dim is None or dim == -1:
        return F.norm(v)
    others = [other for other in range(v.ndim) if other != dim % v.ndim]
    return F.norm(v, dim=others, keepdim=True) if others else v.abs()


def weight_of(v: Tensor, g: Tensor, dim: int | None) -> Tensor:
    """g · v / ‖v‖.

    Args:
        v: the direction, any shape.
        g: the length, as norm_except_dim gives it.
        dim: as in norm_except_dim.
    Returns: the shape of v.
    """
    return v * (g / norm_except_dim(v, dim))


class WeightNorm:
    """The pre-hook of a module with weight norm. Made by `nn.utils.weight_norm`."""

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def compute_weight(self, module: Module) -> Tensor:
        """The weight, from the parameters of the moment. See `nn.utils.weight_norm`."""
        return weight_of(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)

    def __call__(self, module: Module, args: object) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Learn length and direction of a weight apart: w = g · v / ‖v‖. `nn.utils.parametrizations` has the newer form.

    Args:
        module: has the parameter; parameters name_g and name_v replace it.
        name: of the parameter.
        dim: the dimension that keeps lengths of its own; None: one length for the whole weight.
    Returns: module.
    Raises: RuntimeError: the parameter has weight norm already.
    Source: Salimans & Kingma 2016, arXiv:1602.07868.

    Example:
        >>> layer = nn.utils.weight_norm(nn.Linear(3, 2))
        >>> sorted(name for name, _ in layer.named_parameters())
        ['bias', 'weight_g', 'weight_v']
    """
    if hook_of(module, WeightNorm, name) is not None:
        raise RuntimeError(describe("weight_norm", "name", "a parameter without weight norm", repr(name)))
    function = WeightNorm(name, -1 if dim is None else dim)
    weight = getattr(module, name).detach()
    del module._parameters[name]
    module.register_parameter(f"{name}_g", Parameter(norm_except_dim(weight, dim).clone()))
    module.register_parameter(f"{name}_v", Parameter(weight))
    setattr(module, name, function.compute_weight(module))
    module.register_forward_pre_hook(function)
    return module


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Undo weight_norm: the weight is a parameter again.

    Args:
        module: has weight norm.
        name: of the parameter.
    Returns: module.
    Raises: ValueError: the parameter has no weight norm.

    Example:
        >>> layer = nn.utils.remove_weight_norm(nn.utils.weight_norm(nn.Linear(3, 2)))
        >>> sorted(name for name, _ in layer.named_parameters())
        ['bias', 'weight']
    """
    hook = hook_of(module, WeightNorm, name)
    if hook is None:
        raise ValueError(describe("remove_weight_norm", "name", "a parameter with weight norm", repr(name)))
    function = hook.function
    assert isinstance(function, WeightNorm)
    weight = function.compute_weight(module).detach()
    module._forward_pre_hooks.remove(hook)
    delattr(module, name)
    del module._parameters[f"{name}_g"], module._parameters[f"{name}_v"]
    setattr(module, name, Parameter(weight))
    return module


def hook_of(module: Module, kind: type[OfParameter], name: str) -> ForwardPreHook | None:
    """The pre-hook of a module whose function is of this kind and for the parameter of this name.

    Args:
        module: any.
        kind: the class of the function.
        name: of the parameter.
    Returns: the hook, or None.
    """
    for hook in module._forward_pre_hooks:
        if isinstance(hook, ForwardPreHook) and isinstance(hook.function, kind) and hook.function.name == name:
            return hook
    return None
