"""The kernels in a CUDA C++ source: their names, parameters and launch bounds, read without a compiler.

preprocessor.py leaves what is compiled; what a type means, types.py knows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from genesis.backends.cuda.nvrtc.preprocessor import Preprocessor, split
from genesis.backends.cuda.nvrtc.types import Kind, kind_of

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
    others: tuple[str, ...] = ()  # the parameters of further declarations that say something else

    def kinds(self, expression: str, aliases: Mapping[str, Sequence[str]]) -> tuple[Kind, ...]:
        """Kinds of the parameters; expression gives the template's arguments: "scale<float, 4>"."""
        known = {**aliases, **dict(self._template_arguments(expression))}
        return tuple(kind_of(parameter.type, known) for parameter in self.parameters)

    def _template_arguments(self, expression: str) -> Iterator[tuple[str, Sequence[str]]]:
        tokens = split(expression)
        given = list(split_at_commas(tokens[tokens.index("<") + 1 : -1])) if "<" in tokens else []
        for index, (name, default) in enumerate(self.template or ()):
            yield name, given[index] if index < len(given) else default or (name,)


def find(
    sources: Sequence[str], options: Sequence[str] = ()
) -> tuple[dict[str, Declaration], dict[str, tuple[str, ...]]]:
    """(kernels by name, what each typedef stands for) in a source and the headers that it includes.

    Args:
        sources: the source first, then the headers, each before those that it includes itself.
        options: the compiler's flags, for what they define: "-Dscalar=float".
    """
    preprocessor = Preprocessor(sources, options)
    tokens = [preprocessor.tokens(source) for source in reversed(sources)][::-1]
    aliases = {name: macro.body for name, macro in preprocessor.macros.items() if macro and macro.parameters is None}
    aliases |= _aliases(itertools.chain(*tokens))
    found: dict[str, list[Declaration]] = {}
    for declaration in itertools.chain(*map(_declarations, tokens)):
        found.setdefault(declaration.name, []).append(declaration)
    return {name: _joined(declarations, aliases) for name, declarations in found.items()}, aliases


def _joined(declarations: Sequence[Declaration], aliases: Mapping[str, Sequence[str]]) -> Declaration:
    """The declarations of one name as one: that which names its parameters, with those that contradict it."""

    def meaning(declaration: Declaration) -> tuple[object, ...]:
        names = [name for name, _ in declaration.template or ()]
        known = {**aliases, **{name: (f"template argument {index}",) for index, name in enumerate(names)}}
        return (*(kind_of(parameter.type, known) for parameter in declaration.parameters), len(names))

    best = max(declarations, key=lambda each: sum(not p.name.startswith("#") for p in each.parameters))
    others = [", ".join(map(str, each.parameters)) for each in declarations if meaning(each) != meaning(best)]
    return dataclasses.replace(best, others=tuple(dict.fromkeys(others)))


def _aliases(tokens: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """`using scalar = float;` and `typedef float scalar;` outside of functions; none that stands for several."""
    found: dict[str, set[tuple[str, ...]]] = {}
    scopes: list[str | None] = []
    statement: list[str] = []
    for token in tokens:
        if token not in ("{", "}", ";"):
            statement.append(token)
            continue
        if token == ";" and None not in scopes and statement:
            if statement[0] == "typedef" and len(statement) > 2:
                found.setdefault(statement[-1], set()).add(tuple(statement[1:-1]))
            elif statement[0] == "using" and len(statement) > 3 and statement[2] == "=":
                found.setdefault(statement[1], set()).add(tuple(statement[3:]))
        elif token == "{":
            scopes.append(_scope(statement))
        elif token == "}" and scopes:
            scopes.pop()
        statement = []
    return {name: meanings.pop() for name, meanings in found.items() if len(meanings) == 1}


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
    """The kind of scope that a brace after this statement opens."""
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
        if last.startswith("__") and last.endswith("__") and tokens[cursor : cursor + 1] == ["("]:  # an attribute
            end = matching(tokens, cursor)
            if last == "__launch_bounds__" and tokens[cursor + 1].isdigit() and tokens[cursor + 2] in ",)":
                max_threads = int(tokens[cursor + 1])
            cursor = end + 1
    end = matching(tokens, cursor)
    if end >= len(tokens) or not (last.isidentifier()):
        return None
    parameters = [
        _parameter(tokens, index)
        for index, tokens in enumerate(split_at_commas(tokens[cursor + 1 : end]))
        if tokens != ["void"]
    ]
    template = None
    if "template" in prefix:
        opened = prefix.index("<")
        template = tuple(map(_template_parameter, split_at_commas(prefix[opened + 1 : matching(prefix, opened)])))
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


def matching(tokens: Sequence[str], start: int) -> int:
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


def split_at_commas(tokens: Sequence[str]) -> Iterator[list[str]]:
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
