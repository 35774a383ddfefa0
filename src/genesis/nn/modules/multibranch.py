"""Modules side by side: a main path, and branches that add a little to it."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.creation import DeviceLike, zeros
from genesis.dtypes import DType
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.nn.modules.container import ModuleList
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["Branch", "MultiBranch"]


class Branch(Module):
    """A gated branch: y = gate · projection(module(x)), with a learned scalar gate.

    Args:
        module: computes the branch.
        projection: a 1×1 convolution or linear layer to the main path's channels, where they differ; or None.
        gate: initial value of the gate; at 0 the branch contributes nothing until it has learned to.
        device, dtype: of the gate.
    Shape: as projection(module(x)).

    Example:
        >>> nn.Branch(nn.Identity(), gate=0.5)(genesis.ones(2)).tolist()
        [0.5, 0.5]
    """

    module: Module
    projection: Module | None
    gate: Parameter

    def __init__(
        self, module: Module, projection: Module | None = None, gate: float = 0.0, device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.module = module
        self.add_module("projection", projection)
        self.gate = Parameter(zeros((), device=device, dtype=dtype) + gate)

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.module(input)
        return self.gate * (y if self.projection is None else self.projection(y))


class MultiBranch(Module):
    """A main path with parallel branches: y = main(x) + weight · mean over the branches of branch(x).

    With the mean, the size of the branches' contribution and of their gradients does not depend on their number.

    Args:
        main: the main path.
        branches: modules whose outputs have the main path's shape, such as Branch.
        weight: factor of the mean, above 0.
    Shape: as main.
    Raises: ValueError: weight is not above 0.

    Example:
        >>> block = nn.MultiBranch(nn.Identity(), [nn.Branch(nn.Identity(), gate=1.0)], weight=0.2)
        >>> round(block(genesis.ones(1)).item(), 4)
        1.2
    """

    main: Module

    def __init__(self, main: Module, branches: Sequence[Module] = (), weight: float = 0.2) -> None:
        super().__init__()
        if not weight > 0:
            raise ValueError(describe("MultiBranch", "weight", "a number above 0", weight))
        self.main = main
        self.branches = ModuleList(branches)
        self.weight = weight

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.main(input)
        if len(self.branches) == 0:
            return y
        total, *others = [branch(input) for branch in self.branches]
        for other in others:
            total = total + other
        return y + total * (self.weight / len(self.branches))

    def extra_repr(self) -> str:
        return f"weight={self.weight}"
