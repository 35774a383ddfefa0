"""Chains in a list of steps. What a step is made of, and where it came from, is nobody's business here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CONV, NORM, SCALE, ADD, ACTIVATION, POOL, OTHER = (
    "convolution", "batch norm", "scale", "sum", "activation", "max pooling", "other"
)  # fmt: skip


class Step(NamedTuple):
    """One call in the order of execution. Values have numbers: its result's, and those of its operands."""

    kind: str  # CONV, NORM, SCALE, ADD, ACTIVATION, POOL, or OTHER
    result: int
    operands: tuple[int, ...]
    name: str = ""
    obstacle: str = ""  # why this step must stay as it is
    changed: tuple[int, ...] = ()  # operands that it changes in place


class Chain(NamedTuple):
    """Steps that become one op, by their positions; residual is the value that the sum adds."""

    conv: int
    norm: int | None  # None: scales, a sum or an activation follow the convolution
    add: int | None
    activation: int | None
    residual: int | None
    scales: tuple[int, ...] = ()  # between the convolution and the sum, where there is no norm

    @property
    def parts(self) -> list[int]:
        """The positions of its steps, in order."""
        steps = (self.conv, *self.scales, self.norm, self.add, self.activation)
        return [step for step in steps if step is not None]

    @property
    def last(self) -> int:
        return self.parts[-1]


def find_chains(
    steps: Sequence[Step], outputs: Sequence[int], without_norm: bool = False
) -> tuple[list[Chain], list[tuple[str, str]]]:
    """The chains, and for each convolution that is in none, its name and why.

    A value that somebody else needs too (another step, or the caller) ends a chain before it. without_norm: also those
    of a convolution, scales, a sum and an activation.

    Example:
        >>> steps = [Step(CONV, 1, (0,)), Step(NORM, 2, (1,)), Step(ADD, 3, (2, 0)), Step(ACTIVATION, 4, (3,))]
        >>> find_chains(steps, [4])
        ([Chain(conv=0, norm=1, add=2, activation=3, residual=0, scales=())], [])
    """
    uses = _Uses(steps, outputs)
    chains: list[Chain] = []
    bare: list[int] = []  # convolutions without a norm
    left: list[tuple[str, str]] = []
    taken: set[int] = set()

    def add(chain: Chain) -> None:
        if _is_changed(steps, chain):
            left.append((steps[chain.conv].name, "its input is changed in place before the chain ends"))
            return
        if chain.add is not None:
            taken.add(chain.add)
        chains.append(chain)

    for position, step in enumerate(steps):
        if step.kind != CONV:
            continue
        norm = uses.next_after(position)
        if without_norm and not step.obstacle and norm is not None and steps[norm].kind in (SCALE, ADD, ACTIVATION):
            bare.append(position)
            continue
        reason = _why_not(steps, position, norm, step.result in uses.users, without_norm)
        if reason:
            left.append((step.name, reason))
        else:
            add(uses.follow(position, norm, taken))
    for position in bare:  # after those with a norm, to which the sums are worth more
        chain = uses.follow(position, None, taken)
        if chain.last == position:
            left.append((steps[position].name, "its sum or activation runs with another convolution, or by itself"))
        else:
            add(chain)
    return sorted(chains), left


class _Uses:
    """The steps that take each value."""

    def __init__(self, steps: Sequence[Step], outputs: Sequence[int]) -> None:
        self._steps, self._outputs = steps, outputs
        self.users: dict[int, list[int]] = {}
        for position, step in enumerate(steps):
            for operand in step.operands:
                self.users.setdefault(operand, []).append(position)

    def next_after(self, position: int) -> int | None:
        """The only user of a step's result."""
        value = self._steps[position].result
        found = self.users.get(value, [])
        return found[0] if len(found) == 1 and value not in self._outputs else None

    def follow(self, conv: int, norm: int | None, taken: set[int]) -> Chain:
        """The chain with the scales, the sum, unless another has taken that, and the activation that come next."""
        steps, before = self._steps, conv if norm is None else norm
        scales: list[int] = []
        if norm is None:
            while (scale := self.next_after(before)) is not None and steps[scale].kind == SCALE:
                if steps[scale].operands[0] != steps[before].result:  # it is the factor
                    break
                scales.append(scale)
                before = scale
        add, residual, end = None, None, self.next_after(before)
        if end is not None and steps[end].kind == ADD and end not in taken and not steps[end].obstacle:
            first, second = steps[end].operands
            other = second if first == steps[before].result else first
            add, residual, end = (end, other, self.next_after(end)) if first != second else (None, None, None)
        if end is not None and (steps[end].kind != ACTIVATION or steps[end].obstacle):
            end = None
        return Chain(conv, norm, add, end, residual, tuple(scales))


def _is_changed(steps: Sequence[Step], chain: Chain) -> bool:
    """Is the convolution's input changed by a step that it moves past?"""
    between = steps[chain.conv + 1 : chain.last]
    return any(steps[chain.conv].operands[0] in other.changed for other in between)


def _why_not(steps: Sequence[Step], conv: int, norm: int | None, is_used: bool, without_norm: bool) -> str:
    if steps[conv].obstacle:
        return steps[conv].obstacle
    if norm is None and is_used:
        return "its result is used in several places"
    if norm is None or steps[norm].kind != NORM:
        return "no batch norm or activation follows" if without_norm else "no batch norm follows"
    return steps[norm].obstacle
