"""docs/pytorch-names.md: which names of PyTorch's there are, by the installed PyTorch.

python -m tests.port.pytorch_names          writes the page
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import get_testing_overrides, resolve_name

import genesis
from genesis.port import facade
from genesis.port.names import Found

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch-names.md"
NAMESPACES = (
    "torch", "torch.Tensor", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils",
    "torch.nn.utils.rnn", "torch.optim", "torch.optim.lr_scheduler", "torch.optim.swa_utils", "torch.autograd",
    "torch.amp", "torch.utils.data", "torch.utils.checkpoint", "torch.linalg", "torch.fft", "torch.special",
    "torch.distributions", "torch.cuda", "torch.jit", "torch.compiler", "torch.hub",
)  # fmt: skip
HEAD = """\
# PyTorch's names

Which names of PyTorch {version} Genesis has, namespace by namespace. Code that uses only these runs with its imports
changed: `genesis port FOLDER` rewrites them and lists by file and line what is missing; `genesis run SCRIPT` runs the
script as it is. A name that is there does what PyTorch's does, but for the [deviations](deviations.md).

Some names of `torch.jit`, `torch.compiler`, `torch.fx`, `torch.hub`, `torch.onnx` and `torch.backends` are there for
redirected code only: they do nothing, as nothing is scripted, traced or downloaded.

This page is generated: `python -m tests.port.pytorch_names` writes it again.

| namespace | there | of |
|---|---|---|
"""


class Names(NamedTuple):
    """The public names of a namespace: those that Genesis has, and those that it lacks."""

    namespace: str
    there: list[str]
    missing: list[str]


def names_of(namespace: str) -> Names:
    has = _has_method if namespace == "torch.Tensor" else _has_name(namespace)
    listed = sorted(set(public(namespace)), key=lambda name: (name.lower(), name))
    return Names(namespace, [name for name in listed if has(name)], [name for name in listed if not has(name)])


def public(namespace: str) -> list[str]:
    """The names that PyTorch gives to users."""
    if namespace == "torch.Tensor":
        return [name for name in dir(torch.Tensor) if not name.startswith("_")]
    module = importlib.import_module(namespace)
    if namespace == "torch.nn.functional":  # without __all__
        paths = [resolve_name(function) or "" for function in get_testing_overrides()]
        return [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == namespace]
    listed = list(getattr(module, "__all__", ()))
    if namespace == "torch":
        listed.append("unique")  # which its list forgets
    if not listed or namespace == "torch.jit":
        listed = [name for name in dir(module) if _is_of_pytorch(getattr(module, name))]
    return [name for name in listed if not name.startswith("_") and not inspect.ismodule(getattr(module, name, None))]


def _is_of_pytorch(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").startswith("torch")


def _has_method(name: str) -> bool:
    return hasattr(genesis.Tensor, name)


def _has_name(namespace: str) -> Callable[[str], bool]:
    return lambda name: not isinstance(facade.member(namespace, name), Found)


def page() -> str:
    """The page's text."""
    found = [names_of(namespace) for namespace in NAMESPACES]
    rows = [
        f"| [`{each.namespace}`](#{each.namespace.replace('.', '').lower()}) | {len(each.there)} "
        f"| {len(each.there) + len(each.missing)} |"
        for each in found
    ]
    parts = [HEAD.format(version=version()) + "\n".join(rows)]
    for each in found:
        parts.append(f"## {each.namespace}")
        for title, listed in (("There", each.there), ("Not there", each.missing)):
            if listed:
                text = f"{title}: " + ", ".join(f"`{name}`" for name in listed) + "."
                parts.append(textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(parts) + "\n"


def version() -> str:
    """The installed PyTorch's, without its last number: it adds no names."""
    return ".".join(torch.__version__.split(".")[:2])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {sum(len(names_of(each).there) for each in NAMESPACES)} names")
