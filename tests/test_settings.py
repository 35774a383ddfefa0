"""Environment switches: what each may be, and overrides of several threads that overlap."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import genesis
from genesis import backends
from genesis.backends import registry
from genesis.backends.tools import recording
from genesis.settings import Settings, override, settings


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GENESIS_DEBUG", "abc", "a number from 0 to 4, got 'abc'"),
        ("GENESIS_DEBUG", "-1", "a number from 0 to 4, got '-1'"),
        ("GENESIS_DEBUG", "1.5", "a number from 0 to 4, got '1.5'"),
        ("GENESIS_CHECK", "all", "nan or cpu, got 'all'"),
        ("GENESIS_CUDA", "yes", "auto, off or simulated, got 'yes'"),
        ("GENESIS_CACHE_DIR", "~nobody-of-this-name/x", "a folder, got '~nobody-of-this-name/x'"),
        ("GENESIS_TUNE", "long", "a number of seconds, at least 0, got 'long'"),
        ("GENESIS_TUNE", "nan", "a number of seconds, at least 0, got 'nan'"),
        ("GENESIS_WORKSPACE", "1e3", "a whole number of MiB, at least 0, got '1e3'"),
        ("GENESIS_WORKSPACE", "9" * 5000, "a whole number of MiB, at least 0, got '999"),
        ("GENESIS_COMPILERS", "-1", "auto or a whole number, at least 0, got '-1'"),
        ("GENESIS_COMPILERS", "all", "auto or a whole number, at least 0, got 'all'"),
        ("GENESIS_DETERMINISTIC", "true", "0 or 1, got 'true'"),
        ("GENESIS_OVERLAP", "no", "0 or 1, got 'no'"),
    ],
)
def test_a_value_that_is_none_is_shown_as_it_was_given(name: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected {expected}"):
        Settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"debug": None}, "GENESIS_DEBUG: expected a number from 0 to 4, got None"),
        ({"debug": 1.5}, "got 1.5"),
        ({"workspace": float("inf")}, "got inf"),
        ({"cache_dir": 5}, "GENESIS_CACHE_DIR: expected a folder, got 5"),
        ({"cache_dir": "a\0b"}, "expected a folder"),
        ({"deterministic": None}, "expected 0 or 1, got None"),
    ],
)
def test_an_override_that_is_refused_changes_nothing(change: dict[str, Any], expected: str) -> None:
    before = vars(settings).copy()
    with pytest.raises(ValueError, match=expected), override(check="nan", **change):
        pass
    assert vars(settings) == before


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("GENESIS_CACHE", r"did you mean GENESIS_CACHE_DIR\?"),
        ("GENESIS_DEBG", r"did you mean GENESIS_DEBUG\?"),
        ("GENESIS_", "known are GENESIS_DEBUG, GENESIS_CHECK"),
    ],
)
def test_another_programs_variable_is_a_warning(name: str, advice: str) -> None:
    with pytest.warns(UserWarning, match=rf"^{name} is not a Genesis variable, .*: {advice}") as said:
        found = Settings.from_environment({name: "x", "GENESIS_DEBUG": "1", "GENESIS_TUNE": ""})
    assert (len(said), found.debug) == (1, 1)


@pytest.mark.parametrize("start", [["-m", "genesis", "info"], ["-c", "import genesis"]])
def test_what_the_environment_says_wrongly(start: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """To the command it is one sentence; a program gets the exception."""
    monkeypatch.setenv("GENESIS_DEBUG", "abc")
    run = subprocess.run([sys.executable, *start], capture_output=True, text=True, cwd=tmp_path)
    message = "GENESIS_DEBUG: expected a number from 0 to 4, got 'abc'"
    if start[0] == "-m":
        assert (run.returncode, run.stderr) == (2, f"genesis: {message}\n")
    else:
        assert run.returncode == 1
        assert run.stderr.endswith(f"ValueError: {message}\n")


# --- blocks of several threads ----------------------------------------------------------------------------------------
class Block(threading.Thread):
    """An override in a thread of its own, which lasts until end()."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes, self._may_end, self._has_begun = changes, threading.Event(), threading.Event()
        self.start()
        assert self._has_begun.wait(10)

    def run(self) -> None:
        with override(**self._changes):
            self._has_begun.set()
            assert self._may_end.wait(10)

    def end(self) -> None:
        self._may_end.set()
        self.join(10)


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ({"debug": 1}, {"debug": 2}), ({"check": "nan"}, {"check": "cpu"}), ({"debug": 2}, {"check": "nan"}),
        ({"deterministic": True}, {"workspace": 7}), ({"tune": 1.0}, {"tune": 2.0}),
        ({"cache_dir": Path("/a")}, {"cache_dir": Path("/b")}), ({"cuda": "off"}, {"cuda": "simulated"}),
    ],
)  # fmt: skip
def test_blocks_that_overlap_leave_nothing_behind(change: dict[str, Any], other: dict[str, Any]) -> None:
    backends.get("cpu")
    before, plain = vars(settings).copy(), registry.active["cpu"]
    first, second = Block(**change), Block(**other)
    assert {name: vars(settings)[name] for name in other} == other
    first.end()
    assert {name: vars(settings)[name] for name in other} == other, "the other block still holds"
    assert all(vars(settings)[name] == before[name] for name in change.keys() - other.keys())
    second.end()
    assert vars(settings) == before
    assert registry.active["cpu"] is plain, "without the tools that the settings asked for"


def test_many_threads() -> None:
    before = vars(settings).copy()

    def work(index: int) -> None:
        for _ in range(30):
            with override(debug=1 + index % 2), override(check=("nan", "")[index % 2], workspace=index):
                pass

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert vars(settings) == before
    assert not isinstance(registry.active["cpu"], type(None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        genesis.ones(1).exp()  # with no tool that would find fault


def test_a_listener_that_fails_leaves_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from genesis import settings as module

    before = vars(settings).copy()

    def fail() -> None:
        if settings.workspace == 3:
            raise OSError("no")

    monkeypatch.setattr(module, "_listeners", [*module._listeners, fail])
    with pytest.raises(OSError, match="no"), override(workspace=3):
        pass
    assert vars(settings) == before


def test_stand_ins_that_overlap_leave_the_backend() -> None:
    """The same of backends.use, and of recording."""
    plain = backends.get("cpu")
    one, two = backends.use("cpu", plain.wrapped(_same)), backends.use("cpu", plain.wrapped(_same))
    first = one.__enter__()
    second = two.__enter__()
    assert backends.get("cpu") is second
    one.__exit__(None, None, None)
    assert backends.get("cpu") is second is not first
    two.__exit__(None, None, None)
    assert backends.get("cpu") is plain
    tool, other = recording(lambda call: None), recording(lambda call: None)
    before = registry.active["cpu"]
    tool.__enter__()
    other.__enter__()
    tool.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert registry.active["cpu"] is before is plain


def _same(op: str, function: Any) -> Any:
    return function
