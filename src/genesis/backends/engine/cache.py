"""Folders of the cache: what lies there is believed, and run on the GPU, so nobody else may write there.

The folder is the border. It must belong to the user, or to root, and be writable by nobody else; so must each file.
What is otherwise is refused, and the process does without. Nothing is signed: whoever can write in such a folder can
read any key that the user can read. The checksums of files find damage, not forgery.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ABANDONED = 3600.0  # seconds: no writer of ours takes so long
_seen: set[Path] = set()  # folders that this process has tidied up
_lock = threading.Lock()


def private_folder(path: Path) -> Path:
    """The folder, made if it is not there, with leftovers of dead writers removed.

    Raises: OSError: it cannot be made; PermissionError: others could write into it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.mkdir(exist_ok=True, mode=0o700)
    above = path.parent.stat()
    if not above.st_mode & stat.S_ISVTX:  # as in /tmp, where others cannot rename what is ours
        _require_private(path.parent, above)
    _require_private(path, path.stat())
    with _lock:
        is_new = path not in _seen
        _seen.add(path)
    if is_new:
        _remove_leftovers(path)
    return path


def private_file(path: Path) -> Path:
    """The file, made empty if it is not there. Raises: OSError; PermissionError: others could write it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # one that is only there to be read
        descriptor = os.open(path, os.O_RDONLY)
    try:
        _require_private(path, os.fstat(descriptor))
    finally:
        os.close(descriptor)
    return path


def read(path: Path) -> bytes:
    """Read a file. Raises: OSError: there is none; PermissionError: others could have written it."""
    with path.open("rb") as file:
        _require_private(path, os.fstat(file.fileno()))
        return file.read()


def write(path: Path, content: bytes) -> None:
    """Fill a file that is there, and that only the user may read and write from now on. Raises: OSError."""
    if hasattr(os, "geteuid"):
        os.chown(path, os.geteuid(), os.getegid())
    path.chmod(0o600)
    path.write_bytes(content)


def _require_private(path: Path, found: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):  # a system without such owners
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{path} belongs to another user")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError(f"others may write {path}: chmod go-w would end that")


def _remove_leftovers(folder: Path) -> None:
    """Temporary files of genesis.files.replaced whose writer was killed."""
    before = time.time() - _ABANDONED
    with suppress(OSError):
        for path in folder.glob(".*.tmp"):
            with suppress(OSError):
                if path.lstat().st_mtime < before:
                    path.unlink()
