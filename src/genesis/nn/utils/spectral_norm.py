"""Spectral norm by a hook, PyTorch's older form: before each forward, a weight is divided by its spectral norm."""

from __future__ import annotations

from typing import TypeVar

from genesis import functional as F
from genesis.autograd import no_grad
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.nn.modules.conv import ConvTranspose1d, ConvTranspose2d
from genesis.nn.parameter import Parameter
from genesis.nn.utils.weight_norm import hook_of
from genesis.random import randn
from genesis.tensor import Tensor

M = TypeVar("M", bound=Module)


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """The weight as a matrix with a row for each entry of dim.

    Args:
        weight: any shape.
        dim: a dimension of it.
    Returns: (size of dim, rest).
    """
    moved = F.movedim(weight, dim, 0) if dim else weight
    return F.reshape(moved, (moved.shape[0], -1))


def first_vectors(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Random vectors of length 1, which the power iteration begins with.

    Args:
        matrix: (H, W).
        eps: least divisor.
    Returns: (H,) and (W,).
    """
    u, v = (randn(size, dtype=matrix.dtype, device=matrix.device) for size in matrix.shape)
    return F.normalize(u, dim=0, eps=eps), F.normalize(v, dim=0, eps=eps)


class SpectralNorm:
    """The pre-hook of a module with spectral norm. Made by `nn.utils.spectral_norm`."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        self.name, self.n_power_iterations, self.dim, self.eps = name, n_power_iterations, dim, eps

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """The weight divided by its largest singular value, after power iterations if asked.
        See `nn.utils.spectral_norm`.
        """
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(F.matmul(matrix.t(), u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(F.matmul(matrix, v), dim=0, eps=self.eps))
                u, v = u.clone(), v.clone()  # the next iteration changes them in place, before backward perhaps
        return weight / (u * F.matmul(matrix, v)).sum()

    def __call__(self, module: Module, args: object) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


def spectral_norm(
    module: M, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> M:
    """Divide a weight by its largest singular value, estimated by power iteration in each training forward.

    `nn.utils.parametrizations` has the newer form.

    Args:
        module: has the parameter; a parameter name_orig and buffers name_u and name_v replace it.
        name: of the parameter.
        n_power_iterations: per forward, at least 1.
        eps: least divisor of the vectors.
        dim: the dimension of the outputs; None: 1 in transposed convolutions, else 0.
    Returns: module.
    Raises: ValueError: n_power_iterations is not positive. RuntimeError: the parameter has spectral norm already.
    Source: Miyato et al. 2018, arXiv:1802.05957.

    Example:
        >>> layer = nn.utils.spectral_norm(nn.Linear(3, 2))
        >>> sorted(layer.state_dict())
        ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    if n_power_iterations < 1:
        raise ValueError(describe("spectral_norm", "n_power_iterations", "a positive number", n_power_iterations))
    if hook_of(module, SpectralNorm, name) is not None:
        raise RuntimeError(describe("spectral_norm", "name", "a parameter without spectral norm", repr(name)))
    if dim is None:
        dim = 1 if isinstance(module, ConvTranspose1d | ConvTranspose2d) else 0
    function = SpectralNorm(name, n_power_iterations, dim, eps)
    weight = module._parameters[name]
    assert weight is not None
    u, v = first_vectors(as_matrix(weight.detach(), dim), eps)
    del module._parameters[name]
    module.register_parameter(f"{name}_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module.register_forward_pre_hook(function)
    return module


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Undo spectral_norm: the weight, divided by its largest singular value, is a parameter again.

    Args:
        module: has spectral norm.
        name: of the parameter.
    Returns: module.
    Raises: ValueError: the parameter has no spectral norm.

    Example:
        >>> layer = nn.utils.remove_spectral_norm(nn.utils.spectral_norm(nn.Linear(3, 2)))
        >>> sorted(layer.state_dict())
        ['bias', 'weight']
    """
    hook = hook_of(module, SpectralNorm, name)
    if hook is None:
        raise ValueError(describe("remove_spectral_norm", "name", "a parameter with spectral norm", repr(name)))
    function = hook.function
    assert isinstance(function, SpectralNorm)
    weight = function.compute_weight(module, do_power_iteration=False).detach()
    module._forward_pre_hooks.remove(hook)
    for part in (name, f"{name}_u", f"{name}_v", f"{name}_orig"):
        delattr(module, part)
    module.register_parameter(name, Parameter(weight))
    return module
