"""One time step of recurrent networks: the new state of a linear map of input and state."""

from __future__ import annotations

from genesis.autograd import Tensor
from genesis.functional.activation import relu, sigmoid, tanh
from genesis.functional.dense import linear
from genesis.functional.elementwise import add, mul, sub
from genesis.functional.joining import chunk


def rnn_step(gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, nonlinearity: str = "tanh") -> Tensor:
    """tanh(gates + W·h + b), or relu.

    Args:
        gates: (N, H), the input after its linear map, floating.
        state: (N, H), h.
        weight: (H, H).
        bias: (H,), or None.
        nonlinearity: "tanh" or "relu".
    Returns: (N, H).
    Grad: all.

    Example:
        >>> from genesis.functional.recurrent import rnn_step
        >>> zero = genesis.zeros(1, 1)
        >>> rnn_step(genesis.tensor([[2.0]]), zero, zero, None, "relu").tolist()
        [[2.0]]
    """
    total = add(gates, linear(state, weight, bias))
    return tanh(total) if nonlinearity == "tanh" else relu(total)


def lstm_step(
    gates: Tensor, state: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor | None, projection: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """c' = σ(f)·c + σ(i)·tanh(g), h' = σ(o)·tanh(c'), with (i, f, g, o) = gates + W·h + b.

    Args:
        gates: (N, 4·H), the input after its linear map, floating.
        state: h, (N, H or P), and c, (N, H).
        weight: (4·H, H or P).
        bias: (4·H,), or None.
        projection: (P, H): h' is mapped by it; None leaves it.
    Returns: h' and c'.
    Grad: all.
    Source: Hochreiter & Schmidhuber 1997, "Long short-term memory"; projection: Sak et al. 2014, arXiv:1402.1128.

    Example:
        >>> from genesis.functional.recurrent import lstm_step
        >>> state = genesis.zeros(1, 1), genesis.ones(1, 1)
        >>> h, c = lstm_step(genesis.zeros(1, 4), state, genesis.zeros(4, 1), None)
        >>> c.tolist()
        [[0.5]]
    """
    hidden, cell = state
    i, f, g, o = chunk(add(gates, linear(hidden, weight, bias)), 4, -1)
    cell = add(mul(sigmoid(f), cell), mul(sigmoid(i), tanh(g)))
    hidden = mul(sigmoid(o), tanh(cell))
    return (hidden if projection is None else linear(hidden, projection)), cell


def gru_step(gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """h' = n + σ(z)·(h − n), with n = tanh(n_x + σ(r)·n_h) of gates (r, z, n)_x and W·h + b = (r, z, n)_h.

    Args:
        gates: (N, 3·H), the input after its linear map, floating.
        state: (N, H), h.
        weight: (3·H, H).
        bias: (3·H,), or None.
    Returns: (N, H).
    Grad: all.
    Source: Cho et al. 2014, arXiv:1406.1078.

    Example:
        >>> from genesis.functional.recurrent import gru_step
        >>> gru_step(genesis.zeros(1, 3), genesis.ones(1, 1), genesis.zeros(3, 1), None).tolist()
        [[0.5]]
    """
    r_x, z_x, n_x = chunk(gates, 3, -1)
    r_h, z_h, n_h = chunk(linear(state, weight, bias), 3, -1)
    n = tanh(add(n_x, mul(sigmoid(add(r_x, r_h)), n_h)))
    return add(n, mul(sigmoid(add(z_x, z_h)), sub(state, n)))
