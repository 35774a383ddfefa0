"""Store tuned plans on disk: one SQLite file per device and library versions, shared by all processes.

SQLite's transactions give what a store must: a process that is killed while it writes loses at most what it was
writing, and writers wait for each other. A file that is no store of ours, or a damaged one, is set aside with a warning
and a new one begun; a row that Genesis never writes is dropped, alone; where the folder cannot be written, or others
could write there, the process goes on with what it tunes itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from genesis.backends.engine import cache, store_file
from genesis.backends.engine.entry import COLUMNS, parsed
from genesis.backends.engine.entry import Entry as Entry
from genesis.errors import CheckpointError, describe
from genesis.files import replaced


class Store:
    """The entries for one platform: a device's name and the versions that the choice hangs on.

    Example:
        >>> import tempfile
        >>> from genesis.backends.engine.store import Entry, Store
        >>> store = Store(tempfile.mkdtemp(), "simulated sm_90, triton 3.7.1")
        >>> store.put("problem", Entry("implicit_gemm/64x64x32 w4", 12.5, 1e-7, 0))
        >>> store.get("problem").candidate
        'implicit_gemm/64x64x32 w4'
    """

    def __init__(self, folder: str | os.PathLike[str], platform: str) -> None:
        self.platform = platform
        self.path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9._]+', '-', platform)}.sqlite"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0  # a connection must not cross a fork
        self._entries: dict[str, Entry] = {}  # of this process, when there is no file
        self._dropped = False  # a row, and said so

    def get(self, problem: str) -> Entry | None:
        """The entry of a problem, whichever process wrote it."""
        with self._lock:
            if problem in self._entries:
                return self._entries[problem]
            with self._repaired():
                return self._found(self._open(), problem)
        return None

    def put(self, problem: str, entry: Entry) -> None:
        """Keep an entry; once this returns, it is on the disk."""
        self.put_all({problem: entry})

    def put_all(self, entries: dict[str, Entry]) -> None:
        """Keep many, by the keys of their problems: at the cost of one."""
        with self._lock:
            self._put(entries, lambda problem, entry, known: True)

    def is_kept(self) -> bool:
        """Whether there is a file; if there can be none, a warning says why, once."""
        with self._lock, self._repaired():
            return self._open() is not None
        return False

    def all(self) -> dict[str, Entry]:
        """Every entry, by the key of its problem."""
        with self._lock, self._repaired():
            connection = self._open()
            if connection is None:
                return dict(self._entries)
            return {**dict(self._believed(connection, _all_rows(connection))), **self._entries}
        return {}

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all entries to a file that can go with a model; how many they are."""
        entries = self.all()
        with (
            replaced(path, make_folder=False) as temporary,
            contextlib.closing(store_file.connect(temporary)) as connection,
        ):
            store_file.create(connection, self.platform)
            with store_file.transaction(connection):
                for problem, entry in entries.items():
                    store_file.insert(connection, problem, entry, time.time())
        return len(entries)

    def take(
        self, path: str | os.PathLike[str], fits: Callable[[str, Entry], bool] = lambda problem, entry: True
    ) -> int:
        """Add the entries of an exported file to this store, faster ones in the place of ours; how many were added.

        Args:
            fits: is there still what this entry says? Only then it replaces one of ours.
        Raises: CheckpointError: the file is none, or was tuned on another device or with other versions. Then nothing
            was added.
        """
        source = Path(path)
        if not source.is_file():
            raise CheckpointError(describe("tune", "path", "a file of exported plans", f"no file {source}"))
        try:
            platform, entries = store_file.from_elsewhere(source)
        except (sqlite3.Error, ValueError, OSError) as error:
            raise CheckpointError(
                describe("tune", "path", "a file of exported plans", f"{source} ({error})")
            ) from error
        if platform != self.platform:
            raise CheckpointError(
                describe("tune", "path", f"plans for {self.platform}", f"plans for {ascii(platform)[1:200]}")
            )

        def is_wanted(problem: str, entry: Entry, known: Entry | None) -> bool:
            return known is None or (entry.is_better_than(known) and fits(problem, entry))

        with self._lock:
            return self._put(entries, is_wanted)

    def _put(self, entries: dict[str, Entry], is_wanted: Callable[[str, Entry, Entry | None], bool]) -> int:
        """Replace known rows by the wanted ones, all at once; return how many."""

        def chosen(connection: sqlite3.Connection | None) -> dict[str, Entry]:
            known = {problem: self._entries.get(problem) or self._found(connection, problem) for problem in entries}
            return {problem: entry for problem, entry in entries.items() if is_wanted(problem, entry, known[problem])}

        for _ in range(2):  # a second time if the file has to be set aside
            with self._repaired():
                connection = self._open()
                if connection is None:
                    break
                with store_file.transaction(connection):
                    taken = chosen(connection)
                    for problem, entry in taken.items():
                        store_file.insert(connection, problem, entry, time.time())
                for problem in taken:
                    self._entries.pop(problem, None)
                return len(taken)
        taken = chosen(None)
        self._entries.update(taken)
        return len(taken)

    def _found(self, connection: sqlite3.Connection | None, problem: str) -> Entry | None:
        if connection is None:
            return None
        rows = connection.execute(f"SELECT {COLUMNS} FROM plans WHERE problem = ?", (problem,)).fetchall()
        return dict(self._believed(connection, rows)).get(problem)

    def _believed(
        self, connection: sqlite3.Connection, rows: Sequence[tuple[object, ...]]
    ) -> Iterator[tuple[str, Entry]]:
        """Keep the rows that Genesis may have written; others are dropped from the file, one by one."""
        for row in rows:
            try:
                yield parsed(row)
            except ValueError as error:
                _drop(connection, row[0])
                if not self._dropped:
                    self._dropped = True
                    warnings.warn(f"a tuned plan in {self.path} was dropped: {error}", stacklevel=4)

    def _open(self) -> sqlite3.Connection | None:
        """The connection of this process; None where there can be none."""
        if self._process != os.getpid():
            self._process, self._connection = os.getpid(), None
            try:
                cache.private_folder(self.path.parent)
                connection = store_file.opened(cache.private_file(self.path), self.platform)
                if not store_file.is_in_order(connection):
                    store_file.rewrite(connection, dict(self._believed(connection, _all_rows(connection))))
                self._connection = connection
            except (OSError, sqlite3.OperationalError) as error:
                warnings.warn(f"tuned plans cannot be kept in {self.path}: {error}", stacklevel=2)
        return self._connection

    @contextlib.contextmanager
    def _repaired(self) -> Iterator[None]:
        """A damaged or foreign file is set aside, and the next _open() begins another."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not store_file.is_damage(error):  # locked for too long, no space, …
                warnings.warn(f"tuned plans in {self.path} cannot be reached: {error}", stacklevel=3)
                return
            if self._connection is not None:
                self._connection.close()
            self._process, self._connection = 0, None
            aside = self.path.with_name(f"{self.path.name}.broken-{time.time_ns()}")
            with contextlib.suppress(OSError):
                os.replace(self.path, aside)
                self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
            warnings.warn(f"{self.path} is no store of tuned plans ({error}); it is now {aside.name}", stacklevel=3)


def _all_rows(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute(f"SELECT {COLUMNS} FROM plans").fetchall()


def _drop(connection: sqlite3.Connection, problem: object) -> None:
    """Delete a row by its key, which may be of any type, and text in any encoding; where the file can be written."""
    with contextlib.suppress(sqlite3.Error):
        if isinstance(problem, str):
            raw = problem.encode("utf-8", "surrogateescape")
            connection.execute("DELETE FROM plans WHERE problem = CAST(? AS TEXT)", (raw,))
        else:
            connection.execute("DELETE FROM plans WHERE problem = ?", (problem,))
