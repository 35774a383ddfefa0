"""Every kernel compiles to a cubin for sm_80 and sm_90, without a GPU.

Triton writes the same PTX for both, but where a kernel multiplies on tensor cores, converts bfloat16 or adds
atomically. Where it does none of these, the PTX for sm_90 is assembled for sm_80 too, which takes a fifth of the time.
The assembler refuses what sm_80 cannot do; then the kernel is compiled for it. That the PTX is the same, the first
specimen of each kernel shows.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from triton import knobs

from genesis import dtypes
from genesis.backends.cuda import ops
from genesis.backends.cuda.driver.interface import kernel_name
from genesis.backends.cuda.driver.triton_driver import compile_kernel
from genesis.backends.cuda.launch.triton import Specimen

_FOUND = [found.name for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}.")]
_MODULES = [importlib.import_module(name) for name in _FOUND if "kernels" in name.split(".")]
_SPECIMENS = [specimen for module in _MODULES for specimen in getattr(module, "SPECIMENS", [])]
_DIFFERS = re.compile(r"tt\.dot|bf16|tt\.atomic")  # in Triton's IR


def _describe(specimen: Specimen) -> str:
    signature = specimen.signature()
    first = signature.types[0]
    return f"{kernel_name(specimen.kernel, signature)}-{first.removeprefix('*')}"


def _compile(specimen: Specimen, compute_capability: int) -> Any:
    compiled = compile_kernel(specimen.kernel, specimen.signature(), compute_capability)
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    assert compiled.metadata.target.arch == compute_capability
    return compiled


def _instructions(ptx: str) -> str:
    """Without the debug sections at the end: they name the folder whose kernel Triton's cache has compiled first."""
    return ptx.partition("\t.file\t")[0]


def _assembles(ptx: str, folder: Path) -> bool:
    """Whether sm_80 has all the instructions; how well they are scheduled does not matter here."""
    (folder / "kernel.ptx").write_text(ptx)
    command = [knobs.nvidia.ptxas.path, "--gpu-name=sm_80", "--opt-level=0", "kernel.ptx", "-o", "kernel.cubin"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("specimen", _SPECIMENS, ids=_describe)
def test_kernel_compiles(specimen: Specimen, tmp_path: Path) -> None:
    compiled = _compile(specimen, 90)
    ptx = compiled.asm["ptx"].replace(".target sm_90a", ".target sm_80")
    if _DIFFERS.search(compiled.asm["ttir"]) or not _assembles(ptx, tmp_path):
        _compile(specimen, 80)
    elif specimen is next(first for first in _SPECIMENS if first.kernel is specimen.kernel):
        assert _instructions(_compile(specimen, 80).asm["ptx"]) == _instructions(ptx)


_CHANNELS_LAST = [specimen for specimen in _SPECIMENS if specimen.constants.get("CHANNELS_LAST")]


@pytest.mark.parametrize("specimen", _CHANNELS_LAST, ids=_describe)
def test_channels_side_by_side_are_loaded_and_stored_together(specimen: Specimen) -> None:
    """What isn't compiled as divisible by 16 (a size in a mask, say) makes an access per element of it: 4 to 8 times
    as many instructions."""
    ptx = compile_kernel(specimen.kernel, specimen.signature(), 90).asm["ptx"]
    for instruction in ("ld.global", "st.global"):
        assert re.search(rf"{instruction}\S*\.v[24]", ptx), f"no wide {instruction}"


_STORED_TOGETHER = [
    specimen
    for specimen in _SPECIMENS
    if re.search("_interpolate_rows_kernel|_pixels_kernel|_cells_kernel", specimen.kernel.__name__)
]


@pytest.mark.parametrize("specimen", _STORED_TOGETHER, ids=_describe)
def test_results_side_by_side_are_stored_together(specimen: Specimen) -> None:
    """16 bytes at a time, whatever the number of channels; results of one byte 8 at a time."""
    ptx = compile_kernel(specimen.kernel, specimen.signature(), 90).asm["ptx"]
    bytes_too = {"st.global.v2.b32"} if dtypes.uint8 in specimen.args else set()
    assert set(re.findall(r"st\.global\S*", ptx)) <= {"st.global.v4.b32", "st.global.v2.b64"} | bytes_too


_LOADED_TOGETHER = [specimen for specimen in _SPECIMENS if specimen.kernel.__name__ == "_plane_mean_kernel"]


@pytest.mark.parametrize("specimen", _LOADED_TOGETHER, ids=_describe)
def test_what_lies_side_by_side_is_loaded_together(specimen: Specimen) -> None:
    ptx = compile_kernel(specimen.kernel, specimen.signature(), 90).asm["ptx"]
    assert set(re.findall(r"ld\.global\S*", ptx)) <= {"ld.global.v4.b32", "ld.global.v2.b64"}
