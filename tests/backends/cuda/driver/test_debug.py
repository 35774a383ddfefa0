"""GENESIS_DEBUG: the device, each launch, the code; and a process that ends without a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import debug
from genesis.backends.cuda.driver.interface import Properties
from genesis.settings import override


def test_device_is_shown_from_level_1(capsys: pytest.CaptureFixture[str]) -> None:
    properties = Properties("Some GPU", 90, 132, 232448, 140 << 30, 50 << 20)
    debug.show_device(1, properties)
    assert capsys.readouterr().err == ""
    with override(debug=1):
        debug.show_device(1, properties)
    assert capsys.readouterr().err == "genesis: cuda:1: Some GPU, sm_90, 132 multiprocessors, 140.0 GiB\n"


def test_launches_are_shown_from_level_3(cuda: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    x = cuda.full((16,), 1.0, dtypes.float32)
    for level, shown in ((2, False), (3, True)):
        with override(debug=level):
            cuda.add(x, x)
        assert ("launch _add_kernel(1, 1, 1) on stream 0x0: " in capsys.readouterr().err) is shown


def test_arguments_of_a_launch(capsys: pytest.CaptureFixture[str]) -> None:
    with override(debug=3):
        debug.show_launch("_kernel", (4, 2, 1), 0x7F10, [0x7EFE2C001400, None, 16, 0.5])
    shown = "launch _kernel(4, 2, 1) on stream 0x7f10: 0x7efe2c001400, None, 16, 0.5"
    assert capsys.readouterr().err == f"genesis: {shown}\n"


def test_code_is_shown_from_level_4(capsys: pytest.CaptureFixture[str]) -> None:
    for level, expected in ((3, ""), (4, "genesis: kernel _kernel:\nret;\n")):
        with override(debug=level):
            debug.show_code("_kernel", "ret;\n\n")
        assert capsys.readouterr().err == expected


_LEAVING = """
import genesis
from genesis.backends import get
from genesis.backends.cuda.runtime import array, memory, streams

cuda = get("cuda")
kept = [streams.Stream(), streams.Event(), memory.pinned_empty((4,), "float32")]
kept.append(cuda.add(cuda.full((4,), 1.0, genesis.float32), 1.0))
kept.append(streams.current().record_event())
kept.append(kept)  # a circle, so that only the end of the interpreter frees them
genesis.kept = kept
"""


@pytest.mark.parametrize("choice", ["simulated", pytest.param("auto", marks=pytest.mark.gpu)])
def test_process_ends_quietly(choice: str) -> None:
    environment = {**os.environ, "GENESIS_CUDA": choice}
    ran = subprocess.run([sys.executable, "-c", _LEAVING], capture_output=True, text=True, env=environment, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
