"""einsum: sums of products, written with a letter for each dimension."""

from __future__ import annotations

import math
import string
from collections import Counter
from typing import Any, NamedTuple

from genesis.autograd import Variable as Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.elementwise import mul
from genesis.functional.linalg import matmul
from genesis.functional.reduction import sum as reduce_sum
from genesis.functional.shape import diagonal, permute, reshape

__all__ = ["einsum"]

Labels = tuple[str, ...]


class Term(NamedTuple):
    """A tensor and the label of each of its dimensions, each label once."""

    tensor: Any
    labels: Labels


def einsum(equation: str, *operands: Any) -> Any:
    """Multiply operands element by element where they share a letter, and sum over the letters that the output lacks.

    Pairs are contracted by matrix products, the pair with the smallest result first.

    Args:
        equation: a letter per dimension, operands parted by commas, `->` before the output. Without `->` the output has
            the letters that occur once, in alphabetical order. `...` stands for dimensions that broadcast; a letter
            twice in one operand takes its diagonal.
        operands: the tensors, or one list of them.

    Example:
        >>> a = genesis.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> F.einsum("ij,kj->ik", a, a).tolist(), F.einsum("ii->i", a).tolist()
        ([[5.0, 11.0], [11.0, 25.0]], [1.0, 4.0])
    """
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    for number, operand in enumerate(operands):
        if not isinstance(operand, Tensor):
            raise DTypeError(describe("einsum", f"operands[{number}]", "a tensor", type(operand).__name__))
    inputs, output = _parse(equation, operands)
    sizes = _sizes(inputs, operands)
    terms = [_without_repeats(Term(x, labels), sizes) for x, labels in zip(operands, inputs, strict=True)]
    while len(terms) > 1:
        first, second = _cheapest_pair(terms, output, sizes)
        pair = terms[first], terms[second]
        terms = [term for i, term in enumerate(terms) if i not in (first, second)]
        needed = {*output, *(label for term in terms for label in term.labels)}
        terms.append(_contract(*pair, needed, sizes))
    (term,) = terms
    term = _summed(term, {*output})
    return permute(term.tensor, [term.labels.index(label) for label in output])


def _parse(equation: Any, operands: tuple[Any, ...]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the output; the dimensions of `...` are labelled by numbers from the right."""
    if not isinstance(equation, str):
        raise DTypeError(describe("einsum", "equation", "a string", type(equation).__name__))
    left, arrow, right = equation.replace(" ", "").replace("...", ".").partition("->")
    subscripts = left.split(",")
    for part in (*subscripts, right):
        wrong = [letter for letter in part if letter not in string.ascii_letters + "."]
        if wrong or part.count(".") > 1:
            raise ShapeError(
                describe("einsum", "equation", "letters, ',', '->' and one '...' per operand", repr(equation))
            )
    if not operands or len(subscripts) != len(operands):
        raise ShapeError(describe("einsum", "operands", f"{len(subscripts)} tensors for {equation!r}", len(operands)))
    inputs, widest = [], 0
    for number, (part, operand) in enumerate(zip(subscripts, operands, strict=True)):
        ndim = operand.array.ndim
        hidden = ndim - len(part.replace(".", ""))
        if hidden < 0 or (hidden > 0 and "." not in part):
            raise ShapeError(
                describe(
                    "einsum", f"operands[{number}]", f"as many dimensions as letters in {part!r}", operand.array.shape
                )
            )
        widest = max(widest, hidden if "." in part else 0)
        inputs.append(_expand_dots(part, hidden))
    counts = Counter(label for labels in inputs for label in labels)
    dots = _expand_dots(".", widest)
    if not arrow:
        return inputs, (*dots, *sorted(label for label, n in counts.items() if n == 1 and label not in dots))
    output = _expand_dots(right, widest)
    for label in output:
        if label not in counts or output.count(label) > 1:
            raise ShapeError(
                describe("einsum", "equation", "an output of letters of the operands, each once", equation)
            )
    return inputs, output


def _expand_dots(part: str, hidden: int) -> Labels:
    dots = [str(i) for i in reversed(range(hidden))]
    return tuple(label for letter in part for label in (dots if letter == "." else [letter]))


def _sizes(inputs: list[Labels], operands: tuple[Any, ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for number, (labels, operand) in enumerate(zip(inputs, operands, strict=True)):
        for label, size in zip(labels, operand.array.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif size not in (1, known):
                raise ShapeError(describe("einsum", f"operands[{number}]", f"size {known} for '{label}'", size))
    return sizes


def _without_repeats(term: Term, sizes: dict[str, int]) -> Term:
    """Diagonals of repeated labels taken; dimensions that broadcast dropped: the product repeats them."""
    tensor, labels = term
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if tensor.array.shape[first] != tensor.array.shape[second]:
                raise ShapeError(
                    describe("einsum", "operands", f"equal sizes for '{label}' in one operand", tensor.array.shape)
                )
            tensor = diagonal(tensor, 0, first, second)
            labels = (*(other for i, other in enumerate(labels) if i not in (first, second)), label)
    shape = tensor.array.shape
    kept = [i for i, label in enumerate(labels) if shape[i] == sizes[label]]
    return Term(reshape(tensor, [shape[i] for i in kept]), tuple(labels[i] for i in kept))


def _summed(term: Term, needed: set[str]) -> Term:
    """Labels that nobody else needs, summed away."""
    gone = [i for i, label in enumerate(term.labels) if label not in needed]
    if not gone:
        return term
    return Term(reduce_sum(term.tensor, gone), tuple(label for label in term.labels if label in needed))


def _cheapest_pair(terms: list[Term], output: Labels, sizes: dict[str, int]) -> tuple[int, int]:
    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        others = {label for i, term in enumerate(terms) if i not in pair for label in term.labels}
        both = {*terms[pair[0]].labels, *terms[pair[1]].labels}
        result = [sizes[label] for label in both if label in others or label in output]
        return math.prod(result), math.prod(sizes[label] for label in both)

    return min(((i, j) for j in range(len(terms)) for i in range(j)), key=cost)


def _contract(x: Term, y: Term, needed: set[str], sizes: dict[str, int]) -> Term:
    """The product of two terms, summed over what is not needed, as one batched matrix product."""
    x, y = _summed(x, needed | {*y.labels}), _summed(y, needed | {*x.labels})
    batch = [label for label in x.labels if label in y.labels and label in needed]
    inner = [label for label in x.labels if label in y.labels and label not in needed]
    rows = [label for label in x.labels if label not in y.labels]
    columns = [label for label in y.labels if label not in x.labels]
    left = _as_matrices(x, batch, rows, inner, sizes)
    right = _as_matrices(y, batch, inner, columns, sizes)
    product = matmul(left, right) if inner else mul(left, right)
    labels = (*batch, *rows, *columns)
    return Term(reshape(product, [sizes[label] for label in labels]), labels)


def _as_matrices(term: Term, batch: list[str], rows: list[str], columns: list[str], sizes: dict[str, int]) -> Any:
    moved = permute(term.tensor, [term.labels.index(label) for label in (*batch, *rows, *columns)])
    counts = (math.prod(sizes[label] for label in group) for group in (rows, columns))
    return reshape(moved, [*(sizes[label] for label in batch), *counts])
