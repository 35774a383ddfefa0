"""ASGD: stochastic gradient descent with an average of its iterates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.ndarray import NDArray
from genesis.optim.composed import Composed, Scalar, Scalars, Update, decay, decayed, either, lerp
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, as_number, maximizing, require_number
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    lambd: float
    alpha: float
    t0: float
    weight_decay: float


class Values(NamedTuple):
    decay_of: str
    decay: Scalar
    shrink: Scalar
    eta: Scalar
    averages: Scalar  # does it already?
    mu: Scalar


class ASGD(Composed):
    """Averaged stochastic gradient descent; `optimizer.state[p]["ax"]` is the average of a parameter.

        p ← p·(1 − lambd·η) − η·g,   ax ← ax + μ·(p − ax)
        η = lr / (1 + lambd·lr·t)^alpha,   μ = 1 / max(1, t − t0)

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        lambd: decay of the parameters.
        alpha: power by which the rate η decays.
        t0: the step at which averaging begins.
        weight_decay: L2 penalty.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative lr or weight_decay.
    Source: Polyak & Juditsky 1992, "Acceleration of stochastic approximation by averaging".

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.ASGD([p], lr=0.1, lambd=0.0)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.8
    """

    _Options = Options
    _NUMBERS = ("step", "eta", "mu")

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "lambd": lambd,
                "alpha": alpha,
                "t0": t0,
                "weight_decay": weight_decay,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "weight_decay"):
            require_number(self._name, group, name)
        for name in ("lambd", "alpha", "t0"):
            require_number(self._name, group, name, low=float("-inf"))

    def _entries(self, group: Group) -> Sequence[str]:
        return "step", "eta", "mu", "ax"

    def _initial(self, name: str, group: Group, array: NDArray) -> object:
        numbers = {"eta": as_number(group["lr"]), "mu": 1.0}
        return numbers[name] if name in numbers else super()._initial(name, group, array)

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        step, eta, mu = s["step"] + 1, s["eta"], s["mu"]
        values = Values(*decay(o.weight_decay), 1 - o.lambd * eta, eta, float(mu != 1), mu)
        eta = o.lr / (1 + o.lambd * o.lr * step) ** o.alpha
        return Scalars(values, {"step": step, "eta": eta, "mu": 1 / max(1, step - o.t0)})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        _, g = decayed(p, g, n.decay_of, n.decay)
        p = p.mul(n.shrink).sub(g.mul(n.eta))
        average = either(n.averages, lerp(s["ax"], p, n.mu), p)
        assert isinstance(average, NDArray)
        return Update(p, {"ax": average})
