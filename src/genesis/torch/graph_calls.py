"""The calls of Genesis' ops in a graph that AOTAutograd has traced, as records that another process can make again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

_ALIGNMENT = 16  # bytes: whether an address is divisible by it decides on kernels
_PLAIN = (bool, int, float, str, torch.dtype, type(None))


class Operand(NamedTuple):
    """A tensor without its values. device: "cpu", or "cuda" for the current device. offset: of elements, from an
    address that is divisible by much."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str
    offset: int

    @classmethod
    def of(cls, x: Tensor) -> Operand:
        """Raises: _UnknownSizeError."""
        offset = _size(x.storage_offset()) % max(1, _ALIGNMENT // x.itemsize)
        return cls(tuple(map(_size, x.shape)), tuple(map(_size, x.stride())), x.dtype, x.device.type, offset)

    def zeros(self) -> Tensor:
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        number = self.offset + (0 if 0 in self.shape else last + 1)
        flat = torch.zeros(number, dtype=self.dtype, device=self.device)
        return flat.as_strided(self.shape, self.strides, self.offset)


class Call(NamedTuple):
    """A call of torch.ops.genesis.<op>; arguments are operands, lists of them, and plain values."""

    op: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...] = ()

    def make(self) -> None:
        """Call the op with zeros: indices among the arguments are valid ones."""
        op = getattr(torch.ops.genesis, self.op).default
        with torch.no_grad():
            op(*map(_given, self.args), **{name: _given(value) for name, value in self.kwargs})


class _UnknownSizeError(Exception):
    """A size depends on values."""


def _size(size: int | torch.SymInt) -> int:
    """A size; of one that may change, what it is in the call that is being compiled."""
    known = size.node.hint if isinstance(size, torch.SymInt) else size
    if not isinstance(known, int):
        raise _UnknownSizeError
    return known


def calls_of(graph: fx.Graph) -> list[Call]:
    """All calls of Genesis' ops, in their order, but for those whose sizes are not known before the graph runs."""
    found: list[Call] = []
    for node in graph.nodes:
        op, args, kwargs = _called(node)
        if op is None:
            continue
        try:
            given = tuple((name, _argument(value)) for name, value in kwargs.items())
            found.append(Call(op._opname, tuple(map(_argument, args)), given))
        except _UnknownSizeError:
            continue
    return found


_NO_CALL: tuple[None, tuple[()], dict[str, object]] = (None, (), {})


def _called(node: fx.Node) -> tuple[OpOverload | None, tuple[object, ...], Mapping[str, object]]:
    """The op of Genesis' that a node calls, and its arguments."""
    if node.op != "call_function":
        return _NO_CALL
    if isinstance(node.target, OpOverload):
        return (node.target, node.args, node.kwargs) if node.target.namespace == "genesis" else _NO_CALL
    op = node.args[0] if node.args else None
    if not isinstance(op, OpOverload) or op.namespace != "genesis":
        return _NO_CALL
    # PyTorch wraps ops that change arguments (auto_functionalized): these are among the bases, the others go by name.
    bases = node.kwargs.get("_all_bases")
    args: list[object] = []
    for each in op._schema.arguments:
        if each.name in node.kwargs:
            args.append(node.kwargs[each.name])
            continue
        index = node.kwargs.get(f"_{each.name}_base_index")
        args.append(bases[index] if isinstance(bases, list | tuple) and isinstance(index, int) else None)
    return op, tuple(args), {}


def _argument(value: object) -> object:
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, Tensor):
        return Operand.of(value)
    if isinstance(value, list | tuple):
        return [_argument(each) for each in value]
    if isinstance(value, torch.SymInt):
        return _size(value)
    if isinstance(value, _PLAIN):
        return value
    raise _UnknownSizeError


def _given(value: object) -> object:
    if isinstance(value, Operand):
        return value.zeros()
    return [_given(each) for each in value] if isinstance(value, list) else value
