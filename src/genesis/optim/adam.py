"""Adam, and AdamW with its decoupled weight decay."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import repeat
from operator import setitem
from typing import Unpack

from genesis.errors import DTypeError, describe
from genesis.interrupts import at_once, each
from genesis.ndarray import NDArray, call_of, ops
from genesis.optim.arrays import zeros_like
from genesis.optim.batch import Batch, State
from genesis.optim.capturable import count_apart, refusal_of_count
from genesis.optim.optimizer import Optimizer, Params
from genesis.optim.options import Group, Settings, maximizing, require_number
from genesis.records import AdamOptions
from genesis.tensor import Tensor

_KEPT = dict.fromkeys(("step", "exp_avg", "exp_avg_sq")).keys()
_WITH_LARGEST = dict.fromkeys((*_KEPT, "max_exp_avg_sq")).keys()


class Adam(Optimizer):
    """Adam: steps scaled by running estimates of the gradient's first two moments.

        g ← g + weight_decay·p                    (decoupled: p ← p·(1 − lr·weight_decay) instead)
        m ← β₁·m + (1 − β₁)·g,   v ← β₂·v + (1 − β₂)·g²
        p ← p − lr·m̂ / (√v̂ + eps)                 with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        betas: (β₁, β₂), decay rates of the moments, each in [0, 1).
        eps: added to the denominator, for numerical stability.
        weight_decay: L2 penalty, or the decay itself if decoupled.
        amsgrad: use the maximum of all v so far instead of v.
        settings: maximize=True maximizes the objective: g is negated; foreach, fused and capturable change nothing.
        decoupled_weight_decay: decay the weights directly instead of through the gradient, as AdamW does.
    Raises: ValueError: a negative lr, eps or weight_decay; a beta outside [0, 1).
    Source: Kingma & Ba 2015, arXiv:1412.6980; amsgrad: Reddi et al. 2018, arXiv:1904.09237.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.Adam([p], lr=0.1)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.9
    """

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, amsgrad: bool = False, *, decoupled_weight_decay: bool = False,
        **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximizing(self._name, settings),
                "decoupled_weight_decay": decoupled_weight_decay,
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay"):
            require_number(self._name, group, name)
        betas = group["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise DTypeError(describe(self._name, "betas", "two numbers", repr(betas)))
        for name, beta in zip(("betas[0]", "betas[1]"), betas, strict=True):
            require_number(self._name, {name: beta}, name, below=1.0)

    def _options(self, group: Group) -> AdamOptions:
        beta1, beta2 = group["betas"]
        return AdamOptions(
            float(group["lr"]), float(beta1), float(beta2), float(group["eps"]), float(group["weight_decay"]),
            bool(group["decoupled_weight_decay"]), bool(group["maximize"]),
        )  # fmt: skip

    def _missing_state(self, group: Group, array: NDArray, state: State) -> State:
        names = _WITH_LARGEST if group["amsgrad"] else _KEPT
        if names <= state.keys():
            return {}
        missing: State = {} if "step" in state else {"step": 0}
        return missing | {name: Tensor(zeros_like(array)) for name in names if name not in (*state, "step")}

    def _history(self, state: State) -> Hashable:
        step = state["step"]
        return step if type(step) is int else id(step), "max_exp_avg_sq" in state

    def _update(self, batch: Batch) -> None:
        # For each parameter p, its gradient g (negated to maximize) and its moments m and v, in one kernel at step t:
        #   p ← p·(1 − lr·weight_decay) if decoupled, else g ← g + weight_decay·p
        #   m ← beta1·m + (1 − beta1)·g,   v ← beta2·v + (1 − beta2)·g²
        #   p ← p − lr·m / (1 − beta1ᵗ) / (√(v / (1 − beta2ᵗ)) + eps)     (amsgrad: the largest v so far)
        options, first = batch.options, batch.states[0]
        count_apart(self, batch)
        step = first["step"]
        largest = batch.arrays("max_exp_avg_sq") if "max_exp_avg_sq" in first else None
        averages = batch.arrays("exp_avg"), batch.arrays("exp_avg_sq")
        states = batch.params, batch.grads, *averages, largest
        if isinstance(step, Tensor):  # the device counts, see capturable.py
            at_once([call_of(ops.adam_step, *states, step.array, options, batch.inputs), *batch.after])
            return
        update = call_of(ops.adam_step, *states, step + 1, options, batch.inputs)
        # In one with the update: no interrupt comes between.
        at_once([update, *batch.after, each(setitem, batch.states, repeat("step"), repeat(step + 1))])

    reads_numbers = can_skip = True

    def refusal(self, batch: Batch) -> str:
        return refusal_of_count(self, batch)


class AdamW(Adam):
    """Adam with decoupled weight decay: p ← p·(1 − lr·weight_decay), separate from the gradient.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, settings: as in `optim.Adam`.
    Raises: ValueError: a negative lr, eps or weight_decay; a beta outside [0, 1).
    Source: Loshchilov & Hutter 2019, arXiv:1711.05101.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.AdamW([p], lr=0.1, weight_decay=0.5)
        >>> (p * 0).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.95
    """

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=True, **settings
        )  # fmt: skip
