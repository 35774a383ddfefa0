"""A store's SQLite file, which anybody may have written: only the two tables that Genesis makes are ever read.

A file whose schema is another, by a view, a trigger or a generated column, is refused before any query could run what
it says; a file from elsewhere is bounded in size and work as well.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from genesis.backends.engine.entry import COLUMNS, Entry, parsed

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
_MOST_FAULTS = 1000
_OF_ONE_ROW = re.compile(r"\S+ value in \w+\.\w+")  # a NULL, or a type: entry.parsed() finds it in its row
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LARGEST_FILE, _MOST_ENTRIES, _LONGEST_VALUE = 64 << 20, 100_000, 1 << 16  # of a file from elsewhere
_STEP, _MOST_STEPS = 10_000, 10_000  # of SQLite's machine, 10⁸ together: some seconds


class NotOurs(sqlite3.DatabaseError):
    """A database, but no store of tuned plans."""


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Is there no store in the file, or none any more? Else it is only out of reach for now: locked, no space, …

    A message of SQLite's that quotes what is no text, from a schema for one, arrives as a UnicodeDecodeError.
    """
    return isinstance(error, NotOurs | UnicodeDecodeError) or (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED


def connect(path: Path) -> sqlite3.Connection:
    """To a file of our own, or a new one. Raises: sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        return _careful(connection)
    except BaseException:
        connection.close()
        raise


def create(connection: sqlite3.Connection, platform: str) -> None:
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    connection.execute("INSERT OR IGNORE INTO platform VALUES (?)", (platform,))


def opened(path: Path, platform: str) -> sqlite3.Connection:
    """The store in a file of our own, begun if there is none. Raises: sqlite3.Error, or what is_damage() knows."""
    connection = connect(path)
    try:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            require_ours(connection)
        else:
            create(connection, platform)
    except BaseException:
        connection.close()
        raise
    return connection


def require_ours(connection: sqlite3.Connection) -> None:
    """Raises: NotOurs: another program's, or one with more than our tables; sqlite3.DatabaseError: damaged."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if (application, version) != (_APPLICATION, _FORMAT):
        raise NotOurs(f"application {application:#x}, format {version}")
    if _schema(connection) != _our_schema():
        raise NotOurs("its tables are not those of a store")
    for (state,) in connection.execute(f"PRAGMA quick_check({_MOST_FAULTS})"):
        if state != "ok" and not _OF_ONE_ROW.fullmatch(state):
            raise NotOurs(state)


def is_in_order(connection: sqlite3.Connection) -> bool:
    """Can rows be found by their keys? quick_check does not look whether a damaged key is where it belongs."""
    keys = [key for (key,) in connection.execute("SELECT problem FROM plans NOT INDEXED")]
    raw = [key.encode("utf-8", "surrogateescape") if isinstance(key, str) else b"" for key in keys]
    return all(one < next_one for one, next_one in itertools.pairwise(raw))


def rewrite(connection: sqlite3.Connection, entries: dict[str, Entry]) -> None:
    """These entries only, whatever there was."""
    with transaction(connection):
        connection.execute("DELETE FROM plans")
        for problem, entry in entries.items():
            insert(connection, problem, entry, time.time())


def insert(connection: sqlite3.Connection, problem: str, entry: Entry, tuned_at: float) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)",
        (problem, *entry[:4], int(entry.complete), tuned_at),
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def from_elsewhere(path: Path) -> tuple[str, dict[str, Entry]]:
    """The platform and all entries of a file that was exported, as it says.

    Raises: ValueError: a row that Genesis never writes; sqlite3.Error: no store, or too much work; OSError.
    """
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"more than {_LARGEST_FILE >> 20} MiB")
    # immutable: neither a journal nor a log beside it is looked at, and nothing is written there.
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
        _careful(connection)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        steps = iter(range(_MOST_STEPS))
        connection.set_progress_handler(lambda: next(steps, None) is None, _STEP)
        require_ours(connection)
        platforms = [name for (name,) in connection.execute("SELECT name FROM platform LIMIT 2")]
        if len(platforms) != 1 or type(platforms[0]) is not str:
            raise ValueError("it does not say for which device")
        entries = dict(map(parsed, connection.execute(f"SELECT {COLUMNS} FROM plans LIMIT {_MOST_ENTRIES + 1}")))
        if len(entries) > _MOST_ENTRIES:
            raise ValueError(f"more than {_MOST_ENTRIES} plans")
        return platforms[0], entries


def _careful(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Text that is none arrives all the same, to be refused with its row; what a schema says runs no functions."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


@functools.cache
def _our_schema() -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as model:
        model.executescript(_SCHEMA)
        return _schema(model)


def _schema(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name LIMIT 10").fetchall()
