"""Processes of a benchmark that prepare side by side and measure in turns."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
STARTED = """
import sys, time
with open(sys.argv[1], "w", buffering=1) as file:
    while True:
        print(time.monotonic(), file=file)
        time.sleep(0.002)
"""
PROCESS = """
import json, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import turns
started = subprocess.Popen([sys.executable, "-c", sys.argv[3], sys.argv[2] + ".started"], start_new_session=True)
moments, measured = [], []
for round in range(3):
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        moments.append(time.monotonic())
        time.sleep(0.002)
    with turns.measuring(), turns.measuring():
        measured.append((time.monotonic(), time.sleep(0.1), time.monotonic()))
started.kill()
json.dump((moments, measured), open(sys.argv[2], "w"))
"""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("turns")


def test_the_others_and_what_they_started_stand_still_while_one_measures(turns: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(3)]
    commands = [[sys.executable, "-c", PROCESS, str(FOLDER), str(file), STARTED] for file in files]
    assert turns.run(commands, 3) == 0
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for file, (moments, _) in zip(files, found, strict=True):
        lines = Path(f"{file}.started").read_text(encoding="utf-8").splitlines()
        assert len(lines) > 10
        moments += map(float, lines[:-1])  # it was killed in the last one
    for moments, measured in found:
        for other_moments, _ in found:
            if other_moments is not moments:
                for start, _, end in measured:
                    assert not [moment for moment in other_moments if start < moment < end]


def test_one_that_dies_while_it_measures_lets_the_others_go_on(turns: ModuleType) -> None:
    beginning = f"import os, sys, time; sys.path.insert(0, {str(FOLDER)!r}); import turns; "
    dies = "\nwith turns.measuring(): time.sleep(0.5); os.kill(os.getpid(), 9)"
    commands = [[sys.executable, "-c", beginning + text] for text in (dies, "time.sleep(0.7)", "time.sleep(0.7)")]
    assert turns.run(commands, 3) == 1


def test_none_begins_when_time_is_up(turns: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "import time, sys; time.sleep(0.3); open(sys.argv[1], 'w')"
    commands = [[sys.executable, "-c", script, str(tmp_path / f"{number}")] for number in range(2)]
    assert turns.run(commands, 1, seconds=0.2) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["0"]
    assert "no time for: " in capsys.readouterr().out


def test_a_process_by_itself_measures_at_once(turns: ModuleType) -> None:
    with turns.measuring():
        assert not turns._measuring
