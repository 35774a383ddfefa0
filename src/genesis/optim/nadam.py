"""NAdam: Adam with Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.ndarray import NDArray
from genesis.optim.composed import Composed, Scalar, Scalars, Update, decay, decayed, lerp, require_betas
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, maximizing, require_number
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    momentum_decay: float
    decoupled_weight_decay: bool


class Values(NamedTuple):
    decay_of: str
    decay: Scalar
    rest1: Scalar  # 1 − β₁
    beta2: Scalar
    rest2: Scalar
    correction: Scalar
    eps: Scalar
    by_gradient: Scalar
    by_momentum: Scalar


class NAdam(Composed):
    """NAdam: Adam with Nesterov's momentum.

        μᵗ = β₁·(1 − 0.96^(t·momentum_decay) / 2),   Π ← Π·μᵗ
        m ← β₁·m + (1 − β₁)·g,   v ← β₂·v + (1 − β₂)·g²,   d = √(v / (1 − β₂ᵗ)) + eps
        p ← p − lr·((1 − μᵗ) / (1 − Π)·g + μᵗ⁺¹ / (1 − Π·μᵗ⁺¹)·m) / d

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        betas: (β₁, β₂), decay rates of the moments, each in [0, 1).
        eps: added to the denominator, for numerical stability.
        weight_decay: L2 penalty, or the decay itself if decoupled.
        momentum_decay: how fast the momentum grows to β₁.
        decoupled_weight_decay: decay the weights directly instead of through the gradient, as AdamW does.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative lr, eps, weight_decay or momentum_decay; a beta outside [0, 1).
    Source: Dozat 2016, "Incorporating Nesterov momentum into Adam".

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.NAdam([p], lr=0.1, momentum_decay=0)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.8944
    """

    _Options = Options
    _NUMBERS = ("step", "mu_product")

    def __init__(
        self, params: Params, lr: float | Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False,
        **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum_decay": momentum_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay", "momentum_decay"):
            require_number(self._name, group, name)
        require_betas(self._name, group)

    def _entries(self, group: Group) -> Sequence[str]:
        return "step", "mu_product", "exp_avg", "exp_avg_sq"

    def _initial(self, name: str, group: Group, array: NDArray) -> object:
        return 1.0 if name == "mu_product" else super()._initial(name, group, array)

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        beta1, beta2 = o.betas
        step = s["step"] + 1
        mu, mu_next = (beta1 * (1.0 - 0.5 * 0.96 ** (t * o.momentum_decay)) for t in (step, step + 1))
        product = s["mu_product"] * mu
        by_gradient, by_momentum = o.lr * (1 - mu) / (1 - product), o.lr * mu_next / (1 - product * mu_next)
        values = Values(
            *decay(o.weight_decay, o.lr, o.decoupled_weight_decay), 1 - beta1, beta2, 1 - beta2, 1 - beta2**step, o.eps,
            by_gradient, by_momentum,
        )  # fmt: skip
        return Scalars(values, {"step": step, "mu_product": product})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        p, g = decayed(p, g, n.decay_of, n.decay)
        m = lerp(s["exp_avg"], g, n.rest1)
        v = s["exp_avg_sq"].mul(n.beta2).add(g.mul(g).mul(n.rest2))
        d = v.div(n.correction).sqrt().add(n.eps)
        p = p.sub(g.div(d).mul(n.by_gradient)).sub(m.div(d).mul(n.by_momentum))
        return Update(p, {"exp_avg": m, "exp_avg_sq": v})
