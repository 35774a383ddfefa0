"""The kernel that replaces memsets compiles for all GPUs; what it does on one, driver/test_memset_nodes.py says."""

from __future__ import annotations

import pytest

from genesis.backends.cuda.nvrtc.program import Program
from genesis.backends.cuda.runtime import fills


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_kernel_compiles(arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    source = fills._SOURCE
    entry = Program("fill", source.read_text(), source.name, source.parent).compiled(arch, ("fill",))
    assert entry.cubin[:4] == b"\x7fELF"
