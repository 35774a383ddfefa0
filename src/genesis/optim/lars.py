"""LARS: a learning rate per layer, for training with large batches."""

from __future__ import annotations

from typing import NamedTuple, Unpack

from genesis.interrupts import at_once
from genesis.ndarray import NDArray, call_of, ops
from genesis.optim.arrays import zeros_like
from genesis.optim.batch import Batch, State
from genesis.optim.optimizer import Optimizer, Params
from genesis.optim.options import Group, Settings, maximizing, require_number
from genesis.records import SGDOptions
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    momentum: float
    weight_decay: float
    eps: float
    trust_coefficient: float | None
    nesterov: bool
    maximize: bool


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling, for large batches: each parameter's step is proportional to its norm.

        λ = trust_coefficient·‖p‖ / (‖g‖ + weight_decay·‖p‖ + eps)      (1 where ‖p‖ or ‖g‖ is 0)
        b ← momentum·b + lr·λ·(g + weight_decay·p)
        p ← p − b                                                       (Nesterov: p − (step + momentum·b))

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        momentum: share of the last step that is kept; 0 keeps no buffers.
        weight_decay: L2 penalty.
        trust_coefficient: the η of the paper; None in a group sets λ = 1 there, as is usual for biases and norms.
        eps: added to the denominator, for numerical stability.
        nesterov: use Nesterov's momentum.
        settings: maximize=True maximizes the objective: g is negated; foreach, fused and capturable change nothing.
    Raises: ValueError: a negative lr, momentum, weight_decay, trust_coefficient or eps; nesterov without momentum.
    Source: You, Gitman & Ginsburg 2017, arXiv:1708.03888, algorithm 1.
    Example:
        >>> p = genesis.tensor([2.0], requires_grad=True)
        >>> optimizer = genesis.optim.LARS([p], lr=1.0, momentum=0.0, trust_coefficient=0.1)
        >>> (p * 100).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        1.8
    """

    _takes_complex = False

    def __init__(
        self, params: Params, lr: float | Tensor, momentum: float = 0.9, weight_decay: float = 0,
        trust_coefficient: float | None = 0.001, eps: float = 0.0, nesterov: bool = False, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "trust_coefficient": trust_coefficient,
                "eps": eps,
                "nesterov": nesterov,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        names = ["lr", "momentum", "weight_decay", "eps"]
        for name in names if group["trust_coefficient"] is None else [*names, "trust_coefficient"]:
            require_number(self._name, group, name)
        if group["nesterov"] and group["momentum"] <= 0:
            raise ValueError(
                f"{self._name}: argument 'nesterov': expected momentum > 0 beside it, got momentum {group['momentum']}"
            )

    def _options(self, group: Group) -> Options:
        trust = group["trust_coefficient"]
        return Options(
            float(group["lr"]), float(group["momentum"]), float(group["weight_decay"]), float(group["eps"]),
            None if trust is None else float(trust), bool(group["nesterov"]), bool(group["maximize"]),
        )  # fmt: skip

    def _missing_state(self, group: Group, array: NDArray, state: State) -> State:
        if group["momentum"] == 0 or state.get("momentum_buffer") is not None:
            return {}
        return {"momentum_buffer": Tensor(zeros_like(array))}

    def _update(self, batch: Batch) -> None:
        options = batch.options
        assert isinstance(options, Options)
        lr, momentum, weight_decay, eps, trust, nesterov, maximize = options
        grads = [grad.neg() for grad in batch.grads] if maximize else batch.grads
        steps = [  # g + weight_decay·p
            grad.add(param.mul(weight_decay)) if weight_decay else grad.clone()
            for grad, param in zip(grads, batch.params, strict=True)
        ]
        if trust is None:
            ops.scale_into(steps, lr)
        else:  # λ = trust·‖p‖ / (‖g‖ + weight_decay·‖p‖ + eps)
            param_norms, grad_norms = ops.norms(batch.params, 2), ops.norms(grads, 2)
            ratios = param_norms.mul(trust).div(grad_norms.add(param_norms.mul(weight_decay)).add(eps))
            rates = param_norms.gt(0).logical_and(grad_norms.gt(0)).where(ratios, 1.0).mul(lr)
            for index, step in enumerate(steps):
                ops.scale_into([step], rates.select(0, index))
        buffers = batch.arrays("momentum_buffer") if momentum else None
        # SGD at rate 1, without dampening and decay: step and momentum contain lr·λ already, as in the paper.
        sgd = SGDOptions(lr=1.0, momentum=momentum, dampening=0.0, weight_decay=0.0, nesterov=nesterov, maximize=False)
        first = batch.fresh and not batch.captured
        at_once([call_of(ops.sgd_step, batch.params, steps, buffers, sgd, first), *batch.after])
