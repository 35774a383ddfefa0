"""Every kernel compiles to a cubin for sm_80 and sm_90, without a GPU."""

from __future__ import annotations

import importlib
import pkgutil

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
