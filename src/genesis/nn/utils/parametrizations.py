"""The parametrizations that PyTorch has: weight norm, spectral norm and orthogonal matrices."""

from __future__ import annotations

from typing import TypeVar

from genesis import functional as F
from genesis.autograd import no_grad
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.nn.modules.conv import ConvTranspose1d, ConvTranspose2d
from genesis.nn.utils.orthogonal import orthogonal as orthogonal
from genesis.nn.utils.parametrize import register_parametrization
from genesis.nn.utils.spectral_norm import as_matrix, first_vectors
from genesis.nn.utils.weight_norm import norm_except_dim, weight_of
from genesis.tensor import Tensor

M = TypeVar("M", bound=Module)


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_of(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The length and the direction of a weight."""
        return norm_except_dim(weight, self.dim), weight


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        if n_power_iterations < 1:
            raise ValueError(describe("spectral_norm", "n_power_iterations", "a positive number", n_power_iterations))
        if not -weight.ndim <= dim < weight.ndim:
            raise IndexError(describe("spectral_norm", "dim", f"a dimension of {weight.ndim}", dim))
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim % weight.ndim, eps
        if weight.ndim > 1:
            matrix = as_matrix(weight.detach(), self.dim)
            u, v = first_vectors(matrix, eps)
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)
            self._iterate(matrix, 15)

    @no_grad()
    def _iterate(self, matrix: Tensor, times: int) -> None:
        for _ in range(times):
            self._u.copy_(F.normalize(F.matmul(matrix, self._v), dim=0, eps=self.eps))
            self._v.copy_(F.normalize(F.matmul(matrix.t(), self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()  # the next iteration changes them in place, before backward perhaps
        return weight / (u * F.matmul(matrix, v)).sum()

    def right_inverse(self, value: Tensor) -> Tensor:
        """A weight that is computed from itself."""
        return value


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Learn length and direction of a weight apart: w = g · v / ‖v‖.

    Args:
        module: has the parameter; parametrizations.name.original0 (g) and original1 (v) replace it.
        name: of the parameter.
        dim: the dimension that keeps lengths of its own; None: one length for the whole weight.
    Returns: module.
    Raises: ValueError: there is no such parameter.
    Source: Salimans & Kingma 2016, arXiv:1602.07868.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        >>> [(name, parameter.shape) for name, parameter in layer.parametrizations.weight.named_parameters()]
        [('original0', (2, 1)), ('original1', (2, 3))]
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def of_the_older_form(state_dict: dict[str, object], prefix: str, *others: object) -> None:
        older = f"{prefix}{name}_g", f"{prefix}{name}_v"
        if all(key in state_dict for key in older):
            for index, key in enumerate(older):
                state_dict[f"{prefix}parametrizations.{name}.original{index}"] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(of_the_older_form)
    return module


def spectral_norm(
    module: M, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> M:
    """Divide a weight by its largest singular value, estimated by power iteration whenever it is read in training.

    Args:
        module: has the parameter; parametrizations.name.original replaces it.
        name: of the parameter.
        n_power_iterations: at each reading, at least 1.
        eps: least divisor of the vectors.
        dim: the dimension of the outputs; None: 1 in transposed convolutions, else 0.
    Returns: module.
    Raises: ValueError: there is no such parameter, or n_power_iterations is not positive.
    Source: Miyato et al. 2018, arXiv:1802.05957.

    Example:
        >>> layer = nn.utils.parametrizations.spectral_norm(nn.Linear(1, 1)).eval()
        >>> round(abs(layer.weight.item()), 4)
        1.0
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(describe("spectral_norm", "name", "a parameter or buffer of the module", repr(name)))
    if dim is None:
        dim = 1 if isinstance(module, ConvTranspose1d | ConvTranspose2d) else 0
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))
