"""L-BFGS: a quasi-Newton method that remembers the last gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import SupportsFloat, cast

from genesis import functional as F
from genesis import interop
from genesis.autograd import enable_grad, no_grad
from genesis.autograd.modes import unrecordable
from genesis.errors import DTypeError, describe
from genesis.interrupts import at_once, finish
from genesis.optim.batch import State
from genesis.optim.line_search import Point, strong_wolfe
from genesis.optim.optimizer import Loss, Optimizer, Params
from genesis.optim.options import Group, require_number
from genesis.tensor import Tensor

CURVED = 1e-10  # a step with less curvature says nothing of the Hessian


class LBFGS(Optimizer):
    """L-BFGS: Newton's method with an inverse Hessian estimated from the last history_size steps.

    step(closure) takes up to max_iter iterations, for which it calls closure again and again: closure clears the
    gradients, computes the loss and calls backward. There is one group of parameters, of one dtype on one device; the
    state is that of the first.

    Args:
        params: parameters of a floating dtype.
        lr: length of a step, or the first one that a line search tries; a number or a tensor of one element.
        max_iter: iterations in one step().
        max_eval: calls of closure in one step(); max_iter · 1.25 if None.
        tolerance_grad: the step ends where no element of the gradient is larger.
        tolerance_change: the step ends where parameters or loss change by no more.
        history_size: number of steps that are remembered, each as long as all parameters twice.
        line_search_fn: "strong_wolfe" | None for steps of length lr.
    Raises: ValueError: several groups; a negative lr; another line search.
    Source: Liu & Nocedal 1989, "On the limited memory BFGS method for large scale optimization".

    Example:
        >>> p = genesis.tensor([1.0, 2.0], requires_grad=True)
        >>> optimizer = genesis.optim.LBFGS([p], line_search_fn="strong_wolfe")
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = ((p - 3) * (p - 3)).sum()
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item()
        5.0
        >>> [round(value, 4) for value in p.tolist()]
        [3.0, 3.0]
    """

    _takes_complex = False

    by_parameter = False

    def __init__(
        self, params: Params, lr: float | Tensor = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change"):
            require_number(self._name, group, name)
        require_number(self._name, group, "history_size", low=1)
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            expected = '"strong_wolfe" or None'
            raise ValueError(describe(self._name, "line_search_fn", expected, repr(group["line_search_fn"])))

    def add_param_group(self, param_group: Group) -> None:
        """Refuse a second group: the Hessian is that of all parameters.

        Args:
            param_group: as in `optim.Optimizer.add_param_group`.
        Raises: ValueError: there is a group already.
        Example:
            >>> optimizer = genesis.optim.LBFGS([genesis.zeros(1, requires_grad=True)])
            >>> len(optimizer.param_groups)
            1
        """
        if self.param_groups:
            raise ValueError(describe(self._name, "params", "one group of parameters", "a second one"))
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Loss] | None = None) -> Loss:
        """Take up to max_iter iterations. If anything raises, parameters and state are as before.

        Args:
            closure: clears the gradients, computes the loss, calls backward, and returns the loss.
        Returns: the first result of closure.
        Raises: DTypeError: there is no closure. ShapeError, DTypeError, DeviceError: a gradient does not fit.

        Example:
            >>> p = genesis.tensor([1.0], requires_grad=True)
            >>> optimizer = genesis.optim.LBFGS([p])
            >>> def closure():
            ...     optimizer.zero_grad()
            ...     loss = (p * p).sum()
            ...     loss.backward()
            ...     return loss
            >>> optimizer.step(closure).item()
            1.0
        """
        if closure is None:
            raise DTypeError(describe(f"{self._name}.step", "closure", "a function that gives the loss", None))
        unrecordable("takes a step of LBFGS, which calls its closure as often as it finds necessary")
        params: list[Tensor] = self.param_groups[0]["params"]
        old_state = self.state.get(params[0], {})
        with no_grad():
            before = [param.clone() for param in params]

            def restore() -> None:
                for param, kept in zip(params, before, strict=True):
                    param.copy_(kept)

            try:
                state = {name: list(entry) if isinstance(entry, list) else entry for name, entry in old_state.items()}
                with enable_grad():
                    first = closure()
                _Step(self, closure, state).run(float(cast(SupportsFloat, first)))
            except BaseException:
                finish(restore)
                raise
        at_once([(self.state.update, {params[0]: state})])
        return first

    def flat_grad(self) -> Tensor:
        """The gradients of all parameters in one vector; zeros where there is none.

        Returns: 1-d, the dtype of the parameters.
        Raises: ShapeError, DTypeError, DeviceError: a gradient does not fit its parameter.
        Example:
            >>> p = genesis.ones(2, requires_grad=True)
            >>> p.sum().backward()
            >>> genesis.optim.LBFGS([p]).flat_grad().tolist()
            [1.0, 1.0]
        """
        parts = []
        for param in self.param_groups[0]["params"]:
            if param.grad is not None:
                self._checked_grad(param)
            part = param.detach().clone().zero_() if param.grad is None else param.grad.detach()
            parts.append(part.reshape(-1))
        return F.cat(parts)

    def _loaded(self, position: int, key: str, value: object, param: Tensor) -> object:
        """An entry of the state: vectors of all parameters, numbers, and lists of them, which are copied."""
        if isinstance(value, list | tuple):
            return [self._loaded(position, key, each, param) for each in value]
        if key in ("func_evals", "n_iter") or not hasattr(value, "__dlpack__"):
            return value
        tensor = value if isinstance(value, Tensor) else interop.from_dlpack(value)
        tensor = tensor.detach().to(param.device, param.dtype).clone()
        return tensor.item() if key in ("t", "prev_loss") else tensor


class _Step:
    """One step of LBFGS: its iterations on the parameters, and the state that they change."""

    def __init__(self, optimizer: LBFGS, closure: Callable[[], object], state: State) -> None:
        self.optimizer, self.closure, self.state = optimizer, closure, state
        self.group = optimizer.param_groups[0]
        self.params: list[Tensor] = self.group["params"]

    def run(self, loss: float) -> None:
        """Iterate until a tolerance or a limit is reached; loss is that of the parameters as they are."""
        group, state = self.group, self.state
        state["func_evals"] = state.get("func_evals", 0) + 1
        state.setdefault("n_iter", 0)
        grad, count = self.optimizer.flat_grad(), 1
        if _largest(grad) <= group["tolerance_grad"]:
            return
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            is_first = state["n_iter"] == 1
            state["d"] = grad.neg() if is_first else self._direction(grad)
            if is_first:
                state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            state["prev_flat_grad"], state["prev_loss"] = grad, loss
            state["t"] = float(group["lr"]) * (min(1.0, 1.0 / grad.abs().sum().item()) if is_first else 1.0)
            slope = grad.dot(state["d"]).item()
            if slope > -group["tolerance_change"]:
                break
            is_last = iteration == group["max_iter"]
            point, evaluations = self._move(Point(0.0, loss, grad, slope), group["max_eval"] - count, is_last)
            loss, grad, state["t"] = point.loss, point.grad, point.step
            count, state["func_evals"] = count + evaluations, state["func_evals"] + evaluations
            if is_last or count >= group["max_eval"] or _largest(grad) <= group["tolerance_grad"]:
                break
            if _largest(state["d"]) * abs(state["t"]) <= group["tolerance_change"]:
                break
            if abs(loss - state["prev_loss"]) < group["tolerance_change"]:
                break

    def _direction(self, grad: Tensor) -> Tensor:
        """−H·grad, with the inverse Hessian H of the remembered steps: the two loops of the paper."""
        state = self.state
        steps, changes, inverse_curvatures = state["old_stps"], state["old_dirs"], state["ro"]
        change, step = grad - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = change.dot(step)
        if curvature.item() > CURVED:
            for entries, entry in ((changes, change), (steps, step), (inverse_curvatures, 1.0 / curvature)):
                entries.append(entry)
                del entries[: -self.group["history_size"]]
            state["H_diag"] = curvature / change.dot(change)
        q = grad.neg()
        shares = [None] * self.group["history_size"]
        for i in reversed(range(len(steps))):
            shares[i] = steps[i].dot(q) * inverse_curvatures[i]
            q = q - changes[i] * shares[i]
        state["al"] = shares
        r = q * state["H_diag"]
        for i in range(len(steps)):
            r = r + steps[i] * (shares[i] - changes[i].dot(r) * inverse_curvatures[i])
        return r

    def _move(self, start: Point, most: int, is_last: bool) -> tuple[Point, int]:
        """Go along the direction; the point that was reached, and how often the loss was computed."""
        if self.group["line_search_fn"] is not None:
            origin = [param.clone() for param in self.params]

            def evaluate(step: float) -> Point:
                self._add(step)
                point = self._evaluated(step)
                for param, value in zip(self.params, origin, strict=True):
                    param.copy_(value)
                return point

            tolerance = self.group["tolerance_change"] / _largest(self.state["d"])
            point, evaluations = strong_wolfe(evaluate, start, self.state["t"], tolerance, most)
            self._add(point.step)
            return point, evaluations
        self._add(self.state["t"])
        if is_last:  # nobody needs the loss there
            return start._replace(step=self.state["t"]), 0
        return self._evaluated(self.state["t"]), 1

    def _evaluated(self, step: float) -> Point:
        with enable_grad():
            loss = float(cast(SupportsFloat, self.closure()))
        grad = self.optimizer.flat_grad()
        return Point(step, loss, grad, grad.dot(self.state["d"]).item())

    def _add(self, step: float) -> None:
        """Move the parameters by step · direction."""
        start = 0
        for param in self.params:
            part = self.state["d"][start : start + param.numel()]
            param.add_(part.reshape(param.shape), alpha=step)
            start += param.numel()


def _largest(x: Tensor) -> float:
    return float(x.abs().max().item()) if x.numel() else 0.0
