"""Who may write what is loaded and run: folders of the cache, files in them, and what dead writers leave."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis.backends.cuda.driver import nvrtc
from genesis.backends.cuda.nvrtc import program, store
from genesis.backends.cuda.nvrtc.program import Program
from genesis.backends.engine import cache
from genesis.backends.engine.store import Entry, Store
from genesis.files import replaced
from genesis.settings import override

PLATFORM = "a device sm_90, triton 3"
ENTRY = Entry("family/1", 1.0, 0.0, 0)
KERNEL = store.Entry(b"cubin", {"f": "f"}, "key")

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners here")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(cache.os, "geteuid", lambda: 12345)


def for_the_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(mode(path) | 0o020)


def for_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(mode(path) | 0o002)


Deed = Callable[[Path, pytest.MonkeyPatch], None]
DEEDS = pytest.mark.parametrize(
    ("deed", "message"),
    [
        (of_another_user, "belongs to another user"),
        (for_the_group, "others may write .*: chmod go-w"),
        (for_all, "others may write"),
    ],
)


@pytest.fixture(autouse=True)
def open_umask() -> None:
    """The worst that a user can have."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bytes]:
    """The cubin of a kernel, in a process of its own, whose compiler counts."""
    count = [0]

    def compile_cubin(*args: object) -> nvrtc.Compiled:
        count[0] += 1
        return nvrtc.Compiled(b"cubin %d" % count[0], {}, "")

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "identity", lambda headers: "a compiler")

    def run() -> bytes:
        monkeypatch.setattr(program, "_compiled", {})
        monkeypatch.setattr(cache, "_seen", set())
        with override(cache_dir=tmp_path / "cache"):
            source = 'extern "C" __global__ void fill(float* x) {}'
            return Program("test", source, "test.cu", None).compiled("sm_90", ("fill",)).cubin

    return run


def test_what_is_made_is_the_users_alone(tmp_path: Path, compiled: Callable[[], bytes]) -> None:
    assert compiled() == compiled() == b"cubin 1"
    Store(tmp_path / "cache" / "plans", PLATFORM).put("problem", ENTRY)
    found = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert {path.name.partition("-")[0]: mode(path) for path in found} == {
        "cache": 0o700, "kernels": 0o700, "plans": 0o700, "test": 0o600, "a": 0o600,
    }  # fmt: skip


@DEEDS
@pytest.mark.parametrize("which", ["cache", "cache/kernels"])
def test_a_folder_that_others_can_write_keeps_no_kernels(
    tmp_path: Path, compiled: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch, deed: Deed, message: str, which: str
) -> None:
    compiled()
    deed(tmp_path / which, monkeypatch)
    for expected in (b"cubin 2", b"cubin 3"):
        with pytest.warns(UserWarning, match=f"the compiled kernels could not be kept: .*{message}") as said:
            assert compiled() == expected
        assert len(said) == 1


@DEEDS
def test_a_kernel_that_others_could_have_written_is_compiled_anew(
    tmp_path: Path, compiled: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch, deed: Deed, message: str
) -> None:
    compiled()
    (path,) = (tmp_path / "cache" / "kernels").iterdir()
    with monkeypatch.context() as patch:
        if deed is of_another_user and os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        deed(path, patch)
        with pytest.warns(UserWarning, match=message):
            assert compiled() == b"cubin 2"
    assert compiled() == b"cubin 2", "and kept, in its place"
    assert mode(path) == 0o600


@DEEDS
@pytest.mark.parametrize("which", ["folder", "file"])
def test_a_store_that_others_can_write_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: Deed, message: str, which: str
) -> None:
    Store(tmp_path / "plans", PLATFORM).put("problem", ENTRY)
    again = Store(tmp_path / "plans", PLATFORM)
    deed(again.path if which == "file" else again.path.parent, monkeypatch)
    with pytest.warns(UserWarning, match=f"tuned plans cannot be kept in .*{message}") as said:
        assert again.get("problem") is None
    again.put("problem", ENTRY._replace(workspace=7))  # in this process
    assert again.get("problem") == ENTRY._replace(workspace=7)
    assert len(said) == 1
    with sqlite3.connect(again.path) as connection:
        assert connection.execute("SELECT workspace FROM plans").fetchall() == [(0,)]
    connection.close()


def test_a_folder_in_one_for_all_as_tmp_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert mode(cache.private_folder(tmp_path / "plans")) == 0o700
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write"):
        cache.private_folder(tmp_path / "plans")


def test_a_store_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image that somebody has prepared."""
    Store(tmp_path, PLATFORM).put("problem", ENTRY)
    original = os.open

    def refuse(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return original(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cache.os, "open", refuse)
    assert Store(tmp_path, PLATFORM).get("problem") == ENTRY


def _die_writing(path: Path) -> None:
    with replaced(path) as temporary:
        temporary.write_bytes(b"half of")
        os.kill(os.getpid(), 9)


def test_what_a_dead_writer_left_is_removed_and_what_is_being_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = multiprocessing.get_context("fork")
    for name in ("old.cubin", "new.cubin"):
        writer = fork.Process(target=_die_writing, args=(tmp_path / name,))
        writer.start()
        writer.join()
    left = {path.name.split(".")[1]: path for path in tmp_path.iterdir()}
    assert left.keys() == {"old", "new"}
    long_ago = time.time() - 2 * cache._ABANDONED
    os.utime(left["old"], (long_ago, long_ago))
    (tmp_path / "old.cubin").write_bytes(b"whole")
    os.utime(tmp_path / "old.cubin", (long_ago, long_ago))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(cache, "_seen", set())
    cache.private_folder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([left["new"], tmp_path / "old.cubin"])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\n", b"[]\ncubin", b"{}\ncubin", b'{"names": 1, "key": ""}\n', b'{"names": {"f": 1}, "key": ""}\n',
        b'{"names": {}, "key": 1}\n', b"[" * 5000, b"\xff\xfe\n",
    ],
)  # fmt: skip
def test_an_entry_that_says_something_else(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "entry"
    path.write_bytes(store._first_line(body) + b"\n" + body)
    assert store.read(path) is None
    store.write(path, KERNEL)
    assert store.read(path) == KERNEL
