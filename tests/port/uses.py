"""The names of PyTorch's that packages use, and which of them Genesis has.

    python -m tests.port.uses timm torchvision/models some/folder [--missing]
    python -m tests.port.uses                   all of LIBRARIES that are installed

A name counts once per file and use: as an attribute of what the file imports from torch, and as a call of a method that
only tensors have. What is private to PyTorch, and the namespaces of LEFT_OUT, are counted apart.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.util
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from genesis.port import facade, names, scan
from genesis.port.names import Found

# Those whose names issue 23 counts, but Lightning's examples, which its package leaves out: name their folder.
LIBRARIES = ("torchvision/models", "timm", "segmentation_models_pytorch", "monai/networks", "ultralytics", "kornia")
LEFT_OUT = (  # what scripts, traces, compiles, quantizes and exports has no counterpart
    "torch._", "torch.ao", "torch.export", "torch.fx", "torch.hub", "torch.jit", "torch.onnx", "torch.ops",
    "torch.quantization", "torch.sparse",
)  # fmt: skip
_OTHERS = (str, list, dict, set, tuple, bytes, int, float, np.ndarray, builtins.slice, Path, torch.nn.Module)
METHODS = frozenset(
    name
    for name in dir(torch.Tensor)
    if not name.startswith("_") and not any(hasattr(kind, name) for kind in _OTHERS)
)  # fmt: skip


class Count(NamedTuple):
    """Uses of names by the packages: of those that Genesis has, and of those that it lacks."""

    there: Counter[str]
    missing: Counter[str]

    def of(self, is_left_out: bool) -> Count:
        """The part of it that is, or isn't, in the namespaces that are left out."""
        parts = (
            Counter({name: uses for name, uses in part.items() if name.startswith(LEFT_OUT) == is_left_out})
            for part in self
        )
        return Count(*parts)

    def __str__(self) -> str:
        uses = self.there.total(), self.there.total() + self.missing.total()
        distinct = len(self.there), len(self.there) + len(self.missing)
        return "; ".join(
            f"{100 * part / max(whole, 1):.1f} % of {what} ({part} of {whole})"
            for what, (part, whole) in (("names", distinct), ("uses", uses))
        )


def count(files: Iterable[Path]) -> Count:
    """Count the uses in these files, and look each name up in Genesis."""
    uses: Counter[str] = Counter()
    for path in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                uses.update(used(ast.parse(path.read_bytes())))
        except SyntaxError:
            continue
    has = {name: is_there(name) for name in uses}
    there, missing = ({name: uses[name] for name in uses if has[name] is answer} for answer in (True, False))
    return Count(Counter(there), Counter(missing))


def used(tree: ast.Module) -> Iterator[str]:
    """The uses of PyTorch's names in a file, each cut behind the first name that is no module."""
    bound = scan.bindings(tree)
    for use in scan.uses(tree):
        name = public_part(use.name)
        if name is not None:
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in bound:
            name = public_part(bound[node.id])
            if name is not None:
                yield name
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            start = node.func.value
            while isinstance(start, ast.Attribute):
                start = start.value
            if not (isinstance(start, ast.Name) and start.id in bound):
                yield f"torch.Tensor.{node.func.attr}"


def public_part(name: str) -> str | None:
    """torch.nn.Linear of "torch.nn.Linear.forward"; None for a module, and for what this PyTorch hasn't."""
    module = "torch"
    for part in name.split(".")[1:]:
        path = f"{module}.{part}"
        if path == "torch.Tensor":
            method = name.removeprefix(path).split(".")[1:2]
            return f"{path}.{method[0]}" if method and hasattr(torch.Tensor, method[0]) else path
        if part.startswith("__") or not names.in_pytorch(module, part):
            return None
        if not names.is_module(path):
            return path
        module = "torch" if path == "torch.torch" else path
    return None


def is_there(name: str) -> bool:
    """Whether redirected code finds the name."""
    space: object = facade.facade("torch")
    for part in name.split(".")[1:]:
        if not isinstance(space, facade.Facade):
            return hasattr(space, part)
        try:
            space = facade.member(space._torch_name, part)
        except ImportError as error:
            if not names.lacks_package(error):
                raise
            return True  # it needs a package that is not installed here
    return not isinstance(space, Found)


def files_of(package: str) -> list[Path]:
    """The Python files of a folder, or of an installed package or a folder in one."""
    folder = Path(package)
    if not folder.is_dir():
        top, _, below = package.partition("/")
        spec = importlib.util.find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"uses: {package}: no folder, and no installed package")
        folder = Path(spec.submodule_search_locations[0]) / below
    return sorted(folder.rglob("*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help="folders, and installed packages")
    parser.add_argument("--missing", action="store_true", help="list the missing names, the most used ones first")
    arguments = parser.parse_args()
    packages = arguments.packages or [name for name in LIBRARIES if importlib.util.find_spec(name.partition("/")[0])]
    if not arguments.packages:
        print(f"{', '.join(packages)}; not installed: {', '.join(sorted({*LIBRARIES} - {*packages})) or 'none'}")
    files = [path for package in packages for path in files_of(package)]
    whole = count(files)
    print(f"{len(files)} files")
    for is_left_out, title in ((False, "PyTorch's names"), (True, "names of " + ", ".join(LEFT_OUT))):
        part = whole.of(is_left_out)
        print(f"{title}: {part}")
        if arguments.missing:
            print(
                "    " + ", ".join(f"{name.removeprefix('torch.')} {uses}" for name, uses in part.missing.most_common())
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
