"""Recurrent networks over sequences: RNN, LSTM and GRU, in several layers and both directions."""

from __future__ import annotations

import math
import warnings
from typing import TypedDict, TypeVar, Unpack, cast

from genesis import functional as F
from genesis.creation import DeviceLike, empty, zeros
from genesis.dtypes import DType
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.recurrent import State, recurrent_layer
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.nn.utils.rnn import PackedSequence
from genesis.records import RecurrentLayer
from genesis.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN", "RNNBase"]

Input = TypeVar("Input", Tensor, PackedSequence)
# Sizes: T time steps, N sequences, I input_size, H hidden_size, D directions.


class Options(TypedDict, total=False):
    """Further options of recurrent layers."""

    proj_size: int
    device: DeviceLike
    dtype: DType | None


class RNNBase(Module):
    """Base class of recurrent layers. Made by `nn.RNN`, `nn.LSTM` and `nn.GRU`, which describe its arguments."""

    _NUM_GATES = 1
    _HAS_CELL = False  # a second state

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__()
        self.mode = mode
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout = float(dropout)
        self.proj_size = options.get("proj_size", 0)
        self._check_options()
        device, dtype = options.get("device"), options.get("dtype")
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                for name, shape in self._shapes(layer).items():
                    self.register_parameter(f"{name}_{suffix}", Parameter(empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    def _check_options(self) -> None:
        op = type(self).__name__
        for name in ("input_size", "hidden_size", "num_layers"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(describe(op, name, "an int >= 1", value))
        if not 0 <= self.dropout <= 1:
            raise ValueError(describe(op, "dropout", "a probability from 0 to 1", self.dropout))
        if not 0 <= self.proj_size < self.hidden_size or (self.proj_size and not self._HAS_CELL):
            expected = "0, or for an LSTM an int below hidden_size"
            raise ValueError(describe(op, "proj_size", expected, self.proj_size))
        if self.dropout and self.num_layers == 1:
            warnings.warn(f"{op}: dropout acts between layers, of which there is only one", stacklevel=4)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"] if self.bidirectional else [f"l{layer}"]

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """The parameters of a layer in one direction."""
        gates, state = self._NUM_GATES * self.hidden_size, self.proj_size or self.hidden_size
        size = state * (2 if self.bidirectional else 1) if layer else self.input_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (gates, size), "weight_hh": (gates, state)}
        if self.bias:
            shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
        return shapes | ({"weight_hr": (self.proj_size, self.hidden_size)} if self.proj_size else {})

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters, a list for each layer and direction.

        Example:
            >>> [len(weights) for weights in nn.LSTM(2, 3, num_layers=2).all_weights]
            [4, 4]
        """
        return [
            [getattr(self, f"{name}_{suffix}") for name in self._shapes(layer)]
            for layer in range(self.num_layers)
            for suffix in self._suffixes(layer)
        ]

    def reset_parameters(self) -> None:
        """Draw all parameters from the uniform distribution within ±1 / √hidden_size.

        Example:
            >>> layer = nn.GRU(2, 4)
            >>> layer.reset_parameters()
            >>> bool((layer.weight_hh_l0.abs() <= 0.5).all())
            True
        """
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing: PyTorch's cuDNN wants its weights in one piece of memory, Genesis does not.

        Example:
            >>> print(nn.LSTM(2, 3).flatten_parameters())
            None
        """

    # --- the computation ----------------------------------------------------------------------------------------------

    def _run(self, input: Input, initial: State | None) -> tuple[Input, State]:
        """The output of the last layer for each time step, and the last state of each layer and direction."""
        if isinstance(input, PackedSequence):
            data, batch_sizes = input.data, tuple([int(size) for size in input.batch_sizes.tolist()])
            self._check_input(data, 2)
            if initial is not None and input.sorted_indices is not None:
                initial = tuple(F.index_select(state, 1, input.sorted_indices) for state in initial)
            data, last = self._layers(data, batch_sizes, self._checked(initial, batch_sizes[0], data))
            if input.unsorted_indices is not None:
                last = tuple(F.index_select(state, 1, input.unsorted_indices) for state in last)
            return input._replace(data=data), last
        assert isinstance(input, Tensor)
        self._check_input(input, 3)
        batched = input.ndim == 3
        if not batched:
            initial = None if initial is None else tuple(self._batched(state) for state in initial)
        steps_first = F.transpose(input, 0, 1) if batched and self.batch_first else input
        steps_first = steps_first if batched else F.unsqueeze(steps_first, 1)
        output, last = self._layers(steps_first, None, self._checked(initial, steps_first.shape[1], input))
        if not batched:
            return F.squeeze(output, 1), tuple(F.squeeze(state, 1) for state in last)
        return (F.transpose(output, 0, 1) if self.batch_first else output), last

    def _layers(self, data: Tensor, batch_sizes: tuple[int, ...] | None, initial: State) -> tuple[Tensor, State]:
        """Run over (T, N, I), or packed data (Σ N_t, I) with the batch sizes of its time steps.

        initial has (layers · D, N, …).
        """
        kind = RecurrentLayer(self.mode, self.bias, self.bidirectional, batch_sizes)
        directions = 2 if self.bidirectional else 1
        last: list[State] = []
        for layer in range(self.num_layers):
            weights = [
                getattr(self, f"{name}_{suffix}") for suffix in self._suffixes(layer) for name in self._shapes(layer)
            ]
            state = initial
            if self.num_layers > 1:
                state = tuple(F.narrow(states, 0, layer * directions, directions) for states in initial)
            data, final = recurrent_layer(data, state, weights, kind)
            last.append(final)
            if self.dropout and layer < self.num_layers - 1:
                data = F.dropout(data, self.dropout, self.training)
        return data, last[0] if len(last) == 1 else tuple(F.cat(states) for states in zip(*last, strict=True))

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_input(self, input: Tensor, ndim: int) -> None:
        op = type(self).__name__
        if input.ndim != ndim and not (ndim == 3 and input.ndim == 2):
            expected = "2 dimensions in packed data" if ndim == 2 else "3 dimensions, or 2 without a batch"
            raise ShapeError(describe(op, "input", expected, f"shape {input.shape}"))
        if input.shape[-1] != self.input_size:
            raise ShapeError(describe(op, "input", f"{self.input_size} features", input.shape[-1]))
        if 0 in input.shape[:-1] and input.shape[0 if not (self.batch_first and input.ndim == 3) else 1] == 0:
            raise ShapeError(describe(op, "input", "at least one time step", f"shape {input.shape}"))

    def _checked(self, initial: State | None, count: int, like: Tensor) -> State:
        """The initial state, of zeros if there is none."""
        op, places = type(self).__name__, self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.proj_size or self.hidden_size] + [self.hidden_size] * self._HAS_CELL
        if initial is None:
            return tuple(zeros(places, count, size, dtype=like.dtype, device=like.device) for size in sizes)
        for name, state, size in zip(("hx[0]", "hx[1]") if self._HAS_CELL else ("hx",), initial, sizes, strict=True):
            if state.shape != (places, count, size):
                raise ShapeError(describe(op, name, f"shape {(places, count, size)}", state.shape))
        return initial

    def _batched(self, state: Tensor) -> Tensor:
        if state.ndim != 2:
            expected = "2 dimensions, as the input has no batch"
            raise ShapeError(describe(type(self).__name__, "hx", expected, f"shape {state.shape}"))
        return F.unsqueeze(state, 1)

    def extra_repr(self) -> str:
        usual = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False,
        }  # fmt: skip
        others = [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        return ", ".join([str(self.input_size), str(self.hidden_size), *others])


class RNN(RNNBase):
    """Elman's recurrent network: h_t = tanh(W_ih·x_t + b_ih + W_hh·h_{t−1} + b_hh), or relu.

    Args:
        input_size: I, features of the input.
        hidden_size: H, features of the state.
        num_layers: layers; each runs over the output of the one before.
        nonlinearity: "tanh" | "relu".
        bias: whether there are biases.
        batch_first: inputs and outputs are (N, T, …) instead of (T, N, …).
        dropout: dropout probability between layers, in training.
        bidirectional: run over the sequence in both directions, and concatenate both outputs (D = 2).
        options: device and dtype of the parameters.
    Shape: (T, N, I), (T, I), or a PackedSequence, and h (layers · D, N, H) → (T, N, D · H) and the last h.
    Raises: ValueError: an option is out of range.
    Source: Elman 1990, "Finding structure in time".

    Example:
        >>> output, h = nn.RNN(2, 3)(genesis.ones(5, 1, 2))
        >>> output.shape, h.shape
        ((5, 1, 3), (1, 1, 3))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(describe("RNN", "nonlinearity", '"tanh" or "relu"', repr(nonlinearity)))
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(
            mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options
        )
        self.nonlinearity = nonlinearity

    def forward(self, input: Input, hx: Tensor | None = None) -> tuple[Input, Tensor]:
        output, (hidden,) = self._run(input, None if hx is None else (hx,))
        return output, hidden


class LSTM(RNNBase):
    """Long short-term memory: gates decide what a cell keeps, takes and shows.

        i, f, o = σ(W·x_t + U·h_{t−1} + b),   g = tanh(W·x_t + U·h_{t−1} + b)
        c_t = f·c_{t−1} + i·g,   h_t = o·tanh(c_t)

    Args:
        input_size: I, features of the input.
        hidden_size: H, features of the state.
        num_layers, bias, batch_first, dropout, bidirectional: as in `nn.RNN`.
        options: proj_size, which maps h to so many features; device and dtype of the parameters.
    Shape: (T, N, I), (T, I), or a PackedSequence, and (h, c) (layers · D, N, H) → (T, N, D · H) and the last (h, c).
    Raises: ValueError: an option is out of range.
    Source: Hochreiter & Schmidhuber 1997, "Long short-term memory"; proj_size: Sak et al. 2014, arXiv:1402.1128.

    Example:
        >>> output, (h, c) = nn.LSTM(2, 3, bidirectional=True)(genesis.ones(5, 1, 2))
        >>> output.shape, h.shape, c.shape
        ((5, 1, 6), (2, 1, 3), (2, 1, 3))
    """

    _NUM_GATES = 4
    _HAS_CELL = True

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options
        )

    def forward(self, input: Input, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Input, tuple[Tensor, Tensor]]:
        if hx is not None and (not isinstance(hx, tuple | list) or len(hx) != 2):
            raise DTypeError(describe("LSTM", "hx", "a pair of tensors, (h, c)", type(hx).__name__))
        output, state = self._run(input, None if hx is None else tuple(hx))
        return output, cast(tuple[Tensor, Tensor], state)


class GRU(RNNBase):
    """Gated recurrent unit: an LSTM without a cell of its own.

        r, z = σ(W·x_t + b + U·h_{t−1} + b'),   n = tanh(W·x_t + b + r·(U·h_{t−1} + b'))
        h_t = (1 − z)·n + z·h_{t−1}

    Args:
        input_size: I, features of the input.
        hidden_size: H, features of the state.
        num_layers, bias, batch_first, dropout, bidirectional: as in `nn.RNN`.
        options: device and dtype of the parameters.
    Shape: (T, N, I), (T, I), or a PackedSequence, and h (layers · D, N, H) → (T, N, D · H) and the last h.
    Raises: ValueError: an option is out of range.
    Source: Cho et al. 2014, arXiv:1406.1078.

    Example:
        >>> output, h = nn.GRU(2, 3, num_layers=2)(genesis.ones(5, 1, 2))
        >>> output.shape, h.shape
        ((5, 1, 3), (2, 1, 3))
    """

    _NUM_GATES = 3

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options
        )

    def forward(self, input: Input, hx: Tensor | None = None) -> tuple[Input, Tensor]:
        output, (hidden,) = self._run(input, None if hx is None else (hx,))
        return output, hidden
