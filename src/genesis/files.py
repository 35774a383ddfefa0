"""Atomic replacement of files, recognition of file formats by structure, and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import functools
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from genesis.errors import DTypeError, describe

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # a file system without them: all go on without


MAX_HEADER = 100_000_000  # bytes of a safetensors file that are no elements; its library refuses more
_PICKLE_PROTOCOLS = range(2, 6)

Source: TypeAlias = str | os.PathLike[str] | BinaryIO  # a path, or a file object: io.BytesIO, open(path, "rb")


def kind_of(path: str | os.PathLike[str]) -> Literal["safetensors", "torch"] | None:
    """Recognize a file by its structure, whatever its name; "torch" is what torch.save() writes. None: neither.

    The first bytes of a safetensors file are a length, and can be those of a pickle or of an archive. But none of these
    has, behind a length that a header can have, the brace with which the header begins.
    """
    with open(path, "rb") as file:
        return kind_of_start(file.read(9))


def kind_of_start(start: bytes) -> Literal["safetensors", "torch"] | None:
    """Recognize a file by its first 9 bytes. See kind_of."""
    if start[8:] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= MAX_HEADER:
        return "safetensors"
    is_pickle = start[:1] == b"\x80" and start[1:2] and start[1] in _PICKLE_PROTOCOLS
    return "torch" if is_pickle or start.startswith(b"PK\x03\x04") else None


@contextmanager
def reading(source: Source) -> Iterator[tuple[str, BinaryIO]]:
    """The name of a file for messages, and the file, opened; of a file object what is left of it, in memory."""
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            yield os.fspath(source), file
    elif hasattr(source, "read"):
        yield str(getattr(source, "name", "the file object")), io.BytesIO(source.read())
    else:
        raise DTypeError(describe("load", "path", "a path or a binary file object", type(source).__name__))


# --- replacing --------------------------------------------------------------------------------------------------------


@contextmanager
def replaced(path: str | os.PathLike[str], make_folder: bool = True) -> Iterator[Path]:
    """Replace path atomically with a temporary file that the block writes; if the block fails, remove it.

    The new file gets the permissions of the old one, and its owner where allowed; symbolic links are kept. Leftovers of
    killed processes are removed by the next process that writes the file.

    Args:
        path: the file, or a link to it.
        make_folder: create the folder if it is missing.
    Raises: OSError: names path. FileExistsError: path exists and is not a regular file.
    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from genesis.files import replaced
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with replaced(path) as temporary:
        ...     _ = temporary.write_text("done")
        >>> path.read_text()
        'done'
    """
    target = Path(os.path.realpath(path))
    if make_folder:
        target.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = target, -1
    try:
        for leftover in _leftovers(target.parent).pop(target.name, ()):
            _remove_abandoned(leftover)
        temporary, descriptor = _begin(target)
        yield temporary
        os.replace(temporary, target)
    except BaseException as error:
        if descriptor >= 0:
            with suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            named = error.filename  # None of a full disk
            if named is None or _target_name(os.path.basename(str(named))) == target.name:
                error.filename = os.fspath(path)
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _begin(target: Path) -> tuple[Path, int]:
    """Create a temporary file next to target. It is locked while its descriptor is open, so it is no leftover."""
    replaces = target.stat() if target.exists() else None
    if replaces is not None and not stat.S_ISREG(replaces.st_mode):
        raise FileExistsError(errno.EEXIST, "not a regular file, and not replaced", os.fspath(target))
    # What replaces a file that others may not read, they may not read while it is written either.
    mode = 0o666 if replaces is None else 0o600
    while True:
        temporary, descriptor = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp"), -1
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            if _is_locked(descriptor) and _is_open_at(descriptor, temporary):
                if replaces is not None:
                    _take_permissions(descriptor, replaces)
                return temporary, descriptor
        except FileExistsError:
            raise
        except BaseException:  # Ctrl-C, perhaps before the descriptor is known
            with suppress(OSError):
                temporary.unlink()
            if descriptor >= 0:
                os.close(descriptor)
            raise
        os.close(descriptor)  # another process took it for a leftover, in the moment before it was locked


def _take_permissions(descriptor: int, replaces: os.stat_result) -> None:
    own, mode = os.fstat(descriptor), replaces.st_mode & 0o777
    if (own.st_uid, own.st_gid) != (replaces.st_uid, replaces.st_gid):
        try:
            os.fchown(descriptor, replaces.st_uid, replaces.st_gid)
        except PermissionError:  # then the group is another one, which may do no more than everybody
            mode = mode & 0o707 | (mode & 0o007) << 3
    os.fchmod(descriptor, mode)


# --- what was left unfinished -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _leftovers(folder: Path) -> dict[str, list[Path]]:
    """Temporary files that were there when this process first wrote to a folder, by the names of their targets."""
    found: dict[str, list[Path]] = {}
    with suppress(OSError):
        for name in os.listdir(folder):
            target_name = _target_name(name)
            if target_name is not None:
                found.setdefault(target_name, []).append(folder / name)
    return found


def _target_name(name: str) -> str | None:
    """The name of the file that a temporary file of this name will replace."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else match[1]


def _remove_abandoned(path: Path) -> None:
    """Remove a temporary file unless the process that writes it is alive."""
    with suppress(OSError):  # it is gone, or not ours
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


# --- locks ------------------------------------------------------------------------------------------------------------


class Lock:
    """Lock a file against all other processes, until release() or the end of this process.

    Raises: BlockingIOError: another process, or another Lock in this one, holds it; the message names the process.
    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from genesis.files import Lock
        >>> path = Path(tempfile.mkdtemp()) / ".lock"
        >>> lock = Lock(path)
        >>> lock.release()
        >>> path.exists()
        False
    """

    def __init__(self, path: Path) -> None:
        self.path, self._descriptor = path, -1
        while self._descriptor < 0:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            if not _is_locked(descriptor):
                holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise BlockingIOError(errno.EAGAIN, f"in use by process {holder or 'unknown'}", os.fspath(path))
            if _is_open_at(descriptor, path):
                self._descriptor = descriptor
            else:
                os.close(descriptor)  # its holder removed it between our opening and locking it
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self.path.unlink()
            self.leave()

    def leave(self) -> None:
        """Close the file without releasing the lock: a forked child must not hold its parent's lock."""
        descriptor, self._descriptor = self._descriptor, -1
        _held.discard(self)
        if descriptor >= 0:
            os.close(descriptor)


_held: set[Lock] = set()  # of this process


def _leave_inherited() -> None:
    for lock in list(_held):
        lock.leave()


os.register_at_fork(after_in_child=_leave_inherited)


def _is_locked(descriptor: int) -> bool:
    """Lock an open file until all its descriptors are closed; False if it is locked already."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_open_at(descriptor: int, path: Path) -> bool:
    """Whether path still is the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
