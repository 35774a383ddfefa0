"""Imports run downward, one layer at a time. LAYERS is the architecture as a table; the rest reads imports."""

from __future__ import annotations

import ast
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
PARTS = (*TENSORS, "nn", "optim", "backends")
SHARED = ("errors", "dtypes", "shapes", "settings", "callsite", "precision", "files", "interrupts", "distribution")
LAYERS = {  # from the bottom up
    "foundation": Layer(SHARED, ()),
    "backends": Layer(("backends",), ("foundation",)),
    "ndarray": Layer(("ndarray",), ("foundation", "backends")),
    "autograd": Layer(("autograd",), ("foundation", "ndarray")),
    "functional": Layer(("functional",), ("foundation", "ndarray", "autograd")),
    "interop": Layer(("interop",), ARRAYS),
    "tensor": Layer(
        ("tensor", "methods", "in_place", "creation", "checkpoint", "pickling", "tensor_files"), (*ARRAYS, "interop")
    ),
    "nn": Layer(("nn",), TENSORS),
    "optim": Layer(("optim",), TENSORS),
    "application": Layer((), (*PARTS, "genesis")),  # all that has no line of its own: models, data, growth, …
    "genesis": Layer((), (*PARTS, "application")),  # src/genesis/__init__.py, the public names
    "cli": Layer(("cli", "__main__"), (*PARTS, "application", "genesis")),
}

PRIVATE = {  # modules that only their owners import; the others go through the owner's package
    "genesis.backends.cpu": ("genesis.backends.cpu",),
    "genesis.backends.cuda": ("genesis.backends.cuda", "genesis.cuda", "genesis.torch"),
    "genesis.backends.tools": ("genesis.backends",),
    "torch": ("genesis.backends.cpu", "genesis.data", "genesis.distributed", "genesis.interop", "genesis.torch"),
    "cuda": ("genesis.backends.cuda.driver",),
    "cudnn": ("genesis.backends.cuda",),
    "triton": ("genesis.backends.cuda",),
}


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
        pending += ast.iter_child_nodes(node)
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


def test_imports_follow_the_layers() -> None:
    known = modules(SOURCE)
    assert "genesis.backends.contract" in known
    wrong = []
    for name, path in known.items():
        wrong += complaints(name, path.read_text(encoding="utf-8"), set(known), path.name == "__init__.py")
    assert not wrong, "\n" + "\n".join(wrong)


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
        ("genesis.ndarray.ndarray", "from genesis.backends import cpu", "only genesis.backends.cpu may"),
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
