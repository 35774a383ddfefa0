"""Files: replaced with their permissions; locks and leftovers of dead and living processes; kinds by structure."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import genesis
from genesis import files, nn
from genesis.errors import CheckpointError
from genesis.files import Lock, kind_of, replaced

processes = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


@pytest.fixture(autouse=True)
def as_a_new_process() -> Iterator[None]:
    files._leftovers.cache_clear()
    yield
    files._leftovers.cache_clear()


def write(path: Path, text: str = "new") -> None:
    with replaced(path) as temporary:
        temporary.write_text(text)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- replacing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0o600, 0o644, 0o664, 0o400])
def test_permissions_stay(before: int, path: Path) -> None:
    path.write_text("old")
    path.chmod(before)
    with replaced(path) as temporary:
        assert mode(temporary) == before, "while it is written too"
        temporary.chmod(0o600)
        temporary.write_text("new")
        temporary.chmod(before)
    assert (path.read_text(), mode(path)) == ("new", before)


def test_a_private_checkpoint_stays_private_and_a_new_one_is_as_usual(path: Path) -> None:
    umask = os.umask(0o022)
    try:
        genesis.save({"a": genesis.ones(2)}, path)
        assert mode(path) == 0o644
        path.chmod(0o600)
        genesis.save({"a": genesis.zeros(2)}, path)
        assert mode(path) == 0o600
    finally:
        os.umask(umask)


def test_without_its_group_a_file_gives_the_new_one_no_rights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("old")
    path.chmod(0o660)
    real = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        found = list(real(descriptor))
        found[stat.ST_GID] += 1
        return os.stat_result(found)

    def refused(*args: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(files, "_is_open_at", lambda *args: True)
    monkeypatch.setattr(os, "fstat", of_another)
    monkeypatch.setattr(os, "fchown", refused)
    write(path)
    assert mode(path) == 0o600


def test_links_go_on_leading_where_they_led(path: Path) -> None:
    latest = path.with_name("latest")
    latest.symlink_to(path.name)
    write(latest)
    assert latest.is_symlink()
    assert path.read_text() == "new"


def test_what_is_no_ordinary_file_stays(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match=r"not a regular file, and not replaced: .*state\.safetensors"):
        genesis.save(1, path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    with pytest.raises(FileExistsError, match="not a regular file"):
        genesis.save(1, path.parent)
    assert os.listdir(path.parent) == [path.name]


class _Full:
    """A file on a disk that takes its first hundred bytes."""

    def __init__(self, file: Any) -> None:
        self.file, self.left = file, 100

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)


def test_a_full_disk_is_named_and_the_old_file_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genesis.save({"old": 1}, path)
    monkeypatch.setattr("builtins.open", lambda *args, real=open: _Full(real(*args)) if "wb" in args else real(*args))
    with pytest.raises(OSError, match=r"No space left on device: '.*/state\.safetensors'") as caught:
        genesis.save({"new": genesis.ones(1000)}, path)
    monkeypatch.undo()
    assert caught.value.filename == str(path)
    assert genesis.load(path) == {"old": 1}
    assert os.listdir(path.parent) == [path.name]


def test_a_folder_that_may_not_be_written_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Any, *args: Any) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*/state\.safetensors'"):
        write(path)


# --- leftovers --------------------------------------------------------------------------------------------------------


def _stop_while_writing(path: Path, ready: Any) -> None:
    with replaced(path) as temporary:
        temporary.write_text("half")
        ready.set()
        signal_never_comes = processes.Event()
        signal_never_comes.wait()


def test_ctrl_c_in_any_line_leaves_nothing(path: Path) -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != files.__file__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == number:
                raise KeyboardInterrupt
        return interrupt

    for number in range(1, 1000):
        lines: list[int] = []
        path.write_text("old")
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with replaced(path) as temporary:
                temporary.write_text("new")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert [each.name for each in path.parent.iterdir()] == [path.name], lines[-1]
        assert path.read_text() in ("old", "new")
        if len(lines) < number:
            break
    assert number > 20


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(path: Path) -> None:
    ready = processes.Event()
    writer = processes.Process(target=_stop_while_writing, args=(path, ready))
    writer.start()
    assert ready.wait(30)
    foreign = [path.with_name(name) for name in (f".{path.name}.tmp", ".other.0123abcd.tmp", f".{path.name}.xyz.tmp")]
    for file in foreign:
        file.write_text("somebody's")
    (living,) = {*path.parent.glob(f".{path.name}.????????.tmp")} - {*foreign}

    write(path)
    assert living.exists(), "its writer lives"
    writer.kill()
    writer.join()
    files._leftovers.cache_clear()
    write(path)
    assert not living.exists()
    assert sorted(path.parent.iterdir()) == sorted([path, *foreign])


def test_many_writers_who_collect_leftovers_do_not_disturb_each_other(path: Path) -> None:
    def write_often(number: int) -> None:
        for turn in range(60):
            files._leftovers.cache_clear()
            write(path, f"{number} {turn}")

    writers = [processes.Process(target=write_often, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    assert path.read_text().endswith(" 59")
    assert os.listdir(path.parent) == [path.name]


# --- locks ------------------------------------------------------------------------------------------------------------


def _hold(path: Path, ready: Any) -> None:
    lock = Lock(path)
    ready.set()
    processes.Event().wait()
    lock.release()


def test_a_lock_names_its_holder_and_goes_with_it(path: Path) -> None:
    ready = processes.Event()
    holder = processes.Process(target=_hold, args=(path, ready))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(BlockingIOError, match=f"in use by process {holder.pid}"):
        Lock(path)
    holder.kill()
    holder.join()
    lock = Lock(path)
    with pytest.raises(BlockingIOError, match=f"in use by process {os.getpid()}"):
        Lock(path)
    lock.release()
    lock.release()
    Lock(path).release()
    assert not path.exists()


def test_a_forked_process_does_not_hold_what_its_parent_held(path: Path) -> None:
    lock = Lock(path)
    released, stop = processes.Event(), processes.Event()

    def wait() -> None:
        lock.release()  # it is the parent's: the file stays
        released.set()
        stop.wait()

    child = processes.Process(target=wait)
    child.start()
    assert released.wait(30)
    with pytest.raises(BlockingIOError):
        Lock(path)
    lock.leave()  # as if the parent had died, its child having been left
    Lock(path).release()
    stop.set()
    child.join()


# --- kinds ------------------------------------------------------------------------------------------------------------


def test_a_safetensors_file_of_any_header_length_is_one(path: Path) -> None:
    """The length's lowest byte takes each value that it can have, the 0x80 with which pickles begin among them."""
    seen = set()
    for letters in range(1, 260, 8):
        genesis.save({"x" * letters: genesis.ones(2)}, path)
        seen.add(path.read_bytes()[0])
        assert kind_of(path) == "safetensors"
    assert seen == set(range(0, 256, 8))


@pytest.mark.parametrize("start", [b"\x80\x02", b"\x80\x04", b"PK\x03\x04"])
def test_headers_that_begin_as_other_files_do(start: bytes, path: Path) -> None:
    """Module.load takes them, too, and so does all that reads weights."""
    linear = nn.Linear(2, 1)
    genesis.save(linear, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    wanted = int.from_bytes(start.ljust(8, b"\0"), "little")
    with open(path, "wb") as file:
        file.write(wanted.to_bytes(8, "little") + data[8 : 8 + length])
        file.write(b" " * (wanted - length) + data[8 + length :])
    assert path.read_bytes()[:9] == start.ljust(8, b"\0") + b"{"
    assert kind_of(path) == "safetensors"
    other = nn.Linear(2, 1)
    other.load(path)
    assert other.weight.tolist() == linear.weight.tolist()
    with pytest.raises(CheckpointError, match=r"a safetensors file; use genesis\.load"):
        genesis.load_torch(path)


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_files_of_pytorch_whatever_they_are_called(new_format: bool, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights.{ending}"
    theirs = torch.nn.Linear(2, 1)
    torch.save(theirs.state_dict(), path, _use_new_zipfile_serialization=new_format)
    assert kind_of(path) == "torch"
    linear = nn.Linear(2, 1)
    linear.load(path)
    assert linear.weight.tolist() == theirs.weight.tolist()


def test_pickles_and_others(path: Path) -> None:
    for protocol in range(2, 6):
        for length in (0, 1, 5, 50, 120, 250, 299, 70_000):
            path.write_bytes(pickle.dumps("{" * length, protocol))
            assert kind_of(path) == "torch"
    for content in (b"", b"\x80", b"\x80\x02", b"\x80\xff", b"PK", b"PNG", b"{}", b"\x80\0\0\0\0\0\0\0", b"\xff" * 20):
        path.write_bytes(content)
        assert kind_of(path) == ("torch" if content == b"\x80\x02" else None)
