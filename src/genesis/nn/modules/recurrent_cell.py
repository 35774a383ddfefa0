"""One time step of a recurrent network as a module: RNNCell, LSTMCell, GRUCell."""

from __future__ import annotations

import math

from genesis import functional as F
from genesis.creation import DeviceLike, empty, zeros
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.functional.recurrent import gru_step, lstm_step, rnn_step
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]


class RNNCellBase(Module):
    """Base class of cells. Made by `nn.RNNCell`, `nn.LSTMCell` and `nn.GRUCell`, which describe its arguments."""

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        gates = num_chunks * hidden_size
        self.weight_ih = Parameter(empty(gates, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(gates, hidden_size, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(gates, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from the uniform distribution within ±1 / √hidden_size.

        Example:
            >>> cell = nn.GRUCell(2, 4)
            >>> cell.reset_parameters()
            >>> bool((cell.weight_hh.abs() <= 0.5).all())
            True
        """
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0.0
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _prepared(self, input: Tensor, *states: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """The gates of the input, (N, G), and the states, (N, H), zeros where there are none."""
        op = type(self).__name__
        if input.ndim not in (1, 2):
            raise ShapeError(describe(op, "input", "1 or 2 dimensions", f"shape {input.shape}"))
        if input.shape[-1] != self.input_size:
            raise ShapeError(describe(op, "input", f"{self.input_size} features", input.shape[-1]))
        expected = (*input.shape[:-1], self.hidden_size)
        found = []
        for state in states:
            if state is None:
                found.append(zeros(expected, dtype=input.dtype, device=input.device))
            elif state.shape != expected:
                raise ShapeError(describe(op, "hx", f"shape {expected}", state.shape))
            else:
                found.append(state)
        return F.linear(input, self.weight_ih, self.bias_ih), found

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
        nonlinearity = getattr(self, "nonlinearity", "tanh")
        return text if nonlinearity == "tanh" else f"{text}, nonlinearity={nonlinearity}"


class RNNCell(RNNCellBase):
    """One time step of an RNN: h' = tanh(W_ih·x + b_ih + W_hh·h + b_hh), or relu.

    Args:
        input_size: I, features of the input.
        hidden_size: H, features of the state.
        bias: whether there are biases.
        nonlinearity: "tanh" | "relu".
        device, dtype: of the parameters.
    Shape: (N, I) and h (N, H), or (I,) and (H,) → h' of the shape of h.
    Raises: ValueError: another nonlinearity.

    Example:
        >>> nn.RNNCell(2, 3)(genesis.ones(1, 2)).shape
        (1, 3)
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(describe("RNNCell", "nonlinearity", '"tanh" or "relu"', repr(nonlinearity)))
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        gates, (hidden,) = self._prepared(input, hx)
        return rnn_step(gates, hidden, self.weight_hh, self.bias_hh, self.nonlinearity)


class LSTMCell(RNNCellBase):
    """One time step of an LSTM.

    Args:
        input_size: I, features of the input.
        hidden_size: H, features of the state.
        bias: whether there are biases.
        device, dtype: of the parameters.
    Shape: (N, I) and (h, c), each (N, H), or (I,) and (H,) → (h', c').

    Example:
        >>> h, c = nn.LSTMCell(2, 3)(genesis.ones(1, 2))
        >>> h.shape, c.shape
        ((1, 3), (1, 3))
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        gates, (hidden, cell) = self._prepared(input, *((None, None) if hx is None else hx))
        return lstm_step(gates, (hidden, cell), self.weight_hh, self.bias_hh)


class GRUCell(RNNCellBase):
    """One time step of a GRU.

    Args:
        input_size: I, features of the input.
        hidden_size: H, features of the state.
        bias: whether there are biases.
        device, dtype: of the parameters.
    Shape: (N, I) and h (N, H), or (I,) and (H,) → h' of the shape of h.

    Example:
        >>> nn.GRUCell(2, 3)(genesis.ones(1, 2)).shape
        (1, 3)
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        gates, (hidden,) = self._prepared(input, hx)
        return gru_step(gates, hidden, self.weight_hh, self.bias_hh)
