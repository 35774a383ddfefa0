"""Collectives of Python objects, which travel pickled, under torch.distributed's names."""

from __future__ import annotations

import pickle
from typing import Any

from genesis.autograd.modes import unrecordable
from genesis.distributed.collectives import require_rank
from genesis.distributed.group import ProcessGroup, require, told
from genesis.errors import DTypeError, ShapeError, describe


@told
def all_gather_object(object_list: list[Any], obj: object, group: ProcessGroup | None = None) -> None:
    """Gather an object of each rank, on all of them. What arrives is unpickled: ranks trust each other.

    Args:
        object_list: as long as there are ranks; takes the objects.
        obj: what pickle takes.
        group: all ranks.
    Raises: ShapeError: object_list has another length; DTypeError: pickle does not take obj; DistributedError: as
        all_reduce.

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
    object_list[:] = _gathered(present, "all_gather_object", "", obj)


@told
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
    require_rank("gather_object", "dst", dst, present.size)
    if present.rank == dst:
        _require_places("gather_object", "object_gather_list", object_gather_list, present.size)
    found = _gathered(present, "gather_object", f"to rank {dst}", obj)
    if present.rank == dst and object_gather_list is not None:
        object_gather_list[:] = found


@told
def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: ProcessGroup | None = None, device: object = None
) -> None:  # fmt: skip
    """Give all ranks the objects of rank src, in place. See `genesis.distributed.all_gather_object`.

    Args:
        object_list: as long on all ranks; takes the objects.
        src: the rank whose objects are taken.
        group: all ranks.
        device: accepted for PyTorch's sake; objects travel by the host.
    Raises: ValueError: there is no such rank; DTypeError: pickle does not take the objects; DistributedError: the lists
        differ in length, else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> distributed.broadcast_object_list(["a", 2], src=0)
        >>> distributed.destroy_process_group()
    """
    op = "broadcast_object_list"
    present = _begin(op, group)
    require_rank(op, "src", src, present.size)
    if not isinstance(object_list, list):
        raise DTypeError(describe(op, "object_list", "a list", type(object_list).__name__))
    packed = _packed(op, "object_list", object_list) if present.rank == src else b""
    call = present.call(op, f"from rank {src}, {len(object_list)} objects")
    found = present.share_bytes(call, packed, src)
    if present.rank != src:
        object_list[:] = pickle.loads(found)


def _begin(op: str, group: ProcessGroup | None) -> ProcessGroup:
    unrecordable(f"calls distributed.{op}: objects travel by the host")
    return require(op, group)


def _packed(op: str, argument: str, value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:  # whatever the object's own methods raise
        got = f"{type(value).__name__} ({type(error).__name__}: {error})"
        raise DTypeError(describe(op, argument, "what pickle takes", got)) from error


def _gathered(present: ProcessGroup, op: str, details: str, value: object) -> list[object]:
    packed = _packed(op, "obj", value)
    return [pickle.loads(each) for each in present.gather_bytes(present.call(op, details), packed)]


def _require_places(op: str, name: str, places: object, size: int) -> None:
    if not isinstance(places, list) or len(places) != size:
        got = f"{len(places)} elements" if isinstance(places, list) else type(places).__name__
        raise ShapeError(describe(op, name, f"a list of {size}", got))
