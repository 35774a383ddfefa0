"""PyTorch's signatures, by its stubs and docstrings, against those of Genesis: which arguments are refused.

python -m tests.port.signatures     prints every difference, those of EXCEPTIONS too
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import get_testing_overrides, resolve_name

import genesis
from genesis.functional.keywords import names_of
from genesis.functional.short_time import ISTFTArguments, STFTArguments
from genesis.nn.attention_function import AttentionArguments
from genesis.port import facade

STUBS = Path(torch.__file__).parent / "_C"
RECORDS = {  # whose fields are the arguments
    "torch.nn.functional.multi_head_attention_forward": AttentionArguments,
    **dict.fromkeys(("torch.stft", "torch.Tensor.stft"), STFTArguments),
    **dict.fromkeys(("torch.istft", "torch.Tensor.istft"), ISTFTArguments),
}
NUMPYS = {"dim": "axis", "keepdim": "keepdims"}  # which PyTorch's C++ functions take too, and its stubs leave out

# An argument that Genesis does not take anywhere ("name"), or in one function ("function name"), and why.
EXCEPTIONS = {
    "out": "docs/deviations.md: every op returns a new tensor",
    "names": "PyTorch's named tensors, which Genesis lacks",
    "self": "a number in front of tensors, in PyTorch's stubs; users pass it by position",
    "cudnn_enabled": "internal to PyTorch", "cudnn_enable": "internal to PyTorch",
    "_stacklevel": "where PyTorch's warning points to",
    "implicit": "internal to PyTorch's graphs",
    "out_dtype": "products of 16-bit matrices in float32, on CUDA only",
    "torch.rrelu generator": "rrelu draws from its device's generator", "torch.rrelu_ generator": "as rrelu",
    "torch.tril_indices requires_grad": "integers have no gradient",
    "torch.triu_indices requires_grad": "integers have no gradient",
    "torch.Tensor.is_pinned device": "deprecated by PyTorch", "torch.Tensor.pin_memory device": "deprecated by PyTorch",
    "torch.Tensor.size axis": "size() is too hot for a second name", "torch.Tensor.stride axis": "as size",
    "torch.Tensor.new storage": "storages, which Genesis lacks", "torch.Tensor.new other": "by position",
    "torch.Tensor.new size": "by position",
    "torch.Tensor.requires_grad_ mode": "the stub's name; PyTorch itself takes requires_grad",
    "torch.Tensor.uniform_ from_": "the stub's name of `from`, which is taken",
    "torch.Tensor.new_tensor pin_memory": "the stub's; PyTorch itself refuses it",
    "torch.numel self": "the stub's name; PyTorch itself takes input",
}  # fmt: skip

# The same, in the stubs of PyTorch 2.11 only.
EARLIER = {
    **dict.fromkeys(("outdim", "out_dim"), "PyTorch's named tensors, which Genesis lacks"),
    **dict.fromkeys(("torch.flatten dims", "torch.Tensor.flatten dims"), "PyTorch's named tensors"),
}


class Overload(NamedTuple):
    """What one form of a function takes."""

    positional: list[str]
    keywords: list[str]


class Difference(NamedTuple):
    """A function of PyTorch's, and an argument that Genesis refuses in it."""

    function: str
    argument: str

    @property
    def reason(self) -> str | None:
        known = {**EXCEPTIONS, **EARLIER}
        return known.get(self.argument) or known.get(f"{self.function} {self.argument}")


def refused() -> Iterator[Difference]:
    """The arguments that PyTorch takes by keyword, and Genesis does not, in functions that both have."""
    for path, overloads in signatures():
        ours = counterpart(path)
        taken = None if ours is None else keywords(ours)
        if taken is not None:
            wanted = dict.fromkeys(name for form in overloads for name in (*form.positional, *form.keywords))
            yield from (Difference(path, name) for name in wanted if name not in taken)


def signatures() -> Iterator[tuple[str, list[Overload]]]:
    """The functions of PyTorch's namespaces, each with its forms."""
    written = written_in_python()
    for namespace, forms in (("torch", _functions()), ("torch.Tensor", _methods())):
        for name, overloads in forms.items():
            path = f"{namespace}.{name}"
            if not name.startswith("_") and path not in written:
                yield path, [_with_numpys(form) for form in overloads]
    for namespace in ("linalg", "special", "fft"):
        module = getattr(torch, namespace)
        for name in dir(module):
            function = getattr(module, name)
            form = None if name.startswith("_") else _documented(name, getattr(function, "__doc__", None) or "")
            if form is not None:
                yield f"torch.{namespace}.{name}", [_with_numpys(form)]
    yield from written.items()


@functools.cache
def written_in_python() -> dict[str, list[Overload]]:
    """The functions that PyTorch writes in Python, by their own signatures."""
    found: dict[str, list[Overload]] = {}
    for function in get_testing_overrides():
        path = resolve_name(function) or ""
        namespace, _, name = path.rpartition(".")
        path = f"torch.{name}" if namespace == "torch.functional" else path
        if not inspect.isfunction(function) or not path.startswith("torch.") or name.startswith("_"):
            continue
        parameters = list(inspect.signature(function).parameters.values())[namespace == "torch.Tensor" :]
        by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        found[path] = [Overload(by_position, [each.name for each in parameters if each.kind is each.KEYWORD_ONLY])]
    return found


def counterpart(path: str) -> Callable[..., Any] | None:
    """Genesis' function for one of PyTorch's; None if there is none, or a class."""
    if path in RECORDS:
        return RECORDS[path]
    namespace, _, name = path.rpartition(".")
    found = getattr(genesis.Tensor, name, None) if namespace == "torch.Tensor" else facade.member(namespace, name)
    return found if inspect.isfunction(found) else None


def keywords(function: Callable[..., Any]) -> set[str] | None:
    """The keywords that a function takes; None if it takes any."""
    parameters = _parameters(function)
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters} | set(names_of(function))


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _with_numpys(form: Overload) -> Overload:
    both = (*form.positional, *form.keywords)
    return form._replace(keywords=[*form.keywords, *(other for name, other in NUMPYS.items() if name in both)])


@functools.cache
def _functions() -> dict[str, list[Overload]]:
    return _forms(ast.parse((STUBS / "_VariableFunctions.pyi").read_bytes()).body, 0)


@functools.cache
def _methods() -> dict[str, list[Overload]]:
    body = ast.parse((STUBS / "__init__.pyi").read_bytes()).body
    base = next(each for each in body if isinstance(each, ast.ClassDef) and each.name == "TensorBase")
    return _forms(base.body, 1)


def _forms(body: list[ast.stmt], skipped: int) -> dict[str, list[Overload]]:
    found: dict[str, list[Overload]] = {}
    for each in body:
        if isinstance(each, ast.FunctionDef):
            by_position = [argument.arg for argument in (*each.args.posonlyargs, *each.args.args)][skipped:]
            form = Overload(by_position, [argument.arg for argument in each.args.kwonlyargs])
            found.setdefault(each.name, []).append(form)
    return found


def _documented(name: str, text: str) -> Overload | None:
    """The form in the first line of a docstring: linalg.det(A, *, out=None) -> Tensor."""
    match = re.match(rf"\s*(?:\w+\.)*{name}\((.*?)\)\s*->", text)
    if match is None:
        return None
    parts = [part.strip() for part in re.sub(r"\([^)]*\)", "", match.group(1)).split(",")]
    star = parts.index("*") if "*" in parts else len(parts)
    names = [re.split(r"[=:]", part)[0].split(" ")[-1] for part in parts]
    return Overload([each for each in names[:star] if each], names[star + 1 :])


if __name__ == "__main__":
    for difference in refused():
        print(f"{difference.function}: {difference.argument}: {difference.reason or 'REFUSED'}")
