"""Every kernel compiles to a cubin for sm_80 and sm_90, without a GPU."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

from genesis.backends.cuda import kernels
from genesis.backends.cuda.driver.interface import kernel_name
from genesis.backends.cuda.driver.triton_driver import compile_kernel
from genesis.backends.cuda.launch import Specimen

_NAMES = [found.name for found in pkgutil.iter_modules(kernels.__path__)]
_MODULES = [importlib.import_module(f"{kernels.__name__}.{name}") for name in _NAMES]
_SPECIMENS = [specimen for module in _MODULES for specimen in getattr(module, "SPECIMENS", [])]


def _describe(specimen: Specimen) -> str:
    signature = specimen.signature()
    first = signature.types[0]
    return f"{kernel_name(specimen.kernel, signature)}-{first.removeprefix('*')}"


@pytest.mark.parametrize("compute_capability", [80, 90])
@pytest.mark.parametrize("specimen", _SPECIMENS, ids=_describe)
def test_kernel_compiles(specimen: Specimen, compute_capability: int) -> None:
    compiled = compile_kernel(specimen.kernel, specimen.signature(), compute_capability)
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    assert compiled.metadata.target.arch == compute_capability


_CHANNELS_LAST = [specimen for specimen in _SPECIMENS if specimen.constants.get("CHANNELS_LAST")]


@pytest.mark.parametrize("specimen", _CHANNELS_LAST, ids=_describe)
def test_channels_side_by_side_are_loaded_and_stored_together(specimen: Specimen) -> None:
    """What isn't compiled as divisible by 16 (a size in a mask, say) makes an access per element of it: 4 to 8 times
    as many instructions."""
    ptx = compile_kernel(specimen.kernel, specimen.signature(), 90).asm["ptx"]
    for instruction in ("ld.global", "st.global"):
        assert re.search(rf"{instruction}\S*\.v[24]", ptx), f"no wide {instruction}"
