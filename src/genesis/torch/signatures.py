"""Types of the ops in ops.py and conv_act.py: contexts, what the backend's ops return, arguments in the schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from genesis.records import BegunConvNorm, ConvGeometry, NormOptions, NormState

if TYPE_CHECKING:
    from genesis.torch import conv_act
    from genesis.torch.prepared import Begun, Chain
    from genesis.torch.prepared_act import Activated
    from genesis.torch.results import Version
    from genesis.torch.second_gradients import Given
    from genesis.torch.unprepared import Unprepared

Gradients: TypeAlias = tuple[Tensor | None, ...]
Results: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Of the backend's conv_bn_relu: y, mean, inverse deviation, and what SavedConvNorm says of kept and passed."""
Operands: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Input, weight, bias, gamma, beta."""
Values: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Of input and residual in the op's order of memory, None where theirs is; of weight and bias in its dtype."""


class Array(Protocol):
    """A backend's own array: a tensor on the CPU, which on CUDA has one around it."""

    @property
    def shape(self) -> Sequence[int]: ...


class How(NamedTuple):
    """The arguments of the differentiable op beside the tensors that may need a gradient.

    Attributes:
        begun: what conv_bn_begin gave; None: it is all to be done.
        counts: the changes of the running statistics are counted. Not in PyTorch, which saves them for the backward.
    """

    norm: NormState[Tensor]
    begun: BegunConvNorm[Array] | None
    counts: bool
    options: NormOptions
    geometry: ConvGeometry
    activation: str | None


FusedArguments: TypeAlias = tuple[
    Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, How, Values | None
]
"""Input, weight, bias, gamma, beta, residual, How; and values to compute with in the place of some, or None."""
Made: TypeAlias = "tuple[Begun, Tensor, str | None, Tensor]"
"""What prepared launches have begun, the values of the input there, the activation, and the result."""
PreparedArguments: TypeAlias = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Made]
"""Input, weight, bias, gamma, beta, residual, and what has been computed."""

ActivatedArguments: TypeAlias = "tuple[Tensor, Tensor, Tensor | None, Tensor | None, conv_act.How, conv_act.Values]"
"""Input, weight, bias, residual; and the rest of conv_act's arguments."""


# --- contexts ---
class Context(Protocol):
    """PyTorch's context of a call."""

    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class FusedContext(Context, Protocol):
    """The context of the eager op.

    Attributes:
        result: its version.
        options: whether it was in training, geometry, activation.
        again: what second gradients want to know too: eps, whether it had a residual, and what was cast.
    """

    result: Version | None
    again: tuple[float, bool, Given | None]
    parameter_dtype: torch.dtype
    options: tuple[bool, ConvGeometry, str | None]
    saved_tensors: tuple[Tensor | None, ...]


class PreparedContext(Context, Protocol):
    """The context of prepared launches.

    Attributes:
        how: they, whether a sum was made, the activation, the parameters' dtype.
        cast: the weight, if its values are others.
    """

    cast: Given | None
    how: tuple[Chain, bool, str | None, torch.dtype]
    saved_tensors: tuple[Tensor, ...]


class TracedContext(Context, Protocol):
    """The context of the traced op. options: training, and the geometry and activation of its schema; orders in memory:
    of the result, and of the weight's gradient."""

    order: torch.memory_format
    weight_order: torch.memory_format
    options: tuple[bool, Sequence[int], Sequence[int], Sequence[int], int, str | None]
    saved_tensors: tuple[Tensor | None, ...]


class ActivatedContext(Context, Protocol):
    """The context of conv_act.

    Attributes:
        adds: it has a residual.
        parameters: the weight, if its values are others, and the bias; versions: theirs.
    """

    how: conv_act.How
    dtype: torch.dtype
    prepared: Activated | Unprepared
    adds: bool
    parameters: tuple[Tensor | None, Tensor | None]
    versions: tuple[int, ...]
    saved_tensors: tuple[Tensor | None, ...]


class TracedActivatedContext(Context, Protocol):
    """The context of the traced conv_act. how: geometry and activation of its schema; orders as of the traced op."""

    order: torch.memory_format
    weight_order: torch.memory_format
    how: tuple[Sequence[int], Sequence[int], Sequence[int], int, str | None]
    saved_tensors: tuple[Tensor, ...]


# --- arguments in the order of the schemas ---
ForwardArguments: TypeAlias = tuple[
    Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None,
    bool, float, float, Sequence[int], Sequence[int], Sequence[int], int, str | None,
]  # fmt: skip
"""Input, weight, bias, gamma, beta, running mean and variance, residual; training, momentum, eps; geometry."""
BackwardArguments: TypeAlias = tuple[
    Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor, Tensor, Tensor,
    bool, Sequence[int], Sequence[int], Sequence[int], int, str | None, Sequence[bool],
]  # fmt: skip
"""Those of SavedConvNorm, training, geometry, and which operands need a gradient; before them comes the gradient."""
InferenceArguments: TypeAlias = tuple[
    Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor, Tensor | None,
    float, Sequence[int], Sequence[int], Sequence[int], int, str | None,
]  # fmt: skip
"""Those of the forward, without training and momentum."""
FoldedArguments: TypeAlias = tuple[
    Tensor, Tensor, Tensor, Tensor | None, Sequence[int], Sequence[int], Sequence[int], int, str | None
]
"""Input, folded weight and bias, residual; geometry, activation."""
ConvActArguments: TypeAlias = tuple[
    Tensor, Tensor, Tensor | None, Tensor | None, Sequence[int], Sequence[int], Sequence[int], int, str | None,
    str | None,
]  # fmt: skip
"""Input, weight, bias, residual; geometry, activation, and what is kept for the backward."""
ConvActBackwardArguments: TypeAlias = tuple[
    Tensor, Tensor, Tensor, Tensor, Sequence[int], Sequence[int], Sequence[int], int, str | None, Sequence[bool]
]
"""The gradient, input, weight, what was kept; geometry, activation, and which operands need a gradient."""
