"""Jacobians, Hessians and their products with vectors, of functions of tensors: torch.autograd.functional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from genesis.autograd import enable_grad, grad
from genesis.creation_like import ones_like, zeros_like
from genesis.errors import DTypeError, GraphError, ShapeError, describe
from genesis.functional import reshape, stack, sum
from genesis.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Tensors: TypeAlias = "Tensor | tuple[Tensor, ...]"
Nested: TypeAlias = "Tensor | tuple[Tensor, ...] | tuple[tuple[Tensor, ...], ...]"
Func = Callable[..., Tensors]
Item = TypeVar("Item")


class _Call:
    """A call of func, with inputs that require grad."""

    def __init__(self, op: str, func: Func, inputs: Tensors, create_graph: bool, strict: bool) -> None:
        self.op, self.create_graph, self.strict = op, create_graph, strict
        self.single_input = isinstance(inputs, Tensor)
        given = _listed(op, "inputs", inputs)
        # With a graph, places of their own in it: the gradient of one is not that of another made of it.
        kept = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in given]
        self.inputs = kept if create_graph else [x.detach().requires_grad_() for x in given]
        with enable_grad():
            outputs = func(*self.inputs)
        self.single_output = isinstance(outputs, Tensor)
        self.outputs = _listed(op, "func", outputs)

    def vectors(self, v: Tensors | None, like: Sequence[Tensor], name: str) -> list[Tensor]:
        """The tensors of v; ones, if there is none and each of like has one element."""
        if v is None:
            if any(x.numel() != 1 for x in like):
                raise ShapeError(describe(self.op, "v", f"tensors of the shapes of the {name}", None))
            return [ones_like(x) for x in like]
        found = _listed(self.op, "v", v)
        if [x.shape for x in found] != [x.shape for x in like]:
            expected = f"the shapes of the {name}, {[tuple(x.shape) for x in like]}"
            raise ShapeError(describe(self.op, "v", expected, [tuple(x.shape) for x in found]))
        return found

    def grads(self, outputs: Sequence[Tensor], v: Sequence[Tensor], graph: bool) -> list[Tensor]:
        """The gradients of the inputs; zeros where none depends on them, an error if that is not wanted."""
        pairs = [(output, each) for output, each in zip(outputs, v, strict=True) if output.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(self.inputs)
        if pairs:
            roots, seeds = zip(*pairs, strict=True)
            found = grad(roots, self.inputs, seeds, retain_graph=True, create_graph=graph, allow_unused=True)
        if self.strict and (len(pairs) < len(outputs) or any(each is None for each in found)):
            raise GraphError(f"{self.op}: strict=True: an output does not depend on an input")
        return [zeros_like(x) if each is None else each for x, each in zip(self.inputs, found, strict=True)]

    def like_inputs(self, values: Sequence[Item]) -> Item | tuple[Item, ...]:
        return values[0] if self.single_input else tuple(values)

    def like_outputs(self, values: Sequence[Item]) -> Item | tuple[Item, ...]:
        return values[0] if self.single_output else tuple(values)

    def value(self) -> Tensors:
        return self.like_outputs(self.outputs if self.create_graph else [each.detach() for each in self.outputs])

    def scalar(self) -> Tensor:
        if not self.single_output or self.outputs[0].numel() != 1:
            shapes = [tuple(each.shape) for each in self.outputs]
            raise ShapeError(describe(self.op, "func", "a function that returns one tensor of one element", shapes))
        return self.outputs[0]


def _listed(op: str, name: str, value: object) -> list[Tensor]:
    found = []
    for each in value if isinstance(value, tuple | list) else (value,):
        if not isinstance(each, Tensor):
            raise DTypeError(describe(op, name, "a tensor or a tuple of tensors", type(each).__name__))
        found.append(each)
    return found


def vjp(
    func: Func, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """vᵀ·J, with the Jacobian J of func at inputs.

    Args:
        func: takes the inputs; returns a tensor or a tuple of them.
        inputs: a floating tensor or a tuple of them, of any shapes.
        v: in the shapes of func's results; 1 if None, for results of one element.
        create_graph: record the gradients, so that they can be differentiated.
        strict: refuse results that do not depend on an input, instead of giving zeros.
    Returns: func's results, and the product in the shapes of the inputs.
    Raises: ShapeError: v has other shapes. DTypeError: something is no tensor. GraphError: strict.

    Example:
        >>> from genesis.derivatives import vjp
        >>> vjp(lambda x: x * x, genesis.tensor([1.0, 2.0]), genesis.ones(2))[1].tolist()
        [2.0, 4.0]
    """
    call = _Call("vjp", func, inputs, create_graph, strict)
    found = call.grads(call.outputs, call.vectors(v, call.outputs, "results"), create_graph)
    return call.value(), call.like_inputs(found)


def jvp(
    func: Func, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """J·v, with the Jacobian J of func at inputs: the gradient of wᵀ·J by w, in the direction of v.

    Args:
        func, inputs, create_graph, strict: as in `vjp`.
        v: in the shapes of the inputs; 1 if None, for inputs of one element.
    Returns: func's results, and the product in their shapes.
    Raises: as `vjp`.

    Example:
        >>> from genesis.derivatives import jvp
        >>> jvp(lambda x: x.sum() * x, genesis.tensor([1.0, 2.0]), genesis.tensor([1.0, 0.0]))[1].tolist()
        [4.0, 2.0]
    """
    call = _Call("jvp", func, inputs, create_graph, strict)
    vectors = call.vectors(v, call.inputs, "inputs")
    w = [zeros_like(output).requires_grad_() for output in call.outputs]
    products = call.grads(call.outputs, w, graph=True)
    pairs = [(product, each) for product, each in zip(products, vectors, strict=True) if product.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(w)
    if pairs:
        roots, seeds = zip(*pairs, strict=True)
        found = grad(roots, w, seeds, create_graph=create_graph, allow_unused=True)
    products = [zeros_like(each) if one is None else one for each, one in zip(call.outputs, found, strict=True)]
    return call.value(), call.like_outputs(products)


def vhp(
    func: Func, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """vᵀ·H, with the Hessian H of func at inputs.

    Args:
        func: returns one tensor of one element.
        inputs, create_graph, strict: as in `vjp`.
        v: in the shapes of the inputs; 1 if None, for inputs of one element.
    Returns: func's result, and the product in the shapes of the inputs.
    Raises: as `vjp`; ShapeError: func returns something else.

    Example:
        >>> from genesis.derivatives import vhp
        >>> vhp(lambda x: (x**3).sum(), genesis.tensor([1.0, 2.0]), genesis.ones(2))[1].tolist()
        [6.0, 12.0]
    """
    return _hessian_product("vhp", func, inputs, v, create_graph, strict)


def hvp(
    func: Func, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """H·v, which is vᵀ·H, as Hessians are symmetric. See `genesis.derivatives.vhp`."""
    return _hessian_product("hvp", func, inputs, v, create_graph, strict)


def _hessian_product(
    op: str, func: Func, inputs: Tensors, v: Tensors | None, create_graph: bool, strict: bool
) -> tuple[Tensors, Tensors]:
    call = _Call(op, func, inputs, create_graph, strict)
    value = call.scalar()
    vectors = call.vectors(v, call.inputs, "inputs")
    gradients = call.grads([value], [ones_like(value)], graph=True)
    return call.value(), call.like_inputs(call.grads(gradients, vectors, create_graph))


def jacobian(
    func: Func, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Nested:  # fmt: skip
    """The derivative of each element of func's results by each element of the inputs, a row of it at a time.

    Args:
        func, inputs, create_graph, strict: as in `vjp`.
        vectorize: accepted; rows are computed one after the other.
        strategy: "reverse-mode"; "forward-mode" is a NotImplementedError.
    Returns: for one result and one input a tensor, of the result's shape followed by the input's; a tuple for several
        inputs or several results, and tuples in a tuple for both.
    Raises: as `vjp`.

    Example:
        >>> from genesis.derivatives import jacobian
        >>> jacobian(lambda x: x * x.sum(), genesis.tensor([1.0, 2.0])).tolist()
        [[4.0, 1.0], [2.0, 5.0]]
    """
    if strategy != "reverse-mode":
        raise NotImplementedError(f"jacobian: strategy={strategy!r} is not supported; use 'reverse-mode'")
    call = _Call("jacobian", func, inputs, create_graph, strict)
    blocks = []
    for output in call.outputs:
        rows = [call.grads([element], [ones_like(element)], create_graph) for element in reshape(output, (-1,))]
        shaped = [reshape(stack(each), (*output.shape, *each[0].shape)) for each in zip(*rows, strict=True)]
        blocks.append(call.like_inputs(shaped))
    if call.single_output:
        return blocks[0]
    return tuple(blocks)  # type: ignore[return-value]  # tensors, or tuples of them


def hessian(
    func: Func, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Nested:  # fmt: skip
    """The second derivatives of func, which returns one tensor of one element.

    Args:
        func: as in `vhp`.
        inputs, create_graph, strict: as in `vjp`.
        vectorize, outer_jacobian_strategy: as in `jacobian`.
    Returns: for one input a tensor, of its shape twice; for several, a tuple of a tuple for each.
    Raises: as `vhp`.

    Example:
        >>> from genesis.derivatives import hessian
        >>> hessian(lambda x: (x**3).sum(), genesis.tensor([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """

    def gradient(*given: Tensor) -> Tensors:
        call = _Call("hessian", func, given, create_graph=True, strict=strict)
        value = call.scalar()
        found = call.grads([sum(value)], [ones_like(sum(value))], graph=True)
        return found[0] if isinstance(inputs, Tensor) else tuple(found)

    return jacobian(gradient, inputs, create_graph, strict, vectorize, outer_jacobian_strategy)
