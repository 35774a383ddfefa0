"""Adafactor: second moments of matrices kept as a row and a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from genesis.ndarray import NDArray, ops
from genesis.optim.arrays import zeros_like
from genesis.optim.batch import State
from genesis.optim.composed import Composed, Scalar, Scalars, Update, lerp, require_pair
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, Settings, maximizing, require_number
from genesis.shapes import Shape
from genesis.tensor import Tensor

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Options(NamedTuple):
    lr: float
    beta2_decay: float
    eps: tuple[float | None, float]
    d: float
    weight_decay: float


class Values(NamedTuple):
    has_decay: bool
    shrink: Scalar
    rate: Scalar
    weight: Scalar  # of the latest gradient in the moments
    limits: tuple[float, float, float]  # eps, and the threshold of clipping


class Adafactor(Composed):
    """Adafactor: the second moments of a matrix are the product of a row and a column, which need little memory.

        ρ = min(lr, 1 / √t),   α = max(eps[1], RMS(p))·ρ,   β = t^beta2_decay
        r ← (1 − β)·r + β·mean(g², over columns),   c ← (1 − β)·c + β·mean(g², over rows)
        v = r·c / mean(r)                         (vectors: v ← (1 − β)·v + β·g²)
        u = g / √max(v, eps[0]²),   p ← p − α·u / max(1, RMS(u) / d)

    Args:
        params: parameters of any floating dtype, or groups: dicts of "params" and options.
        lr: highest learning rate, relative to a parameter's root mean square; a number or a tensor of one element.
        beta2_decay: power of the step by which the moments' update rate decays; not positive.
        eps: (least root of a second moment; None: the dtype's epsilon, least scale of a parameter).
        d: clipping threshold of the update's root mean square, at least 1.
        weight_decay: share of lr by which the weights decay.
        settings: as in `optim.SGD`.
    Raises: ValueError: an option out of range.
    Source: Shazeer & Stern 2018, arXiv:1804.04235.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer = genesis.optim.Adafactor([p], lr=0.1)
        >>> (p * p).backward()
        >>> optimizer.step()
        >>> round(p.item(), 4)
        0.9
    """

    _takes_complex = False

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0,
        **settings: Unpack[Settings],
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "beta2_decay": beta2_decay,
                "eps": eps,
                "d": d,
                "weight_decay": weight_decay,
                "maximize": maximizing(self._name, settings),
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "weight_decay"):
            require_number(self._name, group, name)
        require_number(self._name, group, "beta2_decay", low=float("-inf"), most=0.0)
        require_number(self._name, group, "d", low=1.0)
        for index, eps in enumerate(require_pair(self._name, group, "eps")):
            if index or eps is not None:
                require_number(self._name, {f"eps[{index}]": eps}, f"eps[{index}]")

    def _entries(self, group: Group) -> Sequence[str]:
        return ("step",)

    def _missing_state(self, group: Group, array: NDArray, state: State) -> State:
        missing: State = {} if "step" in state else {"step": 0}
        for name, shape in _shapes(array.shape).items():
            if name not in state:
                like = array if shape == array.shape else NDArray.empty(shape, array.dtype, array.device)
                missing[name] = Tensor(zeros_like(like))
        return missing

    def shape_of(self, name: str, shape: Shape) -> Shape:
        """The shape of a row or a column. See `optim.Optimizer.step`."""
        return _shapes(shape).get(name, shape)

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        step = s["step"] + 1
        least = EPSILON[like.dtype.name] if o.eps[0] is None else o.eps[0]
        limits = least, o.eps[1], o.d
        has_decay, shrink = bool(o.weight_decay), 1 - o.lr * o.weight_decay
        return Scalars(Values(has_decay, shrink, min(o.lr, step**-0.5), step**o.beta2_decay, limits), {"step": step})

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        least, least_size, threshold = n.limits
        size = max(p.numel, 1) ** 0.5
        alpha = ops.norms([p], 2).div(size).maximum(least_size).mul(n.rate)  # stays on the device
        p = p.mul(n.shrink) if n.has_decay else p
        squared = g.mul(g)
        state = {}
        if g.ndim > 1:
            row = state["row_var"] = lerp(s["row_var"], ops.mean(squared, (g.ndim - 1,), True), n.weight)
            column = state["col_var"] = lerp(s["col_var"], ops.mean(squared, (g.ndim - 2,), True), n.weight)
            v = row.mul(column).div(ops.mean(row, (g.ndim - 2,), True).clamp(least, None))
        else:
            v = state["variance"] = lerp(s["variance"], squared, n.weight)
        update = v.clamp(least * least, None).rsqrt().mul(g)
        scale = alpha.div(ops.norms([update], 2).div(size * threshold).maximum(1.0))
        return Update(p.sub(update.mul(scale.reshape((1,) * p.ndim))), state)


def _shapes(shape: Shape) -> dict[str, Shape]:
    """The entries of the state of a parameter, and their shapes."""
    if len(shape) < 2:
        return {"variance": shape}
    return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}
