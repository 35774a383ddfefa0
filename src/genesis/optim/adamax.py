"""Adamax: Adam with the infinity norm."""

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


class Values(NamedTuple):
    decay_of: str
    decay: Scalar
    lr: Scalar  # corrected
    rest1: Scalar  # 1 − β₁
    beta2: Scalar
    eps: Scalar


class Adamax(Composed):
    """Adamax: Adam with the exponentially weighted infinity norm of gradients instead of their second moment.

        m ← β₁·m + (1 − β₁)·g,   u ← max(β₂·u, |g| + eps)
        p ← p − lr / (1 − β₁ᵗ) · m / u

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        betas: (β₁, β₂), decay rates of mean and norm, each in [0, 1).
        eps: added to |g|, for numerical stability.
        weight_decay: L2 penalty.
        settings: as in `optim.SGD`.
    Raises: ValueError: a negative lr, eps or weight_decay; a beta outside [0, 1).
    Source: Kingma & Ba 2015, arXiv:1412.6980, section 7.1.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.Adamax([p], lr=0.1)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.9
    """

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay"):
            require_number(self._name, group, name)
        require_betas(self._name, group)

    def _entries(self, group: Group) -> Sequence[str]:
        return "step", "exp_avg", "exp_inf"

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        beta1, beta2 = o.betas
        step = s["step"] + 1
        values = Values(*decay(o.weight_decay), o.lr / (1 - beta1**step), 1 - beta1, beta2, o.eps)
        return Scalars(values, {"step": step})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        p, g = decayed(p, g, n.decay_of, n.decay)
        m = lerp(s["exp_avg"], g, n.rest1)
        u = s["exp_inf"].mul(n.beta2).maximum(g.abs().add(n.eps))
        return Update(p.sub(m.div(u).mul(n.lr)), {"exp_avg": m, "exp_inf": u})
