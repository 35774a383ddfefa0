"""What was tuned, on disk: one SQLite file per device and library versions, shared by all processes.

SQLite's transactions give what a store must: a process that is killed while it writes loses at most what it was
writing, and writers wait for each other. A file that is no store of ours, or a damaged one, is set aside with a warning
and a new one begun; where the folder cannot be written, the process goes on with what it tunes itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from genesis.errors import CheckpointError, describe
from genesis.files import replaced

_APPLICATION = 0x67656E73  # tells our files from others'
_FORMAT = 1
_WAIT = 10.0  # seconds for another process's write
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS plans (
    problem TEXT PRIMARY KEY, candidate TEXT NOT NULL, microseconds REAL NOT NULL, error REAL NOT NULL,
    workspace INTEGER NOT NULL, complete INTEGER NOT NULL, tuned_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS platform (name TEXT PRIMARY KEY) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
"""


class Entry(NamedTuple):
    """The winner for one problem."""

    candidate: str
    microseconds: float
    error: float  # relative L2 distance from the float64 reference
    workspace: int  # bytes
    complete: bool = True  # False: the time was up before all candidates had been measured


class Store:
    """The entries for one platform: a device's name and the versions that the choice hangs on.

    Example:
        >>> import tempfile
        >>> from genesis.backends.cuda.conv.store import Entry, Store
        >>> store = Store(tempfile.mkdtemp(), "simulated sm_90, triton 3.7.1")
        >>> store.put("problem", Entry("triton_direct/64x64x32 w4", 12.5, 1e-7, 0))
        >>> store.get("problem").candidate
        'triton_direct/64x64x32 w4'
    """

    def __init__(self, folder: str | os.PathLike[str], platform: str) -> None:
        self.platform = platform
        self.path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9._]+', '-', platform)}.sqlite"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0  # a connection must not cross a fork
        self._entries: dict[str, Entry] = {}  # of this process, when there is no file

    def get(self, problem: str) -> Entry | None:
        """The entry of a problem, whichever process wrote it."""
        with self._lock:
            if problem in self._entries:
                return self._entries[problem]
            with self._repaired():
                connection = self._open()
                query = "SELECT candidate, microseconds, error, workspace, complete FROM plans WHERE problem = ?"
                row = None if connection is None else connection.execute(query, (problem,)).fetchone()
                return None if row is None else _entry(row)
        return None

    def put(self, problem: str, entry: Entry) -> None:
        """Keep an entry; once this returns, it is on the disk."""
        with self._lock:
            self._entries[problem] = entry
            for _ in range(2):  # a second time if the file has to be set aside
                with self._repaired():
                    connection = self._open()
                    if connection is not None:
                        _insert(connection, problem, entry)
                        del self._entries[problem]
                    return

    def all(self) -> dict[str, Entry]:
        """Every entry, by the key of its problem."""
        with self._lock, self._repaired():
            connection = self._open()
            if connection is None:
                return dict(self._entries)
            rows = connection.execute("SELECT problem, candidate, microseconds, error, workspace, complete FROM plans")
            return {**{row[0]: _entry(row[1:]) for row in rows}, **self._entries}
        return {}

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all entries to a file that can go with a model; how many they are."""
        entries = self.all()
        with replaced(path, make_folder=False) as temporary, contextlib.closing(_connect(temporary)) as connection:
            _create(connection, self.platform)
            for problem, entry in entries.items():
                _insert(connection, problem, entry)
        return len(entries)

    def take(self, path: str | os.PathLike[str]) -> int:
        """Add the entries of an exported file to this store, faster ones in the place of ours; how many were added.

        Raises: CheckpointError: the file is none, or was tuned on another device or with other versions.
        """
        source = Path(path)
        if not source.is_file():
            raise CheckpointError(describe("tune", "path", "a file of exported plans", f"no file {source}"))
        try:
            with contextlib.closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                _require_ours(connection)
                (platform,) = connection.execute("SELECT name FROM platform").fetchone()
                rows = connection.execute(
                    "SELECT problem, candidate, microseconds, error, workspace, complete FROM plans"
                )
                entries = {row[0]: _entry(row[1:]) for row in rows}
        except (sqlite3.DatabaseError, TypeError) as error:
            raise CheckpointError(
                describe("tune", "path", "a file of exported plans", f"{source} ({error})")
            ) from error
        if platform != self.platform:
            raise CheckpointError(describe("tune", "path", f"plans for {self.platform}", f"plans for {platform}"))
        added = 0
        for problem, entry in entries.items():
            known = self.get(problem)
            if known is None or (entry.complete, -entry.microseconds) > (known.complete, -known.microseconds):
                self.put(problem, entry)
                added += 1
        return added

    def _open(self) -> sqlite3.Connection | None:
        """The connection of this process; None where there can be none."""
        if self._process != os.getpid():
            self._process, self._connection = os.getpid(), None
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                connection = _connect(self.path)
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    _require_ours(connection)
                else:
                    _create(connection, self.platform)
                self._connection = connection
            except (OSError, sqlite3.OperationalError) as error:
                warnings.warn(f"tuned plans cannot be kept in {self.path}: {error}", stacklevel=2)
        return self._connection

    @contextlib.contextmanager
    def _repaired(self) -> Iterator[None]:
        """A damaged or foreign file is set aside, and the next _open() begins another."""
        try:
            yield
        except sqlite3.OperationalError as error:  # locked for too long, no space, …
            warnings.warn(f"tuned plans in {self.path} cannot be reached: {error}", stacklevel=3)
        except sqlite3.DatabaseError as error:
            if self._connection is not None:
                self._connection.close()
            self._process = 0
            aside = self.path.with_name(f"{self.path.name}.broken-{time.time_ns()}")
            with contextlib.suppress(OSError):
                os.replace(self.path, aside)
                self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
            warnings.warn(f"{self.path} is no store of tuned plans ({error}); it is now {aside.name}", stacklevel=3)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _create(connection: sqlite3.Connection, platform: str) -> None:
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    connection.execute("INSERT OR IGNORE INTO platform VALUES (?)", (platform,))


def _require_ours(connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if (application, version, state) != (_APPLICATION, _FORMAT, "ok"):
        raise sqlite3.DatabaseError(f"application {application:#x}, format {version}, {state}")


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry._make((*row[:4], bool(row[4])))


def _insert(connection: sqlite3.Connection, problem: str, entry: Entry) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)",
        (problem, *entry[:4], int(entry.complete), time.time()),
    )
