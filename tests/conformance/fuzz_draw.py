"""Random arguments of ops: shapes with empty, 1-sized and long dimensions, any strides, any dtypes; from one seed.

An entry of OPS draws a Call: a function of a backend and its handles, and the arguments, arrays among them as torch
tensors. Where an op works in place, or needs what another one saved, the function makes both calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

FLOATS = (torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
LAYOUTS = ("contiguous", "contiguous", "permuted", "sliced", "offset", "expanded", "channels last")

Shape = tuple[int, ...]


class Draw:
    """Equal seeds draw equal arguments."""

    def __init__(self, seed: int, op: str) -> None:
        self._random = random.Random(f"{op} {seed}")
        self._torch = torch.Generator().manual_seed(self._random.getrandbits(32))

    def choice(self, options: Sequence[Any]) -> Any:
        return self._random.choice(options)

    def integer(self, low: int, high: int) -> int:
        """Both ends included."""
        return self._random.randint(low, high)

    def chance(self, probability: float = 0.5) -> bool:
        return self._random.random() < probability

    def size(self, least: int = 0) -> int:
        """Mostly small; now and then empty, one, or beyond a block."""
        kind = self._random.random()
        if kind < 0.05:
            return max(least, 0)
        if kind < 0.15:
            return max(least, 1)
        return self.integer(30, 70) if kind > 0.95 else self.integer(max(least, 2), 7)

    def shape(self, low: int = 0, high: int = 4, least: int = 0) -> Shape:
        """From low to high dimensions, none smaller than least."""
        if low <= 1 <= high and self.chance(0.08):
            return (self.integer(1000, 2100),)
        if low <= 2 <= high and self.chance(0.05):
            return self.choice([(3, 1100), (1100, 3)])
        return tuple(self.size(least) for _ in range(self.integer(low, high)))

    def dims(self, rank: int, least: int = 0) -> Shape:
        """Some dimensions, sorted, or all; () for 0-d."""
        if rank == 0:
            return ()
        return tuple(sorted(self._random.sample(range(rank), self.integer(max(least, 1), rank))))

    def floating(self) -> torch.dtype:
        return self.choice(FLOATS)

    def any_dtype(self, with_bool: bool = False) -> torch.dtype:
        return self.choice([*FLOATS, *FLOATS, *INTEGERS, *([torch.bool] * 2 if with_bool else [])])

    def like(self, dtype: torch.dtype, shape: Shape) -> Any:
        """An operand that broadcasts to shape: it has fewer dimensions, or some of size 1; or it is a number."""
        if self.chance(0.15):
            return self.integer(1, 3) if not dtype.is_floating_point else self.choice([0.5, 2, -1.25, 1])
        kept = shape[self.integer(0, len(shape)) :] if self.chance(0.3) else shape
        return self.tensor(tuple(1 if self.chance(0.15) else size for size in kept), dtype)

    def tensor(self, shape: Shape, dtype: torch.dtype, positive: bool = False, layout: str | None = None) -> Any:
        """Normal numbers (positive: from 0.1 on), small integers, or truth values, in some layout."""
        layout = self.choice(LAYOUTS) if layout is None else layout
        if layout == "permuted":
            order = self._random.sample(range(len(shape)), len(shape))
            whole = self._values(tuple(shape[dim] for dim in order), dtype, positive)
            return whole.permute([order.index(dim) for dim in range(len(shape))])
        if layout == "sliced":
            steps = [self.integer(1, 2) for _ in shape]
            starts = [self.integer(0, 1) for _ in shape]
            sizes = tuple(a + size * step for size, step, a in zip(shape, steps, starts, strict=True))
            whole = self._values(sizes, dtype, positive)
            slices = [slice(a, a + size * step, step) for size, step, a in zip(shape, steps, starts, strict=True)]
            return whole[tuple(slices)] if shape else whole
        if layout == "offset":
            size = torch.Size(shape).numel()
            shift = self.integer(1, 3)
            return self._values((size + shift,), dtype, positive)[shift:].view(shape)
        if layout == "expanded":
            return self._values(tuple(1 if self.chance(0.4) else size for size in shape), dtype, positive).expand(shape)
        whole = self._values(shape, dtype, positive)
        if layout == "channels last" and len(shape) == 4:
            return whole.contiguous(memory_format=torch.channels_last)
        return whole

    def target(self, shape: Shape, dtype: torch.dtype) -> Any:
        """A tensor to be written: no element of it is at the address of another."""
        return self.tensor(shape, dtype, layout=self.choice([layout for layout in LAYOUTS if layout != "expanded"]))

    def distinct(self, shape: Shape, dtype: torch.dtype) -> Any:
        """No two elements are equal, in any of the dtypes, for up to 256 of them per row."""
        ranks = torch.rand(shape, generator=self._torch).argsort(-1) if shape else torch.zeros(())
        return (ranks - 60).to(dtype)

    def indices(self, shape: Shape, size: int, negative: bool = False) -> Any:
        """int64 in [0, size), or from -size on."""
        low = -size if negative else 0
        whole = torch.randint(low, max(size, 1), (2 * torch.Size(shape).numel(),), generator=self._torch)
        return (whole[::2] if self.chance() else whole[: torch.Size(shape).numel()]).reshape(shape)

    def mask(self, shape: Shape) -> Any:
        return self.tensor(shape, torch.bool)

    def _values(self, shape: Shape, dtype: torch.dtype, positive: bool) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.rand(shape, generator=self._torch) > 0.5
        if not dtype.is_floating_point:
            low = 1 if positive else 0 if dtype is torch.uint8 else -5
            return torch.randint(low, 6, shape, generator=self._torch).to(dtype)
        values = torch.randn(shape, generator=self._torch, dtype=torch.float64)
        return (values.abs() + 0.1 if positive else values).to(dtype)


class Call(NamedTuple):
    run: Callable[..., Any]  # of (backend, *arguments)
    arguments: tuple[Any, ...]
    slack: float = 1.0  # times the tolerance, where the terms of a sum are larger than the sum


OPS: dict[str, Callable[[Draw], Call]] = {}
Drawer = Callable[[str, Draw], tuple[Any, ...] | Call]


def drawn_by(names: str) -> Callable[[Drawer], Drawer]:
    """These ops draw their arguments so."""

    def register(drawer: Drawer) -> Drawer:
        for name in names.split():

            def draw(d: Draw, name: str = name) -> Call:
                found = drawer(name, d)
                if isinstance(found, Call):
                    return found
                return Call(lambda backend, *arguments: getattr(backend, name)(*arguments), found)

            assert name not in OPS, f"{name} is drawn twice"
            OPS[name] = draw
        return drawer

    return register
