"""Collectives of Python objects, which travel pickled, and reduce, under torch.distributed's names."""

from __future__ import annotations

import base64
import pickle
from typing import Any

from genesis.autograd.modes import unrecordable
from genesis.distributed.collectives import all_reduce
from genesis.distributed.group import ProcessGroup, require
from genesis.distributed.transport import ReduceOp
from genesis.errors import ShapeError, describe
from genesis.tensor import Tensor

_COMMUNICATES = "communicates with other processes"


def all_gather_object(object_list: list[Any], obj: object, group: ProcessGroup | None = None) -> None:
    """Gather an object of each rank, on all of them. What arrives is unpickled: ranks trust each other.

    Args:
        object_list: as long as there are ranks; takes the objects.
        obj: what pickle takes.
        group: all ranks.
    Raises: ShapeError: object_list has another length; DistributedError: as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> found = [None]
        >>> distributed.all_gather_object(found, {"loss": 0.5})
        >>> found
        [{'loss': 0.5}]
        >>> distributed.destroy_process_group()
    """
    present = _begin("all_gather_object", group)
    _require_places("all_gather_object", "object_list", object_list, present.size)
    object_list[:] = _gathered(present, obj)


def gather_object(
    obj: object, object_gather_list: list[Any] | None = None, dst: int = 0, group: ProcessGroup | None = None
) -> None:  # fmt: skip
    """Gather an object of each rank, on rank dst. See `genesis.distributed.all_gather_object`.

    Args:
        obj: what pickle takes.
        object_gather_list: on rank dst, as long as there are ranks; takes the objects.
        dst: the rank that gathers.
        group: all ranks.
    Raises: ValueError: there is no such rank; ShapeError: the list has another length.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> found = [None]
        >>> distributed.gather_object("here", found)
        >>> found
        ['here']
        >>> distributed.destroy_process_group()
    """
    present = _begin("gather_object", group)
    _require_rank("gather_object", "dst", dst, present.size)
    if present.rank == dst:
        _require_places("gather_object", "object_gather_list", object_gather_list, present.size)
    found = _gathered(present, obj)
    if present.rank == dst and object_gather_list is not None:
        object_gather_list[:] = found


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: ProcessGroup | None = None, device: object = None
) -> None:  # fmt: skip
    """Give all ranks the objects of rank src, in place. See `genesis.distributed.all_gather_object`.

    Args:
        object_list: as long on all ranks; takes the objects.
        src: the rank whose objects are taken.
        group: all ranks.
        device: accepted for PyTorch's sake; objects travel by the host.
    Raises: ValueError: there is no such rank; ShapeError: the lists differ in length.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> distributed.broadcast_object_list(["a", 2], src=0)
        >>> distributed.destroy_process_group()
    """
    present = _begin("broadcast_object_list", group)
    _require_rank("broadcast_object_list", "src", src, present.size)
    found = _shared(present, object_list, src)
    assert isinstance(found, list)
    _require_places("broadcast_object_list", "object_list", object_list, len(found))
    if present.rank != src:
        object_list[:] = found


def reduce(tensor: Tensor, dst: int = 0, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """Reduce a tensor over the ranks, in place on rank dst; the others' stay as they are.

    Args:
        tensor: as in `genesis.distributed.all_reduce`.
        dst: the rank that gets the result.
        op, group: as in `genesis.distributed.all_reduce`.
    Raises: ValueError: there is no such rank; else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> x = genesis.ones(2)
        >>> distributed.reduce(x, dst=0)
        >>> x.tolist()
        [1.0, 1.0]
        >>> distributed.destroy_process_group()
    """
    present = _begin("reduce", group)
    _require_rank("reduce", "dst", dst, present.size)
    all_reduce(tensor if present.rank == dst else tensor.detach().clone(), op, group)


def _begin(op: str, group: ProcessGroup | None) -> ProcessGroup:
    unrecordable(_COMMUNICATES)
    return require(op, group)


def _gathered(present: ProcessGroup, obj: object) -> list[object]:
    return [_shared(present, obj, source) for source in range(present.size)]


def _shared(present: ProcessGroup, obj: object, source: int) -> object:
    """The object of the source rank, on all ranks."""
    packed = base64.b64encode(pickle.dumps(obj)).decode("ascii") if present.rank == source else ""
    unpacked: object = pickle.loads(base64.b64decode(present.share(packed, source)))
    return unpacked


def _require_rank(op: str, name: str, rank: object, size: int) -> None:
    if not (isinstance(rank, int) and 0 <= rank < size):
        raise ValueError(describe(op, name, f"a rank from 0 to {size - 1}", rank))


def _require_places(op: str, name: str, places: object, size: int) -> None:
    if not isinstance(places, list) or len(places) != size:
        got = f"{len(places)} elements" if isinstance(places, list) else type(places).__name__
        raise ShapeError(describe(op, name, f"a list of {size}", got))
