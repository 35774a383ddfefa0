"""The store of tuned plans: kept at once, by many processes, through crashes; a damaged file is set aside."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from genesis.backends.engine import store_file
from genesis.backends.engine.store import Entry, Store
from genesis.errors import CheckpointError
from tests.backends.engine import fuzz_store

PLATFORM = "a device sm_90, triton 3"
ENTRY = Entry("family/64x64 w4", 12.5, 1e-7, 4096)

fork = multiprocessing.get_context("fork")


def test_an_entry_is_found_again(tmp_path: Path) -> None:
    store = Store(tmp_path, PLATFORM)
    assert store.get("problem") is None
    store.put("problem", ENTRY)
    store.put("other", ENTRY._replace(complete=False))
    again = Store(tmp_path, PLATFORM)
    assert again.get("problem") == ENTRY
    assert again.all() == {"problem": ENTRY, "other": ENTRY._replace(complete=False)}
    store.put("problem", ENTRY._replace(microseconds=11.0))
    assert again.get("problem") == ENTRY._replace(microseconds=11.0)
    assert len(list(tmp_path.iterdir())) == 1


def test_each_platform_has_a_file(tmp_path: Path) -> None:
    Store(tmp_path, PLATFORM).put("problem", ENTRY)
    assert Store(tmp_path, "another device").get("problem") is None


@pytest.mark.parametrize("content", [b"no database at all, but text" * 100, b"\x00" * 5000])
def test_a_foreign_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path, PLATFORM)
    store.path.write_bytes(content)
    with pytest.warns(UserWarning, match="is no store of tuned plans"):
        store.put("problem", ENTRY)
    assert store.get("problem") == ENTRY
    assert [path.read_bytes() for path in tmp_path.glob("*.broken-*")] == [content]


def test_another_programs_database_is_set_aside(tmp_path: Path) -> None:
    store = Store(tmp_path, PLATFORM)
    with sqlite3.connect(store.path) as connection:
        connection.execute("CREATE TABLE plans (problem TEXT)")
    connection.close()
    with pytest.warns(UserWarning, match="is no store of tuned plans"):
        assert store.get("problem") is None
    store.put("problem", ENTRY)
    assert Store(tmp_path, PLATFORM).get("problem") == ENTRY


@pytest.mark.parametrize("part", [0.3, 0.7, 0.95])
def test_a_truncated_file_is_set_aside(tmp_path: Path, part: float) -> None:
    store = Store(tmp_path, PLATFORM)
    for i in range(200):
        store.put(f"problem {i}", ENTRY)
    size = store.path.stat().st_size
    os.truncate(store.path, int(size * part))
    damaged = Store(tmp_path, PLATFORM)
    with pytest.warns(UserWarning, match="is no store of tuned plans"):
        damaged.put("problem", ENTRY)
    assert damaged.get("problem") == ENTRY


def test_without_a_folder_the_process_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where the folder should be")
    store = Store(tmp_path / "file" / "plans", PLATFORM)
    with pytest.warns(UserWarning, match="cannot be kept"):
        store.put("problem", ENTRY)
    assert store.get("problem") == ENTRY
    assert store.all() == {"problem": ENTRY}


def _write_without_end(folder: Path, first: int, done: Any) -> None:
    """Entries first, first + 1, …; each is told of when it is written."""
    store = Store(folder, PLATFORM)
    for i in itertools.count(first):
        store.put(f"problem {i}", Entry(f"family/{i}", float(i), 0.0, i))
        done.send(i)


def test_killed_writers_lose_no_finished_entry(tmp_path: Path) -> None:
    written, chance = 0, random.Random(0)
    for _ in range(50):
        receiver, sender = fork.Pipe(duplex=False)
        writer = fork.Process(target=_write_without_end, args=(tmp_path, written, sender))
        writer.start()
        sender.close()
        written = receiver.recv() + 1
        time.sleep(chance.random() * 0.02)  # into the middle of some write
        writer.kill()
        writer.join()
        with contextlib.suppress(EOFError):
            while True:
                written = receiver.recv() + 1
        assert len(Store(tmp_path, PLATFORM).all()) >= written
    entries = Store(tmp_path, PLATFORM).all()
    for i in range(written):
        assert entries[f"problem {i}"] == Entry(f"family/{i}", float(i), 0.0, i)
    assert not list(tmp_path.glob("*.broken-*"))


def _write(folder: Path, name: str) -> None:
    store = Store(folder, PLATFORM)
    for i in range(25):
        store.put(f"{name} {i}", ENTRY)


def test_processes_write_at_the_same_time(tmp_path: Path) -> None:
    writers = [fork.Process(target=_write, args=(tmp_path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(Store(tmp_path, PLATFORM).all()) == 75


def test_export_and_take(tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path / "ours", PLATFORM), Store(tmp_path / "theirs", PLATFORM)
    for name in ("a", "b"):
        ours.put(name, ENTRY)
    theirs.put("b", ENTRY._replace(candidate="faster/1", microseconds=1.0))
    assert ours.export(tmp_path / "model.plans") == 2
    assert theirs.take(tmp_path / "model.plans") == 1
    assert theirs.get("a") == ENTRY
    kept = theirs.get("b")
    assert kept is not None
    assert kept.candidate == "faster/1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.plans", "ours", "theirs"]


def test_what_cannot_be_taken_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, PLATFORM)
    with pytest.raises(CheckpointError, match="no file"):
        store.take(tmp_path / "absent")
    (tmp_path / "text").write_text("text")
    with pytest.raises(CheckpointError, match="a file of exported plans"):
        store.take(tmp_path / "text")
    Store(tmp_path / "b", "another device").export(tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="plans for another device"):
        store.take(tmp_path / "foreign")


# --- files that somebody has tampered with ----------------------------------------------------------------------------
def tampered(tmp_path: Path, column: str, value: Any) -> Path:
    """An exported file, with one value that Genesis never writes."""
    store, file = Store(tmp_path / "theirs", PLATFORM), tmp_path / "exported"
    for name in ("a", "b", "c"):
        store.put(name, ENTRY)
    store.export(file)
    spoil(file, column, value)
    return file


def spoil(path: Path, column: str, value: Any) -> None:
    """Write a value that the schema forbids into the row of "b"."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for lifted in (("' NOT NULL'", "'         '"), ("'         '", "' NOT NULL'")):
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(f"UPDATE sqlite_master SET sql = replace(sql, {lifted[0]}, {lifted[1]})")
            connection.execute("PRAGMA writable_schema = RESET")
            if lifted[0] == "' NOT NULL'":
                connection.execute(f"UPDATE plans SET {column} = ? WHERE problem = 'b'", (value,))


WRONG = [
    ("candidate", None), ("candidate", b"family/1"), ("candidate", "family"), ("candidate", "family/" + "1" * 300),
    ("candidate", "family/\x00"), ("problem", b"b"), ("problem", "b" * 5000), ("microseconds", None),
    ("microseconds", -1.0), ("microseconds", "fast"), ("error", float("inf")), ("workspace", -1), ("complete", 7),
    ("complete", b"1"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value"), WRONG)
def test_a_file_with_one_wrong_row_is_refused_and_ours_stays(tmp_path: Path, column: str, value: Any) -> None:
    ours = Store(tmp_path / "ours", PLATFORM)
    for i in range(11):
        ours.put(f"problem {i}", ENTRY)
    before = ours.all()
    with pytest.raises(CheckpointError, match=rf"a file of exported plans, got .*exported \({column} "):
        ours.take(tampered(tmp_path, column, value))
    assert Store(tmp_path / "ours", PLATFORM).all() == before
    assert len(list((tmp_path / "ours").iterdir())) == 1


@pytest.mark.parametrize(("column", "value"), WRONG)
def test_a_wrong_row_of_ours_is_dropped_alone_and_said_once(tmp_path: Path, column: str, value: Any) -> None:
    store = Store(tmp_path, PLATFORM)
    for name in ("a", "b", "c"):
        store.put(name, ENTRY)
    spoil(store.path, column, value)
    spoiled = Store(tmp_path, PLATFORM)
    with pytest.warns(UserWarning, match=rf"a tuned plan in .* was dropped: {column} ") as said:
        assert spoiled.all() == {"a": ENTRY, "c": ENTRY}
    assert len(said) == 1
    assert spoiled.get("b") is None
    assert Store(tmp_path, PLATFORM).all() == {"a": ENTRY, "c": ENTRY}, "it is gone from the file"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("table", ["plans", "platform"])
def test_a_view_is_never_asked(tmp_path: Path, table: str) -> None:
    """One that recurs without end would hang."""
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
    columns = "problem, candidate, microseconds, error, workspace, complete, tuned_at"
    store, file = Store(tmp_path / "theirs", PLATFORM), tmp_path / "exported"
    store.put("a", ENTRY)
    store.export(file)
    for path in (file, store.path):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"DROP TABLE {table}")
            view = {
                "plans": f"plans ({columns}) AS {endless} x, 'a/b', 1.0, 0.0, 0, 1, 0.0 FROM c",
                "platform": f"platform (name) AS {endless} max(x) FROM c",
            }[table]
            connection.execute(f"CREATE VIEW {view}")
    with pytest.raises(CheckpointError, match="its tables are not those of a store"):
        Store(tmp_path / "ours", PLATFORM).take(file)
    with pytest.warns(UserWarning, match="its tables are not those of a store"):
        assert Store(tmp_path / "theirs", PLATFORM).all() == {}


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, file = Store(tmp_path / "ours", PLATFORM), Store(tmp_path / "theirs", PLATFORM), tmp_path / "exported"
    for name in ("a", "b", "c"):
        theirs.put(name, ENTRY)
    theirs.export(file)
    for name, least, message in (
        ("_MOST_ENTRIES", 2, "more than 2 plans"),
        ("_LARGEST_FILE", 1 << 10, "MiB"),
        ("_MOST_STEPS", 0, "interrupted"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(store_file, name, least)
            patch.setattr(store_file, "_STEP", 1)
            if name != "_MOST_STEPS":
                patch.setattr(store_file, "_MOST_STEPS", 10**6)
            with pytest.raises(CheckpointError, match=message):
                ours.take(file)
        assert ours.all() == {}


def test_an_entry_that_does_not_fit_replaces_none_of_ours(tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path / "ours", PLATFORM), Store(tmp_path / "theirs", PLATFORM)
    ours.put("a", ENTRY)
    for name in ("a", "b"):
        theirs.put(name, ENTRY._replace(candidate="absent/1", microseconds=0.0))
    theirs.export(tmp_path / "exported")
    assert ours.take(tmp_path / "exported", lambda problem, entry: False) == 1
    assert ours.get("a") == ENTRY


def test_a_key_that_is_damaged_hides_no_other(tmp_path: Path) -> None:
    """Keys are looked for in their order, which a damaged one breaks."""
    store = Store(tmp_path, PLATFORM)
    names = [f"problem {i}" for i in range(9)]
    for name in names:
        store.put(name, ENTRY)
    for before, after in ((b"problem 4", b"\x00roblem 4"), (b"problem 6", b"a problem")):
        content = store.path.read_bytes()
        assert content.count(before) == 1
        store.path.write_bytes(content.replace(before, after))
    damaged = Store(tmp_path, PLATFORM)
    with pytest.warns(UserWarning, match="a tuned plan in .* was dropped: problem"):
        damaged.put("new", ENTRY)
    kept = {*names, "new"} - {"problem 4", "problem 6"}
    assert all(damaged.get(name) == ENTRY for name in kept)
    assert damaged.all().keys() == kept | {"a problem"}


def test_a_message_that_is_no_text(tmp_path: Path) -> None:
    """SQLite quotes the schema where it cannot read it, whatever bytes that has."""
    store = Store(tmp_path, PLATFORM)
    store.put("a", ENTRY)
    content = store.path.read_bytes()
    store.path.write_bytes(content.replace(b"CREATE TABLE platform", b"CREATE TABLE\xff\xfe\xffatform"))
    damaged = Store(tmp_path, PLATFORM)
    with pytest.warns(UserWarning, match="is no store of tuned plans"):
        damaged.put("b", ENTRY)
    assert damaged.all() == {"b": ENTRY}


@pytest.mark.parametrize("seed", [*range(10), 1799])
def test_tampered_stores(tmp_path: Path, seed: int) -> None:
    """More of them: python -m tests.backends.engine.fuzz_store."""
    fuzz_store.check(seed, tmp_path)


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("triton_direct/64x64x32 w4", "implicit_gemm/64x64x32 w4"),
        ("apart/few_channels/128x64 stages 5", "with_statistics_pass/small_c/128x64 stages 5"),
        ("added/sub_pixel/cudnn/eng7_k24=39", "with_residual_pass/sub_pixel_dgrad/cudnn/eng7_k24=39"),
        ("patch/28x8 stages 4", "halo_tile/28x8 stages 4"),
        ("attention/cudnn/eng8", "cudnn/eng8"),
        ("attention/triton", "flash/triton"),
        ("cudnn/eng7_k24=39", "cudnn/eng7_k24=39"),
    ],
)
def test_candidates_that_had_another_name(tmp_path: Path, earlier: str, today: str) -> None:
    """A store that an earlier version has written keeps its worth."""
    store = Store(tmp_path, "platform")
    store.put("problem", Entry(earlier, 1.0, 0.0, 0))
    assert store.get("problem") == Entry(today, 1.0, 0.0, 0)
