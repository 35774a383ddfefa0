"""Types reach the user: mypy --strict and pyright know what a call gives, and where it is wrong.

The programs in users/ say it by assert_type, and by comments that ignore an error where there must be one. The pages'
examples are checked with them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.typing.checkers import run_mypy, run_pyright, write_programs


@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_programs_of_users(check: Callable[[Path], list[str]], tmp_path: Path) -> None:
    write_programs(tmp_path)
    assert not (wrong := check(tmp_path)), "\n" + "\n".join(wrong)
