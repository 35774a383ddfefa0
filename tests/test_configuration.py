"""pytest's configuration: plugins that happen to be installed do no harm, and our own warnings remain errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = """
import warnings

import pytest


class Warned(pytest.PytestWarning):
    pass


def pytest_configure(config):
    warnings.warn(Warned("this plugin is disabled"))


def pytest_sessionfinish(session):
    warnings.warn(Warned("nothing was measured"))
"""
TESTS = """
import warnings

def test_passes():
    pass

def test_warns():
    warnings.warn("by a test", UserWarning)
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "workers"])
def test_warnings_of_plugins_are_no_errors_and_those_of_tests_are(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pytest_noise.py").write_text(PLUGIN)
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [
        sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-q",
        "-p", "no:cacheprovider", "-p", "pytest_noise", *options, "test_two.py",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "UserWarning: by a test" in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr
