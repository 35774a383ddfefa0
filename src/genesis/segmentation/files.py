"""Files that are replaced whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary path beside path, which takes its place at the end of the block, or vanishes if the block fails.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from genesis.segmentation.files import replaced
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with replaced(path) as temporary:
        ...     _ = temporary.write_text("done")
        >>> path.read_text()
        'done'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
