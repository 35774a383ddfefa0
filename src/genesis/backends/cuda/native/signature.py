"""The kernels in a CUDA C++ source: their names, parameters and launch bounds, read without a compiler.

Comments are not looked at, and of macros only those that stand for a type; what a type means, types.py knows.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from genesis.backends.cuda.native.types import Kind, kind_of

_SKIPPED = re.compile(
    r"""(?P<literal>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""  # kept: what looks like a comment in it is none
    r"|//(?:\\\n|[^\n])*|/\*.*?\*/"  # comments
    r"|^[ \t]*\#(?:\\\n|[^\n])*",  # preprocessor lines, with their continuations
    re.DOTALL | re.MULTILINE,
)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_]\w*|\d[\w.]*|::|&&|\S')
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([A-Za-z_][\w \t]*)$", re.MULTILINE)
_DEFINE_OPTION = re.compile(r"(?:-D|--define-macro=)(\w+)=([A-Za-z_][\w ]*)")
_OPENING, _CLOSING = "(<[{", ")>]}"


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel as the source declares it."""

    name: str
    type: tuple[str, ...]  # the tokens of its type

    def __str__(self) -> str:
        text = " ".join(
            token for token in self.type if token not in ("__restrict__", "__restrict", "__grid_constant__")
        )
        return f"{text.replace(' *', '*').replace(' ::', '::').replace(':: ', '::')} {self.name}"


@dataclasses.dataclass(frozen=True)
class Declaration:
    """A __global__ function of a source."""

    name: str  # with its namespaces: "images::blur"
    parameters: tuple[Parameter, ...]
    mangled: bool  # C++ mangles its name: it is not extern "C"
    template: tuple[tuple[str, tuple[str, ...]], ...] | None  # (name, default) of each template parameter
    max_threads: int | None  # of __launch_bounds__, where it is a number

    def kinds(self, expression: str, aliases: Mapping[str, Sequence[str]]) -> tuple[Kind, ...]:
        """What each parameter takes; expression gives the template's arguments: "scale<float, 4>"."""
        known = {**aliases, **dict(self._template_arguments(expression))}
        return tuple(kind_of(parameter.type, known) for parameter in self.parameters)

    def _template_arguments(self, expression: str) -> Iterator[tuple[str, Sequence[str]]]:
        tokens = _TOKEN.findall(expression)
        given = list(_split(tokens[tokens.index("<") + 1 : -1])) if "<" in tokens else []
        for index, (name, default) in enumerate(self.template or ()):
            yield name, given[index] if index < len(given) else default or (name,)


def find(
    sources: Sequence[str], options: Sequence[str] = ()
) -> tuple[dict[str, Declaration], dict[str, tuple[str, ...]]]:
    """(kernels by name, what each typedef stands for) in a source and the headers that it includes.

    Args:
        options: the compiler's flags, for what they define: "-Dscalar=float".
    """
    kernels: dict[str, Declaration] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    for source in sources:
        tokens = _TOKEN.findall(_SKIPPED.sub(lambda match: match["literal"] or " ", source))
        aliases.update(_aliases(tokens))
        for declaration in _declarations(tokens):
            kernels.setdefault(declaration.name, declaration)
    return kernels, {**_macros(sources, options), **aliases}


def _macros(sources: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`#define scalar float`, and -Dscalar=float, which comes first. Where the source has several, none is known."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for source in sources:
        for name, value in _DEFINE.findall(source):
            found.setdefault(name, set()).add(tuple(value.split()))
    macros = {name: values.pop() for name, values in found.items() if len(values) == 1}
    matches = (_DEFINE_OPTION.fullmatch(option) for option in options)
    return macros | {match[1]: tuple(match[2].split()) for match in matches if match is not None}


def _aliases(tokens: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """`using scalar = float;` and `typedef float scalar;`."""
    for start, token in enumerate(tokens):
        if token not in ("using", "typedef") or ";" not in tokens[start:]:
            continue
        statement = list(tokens[start + 1 : tokens.index(";", start)])
        if token == "typedef" and len(statement) > 1 and "{" not in statement:
            yield statement[-1], tuple(statement[:-1])
        elif token == "using" and len(statement) > 2 and statement[1] == "=":
            yield statement[0], tuple(statement[2:])


def _declarations(tokens: Sequence[str]) -> Iterator[Declaration]:
    scopes: list[str | None] = []  # the open braces: a namespace's name, 'extern "C"', or None
    start = 0  # of the statement at hand
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token == "{":
            scopes.append(_scope(tokens[start:position]))
        elif token == "}" and scopes:
            scopes.pop()
        elif token == "__global__":
            found = _declaration(tokens, start, position, scopes)
            if found is not None:
                declaration, position = found
                yield declaration
                continue
        position += 1
        if token in "{};":
            start = position


def _scope(statement: Sequence[str]) -> str | None:
    """What a brace after this statement opens."""
    if list(statement) == ["extern", '"C"']:
        return 'extern "C"'
    if "namespace" in statement:
        return "".join(statement[statement.index("namespace") + 1 :])
    return None


def _declaration(
    tokens: Sequence[str], start: int, position: int, scopes: Sequence[str | None]
) -> tuple[Declaration, int] | None:
    """The kernel whose __global__ stands at position, and where its parameters end."""
    prefix = list(tokens[start:position])
    cursor, max_threads, last = position + 1, None, ""
    while cursor < len(tokens) and tokens[cursor] != "(":
        last = tokens[cursor]
        cursor += 1
        if last == "__launch_bounds__":
            end = _matching(tokens, cursor)
            if tokens[cursor + 1].isdigit():
                max_threads = int(tokens[cursor + 1])
            cursor = end + 1
    end = _matching(tokens, cursor)
    if end >= len(tokens) or not (last.isidentifier()):
        return None
    parameters = [
        _parameter(tokens, index) for index, tokens in enumerate(_split(tokens[cursor + 1 : end])) if tokens != ["void"]
    ]
    template = None
    if "template" in prefix:
        opened = prefix.index("<")
        template = tuple(map(_template_parameter, _split(prefix[opened + 1 : _matching(prefix, opened)])))
    c_name = 'extern "C"' in scopes or any(pair == ("extern", '"C"') for pair in itertools.pairwise(prefix))
    spaces = [scope for scope in scopes if scope and scope != 'extern "C"']
    name = last if c_name else "::".join([*spaces, last])
    return Declaration(name, tuple(parameters), not c_name, template, max_threads), end


def _parameter(tokens: Sequence[str], index: int) -> Parameter:
    declared = list(tokens[: tokens.index("=")] if "=" in tokens else tokens)
    is_array = "[" in declared
    if is_array:  # float x[] is a pointer
        declared = declared[: declared.index("[")]
    words = [token for token in declared if token.isidentifier()]
    named = len(words) > 1 and declared[-1] == words[-1] and declared[-1] not in _TYPE_ENDS and declared[-2] != "::"
    name = declared.pop() if named else f"#{index}"
    return Parameter(name, (*declared, "*") if is_array else tuple(declared))


_TYPE_ENDS = {
    "int", "long", "short", "char", "signed", "unsigned", "float", "double", "bool", "const", "__restrict__",
    "__restrict", "volatile",
}  # fmt: skip


def _template_parameter(tokens: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    end = tokens.index("=") if "=" in tokens else len(tokens)
    return tokens[end - 1], tuple(tokens[end + 1 :])


def _matching(tokens: Sequence[str], start: int) -> int:
    """The index of the bracket that closes the one at start."""
    depth = 0
    for position in range(start, len(tokens)):
        if tokens[position] in _OPENING:
            depth += 1
        elif tokens[position] in _CLOSING:
            depth -= 1
            if depth == 0:
                return position
    return len(tokens)


def _split(tokens: Sequence[str]) -> Iterator[list[str]]:
    """At the commas that stand in no brackets."""
    part: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token in _OPENING) - (token in _CLOSING)
        if token == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part
