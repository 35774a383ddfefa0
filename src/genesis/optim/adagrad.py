"""Adagrad: steps scaled by the sum of all squared gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.ndarray import NDArray
from genesis.optim.arrays import as_real, full_like
from genesis.optim.composed import Composed, Scalar, Scalars, Update, decay, decayed
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, maximizing, require_number
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    lr_decay: float
    weight_decay: float
    eps: float


class Values(NamedTuple):
    decay_of: str
    decay: Scalar
    lr: Scalar
    eps: Scalar


class Adagrad(Composed):
    """Adagrad: steps scaled by the root of the sum of all squared gradients.

        v ← v + g²
        p ← p − lr / (1 + (t − 1)·lr_decay) · g / (√v + eps)      at step t

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        lr_decay: how fast the learning rate decays.
        weight_decay: L2 penalty.
        initial_accumulator_value: the first v.
        eps: added to the denominator, for numerical stability.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative option.
    Source: Duchi, Hazan & Singer 2011, JMLR 12:2121.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.Adagrad([p], lr=0.1)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.9
    """

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "eps": eps,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            require_number(self._name, group, name)

    def add_param_group(self, param_group: Group) -> None:
        """Optimize further parameters too, with state from the start. See `optim.Optimizer.add_param_group`."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in group["params"]:
            self.state[param] = self._missing_state(group, as_real(param.array), {})

    def _entries(self, group: Group) -> Sequence[str]:
        return "step", "sum"

    def _initial(self, name: str, group: Group, array: NDArray) -> object:
        if name == "step":
            return 0
        return Tensor(full_like(array, group["initial_accumulator_value"]))

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        lr = o.lr / (1 + s["step"] * o.lr_decay)
        return Scalars(Values(*decay(o.weight_decay), lr, o.eps), {"step": s["step"] + 1})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        p, g = decayed(p, g, n.decay_of, n.decay)
        total = s["sum"].add(g.mul(g))
        return Update(p.sub(g.div(total.sqrt().add(n.eps)).mul(n.lr)), {"sum": total})
