"""Gradients that eager PyTorch leaves None: of what only outputs depend on that a loss does not use.

AOTAutograd gives its backward graphs zeros for such outputs, and gets zeros. Momentum and weight decay would then move
parameters that eager code leaves alone. The backward graph tells which gradient depends on which output.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, fx

from genesis.torch.activations import Function

_NODE = "CompiledFunctionBackward"  # AOTAutograd's
Gradients = tuple[Tensor | None, ...]


class Dependence(NamedTuple):
    """On which outputs the gradients depend that a backward graph gives.

    Attributes:
        num: the number of outputs that have gradients.
        bits: for each gradient that is given: bit i is set if it depends on that of the i-th of those outputs.
    """

    num: int
    bits: list[int]

    @classmethod
    def of(cls, graph: fx.Graph) -> Dependence:
        bits: dict[fx.Node, int] = {}
        num = 0
        for node in graph.find_nodes(op="placeholder"):
            if node.name.startswith("tangents"):
                bits[node] = 1 << num
                num += 1
        for node in graph.nodes:
            if node not in bits:
                bits[node] = functools.reduce(operator.or_, (bits[x] for x in node.all_input_nodes), 0)
        (result,) = graph.find_nodes(op="output")
        return cls(num, [bits[x] if isinstance(x, fx.Node) else 0 for x in result.args[0]])

    def is_none(self, grads: Sequence[Tensor | None]) -> list[bool]:
        """Whether each gradient depends only on outputs that a loss does not use, whose grads are None."""
        used = sum(1 << index for index, grad in enumerate(grads) if grad is not None)
        return [bits != 0 and not bits & used for bits in self.bits]


NOTHING = Dependence(0, [])


class UnusedOutputs:
    """The outputs of one of Dynamo's graphs that a loss does not use."""

    def __init__(self) -> None:
        self.dependence = NOTHING

    def follow(self, compiled: Function) -> Function:
        """A compiled graph whose backward gives None for what only such outputs depend on."""
        if self.dependence.num < 2:
            return compiled  # a backward has a gradient for one output at least

        def run(*args: object) -> object:
            results = compiled(*args)
            if isinstance(results, tuple | list):
                self._watch([x for x in results if isinstance(x, Tensor) and x.grad_fn is not None])
            return results

        return run

    def _watch(self, results: list[Tensor]) -> None:
        node = next((node for x in results if (node := x.grad_fn) is not None and node.name() == _NODE), None)
        if node is not None:
            places = sorted({x.output_nr for x in results if x.grad_fn is node})
            if len(places) == self.dependence.num:
                node.register_hook(functools.partial(self._without_unused, places))

    def _without_unused(self, places: list[int], gradients: Gradients, grads: Gradients) -> Gradients | None:
        """The gradients of a backward, given those of all outputs; places: of the outputs that have gradients."""
        used = [grads[index] for index in places]
        if None not in used or len(gradients) != len(self.dependence.bits):
            return None
        is_none = self.dependence.is_none(used)
        return tuple(None if unused else x for unused, x in zip(is_none, gradients, strict=True))
