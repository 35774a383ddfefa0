"""What a Function of a user's gives back, forward and backward, and what is said where it is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis
from genesis.autograd import Function
from genesis.errors import DTypeError, GraphError


def test_a_wrong_number_of_gradients_is_named() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x + y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    with pytest.raises(GraphError, match=r"Wrong.backward: expected 2 gradients, one for each argument .* got 1"):
        Wrong.apply(genesis.ones(1, requires_grad=True), genesis.ones(1, requires_grad=True)).backward()


@pytest.mark.parametrize(
    ("made", "given", "error", "message"),
    [
        (genesis.ones(3), genesis.ones(4), GraphError, r"Wrong.backward: expected a gradient of \(3,\), got \(4,\)$"),
        (genesis.ones(3), 1.0, DTypeError, "Wrong.backward: expected to be given back a Tensor, .* got a float"),
        (genesis.ones(3), np.ones(3), DTypeError, "Wrong.backward: .* got a numpy.ndarray"),
        (None, genesis.ones(3), DTypeError, "Wrong.forward: .* got a NoneType"),
    ],
)
def test_what_is_no_result_or_gradient_is_named(made: Any, given: Any, error: type[Exception], message: str) -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return made

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return given

    with pytest.raises(error, match=message):
        Wrong.apply(genesis.ones(3, requires_grad=True)).sum().backward()
