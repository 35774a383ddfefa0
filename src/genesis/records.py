"""Records of what ops take together: the geometry of a convolution, the tensors of a norm, what a backward needs.

They are named tuples: plans are looked up by them, and each is a tuple of its fields wherever only the order counts.
Where A stands, there is an array above the backends, a handle in them, and a layout where a plan is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from genesis.dtypes import DType

Pair = tuple[int, int]
A = TypeVar("A")
S = TypeVar("S")
Several = TypeVar("Several", bound=list[object] | tuple[object, ...])


record = tuple.__new__
"""record(ConvGeometry, fields) is ConvGeometry(*fields) in half the time: for what is made in every call."""


class ConvGeometry(NamedTuple):
    """The geometry of a convolution: its windows, and the groups of its channels."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


class ConvSettings(NamedTuple):
    """The geometry of a convolution as `F.conv2d` takes it: a number holds for both dimensions, padding may be "same"
    or "valid"."""

    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] | str = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1


class Windows(NamedTuple):
    """The windows of a pooling. ceil_mode: those too that begin inside and end outside."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    ceil_mode: bool


class NormState(NamedTuple, Generic[A]):
    """The tensors of a batch norm, (C,) each; num_batches_tracked is int64 ()."""

    gamma: A | None
    beta: A | None
    running_mean: A | None
    running_var: A | None
    num_batches_tracked: A | None = None


class NormOptions(NamedTuple):
    """The settings of a batch norm. training: normalize by the statistics of the batch, else by the running ones."""

    training: bool
    momentum: float = 0.1
    eps: float = 1e-5


class BegunConvNorm(NamedTuple, Generic[A]):
    """The results of conv_bn_begin, for conv_bn_finish.

    Attributes:
        mean, inverse_std: (K,); None: the running statistics say it.
        kept: the convolution's output, or what stands for it.
        normalized: the norm's values, if the backend has them already.
    """

    mean: A | None
    inverse_std: A | None
    kept: A
    normalized: A | None


class SavedConvNorm(NamedTuple, Generic[A]):
    """The arrays that conv_bn_relu saves for its backward.

    Attributes:
        weight: None: there is no convolution, and kept is the input.
        mean, inverse_std: (K,).
        kept: the convolution's output, or what stands for it.
        passed: what the rest does not tell of the values before the activation, in the backend's own form; or None.
    """

    input: A
    weight: A
    bias: A | None
    gamma: A | None
    beta: A | None
    mean: A
    inverse_std: A
    kept: A
    passed: A | None


class SavedGroupNorm(NamedTuple, Generic[A]):
    """The arrays that a group norm saves for its backward; mean and inverse_std are (N, groups)."""

    input: A
    weight: A | None
    bias: A | None
    mean: A
    inverse_std: A


class SavedAttention(NamedTuple, Generic[A, S]):
    """The arrays that attention saves for its backward; softmax is in the backend's own form."""

    query: A
    key: A
    value: A
    mask: A | None
    y: A
    softmax: S


class RecurrentLayer(NamedTuple):
    """The computation of one layer of a recurrent network.

    Attributes:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU".
        has_biases: the weights of each direction have two biases among them.
        bidirectional: there is a second direction, from the last step to the first.
        batch_sizes: how many sequences go on at each time step of packed data; None: the input has all of them.
        autocast: the 16-bit dtype of matrix products under autocast, or None.
    """

    mode: str
    has_biases: bool
    bidirectional: bool
    batch_sizes: tuple[int, ...] | None
    autocast: DType | None = None


class SGDOptions(NamedTuple):
    """The settings of sgd_step: numbers, then flags."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool


class AdamOptions(NamedTuple):
    """The settings of adam_step: numbers, then flags. decoupled_weight_decay: as AdamW does."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled_weight_decay: bool
    maximize: bool


class RandomStream:
    """Random numbers apart from a device's generator.

    Attributes:
        state: as get_rng_state gives it; empty until it is seeded or forked.
    """

    def __init__(self, state: bytes = b"") -> None:
        self.state = state


class StepInputs(NamedTuple, Generic[A]):
    """The arrays that sgd_step and adam_step read when they run, for CUDA graphs.

    Attributes:
        numbers: float64, in place of those with which the options begin, in their order.
        found_inf: bool (); where it is true, nothing changes.
    """

    numbers: A | None = None
    found_inf: A | None = None


class _Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


def is_output(kept: _Shaped) -> bool:
    """Is what conv_bn_relu kept the convolution's output, or the matrix that a 1×1 expansion keeps in its place?"""
    return len(kept.shape) == 4


def rebuilt(like: Several, items: Iterable[object]) -> Several:
    """A list, tuple or named tuple of these items, as like is one."""
    make = getattr(like, "_make", type(like))
    made: Several = make(items)
    return made
