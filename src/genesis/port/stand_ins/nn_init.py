"""torch.nn.init: private functions of PyTorch's that initializers of others call."""

from __future__ import annotations

from genesis.nn import init
from genesis.tensor import Tensor


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight."""
    return init.calculate_fans("calculate_fan_in_and_fan_out", tensor)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """fan_in or fan_out of a weight."""
    return _calculate_fan_in_and_fan_out(tensor)[mode.lower() == "fan_out"]
