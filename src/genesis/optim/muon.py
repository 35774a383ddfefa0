"""Muon: steps along the orthogonalized momentum of matrices."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from genesis import dtypes
from genesis.errors import DTypeError, ShapeError, describe
from genesis.ndarray import NDArray, ops
from genesis.optim.composed import Composed, Scalar, Scalars, Update, lerp
from genesis.optim.optimizer import Params
from genesis.optim.options import Entries, Group, require_number
from genesis.precision import float32_precision
from genesis.tensor import Tensor


class Options(NamedTuple):
    lr: float
    weight_decay: float
    momentum: float
    nesterov: bool
    ns_coefficients: tuple[float, float, float]
    eps: float
    ns_steps: int
    adjust_lr_fn: str | None


class Iteration(NamedTuple):
    """Newton and Schulz's, which a CUDA graph fixes."""

    coefficients: tuple[float, float, float]
    eps: float
    num_steps: int


class Values(NamedTuple):
    rest: Scalar  # 1 − momentum
    nesterov: bool
    rate: Scalar
    shrink: Scalar
    iteration: Iteration


class Muon(Composed):
    """Muon: SGD with momentum whose step is replaced by the nearest orthogonal matrix, nearly.

        b ← b + (1 − μ)·(g − b)
        u = orthogonalized(g + μ·(b − g) with nesterov, else b)
        p ← p·(1 − lr·weight_decay) − adjusted lr·u

    The matrix is orthogonalized by Newton and Schulz's iteration, X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, whose steps
    are rounded to bfloat16 as in PyTorch.

    Args:
        params: matrices of any floating dtype, or groups: dicts of "params" and options. Other parameters, embeddings
            and the last layer are for another optimizer, such as AdamW.
        lr: learning rate, a number or a tensor of one element.
        weight_decay: share of the parameter, times lr, that each step takes off.
        momentum: μ.
        nesterov: look ahead by one step of momentum.
        ns_coefficients: a, b and c.
        eps: the least norm by which a matrix is divided.
        ns_steps: number of iterations.
        adjust_lr_fn: "original" or None: lr · √max(1, rows / columns); "match_rms_adamw": lr · 0.2 · √max(rows,
            columns).
    Raises: ShapeError: a parameter is no matrix. ValueError: an option is out of range.
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv:2502.16982.

    Example:
        >>> p = genesis.eye(2).requires_grad_()
        >>> optimizer = genesis.optim.Muon([p], lr=0.1, weight_decay=0.0)
        >>> (p * p).sum().backward()
        >>> optimizer.step()
        >>> 0.85 < p[0, 0].item() < 0.95
        True
    """

    _takes_complex = False

    _Options = Options

    def __init__(
        self, params: Params, lr: float | Tensor = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_coefficients": ns_coefficients,
                "eps": eps,
                "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn,
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "weight_decay", "momentum", "eps"):
            require_number(self._name, group, name)
        require_number(self._name, group, "ns_steps", below=100)
        coefficients = group["ns_coefficients"]
        if not isinstance(coefficients, tuple | list) or len(coefficients) != 3:
            raise DTypeError(describe(self._name, "ns_coefficients", "three numbers", repr(coefficients)))
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            expected = '"original", "match_rms_adamw" or None'
            raise ValueError(describe(self._name, "adjust_lr_fn", expected, repr(group["adjust_lr_fn"])))
        for index, param in enumerate(group["params"]):
            if param.ndim != 2:
                raise ShapeError(describe(self._name, f"params[{index}]", "2 dimensions", f"shape {param.shape}"))

    def _entries(self, group: Group) -> Sequence[str]:
        return ("momentum_buffer",)

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        assert isinstance(options, Options)
        o = options
        rows, columns = like.shape
        ratio = (
            0.2 * math.sqrt(max(rows, columns))
            if o.adjust_lr_fn == "match_rms_adamw"
            else math.sqrt(max(1.0, rows / columns))
        )
        iteration = Iteration(o.ns_coefficients, o.eps, int(o.ns_steps))
        return Scalars(Values(1 - o.momentum, o.nesterov, -o.lr * ratio, 1 - o.lr * o.weight_decay, iteration), {})

    def _history(self, state: Entries) -> Hashable:
        return state["momentum_buffer"].shape  # the rate depends on it

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        assert isinstance(scalars, Values)
        n = scalars
        buffer = lerp(s["momentum_buffer"], g, n.rest)
        update = _orthogonalized(lerp(buffer, g, n.rest) if n.nesterov else buffer, n.iteration)
        step = update.to(p.dtype).mul(n.rate)
        return Update(p.mul(n.shrink).add(step), {"momentum_buffer": buffer})


def _orthogonalized(matrix: NDArray, iteration: Iteration) -> NDArray:
    """U·Vᵀ of the singular value decomposition, roughly: singular values end between 0.5 and 1.5.

    Numbers that bfloat16 holds are multiplied in float32: at "medium" precision tensor cores do so, without an error.
    """
    if not matrix.numel:
        return matrix
    (a, b, c), eps, num_steps = iteration
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = _rounded(matrix.transpose(0, 1).contiguous() if is_tall else matrix)
    norm = _rounded(ops.sum(x.mul(x), (0, 1), True).sqrt()).clamp(eps, None)
    x = _rounded(x.div(norm))
    with float32_precision("medium"):
        for _ in range(num_steps):
            gram = _rounded(ops.matmul(x, x.transpose(0, 1)))
            change = _rounded(gram.mul(b).add(ops.matmul(gram, gram).mul(c)))
            x = _rounded(x.mul(a).add(ops.matmul(change, x)))
    return x.transpose(0, 1) if is_tall else x


def _rounded(x: NDArray) -> NDArray:
    """float32, with values that bfloat16 holds."""
    return x.to(dtypes.bfloat16).to(dtypes.float32)
