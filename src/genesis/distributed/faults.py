"""Why a call has failed: the ranks tell each other who they are, and a rank that fails looks who is gone.

Nothing runs while all is well. A process of the same host is asked for by its id, which is exact; of another host, its
neighbours there leave a note in the store. Who fails leaves a note too, so that those who end because another has died
are not taken for the cause. Who is ended by an exception of its own leaves that, and who has waited for long, its last
calls. Ranks number the calls of all transports alike: different calls of one number cannot both be right, however late
some rank is.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from genesis.distributed.transport import Call
from genesis.errors import DistributedError

LONG = 5.0  # seconds of waiting in one call, after which a rank looks where the others are
NUM_KEPT = 32  # calls that a note shows
_PATIENCE = 2.0  # seconds in which a process that was killed is gone, and others have left their notes
_TIMED_OUT = ("timed out", "timeout")
_CLOSED = ("Connection closed by peer", "Connection reset by peer")  # gloo's words
_PLACES = ("at", "nccl")  # of notes: gloo's calls, and NCCL's
_LONGEST = 300  # characters of another rank's error in a message


class Store(Protocol):
    """Torch's stores: text by key, shared by all ranks."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class Peer(NamedTuple):
    """A process that takes part."""

    host: str
    pid: int

    @property
    def is_gone(self) -> bool | None:
        """Whether it runs no longer; None if it is on another host."""
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        status = Path(f"/proc/{self.pid}/stat")  # of one that nobody has waited for, the id remains
        try:
            return status.read_text().rpartition(")")[2].split()[0] in ("Z", "X")
        except (OSError, IndexError):
            return False


def described(calls: Mapping[int, str]) -> str:
    """The calls of some ranks; ranks with the same one together."""
    ranks = itertools.groupby(sorted(calls, key=lambda rank: (calls[rank], rank)), key=calls.__getitem__)
    return "; ".join(f"rank {', '.join(map(str, same))}: {each}" for each, same in ranks)


class Peers:
    """The processes of all ranks, and their notes."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self.rank, self.size = store, rank, size
        self._place = "at"
        store.set(f"peer/{rank}", f"{os.getpid()} {socket.gethostname()}")
        self.all: list[Peer] = []
        for other in range(size):
            pid, _, host = store.get(f"peer/{other}").decode().partition(" ")
            self.all.append(Peer(host, int(pid)))

    def beside(self, transport: str) -> Peers:
        """The same ranks, for the calls of another transport, which are posted in a place of their own."""
        assert transport in _PLACES
        peers = copy.copy(self)
        peers._place = transport
        return peers

    def failure(
        self, call: Call, error: BaseException, timeout: float, calls: Mapping[int, str] | None = None
    ) -> DistributedError:  # fmt: skip
        """The error of a call that has failed, with the rank that is to blame, if one can be found.

        Args:
            calls: this rank's last ones: show ranks that were in different ones.
        """
        self.give_up(calls)
        gone, silent = self._look(patience=_PATIENCE)
        said = f"{call.name}: failed on rank {self.rank} of {self.size} ({call})"
        if gone:
            return DistributedError(f"{said}: {' and '.join(map(self._end_of, gone))}")
        apart = self.apart(calls) if calls else ""
        if apart:
            return DistributedError(f"{said}: the ranks waited in different calls: {apart}")
        late = f"; nothing was heard of rank {', '.join(map(str, silent))}" if silent else ""
        if any(words in str(error).lower() for words in _TIMED_OUT):
            return DistributedError(f"{said}: timed out after {timeout:g} s{late}")
        text = " ".join(str(error).split())
        if any(words in text for words in _CLOSED):
            text = "the connection to another rank was closed by its side"
        return DistributedError(f"{said}: {text}{late}")

    def give_up(self, calls: Mapping[int, str] | None) -> None:
        """This rank makes no more calls."""
        if calls:
            self.post(calls)
        self._note(f"failed/{self.rank}")

    def post(self, calls: Mapping[int, str]) -> None:
        """Let the others see the last calls of this rank, by their numbers; it waits in one. {}: it goes on."""
        self._note(f"{self._place}/{self.rank}", json.dumps(calls))

    def apart(self, calls: Mapping[int, str]) -> str:
        """The different calls in which ranks wait, as after loops of different lengths; "" where none are known."""
        posted = {rank: self._posted(rank) for rank in range(self.size) if rank != self.rank}
        for number, own in sorted(calls.items()):
            same = {rank: others[number] for rank, others in posted.items() if number in others}
            if any(each != own for each in same.values()):
                return described({self.rank: own, **same})
        return ""

    def failed(self) -> list[int]:
        """The other ranks of which a call has failed: they make no more."""
        return [rank for rank in range(self.size) if rank != self.rank and self._has_note(f"failed/{rank}")]

    def end(self, error: BaseException) -> None:
        """This rank ends by an exception."""
        text = " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split())
        self._note(f"ended/{self.rank}", text if len(text) <= _LONGEST else text[:_LONGEST] + "…")

    def gone(self) -> list[int]:
        """The ranks whose processes have ended without a note of their own, as far as is known here."""
        found = []
        for rank, peer in enumerate(self.all):
            if rank != self.rank and not self._has_note(f"failed/{rank}"):
                is_gone = peer.is_gone
                if is_gone:
                    self._note(f"gone/{rank}")
                if is_gone or (is_gone is None and self._has_note(f"gone/{rank}")):
                    found.append(rank)
        return found

    def _look(self, patience: float) -> tuple[list[int], list[int]]:
        """The ranks that are gone, and those that have neither failed nor gone."""
        end = time.monotonic() + patience
        while True:
            gone = self.gone()
            silent = [
                rank
                for rank in range(self.size)
                if rank != self.rank and rank not in gone and not self._has_note(f"failed/{rank}")
            ]
            ended = [rank for rank in silent if self._has_note(f"ended/{rank}")]
            if gone or ended or not silent or time.monotonic() > end:
                return sorted(gone + ended), [rank for rank in silent if rank not in ended]
            time.sleep(0.05)

    def _end_of(self, rank: int) -> str:
        peer, why = self.all[rank], self._read(f"ended/{rank}")
        return f"rank {rank} (process {peer.pid} on {peer.host}) " + (f"has ended: {why}" if why else "no longer runs")

    def _posted(self, rank: int) -> dict[int, str]:
        notes = [json.loads(self._read(f"{place}/{rank}") or "{}") for place in _PLACES]
        return {int(number): text for calls in notes for number, text in calls.items()}

    def _note(self, key: str, value: str = "1") -> None:
        with contextlib.suppress(RuntimeError):  # the store has gone with its rank
            self._store.set(key, value)

    def _read(self, key: str) -> str:
        try:
            return self._store.get(key).decode() if self._store.check([key]) else ""
        except RuntimeError:
            return ""

    def _has_note(self, key: str) -> bool:
        try:
            return self._store.check([key])
        except RuntimeError:
            return False
