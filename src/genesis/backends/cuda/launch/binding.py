"""Kernels with everything packed but the addresses, as the candidates of this package launch them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from genesis import dtypes
from genesis.backends.cuda.driver import AddressLaunch, Value
from genesis.backends.cuda.launch import triton as launch
from genesis.dtypes import DType

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

Argument: TypeAlias = "Pointer | Value | tuple[int, ...]"


class Pointer:
    """An argument that each launch gives anew: an address of elements of dtype, divisible by alignment bytes."""

    __slots__ = ("kind",)

    def __init__(self, dtype: DType, alignment: int = 16) -> None:
        name = f"*{launch.TRITON_NAMES[dtype]}"
        self.kind = name if alignment % 16 else f"{name}/16"


def bind(
    kernel: JITFunction, device: int, grid: tuple[int, ...], *args: Argument, general: bool = False, **constants: object
) -> AddressLaunch:  # fmt: skip
    """run(stream, *addresses): launch the kernel with these arguments and an address for each Pointer among them.

    Args:
        general: compiled for arguments of any values, so that it is compiled once for all of them.
        args, constants: as for launch.launch(), with a Pointer in the place of each array; Pointers come first, with
            None among them where an array is missing.
    """
    leading = next((i for i, arg in enumerate(args) if not isinstance(arg, Pointer | None)), len(args))
    kinds = tuple([_general(_kind(arg)) if general else _kind(arg) for arg in args])
    loaded = launch.load(kernel, device, kinds, constants)
    x, y, z, *_ = (*grid, 1, 1)
    given = [i for i in range(leading) if args[i] is not None]
    rest: list[Value] = [None] * (leading - len(given))
    for arg in args[leading:]:
        assert not isinstance(arg, Pointer), "an array behind a number"
        rest += arg if isinstance(arg, tuple) else (arg,)
    if given == list(range(len(given))):
        return loaded.prepare((x, y, z), len(given), rest)

    def run(stream: int, /, *addresses: int) -> None:  # an array is missing between others
        values: list[Value] = [None] * leading
        for i, address in zip(given, addresses, strict=True):
            values[i] = address
        loaded.launch((x, y, z), stream, values + rest[leading - len(given) :])

    return run


def _kind(arg: Argument) -> launch.ArgumentKind:
    if isinstance(arg, Pointer):
        return arg.kind
    return tuple([launch.number_kind(each) for each in arg]) if isinstance(arg, tuple) else launch.number_kind(arg)


def _general(kind: launch.ArgumentKind) -> launch.ArgumentKind:
    """Without what is known of the value: that it is 1, or divisible by 16."""
    if isinstance(kind, tuple):
        return tuple(map(_general, kind))
    return {"1": "i32"}.get(kind, kind.partition("/")[0]) if isinstance(kind, str) else kind


def accumulator(dtype: DType) -> DType:
    """The dtype that sums of elements of dtype are kept in."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
