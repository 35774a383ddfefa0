"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced(path: str | os.PathLike[str], make_folder: bool = True) -> Iterator[Path]:
    """A temporary path beside path, which takes its place at the end of the block, or vanishes if the block fails.

    A process that is killed may leave the temporary file, whose name is that of path between "." and ".….tmp".

    Args:
        path: the file; where it is a link, the file that it leads to.
        make_folder: make its folder if it is not there.
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
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
