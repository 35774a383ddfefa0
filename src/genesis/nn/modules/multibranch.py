"""Modules side by side: a main path, and branches that add a little to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.creation import zeros
from genesis.dtypes import DType
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.nn.modules.container import ModuleList
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["Branch", "MultiBranch"]


class Branch(Module):
    """gate · projection(module(x)): a module, what brings its channels to the main path's, and a learned factor.

    Args:
        module: what computes.
        projection: a 1×1 convolution or a linear layer where the channels differ, or None.
        gate: what the factor begins with. At 0 the branch adds nothing until it has learned to.
    """

    def __init__(
        self, module: Module, projection: Module | None = None, gate: float = 0.0, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.module = module
        self.add_module("projection", projection)
        self.gate = Parameter(zeros((), device=device, dtype=dtype) + gate)

    def forward(self, input: Tensor) -> Any:
        y = self.module(input)
        return self.gate * (y if self.projection is None else self.projection(y))


class MultiBranch(Module):
    """y = main(x) + weight · mean of branch(x) over the branches.

    The mean keeps what the branches add, and the gradients that they send back, of one size however many there are.

    Args:
        main: the main path.
        branches: each gives the main path's shape: a Branch, or any module.
        weight: of the mean.
    Shape: as of main.

    Example:
        >>> block = nn.MultiBranch(nn.Identity(), [nn.Branch(nn.Identity(), gate=1.0)], weight=0.2)
        >>> round(block(genesis.ones(1)).item(), 4)
        1.2
    """

    def __init__(self, main: Module, branches: Sequence[Module] = (), weight: float = 0.2) -> None:
        super().__init__()
        if not weight > 0:
            raise ValueError(describe("MultiBranch", "weight", "a number above 0", weight))
        self.main = main
        self.branches = ModuleList(branches)
        self.weight = weight

    def forward(self, input: Tensor) -> Any:
        y = self.main(input)
        if len(self.branches) == 0:
            return y
        first, *others = [branch(input) for branch in self.branches]
        total = first
        for other in others:
            total = total + other
        return y + total * (self.weight / len(self.branches))

    def extra_repr(self) -> str:
        return f"weight={self.weight}"
