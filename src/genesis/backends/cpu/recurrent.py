"""A layer of a recurrent network over a sequence: PyTorch's own, with PyTorch's own gradient."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import _VF, Tensor

from genesis.backends.cpu.storage import TORCH_DTYPES
from genesis.records import RecurrentLayer

_FUNCTIONS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}  # in PyTorch

_HALVES = torch.bfloat16, torch.float16
_refused: set[tuple[str, bool, torch.dtype]] = set()  # mode, whether it is not packed, dtype


class Tape:
    """The graph that PyTorch recorded: from operands, None among them, to outputs."""

    def __init__(self, operands: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        self.operands, self.outputs = operands, outputs


def recurrent(
    input: Tensor, hidden: Tensor, cell: Tensor | None, weights: Sequence[Tensor], layer: RecurrentLayer,
    needs: tuple[bool, ...],
) -> tuple[Tensor, Tensor, Tensor | None, Tape]:  # fmt: skip
    operands = [input, hidden, cell, *weights]
    records = True in needs
    if records:
        operands = [
            None if x is None else x.detach().requires_grad_(needed) for x, needed in zip(operands, needs, strict=True)
        ]
    with torch.set_grad_enabled(records):
        outputs = _run_in(None if layer.autocast is None else TORCH_DTYPES[layer.autocast], operands, layer, records)
    y, h, c = (*[output.detach() for output in outputs], None)[:3]
    return y, h, c, Tape(operands, outputs) if records else Tape((), ())


def _run_in(
    lower: torch.dtype | None, operands: Sequence[Tensor | None], layer: RecurrentLayer, trains: bool
) -> tuple[Tensor, ...]:
    """_run() with matrix products in a lower dtype.

    PyTorch gives an LSTM to oneDNN then, which refuses it where the processor has no such products (bfloat16 without
    AVX-512). It runs in float32 there, and its results have the dtype that they have elsewhere.
    """
    if lower is None:
        with torch.autocast("cpu", enabled=False):
            return _run(operands, layer, trains)
    kind = layer.mode, layer.batch_sizes is None, lower
    if kind not in _refused:
        try:
            with torch.autocast("cpu", lower):
                return _run(operands, layer, trains)
        except RuntimeError as error:
            if "primitive" not in str(error):
                raise
            _refused.add(kind)
    with torch.autocast("cpu", enabled=False):
        wider = [x.float() if x is not None and x.dtype in _HALVES else x for x in operands]
        return tuple([x.to(lower) for x in _run(wider, layer, trains)])


def _run(operands: Sequence[Tensor | None], layer: RecurrentLayer, trains: bool) -> tuple[Tensor, ...]:
    """y, h and, of an LSTM, c."""
    input, hidden, cell, *weights = operands
    if torch.is_autocast_enabled("cpu"):  # it would cast leaves once, as if they were weights
        input, hidden, cell = [None if x is None else x.view_as(x) for x in (input, hidden, cell)]
    state = hidden if cell is None else (hidden, cell)
    options = layer.has_biases, 1, 0.0, trains, layer.bidirectional  # one layer, no dropout
    function = getattr(_VF, _FUNCTIONS[layer.mode])
    if layer.batch_sizes is not None:
        return function(input, torch.tensor(layer.batch_sizes), state, weights, *options)
    if len(weights) // (2 if layer.bidirectional else 1) % 2 == 0:
        return function(input, state, weights, *options, False)
    with warnings.catch_warnings():  # a projection makes an odd number, and PyTorch warns that it is slower
        warnings.simplefilter("ignore")
        return function(input, state, weights, *options, False)


def recurrent_backward(
    grad: Tensor, grad_hidden: Tensor, grad_cell: Tensor | None, saved: Tape
) -> tuple[Tensor | None, ...]:
    grads = [grad, grad_hidden] if grad_cell is None else [grad, grad_hidden, grad_cell]
    asked = [x for x in saved.operands if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(saved.outputs, asked, grads, retain_graph=True, allow_unused=True))
    return tuple([next(found) if x is not None and x.requires_grad else None for x in saved.operands])
