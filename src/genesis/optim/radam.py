"""RAdam: Adam whose adaptive rate is rectified while its second moment is uncertain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.ndarray import NDArray
from genesis.optim.composed import Composed, Scalar, Scalars, Update, decay, decayed, either, lerp, require_betas
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, maximizing, require_number
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled_weight_decay: bool


class Values(NamedTuple):
    decay_of: str
    decay: Scalar
    lr: Scalar
    rest1: Scalar  # 1 − β₁
    beta2: Scalar
    rest2: Scalar
    correction: Scalar
    eps: Scalar
    rectified: Scalar  # is it?
    factor: Scalar


class RAdam(Composed):
    """Rectified Adam: as long as the second moment rests on few steps, it counts less, or not at all.

        m ← β₁·m + (1 − β₁)·g,   v ← β₂·v + (1 − β₂)·g²,   m̂ = m / (1 − β₁ᵗ)
        ρ = ρ∞ − 2·t·β₂ᵗ / (1 − β₂ᵗ)              with ρ∞ = 2 / (1 − β₂) − 1
        p ← p − lr·m̂·r·√(1 − β₂ᵗ) / (√v + eps)    if ρ > 5, else p − lr·m̂
        r = √((ρ − 4)·(ρ − 2)·ρ∞ / ((ρ∞ − 4)·(ρ∞ − 2)·ρ))

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        betas: (β₁, β₂), decay rates of the moments, each in [0, 1).
        eps: added to the denominator, for numerical stability.
        weight_decay: L2 penalty, or the decay itself if decoupled.
        decoupled_weight_decay: decay the weights directly instead of through the gradient, as AdamW does.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative lr, eps or weight_decay; a beta outside [0, 1).
    Source: Liu et al. 2020, arXiv:1908.03265.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.RAdam([p], lr=0.1)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.8
    """

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, decoupled_weight_decay: bool = False, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay"):
            require_number(self._name, group, name)
        require_betas(self._name, group)

    def _entries(self, group: Group) -> Sequence[str]:
        return "step", "exp_avg", "exp_avg_sq"

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        beta1, beta2 = o.betas
        step = s["step"] + 1
        correction = 1 - beta2**step
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * beta2**step / correction  # of the average that v approximates
        rectified, factor = 0.0, 1.0
        if length > 5:
            squared = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            rectified, factor = 1.0, (correction * squared) ** 0.5
        values = Values(
            *decay(o.weight_decay, o.lr, o.decoupled_weight_decay), o.lr, 1 - beta1, beta2, 1 - beta2, 1 - beta1**step,
            o.eps, rectified, factor,
        )  # fmt: skip
        return Scalars(values, {"step": step})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        p, g = decayed(p, g, n.decay_of, n.decay)
        m = lerp(s["exp_avg"], g, n.rest1)
        v = s["exp_avg_sq"].mul(n.beta2).add(g.mul(g).mul(n.rest2))
        d = either(n.rectified, v.sqrt().add(n.eps), 1.0)
        p = p.sub(m.div(n.correction).mul(n.lr).div(d).mul(n.factor))
        return Update(p, {"exp_avg": m, "exp_avg_sq": v})
