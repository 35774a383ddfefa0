"""Pruning: parameters that are zero where a mask is, from one call or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from genesis.autograd import no_grad
from genesis.creation_like import ones_like
from genesis.errors import DTypeError, describe
from genesis.nn.module import Module
from genesis.nn.utils import pruning
from genesis.nn.utils.convert_parameters import parameters_to_vector
from genesis.nn.utils.pruning import Amount as _Amount
from genesis.nn.utils.pruning import BasePruningMethod as BasePruningMethod
from genesis.nn.utils.pruning import CustomFromMask as CustomFromMask
from genesis.nn.utils.pruning import Identity as Identity
from genesis.nn.utils.pruning import L1Unstructured as L1Unstructured
from genesis.nn.utils.pruning import LnStructured as LnStructured
from genesis.nn.utils.pruning import PruningContainer as PruningContainer
from genesis.nn.utils.pruning import RandomStructured as RandomStructured
from genesis.nn.utils.pruning import RandomUnstructured as RandomUnstructured
from genesis.tensor import Tensor

M = TypeVar("M", bound=Module)


def identity(module: M, name: str) -> M:
    """Prune nothing. See `nn.utils.prune.Identity`."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: M, name: str, amount: _Amount) -> M:
    """Prune random elements of a parameter.

    Args:
        module: has the parameter; name_orig and the buffer name_mask replace it, and name is their product.
        name: of the parameter.
        amount: how many elements, or as a float which share of them.
    Returns: module.
    Raises: ValueError: more elements than there are.

    Example:
        >>> nn.utils.prune.random_unstructured(nn.Linear(4, 2), "weight", 0.25).weight_mask.sum().item()
        6.0
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: M, name: str, amount: _Amount, importance_scores: Tensor | None = None) -> M:
    """Prune the elements of least magnitude.

    Args:
        module, name, amount: as in `nn.utils.prune.random_unstructured`.
        importance_scores: the parameter's shape; count instead of its values.
    Returns: module.
    Raises: ShapeError: importance_scores have another shape.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.data.copy_(genesis.tensor([[1.0, -2.0]]))
        >>> nn.utils.prune.l1_unstructured(layer, "weight", 1).weight.tolist()
        [[0.0, -2.0]]
    """
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module: M, name: str, amount: _Amount, dim: int) -> M:
    """Prune random channels.

    Args:
        module, name: as in `nn.utils.prune.random_unstructured`.
        amount: how many channels, or which share of them.
        dim: the dimension of the channels.
    Returns: module.
    Raises: ShapeError: a parameter of one dimension. IndexError: no such dimension.

    Example:
        >>> nn.utils.prune.random_structured(nn.Linear(4, 2), "weight", 1, dim=0).weight_mask.sum().item()
        4.0
    """
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: M, name: str, amount: _Amount, n: float, dim: int, importance_scores: Tensor | None = None
) -> M:  # fmt: skip
    """Prune the channels of least norm.

    Args:
        module, name, amount, dim: as in `nn.utils.prune.random_structured`.
        n: which norm.
        importance_scores: as in `nn.utils.prune.l1_unstructured`.
    Returns: module.

    Example:
        >>> layer = nn.Linear(1, 2)
        >>> _ = layer.weight.data.copy_(genesis.tensor([[1.0], [-2.0]]))
        >>> nn.utils.prune.ln_structured(layer, "weight", 1, n=1, dim=0).weight.tolist()
        [[0.0], [-2.0]]
    """
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: M, name: str, mask: Tensor) -> M:
    """Prune by a mask that is known.

    Args:
        module, name: as in `nn.utils.prune.random_unstructured`.
        mask: the parameter's shape; zeros prune.
    Returns: module.
    Raises: ShapeError: the mask has another shape.

    Example:
        >>> nn.utils.prune.custom_from_mask(nn.Linear(2, 2), "bias", genesis.tensor([0, 1])).bias_mask.tolist()
        [0.0, 1.0]
    """
    CustomFromMask.apply(module, name, mask)
    return module


@no_grad()
def global_unstructured(
    parameters: Iterable[tuple[Module, str]], pruning_method: type[BasePruningMethod],
    importance_scores: Mapping[tuple[Module, str], Tensor] | None = None, **kwargs: object,
) -> None:  # fmt: skip
    """Prune elements of several parameters, which are compared with each other.

    Args:
        parameters: (module, name of a parameter).
        pruning_method: unstructured, such as L1Unstructured.
        importance_scores: for some of the parameters.
        kwargs: of the method, such as amount.
    Raises: DTypeError: a method of another kind.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        >>> weights = [(layer, "weight") for layer in net]
        >>> nn.utils.prune.global_unstructured(weights, nn.utils.prune.L1Unstructured, amount=10)
        >>> sum((layer.weight == 0).sum().item() for layer in net)
        10
    """
    parameters, scores = list(parameters), importance_scores or {}
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise DTypeError(describe("global_unstructured", "pruning_method", "an unstructured one", method.PRUNING_TYPE))
    tensors = [getattr(module, name) for module, name in parameters]
    before = [
        getattr(module, f"{name}_mask", ones_like(tensor))
        for (module, name), tensor in zip(parameters, tensors, strict=True)
    ]
    known = [scores.get(place, tensor) for place, tensor in zip(parameters, tensors, strict=True)]
    mask = PruningContainer(method).compute_mask(parameters_to_vector(known), parameters_to_vector(before))
    parts = mask.split([tensor.numel() for tensor in tensors])
    for (module, name), part, tensor in zip(parameters, parts, tensors, strict=True):
        CustomFromMask.apply(module, name, part.reshape(tensor.shape).clone())


def remove(module: M, name: str) -> M:
    """Make what has been pruned final: the parameter has the pruned values, and original and mask are gone.

    Args:
        module: was pruned.
        name: of the parameter.
    Returns: module.
    Raises: ValueError: it was not pruned.

    Example:
        >>> layer = nn.utils.prune.l1_unstructured(nn.Linear(4, 2), "weight", 0.5)
        >>> list(nn.utils.prune.remove(layer, "weight").state_dict())
        ['bias', 'weight']
    """
    hook = pruning.hook_of(module, name)
    if hook is None:
        raise ValueError(describe("remove", "name", "a parameter that was pruned", repr(name)))
    pruning.unhook(module, hook)
    hook.remove(module)
    return module


def is_pruned(module: Module) -> bool:
    """Whether a parameter of a module, or of one below it, is pruned.

    Args:
        module: any.

    Example:
        >>> nn.utils.prune.is_pruned(nn.Linear(2, 2))
        False
    """
    return any(pruning.hook_of(each) is not None for each in module.modules())
