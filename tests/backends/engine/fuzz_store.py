"""Stores that somebody has tampered with: mutated files, rows of random values, views, triggers, virtual tables.

    python -m tests.backends.engine.fuzz_store [NUMBER [FIRST_SEED]]

Whatever a file holds that is taken over: it is refused and the user's store is as before, or all its entries are sound
and no entry of the user's is gone or slower. Whatever the user's own file holds: no call fails, and sound rows stay.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genesis.backends.engine.entry import parsed
from genesis.backends.engine.store import Entry, Store
from genesis.errors import CheckpointError

PLATFORM = "a device sm_90, triton 3"
_SECONDS = 20.0  # for one file; 10⁸ steps of SQLite's machine are the bound
_ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"


def entries(draw: random.Random, number: int) -> dict[str, Entry]:
    return {
        f'{{"n":{i}}}': Entry(
            f"family/{draw.randrange(9)} w4", draw.random() * 100, 1e-7, draw.randrange(99), draw.random() < 0.8
        )
        for i in range(number)
    }


def store_of(folder: Path, given: dict[str, Entry]) -> Store:
    store = Store(folder, PLATFORM)
    store._put(given, lambda *_: True)  # at once: each transaction waits for the disk
    return store


# --- what is done to a file -------------------------------------------------------------------------------------------
def _flip(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 3, 30])):
        at = draw.randrange(100) if draw.random() < 0.3 else draw.randrange(len(content))
        content[at] = draw.choice([0, 255, draw.randrange(256)])
    path.write_bytes(content)


def _cut(draw: random.Random, path: Path) -> None:
    content = path.read_bytes()
    start = draw.randrange(len(content))
    path.write_bytes(content[:start] + (draw.randbytes(draw.randrange(9000)) if draw.random() < 0.5 else b""))


def _value(draw: random.Random) -> Any:
    return draw.choice(
        [
            None, b"family/1", draw.randbytes(8), "", "family", "family/1", "../x", "fämily/1", "a/b\x00",
            "x/" + "y" * 10**5, -1, 0, 1, 2**62, -(2**63), 1e-9, -1.0, float("inf"), float("-inf"), float("nan"), 1e308,
            "12", "nan",
        ]
    )  # fmt: skip


def _rows(draw: random.Random, path: Path) -> None:
    """Values of any type in the columns, whose constraints are lifted for it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '         ')")
        connection.execute("PRAGMA writable_schema = RESET")
        for _ in range(draw.choice([1, 1, 5])):
            row = ['{"n":9%d}' % draw.randrange(5), "family/1", 1.0, 0.0, 0, 1, 0.0]  # noqa: UP031
            row[draw.randrange(6)] = _value(draw)
            with contextlib.suppress(sqlite3.IntegrityError):
                connection.execute("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        if draw.random() < 0.8:  # else it is the schema that gives it away
            schema = "UPDATE sqlite_master SET sql = replace(sql, '         ', ' NOT NULL')"
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(schema)
            connection.execute("PRAGMA writable_schema = RESET")


def _schema(draw: random.Random, path: Path) -> None:
    plans = "problem, candidate, microseconds, error, workspace, complete, tuned_at"
    script = draw.choice(
        [
            f"DROP TABLE plans; CREATE VIEW plans ({plans}) AS {_ENDLESS} x, 'a/b', 1.0, 0.0, 0, 1, 0.0 FROM c;",
            f"DROP TABLE platform; CREATE VIEW platform (name) AS {_ENDLESS} max(x) FROM c;",
            "CREATE TRIGGER t AFTER INSERT ON plans BEGIN DELETE FROM plans; END;",
            f"CREATE VIEW v AS {_ENDLESS} x FROM c;",
            "ALTER TABLE plans ADD COLUMN g TEXT GENERATED ALWAYS AS (hex(zeroblob(100000000))) VIRTUAL;",
            "CREATE INDEX i ON plans (abs(microseconds));",
            "DROP TABLE platform;",
            "DELETE FROM platform;",
            "DROP TABLE platform; CREATE TABLE platform (name BLOB);",
            "INSERT INTO platform VALUES ('another device');",
            "PRAGMA user_version = 7;",
            "PRAGMA journal_mode = WAL;",
            "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE plans (problem)';",
            "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2;",
            "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'nonsense';",
        ]
    )
    with contextlib.closing(sqlite3.connect(path)) as connection, contextlib.suppress(sqlite3.Error):
        connection.executescript(script)


_DEEDS: tuple[Callable[[random.Random, Path], None], ...] = (_flip, _cut, _rows, _rows, _schema)


# --- what must hold ---------------------------------------------------------------------------------------------------
def check(seed: int, folder: Path) -> None:
    """Raises: AssertionError."""
    draw, began = random.Random(seed), time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _check_import(draw, folder)
        _check_own(draw, folder)
    assert time.monotonic() - began < _SECONDS, f"seed {seed} took {time.monotonic() - began:.1f} s"


def _check_import(draw: random.Random, folder: Path) -> None:
    ours = store_of(folder / "ours", entries(draw, 11))
    file = folder / "exported"
    store_of(folder / "theirs", entries(draw, 15)).export(file)
    draw.choice(_DEEDS)(draw, file)
    before = ours.all()
    try:
        added = ours.take(file)
    except CheckpointError:
        added = 0
    after = Store(folder / "ours", PLATFORM).all()
    changed = {problem for problem in after if after[problem] != before.get(problem)}
    assert before.keys() <= after.keys()
    assert len(changed) == added
    assert all(problem not in before or after[problem].is_better_than(before[problem]) for problem in changed)
    assert not list((folder / "ours").glob("*.broken-*"))
    for problem, entry in after.items():
        parsed((problem, *entry[:4], int(entry.complete)))


def _check_own(draw: random.Random, folder: Path) -> None:
    given = entries(draw, 11)
    path = store_of(folder / "own", given).path
    deed = draw.choice(_DEEDS)
    deed(draw, path)
    store = Store(folder / "own", PLATFORM)
    sound = {problem: entry for problem, entry in store.all().items() if problem in given}
    if deed is _rows and not list(path.parent.glob("*.broken-*")):
        assert sound == given, "rows beside a bad one are lost"
    for problem in ["new", *given]:
        store.get(problem)
    store.put("new", Entry("family/1", 1.0, 0.0, 0))
    assert store.get("new") == Entry("family/1", 1.0, 0.0, 0)
    for problem, entry in store.all().items():
        parsed((problem, *entry[:4], int(entry.complete)))


def main() -> None:
    number, first = (int(text) for text in [*sys.argv[1:], *["300", "0"][len(sys.argv) - 1 :]])
    for seed in range(first, first + number):
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(seed, Path(folder))
            except BaseException:
                print(f"python -m tests.backends.engine.fuzz_store 1 {seed}", file=sys.stderr)
                raise
    print(f"{number} stores from seed {first} on: nothing lost, nothing believed that is unsound")


if __name__ == "__main__":
    main()
