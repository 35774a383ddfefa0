"""How the ranks of one start find each other in a store that may hold what an earlier start has left.

torchrun keeps its store when it starts the ranks again, and an address of a process that is gone must not be taken for
one of this start. Each rank brings a word of its own; rank 0 joins the words it finds, and goes on joining until each
rank has confirmed that its own is among them.
"""

from __future__ import annotations

import hashlib
import secrets
import time

from genesis.distributed.faults import Store

_EVERY = 0.01  # seconds between two looks


def meet(store: Store, rank: int, size: int, seconds: float) -> str:
    """A word that all ranks of this start have in common, and no earlier start had.

    Args:
        store: a torch.distributed.Store.
        seconds: the most to wait.
    Raises: RuntimeError: not all have come in time.
    """
    own, end = secrets.token_hex(8), time.monotonic() + seconds
    store.set(f"word/{rank}", own)
    while time.monotonic() < end:
        common = _joined(store, size) if rank == 0 else _read(store, "words")
        if own in common.split():
            if rank == 0:
                store.set("words", common)
            store.set(f"heard/{rank}", common)
            if rank == 0 and all(_read(store, f"heard/{other}") == common for other in range(size)):
                store.set("agreed", common)
            if _read(store, "agreed") == common:
                return hashlib.sha256(common.encode()).hexdigest()[:16]
        time.sleep(_EVERY)
    words = _read(store, "words")
    late = [other for other in range(size) if other != rank and _read(store, f"heard/{other}") != words]
    raise RuntimeError(f"timed out waiting for rank {', '.join(map(str, late))}")


def _joined(store: Store, size: int) -> str:
    return " ".join([_read(store, f"word/{rank}") or "-" for rank in range(size)])


def _read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
