"""RMSprop: steps scaled by a running mean of squared gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.ndarray import NDArray
from genesis.optim.composed import Composed, Scalar, Scalars, Update, decay, decayed, lerp
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, maximizing, require_number
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool


class Values(NamedTuple):
    decay_of: str
    decay: Scalar
    lr: Scalar
    alpha: Scalar
    rest: Scalar  # 1 − alpha
    eps: Scalar
    has_momentum: bool
    momentum: Scalar
    centered: bool


class RMSprop(Composed):
    """RMSprop: steps scaled by the root of a running mean of squared gradients.

        v ← alpha·v + (1 − alpha)·g²
        d = √v + eps                              (centered: √(v − m²) + eps, with m the running mean of g)
        b ← momentum·b + g / d,   p ← p − lr·b    (without momentum: p − lr·g / d)

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        alpha: decay rate of the means.
        eps: added to the denominator, for numerical stability.
        weight_decay: L2 penalty.
        momentum: share of the last step's direction that is kept.
        centered: divide by an estimate of the standard deviation instead.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative lr, alpha, eps, weight_decay or momentum.
    Source: Hinton 2012, "Neural networks for machine learning", lecture 6; centered: Graves 2013, arXiv:1308.0850.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.RMSprop([p], lr=0.1, alpha=0.75)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.8
    """

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "alpha": alpha,
                "eps": eps,
                "centered": centered,
                "weight_decay": weight_decay,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "alpha", "eps", "weight_decay", "momentum"):
            require_number(self._name, group, name)

    def gradient_power(self, name: str) -> int:
        """The power, 0 for the momentum, whose steps are normalized. See `optim.Optimizer.step`."""
        return 0 if name == "momentum_buffer" else super().gradient_power(name)

    def _entries(self, group: Group) -> Sequence[str]:
        more = ["momentum_buffer"] * (group["momentum"] > 0) + ["grad_avg"] * bool(group["centered"])
        return ["step", "square_avg", *more]

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        values = Values(
            *decay(o.weight_decay), o.lr, o.alpha, 1 - o.alpha, o.eps, o.momentum > 0, o.momentum, bool(o.centered)
        )
        return Scalars(values, {"step": s["step"] + 1})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        p, g = decayed(p, g, n.decay_of, n.decay)
        state = {}
        v = state["square_avg"] = s["square_avg"].mul(n.alpha).add(g.mul(g).mul(n.rest))
        if n.centered:
            m = state["grad_avg"] = lerp(s["grad_avg"], g, n.rest)
            v = v.sub(m.mul(m))
        step = g.div(v.sqrt().add(n.eps))
        if n.has_momentum:
            step = state["momentum_buffer"] = s["momentum_buffer"].mul(n.momentum).add(step)
        return Update(p.sub(step.mul(n.lr)), state)
