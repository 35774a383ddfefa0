"""MatmulProblem: everything that decides how one matrix product is computed, in one frozen record."""

from __future__ import annotations

import dataclasses
import json
import math

from genesis import dtypes
from genesis.backends.cuda.engine.problem import PRECISIONS, Epilogue
from genesis.dtypes import BY_NAME, DType
from genesis.shapes import Shape, numel

_LARGEST = 2**62


@dataclasses.dataclass(frozen=True)
class MatmulProblem:
    """(batch, rows, terms) @ (batch, terms, columns) + bias (columns)."""

    device: int
    dtype: DType
    rows: int
    columns: int
    terms: int
    x_strides: Shape
    y_strides: Shape
    batch_shape: Shape  # the innermost first, at least one
    x_batch_strides: Shape
    y_batch_strides: Shape
    has_bias: bool
    alignment: int  # of the addresses, up to 16 bytes
    precision: str  # of float32: "highest" | "high" | "medium"; "highest" of all else
    deterministic: bool = False

    @property
    def num_matrices(self) -> int:
        return math.prod(self.batch_shape)

    @property
    def num_results(self) -> int:
        return self.num_matrices * self.rows * self.columns

    @property
    def epilogue(self) -> Epilogue:
        return Epilogue(bias=self.has_bias)

    @property
    def flops(self) -> int:
        return 2 * self.num_results * self.terms

    @property
    def bytes(self) -> int:
        """Minimum memory traffic: each matrix is read and the result written once."""
        num_x, num_y = (
            numel([n for n, step in zip(self.batch_shape, strides, strict=True) if step])
            for strides in (self.x_batch_strides, self.y_batch_strides)
        )
        elements = self.terms * (num_x * self.rows + num_y * self.columns) + self.num_results
        return elements * self.dtype.itemsize

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
        return 3e13 if self.is_exact or self.dtype.itemsize > 4 else 4e14

    @property
    def key(self) -> str:
        """This problem in the store."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "device"}
        return json.dumps({"op": "matmul", **record, "dtype": self.dtype.name}, separators=(",", ":"))

    @classmethod
    def from_key(cls, key: str, device: int = 0) -> MatmulProblem:
        """The problem that has this key. Raises: ValueError: none has, such as that of another op."""
        try:
            record = json.loads(key)
            del record["op"]
            shapes = {name: tuple(value) for name, value in record.items() if isinstance(value, list)}
            problem = cls(**{**record, **shapes, "dtype": BY_NAME[record["dtype"]], "device": device})
            if problem.key == key and problem._is_sound():
                return problem
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            pass
        raise ValueError(f"no key of a matrix product: {ascii(key)[:100]}")

    def _is_sound(self) -> bool:
        """Is every field of its type, and in its range? Only a key from outside can be otherwise."""
        batch = (self.batch_shape, self.x_batch_strides, self.y_batch_strides)
        sizes = (self.rows, self.columns, *self.batch_shape)
        strides = (*self.x_strides, *self.y_strides, *self.x_batch_strides, *self.y_batch_strides)
        return (
            all(type(size) is int and 0 < size < 2**31 for size in sizes)
            and type(self.terms) is int
            and 0 <= self.terms < 2**31
            and all(type(stride) is int and abs(stride) < _LARGEST for stride in strides)
            and len(self.x_strides) == len(self.y_strides) == 2
            and len({len(each) for each in batch}) == 1
            and len(self.batch_shape) > 0
            and all(type(switch) is bool for switch in (self.has_bias, self.deterministic))
            and self.alignment in (1, 2, 4, 8, 16)
            and self.precision in PRECISIONS
            and self.dtype is not dtypes.bool_
        )

    def __str__(self) -> str:
        batch = "" if self.num_matrices == 1 else f"{self.num_matrices} times "
        rest = f", {self.precision}" if self.dtype is dtypes.float32 else ""
        bias = " + bias" if self.has_bias else ""
        sizes = f"{self.rows}x{self.terms} @ {self.terms}x{self.columns}"
        return f"matmul {batch}{sizes}{bias}, {self.dtype.name}{rest}"
