"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Unpack

from genesis.interrupts import at_once
from genesis.ndarray import NDArray, call_of, ops
from genesis.optim.arrays import zeros_like
from genesis.optim.batch import Batch, State
from genesis.optim.optimizer import Optimizer, Params
from genesis.optim.options import Group, Settings, maximizing, require_number
from genesis.records import SGDOptions
from genesis.tensor import Tensor


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum.

        g ← g + weight_decay·p
        b ← momentum·b + (1 − dampening)·g        (the first b is g)
        p ← p − lr·b                              (Nesterov: p − lr·(g + momentum·b); without momentum: p − lr·g)

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: learning rate, a number or a tensor of one element.
        momentum: share of the last step's direction that is kept; 0 keeps no buffers.
        dampening: reduces the gradient's share in the momentum.
        weight_decay: L2 penalty.
        nesterov: use Nesterov's momentum.
        settings: maximize=True maximizes the objective: g is negated; foreach, fused and capturable change nothing.
    Raises: ValueError: a negative lr, momentum or weight_decay; nesterov without momentum or with dampening.
    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.SGD([p], lr=0.1)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.8
    """

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            require_number(self._name, group, name)
        require_number(self._name, group, "dampening", low=float("-inf"))
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(
                f"{self._name}: argument 'nesterov': expected momentum > 0 and dampening 0 beside it, "
                f"got momentum {group['momentum']} and dampening {group['dampening']}"
            )

    def _options(self, group: Group) -> SGDOptions:
        return SGDOptions(
            float(group["lr"]), float(group["momentum"]), float(group["dampening"]), float(group["weight_decay"]),
            bool(group["nesterov"]), bool(group["maximize"]),
        )  # fmt: skip

    def _missing_state(self, group: Group, array: NDArray, state: State) -> State:
        if group["momentum"] == 0 or state.get("momentum_buffer") is not None:
            return {}
        return {"momentum_buffer": Tensor(zeros_like(array))}

    def _update(self, batch: Batch) -> None:
        # For each parameter p, its gradient g (negated to maximize) and its buffer b, in one kernel:
        #   g ← g + weight_decay·p
        #   b ← g if fresh else momentum·b + (1 − dampening)·g
        #   p ← p − lr·(g + momentum·b if nesterov else b if momentum else g)
        options = batch.options
        assert isinstance(options, SGDOptions)
        buffers = batch.arrays("momentum_buffer") if options.momentum else None
        first = batch.fresh and not batch.captured  # a replay's buffers are zeros at first, which comes to the same
        step = call_of(ops.sgd_step, batch.params, batch.grads, buffers, options, first, batch.inputs)
        at_once([step, *batch.after])

    reads_numbers = can_skip = True

    def structure(self, options: tuple[object, ...]) -> Hashable:
        assert isinstance(options, SGDOptions)
        return options.momentum != 0, super().structure(options)

    def refusal(self, batch: Batch) -> str:
        options = batch.options
        assert isinstance(options, SGDOptions)
        if batch.fresh and options.momentum and options.dampening:
            return "every replay would make a first step, which dampening is not for: make one before the capture"
        return ""
