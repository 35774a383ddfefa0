"""The docstrings of the public surface: each has what CONTRIBUTING's section on style asks for, or is counted here.

`python -m tests.docs.test_docstrings` prints what is missing; a namespace as argument, only there.
"""

from __future__ import annotations

import ast
import doctest
import enum
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from genesis import Tensor
from tests.docs import examples

NAMESPACES = (
    "genesis.nn.functional", "genesis.nn", "genesis.nn.init", "genesis.nn.utils", "genesis.nn.utils.rnn",
    "genesis.Tensor", "genesis.optim", "genesis.optim.lr_scheduler", "genesis.optim.swa_utils", "genesis",
    "genesis.amp", "genesis.autograd", "genesis.cuda", "genesis.growth", "genesis.data", "genesis.models",
    "genesis.profiler", "genesis.torch", "genesis.distributed", "genesis.nn.parallel", "genesis.utils.checkpoint",
    "genesis.jit", "genesis.compiler",
)  # fmt: skip
MISSING: dict[str, int] = {}  # namespaces of which so many entries may still lack something; it only goes down

SECTION = re.compile(
    r"^(Args|Attributes|Returns|Returns \(iteration\)|Raises|Grad|Shape|Source|Example|Examples):", re.MULTILINE
)
REFERENCE = re.compile(r"\bSee\s+`((?:genesis|F|nn|optim)(?:\.\w+)+)`")
MADE_BY = re.compile(r"\bMade\s+by\s+`((?:genesis|F|nn|optim)(?:\.\w+)+)`")
FRAGMENT = re.compile(r"(Of|As|What|So|That|Those|Which|Who|Whose|Where|When)\b")
TENSOR = re.compile(r"shape|dtype|dimension|0-d|\(\w*,|\(…|\(\)|vector|matri|float|\bint|bool|broadcast|number|tensors")
AS_IN = re.compile(r"as in\s+`([\w.]+)`")
VALUES = ("bool", "int", "float", "str", "None")  # results that the first line describes
CONTEXTS = ("Iterator", "Generator", "AbstractContextManager", "_GeneratorContextManager")


class Entry(NamedTuple):
    """A public function, class, method or property, and the class whose example may show it."""

    name: str
    value: Any
    owner: type | None = None

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.value) or ""

    @property
    def call(self) -> Callable[..., object] | None:
        """What is called: the function itself, the constructor of a class, nothing for a property."""
        if isinstance(self.value, property | functools.cached_property | enum.EnumMeta):
            return None
        if inspect.isclass(self.value):
            return self.value.__init__ if inspect.isfunction(self.value.__init__) else None
        return inspect.unwrap(self.value)


def is_ours(value: object) -> bool:
    return (getattr(value, "__module__", None) or "").startswith("genesis")


def public_names(space: Any) -> list[str]:
    return [name for name in sorted({*vars(space), *getattr(space, "_FROM_THERE", ())}) if not name.startswith("_")]


def entries(namespace: str) -> Iterator[Entry]:
    """What is public in a namespace; what another namespace has too is reported there."""
    if namespace == "genesis.Tensor":
        yield from members(Tensor, namespace)
        return
    space = importlib.import_module(namespace)
    for name in public_names(space):
        value = getattr(space, name)
        if not is_ours(value) or getattr(value, "__name__", name) != name or is_elsewhere(namespace, name, value):
            continue
        if inspect.isfunction(value) or inspect.isclass(value):
            yield Entry(f"{namespace}.{name}", value)
        if inspect.isclass(value) and not issubclass(value, BaseException):
            yield from members(value, f"{namespace}.{name}")


def is_elsewhere(namespace: str, name: str, value: Any) -> bool:
    """Whether another namespace reports it: functional what it has, Tensor its bases, a file only what it defines."""
    if namespace == "genesis.nn.functional":
        return False
    is_package = hasattr(importlib.import_module(namespace), "__path__")
    known = getattr(importlib.import_module("genesis.nn.functional"), name, None) is value
    return known or name in ("Tensor", "Variable") or not (is_package or value.__module__ == namespace)


@functools.cache
def public_classes() -> frozenset[type]:
    spaces = [importlib.import_module(name) for name in NAMESPACES if name != "genesis.Tensor"]
    values = [getattr(space, name) for space in spaces for name in public_names(space)]
    return frozenset(value for value in values if inspect.isclass(value) and is_ours(value))


def members(owner: type, prefix: str) -> Iterator[Entry]:
    """The public methods and properties of a class, but for those that a public base has: they are described there."""
    bases = [] if owner is Tensor else [base for base in owner.__mro__[1:] if base in public_classes()]
    for name in sorted(dir(owner)):
        if name.startswith("_") or name == "forward" or any(hasattr(base, name) for base in bases):
            continue
        value = inspect.getattr_static(owner, name)
        value = getattr(owner, name) if isinstance(value, classmethod | staticmethod) else value
        function = getattr(value, "fget", getattr(value, "func", value))  # what a property calls
        if inspect.isfunction(function) and is_ours(function):
            yield Entry(f"{prefix}.{name}", value, owner)


# --- what a docstring says --------------------------------------------------------------------------------------------


def sections(doc: str) -> dict[str, str]:
    """The text of each section."""
    found = list(SECTION.finditer(doc))
    ends = [match.start() for match in found[1:]] + [len(doc)]
    return {match[1]: doc[match.end() : end] for match, end in zip(found, ends, strict=False)}


def arguments(doc: str) -> dict[str, str]:
    """What Args says of each name; `a, b: ...` says it of both."""
    text = textwrap.dedent(sections(doc).get("Args", "").lstrip("\n")).strip()
    found = {}
    for match in re.finditer(r"^([\w*][\w*, ]*):(.*(?:\n +.*)*)", text, re.MULTILINE):
        for name in match[1].split(","):
            found[name.strip(" *")] = match[2]
    return found


@functools.cache
def source_of(function: Callable[..., object]) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def raises(function: Callable[..., object], depth: int = 2) -> bool:
    """Whether a function raises: itself, or in a helper of its own file."""
    if function.__code__.co_filename.startswith("<"):  # the constructor of a dataclass
        return False
    tree = source_of(function)
    if any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree)):
        return True
    called = (node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    helpers = (function.__globals__.get(name) for name in called if name.startswith("_"))
    return depth > 0 and any(
        inspect.isfunction(helper) and helper.__module__ == function.__module__ and raises(helper, depth - 1)
        for helper in helpers
    )


def resolved(reference: str) -> Entry | None:
    """What a docstring refers to."""
    root, *rest = reference.split(".")
    try:
        value = functools.reduce(getattr, rest, examples.namespace()[root])
    except AttributeError:
        return None
    return Entry(reference, value)


def shown_by_class(entry: Entry) -> bool:
    """Whether the example of the class shows the method or property."""
    own = sections(inspect.getdoc(entry.owner) or "").get("Example", "") if entry.owner else ""
    return re.search(rf"\b{entry.name.rpartition('.')[2]}\b", own) is not None


def shows_a_result(doc: str) -> bool:
    """Whether an example prints something, and is not skipped."""
    shown = examples.ExampleParser().get_examples(doc)
    return any(example.want and not example.options.get(doctest.SKIP) for example in shown)


def missing_sections(entry: Entry) -> list[str]:
    """What a docstring without a reference lacks."""
    doc, found = entry.doc, sections(entry.doc)
    if inspect.isclass(entry.value) and issubclass(entry.value, BaseException):
        return []
    lacks = [] if shows_a_result(doc) or shown_by_class(entry) else ["Example"]
    function = entry.call
    if function is None or "Attributes" in found:
        return lacks
    described = arguments(doc)
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        annotation = str(parameter.annotation)
        if name in ("self", "_"):
            continue
        if name not in described:
            lacks.append(f"Args: {name}")
        elif reference := AS_IN.search(described[name]):
            target = resolved(reference[1])
            if target is None or name not in arguments(target.doc):
                lacks.append(f"Args: {name}: {reference[1]} does not describe it")
        elif "Tensor" in annotation and not TENSOR.search(described[name]):
            lacks.append(f"Args: {name}: shape or dtype")
    returns = str(inspect.signature(function).return_annotation)
    plain = all(part.strip() in VALUES for part in returns.split("|")) or returns.startswith(CONTEXTS)
    plain = plain or returns in ("Self", "T")
    if not plain and not inspect.isclass(entry.value) and not {"Returns", "Shape"} & set(found):
        lacks.append("Returns")
    if "Raises" not in found and raises(function):
        lacks.append("Raises")
    return lacks


def missing(entry: Entry) -> list[str]:
    """What the docstring of an entry lacks."""
    if not entry.doc:
        return ["a docstring"]
    lacks = ["a first line that is not a fragment"] if FRAGMENT.match(entry.doc) else []
    reference = REFERENCE.search(entry.doc) or MADE_BY.search(entry.doc)
    target = resolved(reference[1]) if reference else entry
    if target is None:
        return [*lacks, f"{reference}: there is no such name"]
    return lacks + missing_sections(target)


@functools.cache
def findings(namespace: str) -> dict[str, list[str]]:
    return {entry.name: lacks for entry in entries(namespace) if (lacks := missing(entry))}


def report(namespace: str) -> str:
    return "\n".join(f"{name} lacks {', '.join(lacks)}" for name, lacks in findings(namespace).items())


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_docstrings_are_complete(namespace: str) -> None:
    assert len(findings(namespace)) <= MISSING.get(namespace, 0), report(namespace)


def test_doctest_finds_every_example() -> None:
    finder = doctest.DocTestFinder(parser=examples.ExampleParser())
    modules = [importlib.import_module(name) for name in examples.modules_with_examples()]
    run = {inspect.cleandoc(test.docstring) for module in modules for test in finder.find(module)}
    public = [entry for namespace in NAMESPACES for entry in entries(namespace)]
    assert [entry.name for entry in public if ">>> " in entry.doc and inspect.cleandoc(entry.doc) not in run] == []


def fragments() -> list[str]:
    """Docstrings of the package, private ones too, whose first word continues a sentence that is not there."""
    found = []
    for path in sorted(examples.PACKAGE.rglob("*.py")):
        pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        while pending:
            node = pending.pop()
            pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                doc = ast.get_docstring(node) or ""
                if FRAGMENT.match(doc):
                    found.append(f"{path.relative_to(examples.PACKAGE)}: {doc.splitlines()[0]}")
    return found


def test_docstrings_begin_with_a_sentence() -> None:
    assert fragments() == []


@pytest.mark.parametrize(
    ("doc", "lacks"),
    [
        ("", ["a docstring"]),
        ("Of x.\n\nArgs:\n    x: (N,).\nReturns: (N,).\nRaises: ValueError.\nExample: >>> 1\n1", ["not a fragment"]),
        ("f(x).", ["Example", "Args: x", "Returns", "Raises"]),
        ("f(x).\n\nArgs:\n    x: it.\nReturns: y.\nRaises: ValueError.\nExample: >>> 1\n1", ["Args: x: shape"]),
        ("f(x).\n\nArgs:\n    x: (N,).\nReturns: y.\nRaises: ValueError.\nExample: >>> import os", ["Example"]),
        ("f(x). See `F.nothing`.", ["there is no such name"]),
        ("f(x). See `F.relu`.", []),
        ("f(x).\n\nArgs:\n    x: as in `F.relu`.\nReturns: y.\nRaises: E.\nExample: >>> 1\n1", ["not describe"]),
        ("f(x).\n\nArgs:\n    x: (N,).\nReturns: (N,).\nRaises: ValueError.\nExample: >>> 1\n1", []),
    ],
)
def test_what_is_missing(doc: str, lacks: list[str]) -> None:
    def f(x: Tensor) -> Tensor:
        raise ValueError

    f.__doc__ = doc
    found = missing(Entry("f", f))
    assert len(found) == len(lacks)
    assert all(expected in lack for expected, lack in zip(lacks, found, strict=True))


if __name__ == "__main__":
    for namespace in sys.argv[1:] or NAMESPACES:
        if findings(namespace):
            print(report(namespace))
        print(f"{namespace}: {len(findings(namespace))} of {len(list(entries(namespace)))}", file=sys.stderr)
