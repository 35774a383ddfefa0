"""AttentionProblem: everything that decides how one attention's forward pass is computed, where there is a choice."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import ClassVar

from genesis import dtypes
from genesis.backends.cuda.driver import cudnn
from genesis.backends.cuda.engine.problem import Epilogue
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import BY_NAME, DType
from genesis.shapes import Shape, contiguous_strides

LARGEST_HEAD = 256
_LEAST_OPERATIONS = 2**33  # some 20 µs of a large GPU: for less, building a plan of cuDNN's does not pay


@dataclasses.dataclass(frozen=True)
class AttentionProblem:
    """In 16 bits, without a mask. All shapes and strides have four dimensions, (batch, heads, rows, columns)."""

    device: int
    dtype: DType
    queries: tuple[Shape, Shape]
    keys: tuple[Shape, Shape]  # one head where all of the queries share it
    values: tuple[Shape, Shape]
    is_causal: bool
    scale: float

    precision: ClassVar[str] = "highest"  # of float32 alone there are others
    deterministic: ClassVar[bool] = True  # no candidate is anything else
    epilogue: ClassVar[Epilogue] = Epilogue()
    flops_per_second: ClassVar[float] = 4e14  # of a large GPU

    @property
    def flops(self) -> int:
        (batch, heads, num_queries, head_size), (_, _, num_keys, value_size) = self.queries[0], self.values[0]
        return 2 * batch * heads * num_queries * num_keys * (head_size + value_size) // (2 if self.is_causal else 1)

    @property
    def bytes(self) -> int:
        """Minimum memory traffic: each operand is read and the results written once."""
        operands = sum(math.prod(shape) for shape, _ in (self.queries, self.keys, self.values))
        return (operands + math.prod(self.result_shape)) * self.dtype.itemsize + 4 * math.prod(self.queries[0][:3])

    @property
    def result_shape(self) -> Shape:
        return (*self.queries[0][:3], self.values[0][3])

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout, Layout, Layout]:
        """Layouts of y, logsumexp, query, key and value; a shared head as one for each."""
        lead, sides = self.queries[0][:2], (self.queries, self.keys, self.values)
        query, key, value = (
            layout_of((*lead, *shape[2:]), self.dtype, self.device, _per_head(lead, shape, strides))
            for shape, strides in sides
        )
        logsumexp = layout_of(self.queries[0][:3], dtypes.float32, self.device)
        return layout_of(self.result_shape, self.dtype, self.device), logsumexp, query, key, value

    @property
    def key(self) -> str:
        """This problem in the store."""
        record = {"op": "attention", "device": None, "dtype": self.dtype.name}
        sides = {"query": self.queries, "key": self.keys, "value": self.values}
        return json.dumps({**record, **sides, "is_causal": self.is_causal, "scale": self.scale})

    @classmethod
    def from_key(cls, key: str, device: int = 0) -> AttentionProblem:
        """The problem that has this key. Raises: ValueError: none has, such as that of another op."""
        try:
            record = json.loads(key)
            query, key_side, value = (_side(record[name]) for name in ("query", "key", "value"))
            dtype, is_causal, scale = BY_NAME[record["dtype"]], record["is_causal"], record["scale"]
            problem = cls(device, dtype, query, key_side, value, is_causal, scale)
            if problem.key == key and problem._is_sound():
                return problem
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            pass
        raise ValueError(f"no key of an attention: {ascii(key)[:100]}")

    def _is_sound(self) -> bool:
        """Is every field of its type, and in its range? Only a key from outside can be otherwise."""
        numbers = [number for side in (self.queries, self.keys, self.values) for each in side for number in each]
        if not all(type(number) is int and 0 < number < 2**62 for number in numbers):
            return False
        (batch, heads, _, size), (_, _, num_keys, value_size) = self.queries[0], self.values[0]
        return (
            all(len(each) == 4 for side in (self.queries, self.keys, self.values) for each in side)
            and self.keys[0] in ((batch, 1, num_keys, size), (batch, heads, num_keys, size))
            and self.values[0][:2] in ((batch, 1), (batch, heads))
            and max(size, value_size) <= LARGEST_HEAD
            and type(self.is_causal) is bool
            and type(self.scale) is float
            and 0 < self.scale < math.inf
            and self.dtype in (dtypes.float16, dtypes.bfloat16)
        )

    def __str__(self) -> str:
        sides = {"query": self.queries, "key": self.keys, "value": self.values}
        sizes = " ".join(f"{name} {'x'.join(map(str, shape))}" for name, (shape, _) in sides.items())
        return f"attention {sizes}{' causal' if self.is_causal else ''}, {self.dtype.name}"


def _side(record: tuple[Sequence[int], Sequence[int]]) -> tuple[Shape, Shape]:
    shape, strides = record
    return tuple(shape), tuple(strides)


def _per_head(lead: Shape, shape: Shape, strides: Shape) -> Shape:
    return (strides[0], 0 if shape[1] < lead[1] else strides[1], *strides[2:])


def describe(
    query: DeviceArray, key: DeviceArray, value: DeviceArray, is_causal: bool, scale: float
) -> AttentionProblem | None:
    """None where cuDNN is missing, has no way to say it, or is not worth asking: then there is no choice."""
    if query.dtype.itemsize != 2 or not scale > 0:  # one that is negative would make the least score the greatest
        return None
    if not all(_is_aligned(x) for x in (query, key, value)):
        return None
    lead, walks = query.shape[:-2], [x.strides[:-2] for x in (query, key, value)]
    if len(lead) > 2:
        lead, (_, *walks) = collapse(lead, [contiguous_strides(lead), *walks])
        if len(lead) > 2:
            return None
    q, k, v = (_whole(x, lead, walk) for x, walk in zip((query, key, value), walks, strict=True))
    if q[0][1] != (lead[-1] if lead else 1) or min(*q[1], *k[1], *v[1]) <= 0:
        return None
    problem = AttentionProblem(query.device_index, query.dtype, q, k, v, is_causal, float(scale))
    return problem if problem.flops >= _LEAST_OPERATIONS and cudnn.is_available() else None


def _whole(x: DeviceArray, lead: Shape, walk: Shape) -> tuple[Shape, Shape]:
    """Shape and strides in four dimensions; one head where all are the same."""
    missing = 2 - len(lead)
    shape, strides = [*(1,) * missing, *lead, *x.shape[-2:]], [*(0,) * missing, *walk, *x.strides[-2:]]
    if strides[1] == 0:
        shape[1] = 1
    for i in (2, 1, 0):
        if shape[i] == 1:  # then any stride will do, but it is looked at
            strides[i] = shape[i + 1] * strides[i + 1]
    return tuple(shape), tuple(strides)


def _is_aligned(x: DeviceArray) -> bool:
    """Rows without gaps between elements, that begin at multiples of 16 bytes."""
    steps = [stride for size, stride in zip(x.shape[:-1], x.strides[:-1], strict=True) if size > 1]
    aligned = x.data_pointer % 16 == 0 and x.shape[-1] % 8 == 0 and all(step % 8 == 0 for step in steps)
    return aligned and x.size > 0 and x.strides[-1] == 1
