"""Helpers under the names of torch.nn.modules.utils: sizes given as a number or a tuple, and prefixes of states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TypeVar

__all__ = ["consume_prefix_in_state_dict_if_present"]

T = TypeVar("T")


def _ntuple(n: int, name: str = "parse") -> Callable[[T | Iterable[T]], tuple[T, ...]]:
    """The function that makes a tuple of n numbers of one."""

    def parse(x: T | Iterable[T]) -> tuple[T, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (
    _ntuple(n, name) for n, name in enumerate(("_single", "_pair", "_triple", "_quadruple"), 1)
)


def _reverse_repeat_tuple(t: Sequence[int], n: int) -> tuple[int, ...]:
    """Each number n times, the last one first: F.pad's order of a convolution's padding."""
    return tuple(x for x in reversed(t) for _ in range(n))


def _list_with_default(out_size: Sequence[int | None] | int, defaults: Sequence[int]) -> list[int] | int:
    """out_size, whose None are the last of defaults."""
    if isinstance(out_size, int):
        return out_size
    if len(defaults) <= len(out_size):
        raise ValueError(f"expected more than {len(out_size)} defaults, got {len(defaults)}")
    last = defaults[-len(out_size) :]
    return [default if size is None else size for size, default in zip(out_size, last, strict=True)]


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, T], prefix: str) -> None:
    """Take a prefix off the names of a state, in place: that of a wrapper such as DistributedDataParallel.

    Args:
        state_dict: as `nn.Module.state_dict` gives it; names without the prefix stay.
        prefix: such as "module.".

    Example:
        >>> state = {"module.weight": genesis.ones(1), "step": 3}
        >>> nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
        >>> list(state)
        ['weight', 'step']
    """
    entries = {name.removeprefix(prefix): value for name, value in state_dict.items()}
    state_dict.clear()
    state_dict.update(entries)
    metadata = getattr(state_dict, "_metadata", {})
    for name in [name for name in metadata if name == prefix.replace(".", "") or name.startswith(prefix)]:
        metadata[name[len(prefix) :]] = metadata.pop(name)
