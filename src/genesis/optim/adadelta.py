"""Adadelta: steps in the units of the parameters, without a learning rate to tune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.ndarray import NDArray
from genesis.optim.composed import Composed, Scalar, Scalars, Update, decay, decayed
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, maximizing, require_number
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    rho: float
    eps: float
    weight_decay: float


class Values(NamedTuple):
    decay_of: str
    decay: Scalar
    lr: Scalar
    rho: Scalar
    rest: Scalar  # 1 − rho
    eps: Scalar


class Adadelta(Composed):
    """Adadelta: steps scaled by running means of squared gradients and of squared steps.

        v ← rho·v + (1 − rho)·g²
        Δ = √(u + eps) / √(v + eps) · g
        u ← rho·u + (1 − rho)·Δ²
        p ← p − lr·Δ

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: factor of each step, a number or a tensor of one element.
        rho: decay rate of the means, in [0, 1].
        eps: added below the roots, for numerical stability.
        weight_decay: L2 penalty.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative lr, eps or weight_decay; rho outside [0, 1].
    Source: Zeiler 2012, arXiv:1212.5701.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.Adadelta([p], eps=1e-2)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.6877
    """

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0,
        **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "rho": rho,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay"):
            require_number(self._name, group, name)
        require_number(self._name, group, "rho", most=1.0)

    def _entries(self, group: Group) -> Sequence[str]:
        return "step", "square_avg", "acc_delta"

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        return Scalars(Values(*decay(o.weight_decay), o.lr, o.rho, 1 - o.rho, o.eps), {"step": s["step"] + 1})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        p, g = decayed(p, g, n.decay_of, n.decay)
        v = s["square_avg"].mul(n.rho).add(g.mul(g).mul(n.rest))
        delta = s["acc_delta"].add(n.eps).sqrt().div(v.add(n.eps).sqrt()).mul(g)
        u = s["acc_delta"].mul(n.rho).add(delta.mul(delta).mul(n.rest))
        return Update(p.sub(delta.mul(n.lr)), {"square_avg": v, "acc_delta": u})
