"""Rprop: a step size per element, changed by the sign of its gradient alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.errors import describe
from genesis.ndarray import NDArray
from genesis.optim.arrays import full_like
from genesis.optim.composed import Composed, Scalars, Update, require_pair
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, maximizing, require_number
from genesis.tensor import Tensor


class Options(NamedTuple):
    etas: tuple[float, float]
    step_sizes: tuple[float, float]


class Rprop(Composed):
    """Resilient backpropagation: each element has a step size, which grows while its gradient keeps its sign.

        δ ← δ·η⁺ where g·g' > 0, δ·η⁻ where g·g' < 0, within step_sizes       (g': the gradient of the step before)
        g ← 0 where g·g' < 0
        p ← p − sign(g)·δ

    For gradients of whole data sets: those of batches change their signs too often.

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: the first step size, a number or a tensor of one element.
        etas: (η⁻, η⁺), factors of the step size, 0 < η⁻ < 1 < η⁺.
        step_sizes: its smallest and largest value.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative lr; etas out of range.
    Source: Riedmiller & Braun 1993, "A direct adaptive method for faster backpropagation learning".

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.Rprop([p], lr=0.1)
        >>> for _ in range(2):
        ...     p.grad = genesis.ones(1)
        ...     optimizer.step()
        >>> round(p.item(), 4)  # 1 − 0.1 − 0.12
        0.78
    """

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50), **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        maximize = maximizing(self._name, settings)
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize})

    def _check_options(self, group: Group) -> None:
        require_number(self._name, group, "lr")
        low, high = require_pair(self._name, group, "etas")
        require_pair(self._name, group, "step_sizes")
        if not 0 < low < 1 < high:
            raise ValueError(describe(self._name, "etas", "(η⁻, η⁺) with 0 < η⁻ < 1 < η⁺", (low, high)))

    def _entries(self, group: Group) -> Sequence[str]:
        return "step", "prev", "step_size"

    def _initial(self, name: str, group: Group, array: NDArray) -> object:
        if name != "step_size":
            return super()._initial(name, group, array)
        return Tensor(full_like(array, float(group["lr"])))

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        return Scalars(options, {"step": s["step"] + 1})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Options)
        (shrink, grow), (smallest, largest) = scalars
        product = g.mul(s["prev"])
        turned = product.lt(0)
        factor = turned.where(product.full_like(shrink), product.gt(0).where(product.full_like(grow), 1.0))
        sizes = s["step_size"].mul(factor).clamp(smallest, largest)
        g = turned.where(0.0, g)
        return Update(p.sub(g.sign().mul(sizes)), {"prev": g, "step_size": sizes})
