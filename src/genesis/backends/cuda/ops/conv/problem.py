"""ConvProblem: everything that decides how one convolution is computed, in one frozen record.

Memory order is not among it: the launchers bring activations to NHWC and weights to KRSC first, without gaps, so that a
candidate has one layout to know. C, H, W, K, P, Q, R, S are the field's letters: input channels and sizes, output
channels and sizes, kernel sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda.engine.problem import PRECISIONS, Epilogue
from genesis.dtypes import BY_NAME, DType
from genesis.shapes import Shape

FORWARD, INPUT_GRAD, WEIGHT_GRAD = "forward", "input_grad", "weight_grad"


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """out = forward(input, weight) | input_grad(grad, weight) | weight_grad(grad, input).

    Example:
        >>> from genesis.backends.cuda.ops.conv.problem import ConvProblem
        >>> problem = ConvProblem("forward", (8, 64, 56, 56), (256, 64, 1, 1), dtype=genesis.float32)
        >>> problem.output_shape, problem.flops
        ((8, 256, 56, 56), 822083584)
    """

    direction: str
    input_shape: Shape  # (N, C, H, W)
    weight_shape: Shape  # (K, C / groups, R, S)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    dtype: DType = dataclasses.field(kw_only=True)
    bias: bool = False  # added to the result: (K,) in the forward, (C,) in the input's gradient
    residual: bool = False  # added after the bias, in the result's shape (forward and input's gradient)
    activation: str | None = None  # "relu", applied last (forward only)
    statistics: bool = False  # of the result's channels are wanted too: candidate.Parts (forward only)
    alignment: int = 16  # all addresses are divisible by this many bytes; at most 16
    precision: str = "highest"  # of float32: "highest" | "high" | "medium"
    deterministic: bool = False  # the same operands must give the same bits
    device: int = 0

    @property
    def epilogue(self) -> Epilogue:
        return Epilogue(self.bias, self.residual, self.activation, self.statistics)

    @functools.cached_property
    def output_shape(self) -> Shape:
        """(N, K, P, Q): of the forward's result, and of the gradient that the other two directions start from."""
        sizes = (
            (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, padding, dilation in zip(
                self.input_shape[2:], self.weight_shape[2:], self.stride, self.padding, self.dilation, strict=True
            )
        )
        return (self.input_shape[0], self.weight_shape[0], *sizes)

    @property
    def first_shape(self) -> Shape:
        """Shape of the first operand: input or grad."""
        return self.input_shape if self.direction == FORWARD else self.output_shape

    @property
    def second_shape(self) -> Shape:
        """Shape of the second operand: weight or, for the weight's gradient, input."""
        return self.input_shape if self.direction == WEIGHT_GRAD else self.weight_shape

    @property
    def result_shape(self) -> Shape:
        shapes = {FORWARD: self.output_shape, INPUT_GRAD: self.input_shape, WEIGHT_GRAD: self.weight_shape}
        return shapes[self.direction]

    @property
    def num_terms(self) -> int:
        """How many products are added up in one result, at most."""
        if self.direction == WEIGHT_GRAD:
            return self.output_shape[0] * math.prod(self.output_shape[2:])
        channels = self.weight_shape[1] if self.direction == FORWARD else self.weight_shape[0] // self.groups
        return channels * math.prod(self.weight_shape[2:])

    @property
    def flops(self) -> int:
        """Two for each product; those with padding are counted, as everybody does."""
        return 2 * math.prod(self.output_shape) * math.prod(self.weight_shape[1:])

    @property
    def bytes(self) -> int:
        """Minimum memory traffic: each operand is read and the result written once."""
        elements = sum(math.prod(shape) for shape in (self.input_shape, self.weight_shape, self.output_shape))
        return (elements + (math.prod(self.result_shape) if self.residual else 0)) * self.dtype.itemsize

    @property
    def is_exact(self) -> bool:
        """Do all bits of float32 count?"""
        return self.dtype is dtypes.float32 and self.precision == "highest"

    @property
    def is_rounded(self) -> bool:
        """May numbers of float32 be rounded before they are multiplied?"""
        return self.dtype is dtypes.float32 and self.precision != "highest"

    @property
    def flops_per_second(self) -> float:
        """Peak of a large GPU."""
        return 3e13 if self.is_exact or self.dtype is dtypes.float64 else 4e14

    @property
    def is_flat(self) -> bool:
        """Does each result take one pixel, the next one the next?"""
        return math.prod(self.weight_shape[2:]) == 1 and self.stride == (1, 1) and self.padding == (0, 0)

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.weight_shape[1] == 1

    @property
    def key(self) -> str:
        """This problem in the store: JSON, the same in every process; the device has a store of its own."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "device"}
        if not self.statistics:
            del record["statistics"]  # so that older stores keep their worth
        return json.dumps({**record, "dtype": self.dtype.name}, separators=(",", ":"))

    @classmethod
    def from_key(cls, key: str, device: int = 0) -> ConvProblem:
        """The problem that has this key. Raises: ValueError: none has, such as that of another op."""
        try:
            record = json.loads(key)
            shapes = {name: tuple(value) for name, value in record.items() if isinstance(value, list)}
            problem = cls(**{**record, **shapes, "dtype": BY_NAME[record["dtype"]], "device": device})
            if problem.key == key and problem._is_sound():
                return problem
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            pass
        raise ValueError(f"no key of a convolution: {ascii(key)[:100]}")

    def _is_sound(self) -> bool:
        """Is every field of its type, and in its range? Only a key from outside can be otherwise."""
        sizes = (*self.input_shape, *self.weight_shape, *self.stride, *self.dilation, self.groups, self.alignment)
        switches = (self.bias, self.residual, self.statistics, self.deterministic)
        return (
            (len(self.input_shape), len(self.weight_shape)) == (4, 4)
            and all(len(pair) == 2 for pair in (self.stride, self.padding, self.dilation))
            and all(type(size) is int and 0 < size < 2**31 for size in sizes)
            and all(type(size) is int and 0 <= size < 2**31 for size in self.padding)
            and all(type(switch) is bool for switch in switches)
            and self.input_shape[1] == self.weight_shape[1] * self.groups
            and self.weight_shape[0] % self.groups == 0
            and min(self.output_shape) > 0
            and self.direction in (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
            and self.precision in PRECISIONS
            and self.activation in (None, "relu")
            and self.alignment in (1, 2, 4, 8, 16)
            and self.dtype.is_floating_point
        )

    def __str__(self) -> str:
        n, c, h, w = self.input_shape
        k, _, r, s = self.weight_shape
        options = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
        extra = [f"{name} {getattr(self, name)}" for name, usual in options.items() if getattr(self, name) != usual]
        rest = ", ".join([f"{n}x{c}x{h}x{w} * {k}x{r}x{s}", *extra, self.dtype.name])
        rest += f", {self.precision}" if self.dtype.name == "float32" else ""
        return f"conv {self.direction} {rest}" + (", with statistics" if self.statistics else "")
