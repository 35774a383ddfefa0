"""Methods of pruning: which elements of a parameter a mask leaves, and the pre-hook that applies it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from genesis import functional as F
from genesis.autograd import no_grad
from genesis.creation_like import ones_like, zeros_like
from genesis.errors import DTypeError, ShapeError, describe
from genesis.nn.hooks import ForwardPreHook
from genesis.nn.module import Module
from genesis.random import rand, rand_like
from genesis.tensor import Tensor

Amount = int | float


class BasePruningMethod(ABC):
    """A forward pre-hook that computes parameter = parameter_orig · parameter_mask; subclasses give the mask.

    Example:
        >>> class Negative(nn.utils.prune.BasePruningMethod):
        ...     PRUNING_TYPE = "unstructured"
        ...     def compute_mask(self, t, default_mask):
        ...         return default_mask * (t > 0)
        >>> layer = nn.Linear(1, 2)
        >>> _ = layer.weight.data.copy_(genesis.tensor([[1.0], [-1.0]]))
        >>> method = Negative.apply(layer, "weight")
        >>> layer.weight_mask.tolist()
        [[1.0], [0.0]]
    """

    PRUNING_TYPE: ClassVar[str] = "unstructured"  # or "structured", with an attribute dim, or "global"
    _tensor_name: str = ""

    def __call__(self, module: Module, inputs: object) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask: ones where elements stay.

        Args:
            t: what tells which elements matter.
            default_mask: the mask until now, in t's shape.
        Returns: the shape of t.
        """

    def apply_mask(self, module: Module) -> Tensor:
        """The pruned tensor.

        Args:
            module: was pruned by this method.
        Returns: the original parameter, times the mask.
        """
        original, mask = (getattr(module, f"{self._tensor_name}_{part}") for part in ("orig", "mask"))
        pruned: Tensor = mask.to(original.dtype) * original
        return pruned

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: object, importance_scores: Tensor | None = None, **kwargs: object
    ) -> BasePruningMethod:
        """Prune a parameter, on top of what has been pruned of it before.

        Args:
            module: has the parameter; name_orig and the buffer name_mask replace it.
            name: of the parameter.
            importance_scores: tell which elements matter, instead of the parameter's values; in its shape.
            args, kwargs: of the method.
        Returns: the hook: the method, or a PruningContainer of all methods so far.
        Raises: ShapeError: importance_scores have another shape. AttributeError: there is no such parameter.
        """
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        values = getattr(module, name)
        scores = values if importance_scores is None else importance_scores
        if scores.shape != values.shape:
            raise ShapeError(describe("prune", "importance_scores", f"shape {values.shape}, as {name}", scores.shape))
        older = hook_of(module, name)
        mask = ones_like(values.detach()) if older is None else getattr(module, f"{name}_mask").detach().clone()
        combined = method if older is None else PruningContainer(*_methods_of(older), method)
        with no_grad():
            mask = combined.compute_mask(scores.detach(), default_mask=mask)
        if older is None:  # only now, so that a refused call leaves the module as it was
            del module._parameters[name]
            module.register_parameter(f"{name}_orig", values)
        else:
            unhook(module, older)
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, combined.apply_mask(module))
        module.register_forward_pre_hook(combined)
        return combined

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """A pruned copy of a tensor.

        Args:
            t: any shape.
            default_mask: what has been pruned before.
            importance_scores: instead of t's values.
        Returns: the shape of t.
        Raises: ShapeError: importance_scores have another shape.
        """
        scores = t if importance_scores is None else importance_scores
        if scores.shape != t.shape:
            raise ShapeError(describe("prune", "importance_scores", f"shape {t.shape}", scores.shape))
        mask = ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(scores, default_mask=mask)

    def remove(self, module: Module) -> None:
        """Make the pruned values those of the parameter, and leave out original and mask.

        Args:
            module: was pruned by this method.
        """
        name = self._tensor_name
        pruned = self.apply_mask(module).detach()
        original = module._parameters.pop(f"{name}_orig")
        assert original is not None, "apply has registered it"
        module.__dict__.pop(name, None)
        original.data = pruned
        del module._buffers[f"{name}_mask"]
        module.register_parameter(name, original)


class PruningContainer(BasePruningMethod):
    """Several methods of pruning, each of which sees what the ones before it have left.

    Args:
        methods: that prune the same parameter, the first one first.
    Raises: DTypeError: something else than a method. ValueError: a method of another parameter.

    Example:
        >>> layer = nn.utils.prune.l1_unstructured(nn.Linear(4, 1), "weight", 1)
        >>> layer = nn.utils.prune.l1_unstructured(layer, "weight", 1)
        >>> layer.weight_mask.sum().item()
        2.0
    """

    def __init__(self, *methods: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if methods:
            self._tensor_name = methods[0]._tensor_name
        for method in methods:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Add a method that comes after the others.

        Args:
            method: prunes the same parameter.
        Raises: DTypeError: no method. ValueError: a method of another parameter.
        """
        if not isinstance(method, BasePruningMethod):
            kind = type(method).__name__
            raise DTypeError(describe("add_pruning_method", "method", "a BasePruningMethod", kind))
        if method._tensor_name != self._tensor_name:
            expected = f"one of {self._tensor_name!r}, as the others"
            raise ValueError(describe("add_pruning_method", "method", expected, f"one of {method._tensor_name!r}"))
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: int) -> BasePruningMethod:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Apply the last method to what the ones before it have left. See `nn.utils.prune.BasePruningMethod`."""
        method, mask = self._pruning_methods[-1], default_mask.to(t.dtype)
        if method.PRUNING_TYPE == "global":
            return method.compute_mask(t, default_mask=mask).to(t.dtype)
        if method.PRUNING_TYPE == "unstructured":
            kept = (mask == 1).reshape(-1).nonzero().reshape(-1)
            part = method.compute_mask(t.reshape(-1)[kept], default_mask=mask.reshape(-1)[kept])
            return mask.reshape(-1).index_copy(0, kept, part.to(t.dtype)).reshape(t.shape)
        if method.PRUNING_TYPE != "structured":
            expected = '"unstructured", "structured" or "global"'
            raise ValueError(describe(type(method).__name__, "PRUNING_TYPE", expected, repr(method.PRUNING_TYPE)))
        dim = _dimension(t, getattr(method, "dim", None))
        others = [other for other in range(t.ndim) if other != dim]
        kept = (mask.sum(others) != 0).nonzero().reshape(-1)
        part = method.compute_mask(t.index_select(dim, kept), default_mask=mask.index_select(dim, kept))
        return mask.index_copy(dim, kept, part.to(t.dtype))


class Identity(BasePruningMethod):
    """Prune nothing: parameter, original and mask are there as if something had been pruned.

    Example:
        >>> nn.utils.prune.Identity.apply(nn.Linear(2, 1), "weight").PRUNING_TYPE
        'unstructured'
    """

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask until now. See `nn.utils.prune.BasePruningMethod`."""
        return default_mask


class CustomFromMask(BasePruningMethod):
    """Prune by a mask that is known.

    Args:
        mask: the parameter's shape; zeros prune.

    Example:
        >>> method = nn.utils.prune.CustomFromMask(genesis.tensor([1, 0]))
        >>> method.prune(genesis.tensor([3.0, 4.0])).tolist()
        [3.0, 0.0]
    """

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Both masks. See `nn.utils.prune.BasePruningMethod`."""
        if self.mask.shape != default_mask.shape:
            raise ShapeError(describe("custom_from_mask", "mask", f"shape {default_mask.shape}", self.mask.shape))
        return default_mask * self.mask.to(default_mask.dtype)


class _ByAmount(BasePruningMethod):
    def __init__(self, amount: Amount) -> None:
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise DTypeError(describe("prune", "amount", "an int or a float", type(amount).__name__))
        if amount < 0 or (isinstance(amount, float) and not amount <= 1):
            raise ValueError(describe("prune", "amount", "a float in [0, 1] or an int from 0 on", amount))
        self.amount = amount

    def _count(self, size: int) -> int:
        """How many of so many are pruned."""
        count = self.amount if isinstance(self.amount, int) else round(self.amount * size)
        if count > size:
            raise ValueError(describe("prune", "amount", f"at most {size}, which there are", count))
        return count

    def _without_least(self, scores: Tensor, mask: Tensor) -> Tensor:
        count = self._count(scores.numel())
        if not count:
            return mask
        places = F.topk(scores.reshape(-1), count, largest=False)[1]
        return mask.clone().reshape(-1).index_fill(0, places, 0).reshape(mask.shape)


class RandomUnstructured(_ByAmount):
    """Prune random elements.

    Args:
        amount: how many, or as a float which share of them.
    Raises: DTypeError: no number. ValueError: a negative number, or a share above 1.

    Example:
        >>> nn.utils.prune.RandomUnstructured(3).prune(genesis.ones(8)).sum().item()
        5.0
    """

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Zeros at random places. See `nn.utils.prune.BasePruningMethod`."""
        return self._without_least(rand_like(t), default_mask)


class L1Unstructured(_ByAmount):
    """Prune the elements of least magnitude.

    Args:
        amount: as in `nn.utils.prune.RandomUnstructured`.

    Example:
        >>> nn.utils.prune.L1Unstructured(0.5).prune(genesis.tensor([1.0, -3.0, 2.0, 0.5])).tolist()
        [0.0, -3.0, 2.0, 0.0]
    """

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Zeros where |t| is least. See `nn.utils.prune.BasePruningMethod`."""
        return self._without_least(t.abs(), default_mask)


class _Structured(_ByAmount):
    PRUNING_TYPE = "structured"
    dim: int

    def _with_largest(self, t: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """The mask with the channels of largest scores."""
        count = self._count(scores.numel())
        if not count:
            return mask
        places = F.topk(scores, scores.numel() - count)[1]
        return zeros_like(t).index_fill(_dimension(t, self.dim), places, 1) * mask.to(t.dtype)


class RandomStructured(_Structured):
    """Prune random channels.

    Args:
        amount: how many channels, or which share of them.
        dim: the dimension of the channels.

    Example:
        >>> nn.utils.prune.RandomStructured(1, dim=0).prune(genesis.ones(3, 2)).sum().item()
        4.0
    """

    def __init__(self, amount: Amount, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Zeros in random channels. See `nn.utils.prune.BasePruningMethod`."""
        return self._with_largest(t, rand(t.shape[_dimension(t, self.dim)], device=t.device), default_mask)


class LnStructured(_Structured):
    """Prune the channels of least norm.

    Args:
        amount, dim: as in `nn.utils.prune.RandomStructured`.
        n: which norm, such as 1, 2 or float("inf").

    Example:
        >>> nn.utils.prune.LnStructured(1, n=2, dim=0).prune(genesis.tensor([[1.0, 1.0], [3.0, 0.0]])).tolist()
        [[0.0, 0.0], [3.0, 0.0]]
    """

    def __init__(self, amount: Amount, n: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.n, self.dim = n, dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Zeros in the channels whose norm is least. See `nn.utils.prune.BasePruningMethod`."""
        dim = _dimension(t, self.dim)
        return self._with_largest(
            t, F.norm(t, self.n, [other for other in range(t.ndim) if other != dim]), default_mask
        )


def _dimension(t: Tensor, dim: int | None) -> int:
    if dim is None:
        raise ValueError(describe("prune", "method", "an attribute dim, as it is structured", "none"))
    if t.ndim < 2:
        raise ShapeError(describe("prune", "t", "at least 2 dimensions, to prune channels", f"shape {t.shape}"))
    if not -t.ndim <= dim < t.ndim:
        raise IndexError(describe("prune", "dim", f"a dimension of {t.ndim}", dim))
    return dim % t.ndim


def _methods_of(hook: BasePruningMethod) -> tuple[BasePruningMethod, ...]:
    return tuple(hook) if isinstance(hook, PruningContainer) else (hook,)


def hook_of(module: Module, name: str | None = None) -> BasePruningMethod | None:
    """The hook that prunes a parameter.

    Args:
        module: any.
        name: of the parameter; None: of any.
    Returns: the hook, or None.
    """
    for hook in module._forward_pre_hooks:
        if isinstance(hook, ForwardPreHook) and isinstance(hook.function, BasePruningMethod):
            method = hook.function
            if name in (None, method._tensor_name):
                return method
    return None


def unhook(module: Module, method: BasePruningMethod) -> None:
    """Remove a hook that prunes.

    Args:
        module: was pruned.
        method: by this one.
    """
    hooks = module._forward_pre_hooks
    hooks[:] = [hook for hook in hooks if not (isinstance(hook, ForwardPreHook) and hook.function is method)]
