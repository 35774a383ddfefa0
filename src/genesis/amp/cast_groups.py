"""Groups of weights that an autocast block casts in one launch, because the block before it has cast them too.

A cast of one weight is a launch of some microseconds, most of which the GPU waits. So the first weight of a group that
has to be cast takes the others with it. A group is what no block has used in part: of a network, all weights; with
checkpoints, those of a segment, which is computed anew by itself.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence

from genesis import dtypes
from genesis.autograd.modes import state as thread
from genesis.dtypes import DType
from genesis.ndarray import Device
from genesis.tensor import Tensor

_Key = tuple[int, DType]  # a weight (its id), and the dtype of the cast
_Group = tuple["weakref.ref[Tensor]", ...]
_groups: dict[_Key, _Group] = {}


def is_weight(x: Tensor) -> bool:
    """Is x a leaf in float32 that requires grad, and whose changes are counted?"""
    is_leaf = x._requires_grad and x._node is None
    return is_leaf and x.dtype is dtypes.float32 and x.array.changes.version is not None


def group_of(weight: Tensor, target: DType) -> list[Tensor]:
    """Return the weights that are cast with this one, itself among them; where each call is listened to, it alone."""
    device, group = weight.array.device, _groups.get((id(weight), target))
    if group is None or thread.observer is not None:
        return [weight]
    return [x for x in _present(group) if is_weight(x) and x.array.device is device]


def note(used: Mapping[_Key, Tensor]) -> None:
    """Learn from a block that has ended which weights it has cast.

    Those on CUDA that were in no group become one; a group of which the block has used a part falls into two.
    """
    new: dict[tuple[DType, Device], list[Tensor]] = {}
    met: dict[int, tuple[_Group, DType, list[Tensor]]] = {}
    for (number, target), weight in used.items():
        group, device = _groups.get((number, target)), weight.array.device
        if group is not None:
            met.setdefault(id(group), (group, target, []))[2].append(weight)
        elif device.type == "cuda":
            new.setdefault((target, device), []).append(weight)
    for (target, _), weights in new.items():
        _join(weights, target)
    for group, target, weights in met.values():
        chosen = set(map(id, weights))
        rest = [x for x in _present(group) if id(x) not in chosen]
        if rest:
            _join(weights, target)
            _join(rest, target)


def _present(group: _Group) -> list[Tensor]:
    return [x for x in (each() for each in group) if x is not None]


def _join(weights: Sequence[Tensor], target: DType) -> None:
    keys = [(id(weight), target) for weight in weights]
    refs = [weakref.ref(x, functools.partial(_forget, key)) for x, key in zip(weights, keys, strict=True)]
    _groups.update(dict.fromkeys(keys, tuple(refs)))


def _forget(key: _Key, _: object) -> None:
    """A weight is gone, and its id may become another's."""
    _groups.pop(key, None)
