"""Imports run downward, one layer at a time, and never in a circle of files.

LAYERS is the architecture as a table, FLOORS what a layer of many files looks like inside; the rest reads imports.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"


class Layer(NamedTuple):
    """Modules below genesis (each with all that it contains), and the layers that they may import beside their own."""

    modules: tuple[str, ...]
    may_import: tuple[str, ...]


ARRAYS = ("foundation", "ndarray", "autograd", "functional")
TENSORS = (*ARRAYS, "interop", "tensor")
PARTS = (*TENSORS, "distributed", "nn", "optim", "backends", "recording")
SHARED = (
    "errors", "dtypes", "shapes", "records", "activations", "settings", "callsite", "frames", "precision", "files",
    "interrupts", "distribution",
)  # fmt: skip
LAYERS = {  # from the bottom up
    "foundation": Layer(SHARED, ()),
    "backends": Layer(("backends",), ("foundation",)),
    "ndarray": Layer(("ndarray",), ("foundation", "backends")),
    "autograd": Layer(("autograd",), ("foundation", "ndarray")),
    "functional": Layer(("functional",), ("foundation", "ndarray", "autograd")),
    "interop": Layer(("interop",), ARRAYS),
    "tensor": Layer(
        (
            "tensor",
            "properties",
            "adapted",
            "methods",
            "in_place",
            "creation",
            "creation_like",
            "pinning",
            "sharing",
            "new_tensors",
            "draws",
            "printing",
            "linalg",
            "generator",
            "random",
            "checkpoint",
            "pickling",
            "queries",
            "fft",
            "signal",
            "tensor_files",
            "tensor_types",
        ),
        (*ARRAYS, "interop"),
    ),
    "distributed": Layer(("distributed",), (*TENSORS, "backends")),  # NCCL runs on streams of the CUDA backend
    "nn": Layer(("nn",), (*TENSORS, "distributed")),
    "optim": Layer(("optim",), (*TENSORS, "nn")),  # swa_utils averages modules
    "recording": Layer(("recording",), (*TENSORS, "nn", "backends")),
    "application": Layer((), (*PARTS, "genesis")),  # all that has no line of its own: models, data, growth, …
    "genesis": Layer((), (*PARTS, "application")),  # src/genesis/__init__.py, the public names
    "cli": Layer(("cli", "__main__"), (*PARTS, "application", "genesis")),
}

PRIVATE = {  # modules that only their owners import; the others go through the owner's package
    "genesis.backends.cpu": ("genesis.backends.cpu", "genesis.torch"),
    "genesis.backends.cuda": (
        "genesis.backends.cuda",
        "genesis.cuda",
        "genesis.distributed.nccl",
        "genesis.distributed.copy_engines",
        "genesis.torch",
    ),
    "genesis.backends.tools": ("genesis.backends",),
    "torch": (
        "genesis.backends.cpu",
        "genesis.cuda.frameworks.torch",
        "genesis.data",
        "genesis.distributed",
        "genesis.interop",
        "genesis.port",
        "genesis.torch",
        "genesis.utils.tensorboard",
    ),
    "cuda": ("genesis.backends.cuda.driver",),
    "cudnn": ("genesis.backends.cuda",),
    "nccl": ("genesis.distributed.nccl",),
    "onnx_ir": ("genesis.export", "genesis.onnx_import"),
    "onnxruntime": ("genesis.export",),
    "triton": ("genesis.backends.cuda",),
}


# Floors of a layer from the bottom up. A module stands on the floor that names it, or the package that it lies in; it
# imports from its own floor and from those below.
FLOORS: dict[str, dict[str, tuple[str, ...]]] = {
    "genesis.backends.cuda": {
        "driver": ("driver",),
        "nvrtc": ("nvrtc",),
        "runtime": ("runtime",),
        "launch": ("launch",),
        "engine": ("engine",),
        "ops": (
            "ops.activation", "ops.decomposition", "ops.elementwise", "ops.indexing", "ops.interpolation",
            "ops.loss", "ops.norm", "ops.optimizer", "ops.pointwise", "ops.pooling", "ops.random", "ops.reduction",
            "ops.softmax", "ops.sort", "ops.storage",
        ),
        "products": ("ops.matmul", "ops.attention", "ops.conv"),
        "fused": ("ops.conv_bn_relu", "ops.conv_bn_folded"),
        "backend": ("", "ops"),
    },
    "genesis": {  # the packages of the layer "application"
        "tools": (
            "amp", "compiler", "cuda", "export", "fusion", "graphs", "jit", "models", "onnx_import",
            "profiler", "special", "derivatives", "refused",
        ),
        "training": ("data", "distributions", "growth", "torch", "utils"),
        "programs": ("port", "segmentation"),
    },
}  # fmt: skip

KNOWN_CIRCLES: set[frozenset[str]] = set()  # to be mended; one that is gone leaves this table


class Import(NamedTuple):
    """One name that a module imports, and where."""

    importer: str
    imported: str
    line: int


def modules(source: Path) -> dict[str, Path]:
    """Every module below source, by its dotted name."""
    named = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(importer: str, tree: ast.Module, known: set[str], is_package: bool = False) -> Iterator[Import]:
    """The imports in a module, inside functions too, except below `if TYPE_CHECKING`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = importer.split(".") if is_package else importer.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(importer, full if full in known else base, node.lineno)


def layer_of(module: str) -> str:
    """The name of the layer that a module of Genesis belongs to."""
    if module == "genesis":
        return "genesis"
    top = module.split(".")[1]
    return next((name for name, layer in LAYERS.items() if top in layer.modules), "application")


def complaint(found: Import) -> str | None:
    """What is wrong with an import, or None."""
    where = f"{found.importer}:{found.line} imports {found.imported}"
    for private, owners in PRIVATE.items():
        if within(found.imported, private) and not any(within(found.importer, owner) for owner in owners):
            return f"{where}: only {', '.join(owners)} may"
    if within(found.imported, "genesis"):
        source, target = layer_of(found.importer), layer_of(found.imported)
        if source != target and target not in LAYERS[source].may_import:
            return f"{where}: the layer {source} may import {', '.join(LAYERS[source].may_import) or 'only itself'}"
    return None


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def complaints(importer: str, source: str, known: set[str], is_package: bool = False) -> list[str]:
    found = imports(importer, ast.parse(source), known, is_package)
    return [text for text in map(complaint, found) if text]


@functools.cache
def all_imports() -> dict[str, list[Import]]:
    """Those of every module."""
    paths = modules(SOURCE)
    return {
        name: list(imports(name, ast.parse(path.read_text(encoding="utf-8")), set(paths), path.name == "__init__.py"))
        for name, path in paths.items()
    }


def test_imports_follow_the_layers() -> None:
    found = all_imports()
    assert "genesis.backends.contract" in found
    wrong = [text for each in found.values() for text in map(complaint, each) if text]
    assert not wrong, "\n" + "\n".join(wrong)


def floor_of(module: str, package: str) -> str | None:
    """The floor of package that module stands on; None if no floor names it."""
    below = module.removeprefix(package).removeprefix(".")
    floors = {name: floor for floor, names in FLOORS[package].items() for name in names}
    while "." in below and below not in floors:
        below = below.rpartition(".")[0]
    return floors.get(below)


def misplaced(package: str, members: set[str], arrows: dict[str, set[str]]) -> list[str]:
    """What is wrong with the floors of these members of a package."""
    height = {floor: number for number, floor in enumerate(FLOORS[package])}
    wrong = []
    for module in sorted(members):
        floor = floor_of(module, package)
        if floor is None:
            wrong.append(f"{module} stands on no floor: name it in FLOORS")
            continue
        for imported in sorted(arrows[module] & members):
            below = floor_of(imported, package)
            if below is not None and height[below] > height[floor]:
                wrong.append(f"{module} ({floor}) imports {imported} ({below}), from a floor above it")
    return wrong


@functools.cache
def arrows() -> dict[str, set[str]]:
    """Every module with the modules of Genesis that it imports."""
    found = all_imports()
    return {name: {each.imported for each in those if each.imported in found} - {name} for name, those in found.items()}


def circles(arrows: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules of which each imports all others, by way of some."""
    reached = {module: _reached(module, arrows) for module in arrows}
    return {frozenset(other for other in reached[m] if m in reached[other]) for m in arrows if m in reached[m]}


def _reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        new = arrows[pending.pop()] - found
        found |= new
        pending += new
    return found


@pytest.mark.parametrize("package", FLOORS)
def test_imports_of_a_layer_follow_its_floors(package: str) -> None:
    found = arrows()
    layer = layer_of(package) if package != "genesis" else "application"
    members = {module for module in found if layer_of(module) == layer and within(module, package)}
    assert misplaced(package, members, found) == []
    for floor, names in FLOORS[package].items():
        for name in names:
            module = f"{package}.{name}".rstrip(".")
            assert module in members, f"the floor {floor} names {module}, which is not there"


@pytest.mark.parametrize(
    ("module", "imported", "message"),
    [
        ("driver.nvrtc", "runtime.x", "(driver) imports genesis.backends.cuda.runtime.x (runtime), from a floor above"),
        ("ops.norm", "ops.conv", "(ops) imports genesis.backends.cuda.ops.conv (products), from a floor above"),
        ("unheard_of", "runtime.array", "genesis.backends.cuda.unheard_of stands on no floor"),
    ],
)
def test_a_wrong_floor_is_found(module: str, imported: str, message: str) -> None:
    package = "genesis.backends.cuda"
    members = {f"{package}.{module}", f"{package}.{imported}"}
    (text,) = misplaced(package, members, {member: members - {member} for member in members})
    assert message in text


def test_no_files_import_in_a_circle() -> None:
    found = circles(arrows())
    assert found - KNOWN_CIRCLES == set(), "files that import each other are one file, or need a third below them"
    assert KNOWN_CIRCLES - found == set(), "mended: take it out of KNOWN_CIRCLES"


def test_a_circle_of_files_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {frozenset({"b", "c"})}


KNOWN = {"genesis", "genesis.backends", "genesis.backends.cpu", "genesis.functional", "genesis.tensor", "genesis.nn"}


@pytest.mark.parametrize(
    ("importer", "source", "message"),
    [
        ("genesis.functional.activation", "from genesis.tensor import Tensor", "the layer functional may import"),
        ("genesis.functional.activation", "from genesis import tensor", "imports genesis.tensor"),
        ("genesis.functional.activation", "from ..tensor import Tensor", "imports genesis.tensor"),
        ("genesis.functional.activation", "import genesis.backends", "the layer functional may import"),
        ("genesis.functional.activation", "def f():\n    import genesis", "activation:2 imports genesis"),
        ("genesis.functional.activation", "if TYPE_CHECKING:\n    pass\nelse:\n    import genesis.nn", ":4 imports"),
        ("genesis.shapes", "from genesis.ndarray import NDArray", "may import only itself"),
        ("genesis.ndarray.ndarray", "from genesis.backends import cpu", "only genesis.backends.cpu, genesis.torch may"),
        ("genesis.ndarray.ndarray", "import torch.nn", "imports torch.nn: only genesis.backends.cpu"),
        ("genesis.backends.cpu.linalg", "from genesis.ndarray import NDArray", "the layer backends may import"),
        ("genesis.backends.cpu.linalg", "import genesis.backends.cuda.runtime.array", "only genesis.backends.cuda"),
        (
            "genesis.backends.cuda.ops.matmul.launch",
            "from cuda.bindings import driver",
            "only genesis.backends.cuda.driver may",
        ),
        ("genesis.backends.cuda.ops.matmul", "import torch", "imports torch: only"),
        ("genesis.nn.modules.conv", "import triton.language as tl", "only genesis.backends.cuda may"),
        ("genesis.nn.modules.conv", "from genesis.optim import SGD", "the layer nn may import"),
        ("genesis.optim.sgd", "from genesis.models import unet", "the layer optim may import"),
        ("genesis.models.unet", "from genesis.cli import main", "the layer application may import"),
    ],
)
def test_a_bad_import_is_found(importer: str, source: str, message: str) -> None:
    (text,) = complaints(importer, source, KNOWN)
    assert message in text


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("genesis.functional.activation", "from genesis.autograd import Function\nfrom genesis.errors import describe"),
        ("genesis.functional.activation", "if TYPE_CHECKING:\n    from genesis.tensor import Tensor"),
        ("genesis.functional.activation", "from . import pooling\nfrom torchlike import x"),
        ("genesis.ndarray.ndarray", "from genesis import backends"),
        ("genesis.backends.cpu.linalg", "import torch\nfrom genesis.backends import contract"),
        ("genesis.backends.cuda.driver.stream", "from cuda.bindings import driver"),
        ("genesis.models.unet", "import genesis\nfrom genesis import nn"),
        ("genesis.torch.fuse", "import torch\nfrom genesis.nn import ConvBNReLU"),
    ],
)
def test_a_good_import_passes(importer: str, source: str) -> None:
    assert complaints(importer, source, KNOWN) == []


@pytest.mark.parametrize(
    ("importer", "is_package", "source", "imported"),
    [
        ("genesis.nn", True, "from .modules import Conv2d", "genesis.nn.modules"),
        ("genesis.nn", True, "from ..tensor import Tensor", "genesis.tensor"),
        ("genesis.nn", True, "from .. import tensor", "genesis.tensor"),
        ("genesis.nn.module", False, "from .modules import Conv2d", "genesis.nn.modules"),
        ("genesis.nn.module", False, "from ..tensor import Tensor", "genesis.tensor"),
    ],
)
def test_relative_imports_are_resolved(importer: str, is_package: bool, source: str, imported: str) -> None:
    (found,) = imports(importer, ast.parse(source), KNOWN, is_package)
    assert found.imported == imported
