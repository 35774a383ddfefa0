"""Kernels that are launched before the one ahead of them has ended wait for it: all of them, and on Hopper alone."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from triton.runtime.jit import JITFunction

from genesis import dtypes
from genesis.backends.cuda import ops
from genesis.backends.cuda.driver.triton_driver import compile_kernel, overlapping
from genesis.backends.cuda.launch import overlap
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.conv_bn_relu.kernels import conv_bn_relu as kernels
from genesis.settings import override

_OPS = Path(ops.__path__[0])
_ENTRY = re.compile(r'extern "C" __global__ .*?\) \{\n(.*?)\n\}\n', re.DOTALL)


def _triton_kernels() -> Iterator[JITFunction]:
    for module in pkgutil.walk_packages(ops.__path__, "genesis.backends.cuda.ops."):
        if "kernels" in module.name:
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, JITFunction) and "PDL" in value.arg_names and value.__module__ != overlap.__name__:
                    yield value


def test_kernels_in_triton_wait_before_all_else() -> None:
    found = {kernel.fn.__name__: kernel for kernel in _triton_kernels()}
    assert len(found) > 40
    for name, kernel in found.items():
        (function,) = ast.parse(kernel.src).body
        assert isinstance(function, ast.FunctionDef)
        first, *_, last = map(ast.unparse, function.body[1:] if ast.get_docstring(function) else function.body)
        assert first in ("_follow(PDL)", "_follow_and_hold(PDL)", "_begin(is_beside, PDL)"), name
        assert (last == "_end(is_beside, PDL)") == (first == "_begin(is_beside, PDL)"), name


def test_kernels_in_cuda_wait_before_they_read() -> None:
    """None of what stands before follow() names an array: it sets up barriers, and finds places."""
    entries = [(path, body) for path in _OPS.rglob("*.cu") for body in _ENTRY.findall(path.read_text())]
    assert len(entries) >= 10
    for path, body in entries:
        before, *calls = re.split(r"\bfollow(?:_and_hold)?\(\);\n", body)
        assert len(calls) == 1, path.name
        assert not re.search(r"load_|copy_|value_at|\b(first|weight|grad|input|x)\[|map\b", before), path.name


@pytest.mark.parametrize(("capability", "waits"), [(80, False), (90, True), (100, True), (120, False)])
def test_the_driver_switches_it_on(capability: int, waits: bool) -> None:
    wide = dtypes.float32
    specimen = Specimen(
        kernels._parameter_grads_kernel, (*(wide,) * 7, 100, 64), {"PARTS": 128, "BLOCK": 8, "TRAINING": True}
    )
    signature = overlapping(specimen.kernel, specimen.signature(), capability)
    compiled = compile_kernel(specimen.kernel, signature, capability)
    assert ("griddepcontrol.wait" in compiled.asm["ptx"]) is waits
    assert bool(compiled.metadata.launch_pdl) is waits
    with override(overlap=False):
        assert overlapping(specimen.kernel, specimen.signature(), capability) == specimen.signature()
