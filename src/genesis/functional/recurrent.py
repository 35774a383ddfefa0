"""Recurrent networks: one time step, and a layer over a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.autograd.modes import state as modes
from genesis.dtypes import DType
from genesis.functional.activation import relu, sigmoid, tanh
from genesis.functional.dense import linear
from genesis.functional.elementwise import add, mul, sub
from genesis.functional.indexing import getitem
from genesis.functional.joining import cat, chunk, narrow, split, stack
from genesis.functional.shape import reshape
from genesis.ndarray import NDArray, backend_of, ops
from genesis.records import RecurrentLayer

State = tuple[Tensor, ...]  # of an LSTM h and c, else h
Step = Callable[[Tensor, State], State]  # the state after an input that has been mapped to gates

# Sizes: T time steps, N sequences, I features of the input, H of the state, D directions.


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


def recurrent_layer(
    input: Tensor, initial: State, weights: Sequence[Tensor], layer: RecurrentLayer
) -> tuple[Tensor, State]:
    """Run one layer over a sequence, in one call where the backend has one.

    Args:
        input: (T, N, I), or packed (Σ N_t, I), floating.
        initial: (D, N, H) each: h, of an LSTM also c.
        weights: for each direction weight_ih and weight_hh, bias_ih and bias_hh if there are biases, and the projection
            if there is one.
        layer: what is computed.
    Returns: the states h of all steps, (…, D · H), both directions side by side; the last state of each sequence.
    Grad: input, initial and weights.

    Example:
        >>> from genesis.functional.recurrent import RecurrentLayer, recurrent_layer
        >>> x, zero = genesis.ones(3, 1, 1), genesis.zeros(1, 1, 1)
        >>> weights = [genesis.ones(1, 1), genesis.ones(1, 1)]
        >>> y, last = recurrent_layer(x, (zero,), weights, RecurrentLayer("RNN_RELU", False, False, None))
        >>> y.flatten().tolist()
        [1.0, 2.0, 3.0]
    """
    casts = modes.autocast
    lower = None if casts is None else casts.lower_dtype(input)
    if _is_one_op([each.array for each in (input, *initial, *weights)], lower):
        cell = initial[1] if len(initial) == 2 else None
        y, *last = Recurrent.apply(input, initial[0], cell, *weights, layer=layer._replace(autocast=lower))
        return y, tuple(last)
    return composed(input, initial, weights, layer)


def _is_one_op(operands: Sequence[NDArray], lower: DType | None) -> bool:
    """The backend has an op for it. Who observes the calls of functions sees those that the layer is composed of."""
    device, dtype = operands[0].device, operands[0].dtype
    if modes.observer is not None or not backend_of(device).has("recurrent"):
        return False
    allowed = {dtype} if lower is None else {dtypes.float32, lower}
    return all(each.device is device and each.dtype in allowed and 0 not in each.shape for each in operands)


class Recurrent(ArrayFunction):
    """A layer over a sequence; the backend keeps for the gradient what it wants."""

    @staticmethod
    def forward(
        ctx: Context, input: NDArray, hidden: NDArray, cell: NDArray | None, *weights: NDArray, layer: RecurrentLayer
    ) -> tuple[NDArray, ...]:
        y, h, c, kept = ops.recurrent(input, hidden, cell, weights, layer, ctx.needs_input_grad)
        ctx.save(input, hidden, cell, *weights, y, kept)
        return (y, h) if c is None else (y, h, c)

    @staticmethod
    def backward(ctx: Context, grad: NDArray, grad_h: NDArray, grad_c: NDArray | None = None) -> Gradients:
        return ops.recurrent_backward(grad, grad_h, grad_c, ctx.saved[-1])


# --- composed of time steps -------------------------------------------------------------------------------------------


def composed(input: Tensor, initial: State, weights: Sequence[Tensor], layer: RecurrentLayer) -> tuple[Tensor, State]:
    """The layer made of a step after the other. See recurrent_layer."""
    sizes: Sequence[int] | None = layer.batch_sizes
    data = input
    if sizes is None:
        steps, count = input.array.shape[:2]
        sizes, data = [count] * steps, reshape(input, (steps * count, input.array.shape[2]))
    directions = 2 if layer.bidirectional else 1
    per_direction = len(weights) // directions
    outputs, last = [], []
    for direction in range(directions):
        weight, step = _step(weights[direction * per_direction :][:per_direction], layer)
        gates = split(linear(data, weight[0], weight[1]), sizes)
        run = _from_last if direction else _from_first
        hidden, final = run(gates, tuple(getitem(each, direction) for each in initial), step)
        outputs.append(cat(hidden))
        last.append(final)
    y = outputs[0] if len(outputs) == 1 else cat(outputs, 1)
    if layer.batch_sizes is None:
        y = reshape(y, (*input.array.shape[:2], y.array.shape[1]))
    return y, tuple(stack(each) for each in zip(*last, strict=True))


def _step(weights: Sequence[Tensor], layer: RecurrentLayer) -> tuple[tuple[Tensor, Tensor | None], Step]:
    """The map of the input, and the step of one direction."""
    weight_ih, weight_hh, *rest = weights
    bias_ih, bias_hh = (rest.pop(0), rest.pop(0)) if layer.has_biases else (None, None)
    projection = rest[0] if rest else None

    def step(gates: Tensor, state: State) -> State:
        if layer.mode == "LSTM":
            return lstm_step(gates, (state[0], state[1]), weight_hh, bias_hh, projection)
        if layer.mode == "GRU":
            return (gru_step(gates, state[0], weight_hh, bias_hh),)
        return (rnn_step(gates, state[0], weight_hh, bias_hh, "tanh" if layer.mode == "RNN_TANH" else "relu"),)

    return (weight_ih, bias_ih), step


def _from_first(gates: Sequence[Tensor], state: State, step: Step) -> tuple[list[Tensor], State]:
    """The hidden states of all time steps, and the last state of each sequence. The shorter ones end before."""
    outputs, ended = [], []
    for one in gates:
        present, before = one.array.shape[0], state[0].array.shape[0]
        if present < before:
            ended.append(tuple(narrow(part, 0, present, before - present) for part in state))
            state = tuple(narrow(part, 0, 0, present) for part in state)
        state = step(one, state)
        outputs.append(state[0])
    if not ended:
        return outputs, state
    return outputs, tuple(cat(parts) for parts in zip(state, *reversed(ended), strict=True))


def _from_last(gates: Sequence[Tensor], initial: State, step: Step) -> tuple[list[Tensor], State]:
    """Compute _from_first from the last time step to the first: shorter sequences begin later."""
    outputs = []
    state = tuple(narrow(part, 0, 0, gates[-1].array.shape[0]) for part in initial)
    for one in reversed(gates):
        present, before = one.array.shape[0], state[0].array.shape[0]
        if present > before:
            begun = [narrow(part, 0, before, present - before) for part in initial]
            state = tuple(cat(pair) for pair in zip(state, begun, strict=True))
        state = step(one, state)
        outputs.append(state[0])
    return outputs[::-1], state
