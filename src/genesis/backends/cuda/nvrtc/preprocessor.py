"""Preprocess CUDA C++ sources into tokens: enough of it to read the kernels' parameters as the
compiler will see them.

Macros are expanded, and branches of #if that are not compiled are left out. What cannot be told here (a macro of the
compiler's or of NVIDIA's headers) leaves all its branches in: signature.py says where these contradict each other.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Sequence

_TOKEN = re.compile(
    r""""(?:\\.|[^"\\\n])*"|\d[\w.']*|'(?:\\.|[^'\\\n])*'"""
    r"|[A-Za-z_]\w*|::|&&|\|\||\#\#|<<|[=!<>]=|\S",
)
_COMMENT = re.compile(
    r"""R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"|(?P<kept>"(?:\\.|[^"\\\n])*"|\b\d[\w.']*|'(?:\\.|[^'\\\n])*')"""
    r"|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)
_DEFINE = re.compile(r"(\w+)(\([^)]*\))?\s*(.*)", re.DOTALL)
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_THEIRS = re.compile("_|CUB|CUDA|CCCL|THRUST|LIBCUDACXX|NV")  # how names of the compiler and of NVIDIA's headers begin
_MOST_TOKENS = 1_000_000  # of an expansion: macros of macros double at each step


@dataclasses.dataclass(frozen=True)
class Macro:
    body: tuple[str, ...]
    parameters: tuple[str, ...] | None = None  # None: used without parentheses


class _UnknownError(Exception):
    """A condition whose value only the compiler knows."""


class Preprocessor:
    """Sources in the order in which the compiler reads them, with the macros of those before.

    Args:
        sources: all that will be given to tokens(): what none of them defines is not defined.
        options: the compiler's flags, for what they define: -Dname=value.

    Attributes:
        macros: those defined now; None for one that may have several values, or may not be defined.
    """

    def __init__(self, sources: Sequence[str], options: Sequence[str] = ()) -> None:
        self.macros: dict[str, Macro | None] = {}
        self._given = _definitions(options)
        self.macros.update(self._given)
        self._defined_somewhere = {
            name for source in sources for name in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", source, re.MULTILINE)
        }

    def tokens(self, source: str) -> list[str]:
        """Tokens of a source after preprocessing."""
        text = without_comments(source)
        found: list[str] = []
        run: list[str] = []  # lines up to the next directive: a macro's arguments may go over several
        lines = text.split("\n")
        branches: list[_Branch] = []
        for number, line in enumerate(lines):
            if not line.lstrip().startswith("#"):
                if all(branch.state is not False for branch in branches):
                    run.append(line)
                continue
            found += self._expanded(split("\n".join(run)))
            run = []
            following = next((after for after in lines[number + 1 :] if after.strip()), "")
            self._directive(line.lstrip()[1:].strip(), branches, following)
        return found + self._expanded(split("\n".join(run)))

    # --- directives ---------------------------------------------------------------------------------------------------

    def _directive(self, line: str, branches: list[_Branch], following: str) -> None:
        word, _, rest = line.partition(" ") if " " in line else re.sub(r"^(\w+)", r"\1 ", line).partition(" ")
        word, rest = word.strip(), rest.strip()
        if word.startswith("if"):
            branches.append(_Branch(self._condition(word, rest, following)))
        elif word.startswith("el") and branches:
            branches[-1].turn(lambda: True if word == "else" else self._condition(word.removeprefix("el"), rest, ""))
        elif word == "endif" and branches:
            branches.pop()
        elif word in ("define", "undef"):
            states = [branch.state for branch in branches]
            name = re.match(r"\w*", rest)
            if False not in states and name is not None and name[0] not in self._given:
                self._define(name[0], _macro(rest) if word == "define" else None, None not in states)

    def _define(self, name: str, macro: Macro | None, is_certain: bool) -> None:
        """macro: None takes the definition away."""
        if is_certain and macro is None:
            self.macros.pop(name, None)
        elif is_certain or (macro is not None and name not in self.macros):
            self.macros[name] = macro
        elif self.macros.get(name) != macro:
            self.macros[name] = None

    def _condition(self, word: str, rest: str, following: str) -> bool | None:
        """Whether the branch after #if, #ifdef … is compiled; None: only the compiler knows."""
        try:
            if word in ("ifdef", "ifndef"):
                name = rest.split()[0] if rest else ""
                guards = (
                    word == "ifndef" and name not in self.macros and re.match(rf"\s*#\s*define\s+{name}\b", following)
                )
                return True if guards else self._is_defined(name) is (word == "ifdef")
            known = _DEFINED.sub(lambda match: str(int(self._is_defined(match[1] or match[2]))), rest)
            return bool(_value([self._number(token) for token in self._expanded(split(known))]))
        except (_UnknownError, IndexError, ZeroDivisionError):
            return None

    def _is_defined(self, name: str) -> bool:
        if self.macros.get(name) is not None:
            return True
        if name in self.macros or name in self._defined_somewhere or _THEIRS.match(name):
            raise _UnknownError
        return False

    def _number(self, token: str) -> str:
        """A word that is left in a condition is 0, if it is no macro."""
        return ("1" if token == "true" else str(int(self._is_defined(token)))) if token.isidentifier() else token

    # --- macros -------------------------------------------------------------------------------------------------------

    def _expanded(self, tokens: Sequence[str], hidden: frozenset[str] = frozenset()) -> list[str]:
        found: list[str] = []
        position = 0
        while position < len(tokens) and len(found) < _MOST_TOKENS:
            token = tokens[position]
            position += 1
            macro = None if token in hidden else self.macros.get(token)
            if macro is None:
                found.append(token)
            elif macro.parameters is None:
                found += self._expanded(macro.body, hidden | {token})
            elif tokens[position : position + 1] == ["("]:
                arguments, position = _arguments(tokens, position)
                found += self._expanded(self._filled(macro, arguments, hidden), hidden | {token})
            else:
                found.append(token)
        return found

    def _filled(self, macro: Macro, arguments: list[list[str]], hidden: frozenset[str]) -> list[str]:
        """The body with the arguments in it; # makes a string of one, ## joins two tokens."""
        names = list(macro.parameters or ())
        if names and names[-1] in ("...", "__VA_ARGS__"):
            names[-1] = "__VA_ARGS__"
            last = arguments[len(names) - 1 :]
            joined = [token for index, some in enumerate(last) for token in ([","] if index else []) + some]
            arguments = [*arguments[: len(names) - 1], joined]
        given = dict(zip(names, arguments, strict=False))
        found: list[str] = []
        body = macro.body
        for index, token in enumerate(body):
            joins = "##" in (body[index - 1 : index] + body[index + 1 : index + 2])
            if token == "##" or (token == "#" and body[index + 1 : index + 2] and body[index + 1] in given):
                continue
            if token not in given:
                part = [token]
            elif index and body[index - 1] == "#":
                part = [f'"{" ".join(given[token])}"']
            else:
                part = given[token] if joins else self._expanded(given[token], hidden)
            if index and body[index - 1] == "##" and found and part:
                part = [found.pop() + part[0], *part[1:]]
            found += part
        return found


class _Branch:
    """An #if that is open: whether what stands in it now is compiled. None: perhaps."""

    def __init__(self, state: bool | None) -> None:
        self.state = state
        self._taken = state  # whether one of its branches so far is compiled

    def turn(self, condition: Callable[[], bool | None]) -> None:
        """#else or #elif."""
        state = False if self._taken is True else condition()
        self.state = None if state and self._taken is None else state
        if state is not False and self._taken is not True:
            self._taken = self.state


def without_comments(source: str) -> str:
    """A source with its continued lines joined, and with nothing in raw strings."""
    text = re.sub(r"\\\r?\n", "", source)
    return _COMMENT.sub(lambda match: match["kept"] or ('""' if match["mark"] is not None else " "), text)


def split(text: str) -> list[str]:
    return [match[0] for match in _TOKEN.finditer(text)]


def _macro(text: str) -> Macro:
    """`name value`, `name(x, y) value` of a #define."""
    match = _DEFINE.match(text)
    assert match is not None
    parameters = None if match[2] is None else tuple(part.strip() for part in match[2][1:-1].split(",") if part.strip())
    return Macro(tuple(split(match[3])), parameters)


def _definitions(options: Sequence[str]) -> dict[str, Macro | None]:
    """Definitions in the compiler's flags."""
    found: dict[str, Macro | None] = {}
    for flag in re.findall(r"(?:^|\0)(?:-D|--define-macro)[=\0]?([^\0]+)", "\0".join(options)):
        name, has_value, value = flag.partition("=")
        found[name] = Macro(tuple(split(value if has_value else "1")))
    return found


def _arguments(tokens: Sequence[str], start: int) -> tuple[list[list[str]], int]:
    """Arguments of a macro, whose parenthesis stands at start, and the position behind them."""
    arguments: list[list[str]] = [[]]
    depth = 0
    for position in range(start, len(tokens)):
        token = tokens[position]
        depth += (token in "([{") - (token in ")]}")
        if depth == 0:
            return arguments, position + 1
        if token == "," and depth == 1:
            arguments.append([])
        elif position > start:
            arguments[-1].append(token)
    return arguments, len(tokens)


# --- the value of a condition -----------------------------------------------------------------------------------------

_LEVELS: Sequence[dict[str, Callable[[int, int], int]]] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)


def _value(tokens: Sequence[str]) -> int:
    """Evaluate a constant expression of whole numbers. Raises: _UnknownError: there is something else in it."""
    rest = iter([*tokens, ""])
    upcoming = [next(rest)]

    def take() -> str:
        token, upcoming[0] = upcoming[0], next(rest, "")
        return token

    def operand() -> int:
        token = take()
        if token == "!":
            return int(not operand())
        if token in ("-", "+"):
            return -operand() if token == "-" else operand()
        if token == "(":
            value = level(0)
            if take() != ")":
                raise _UnknownError
            return value
        try:
            digits = token.replace("'", "").rstrip("uUlL")
            return int(digits, 8 if re.fullmatch("0[0-7]+", digits) else 0)
        except ValueError:
            raise _UnknownError from None

    def level(index: int) -> int:
        if index == len(_LEVELS):
            return operand()
        value = level(index + 1)
        while upcoming[0] in _LEVELS[index]:
            value = int(_LEVELS[index][take()](value, level(index + 1)))
        return value

    value = level(0)
    if upcoming[0]:
        raise _UnknownError
    return value
