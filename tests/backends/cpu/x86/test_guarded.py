"""Our own convolutions touch no memory but their operands'; each kind of vectors in a process that may die of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from genesis.backends.cpu.x86 import machine
from tests.backends.cpu.x86.guarded import TABLE

_OUTSIDE = "from tests.backends.cpu.x86.guarded import *\nwith guarded(4096, {}) as a: ctypes.string_at(a + {}, 1)"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")
@pytest.mark.parametrize("kind", ["avx512", "avx2"])
def test_nothing_outside_the_operands(kind: str) -> None:
    if kind == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    done = _run("-m", "tests.backends.cpu.x86.guarded", kind)
    last = done.stdout.splitlines()[-1:]
    assert last == [f"all right: {len(TABLE)} problems"], f"{done.returncode}: {last}\n{done.stderr}"


@pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")
@pytest.mark.parametrize(("at_end", "offset"), [(True, 4096), (False, -1)])
def test_the_guard_sees_a_byte(at_end: bool, offset: int) -> None:
    assert _run("-c", _OUTSIDE.format(at_end, offset)).returncode < 0
