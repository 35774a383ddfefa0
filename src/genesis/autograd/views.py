"""Views in the graph: where a view lies in its base, and the functions of nodes that changes in place make."""

from __future__ import annotations

import enum
from typing import NamedTuple

from genesis.autograd.context import Context, Differentiable
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape


class ViewKind(enum.Enum):
    """How a view was made; all but PLAIN have a reason why it cannot change where gradients are recorded."""

    PLAIN = ""
    SEVERAL = "is one of several views that one op returned (split, chunk, unbind); index the base instead"
    UNRECORDED = "was made under no_grad(); make it where gradients are recorded, or change it under no_grad()"
    PARTS = "shows complex numbers as real ones, or the reverse; change the tensor that it is a view of"
    CUSTOM = "was returned by a custom Function or a compiled one, whose gradient knows nothing of the change"


class Region(NamedTuple):
    """The part of a base that a view shows: both geometries, and the view's offset from the base's first element."""

    base_shape: Shape
    base_strides: Shape
    shape: Shape
    strides: Shape
    offset: int

    @classmethod
    def of(cls, base: NDArray, view: NDArray) -> Region:
        offset = view.offset - base.offset if view.numel else 0
        return cls(base.shape, base.strides, view.shape, view.strides, offset)

    def zeros(self, like: NDArray) -> NDArray:
        """Zeros in the base's geometry."""
        steps = zip(self.base_shape, self.base_strides, strict=True)
        extent = 0 if 0 in self.base_shape else 1 + sum((size - 1) * step for size, step in steps)
        return like.full_like(0, (extent,)).view(self.base_shape, self.base_strides, 0)

    def seen(self, base: NDArray) -> NDArray:
        """The view of an array that has the base's geometry."""
        return base.view(self.shape, self.strides, base.offset + self.offset)

    def spread(self, grad: NDArray) -> NDArray:
        """The gradient of the base, from that of the view; elements that share memory add up."""
        shared = tuple(
            i for i, (size, step) in enumerate(zip(self.shape, self.strides, strict=True)) if size > 1 > step
        )
        once = self._replace(shape=tuple(1 if i in shared else size for i, size in enumerate(self.shape)))
        whole = self.zeros(grad)
        once.seen(whole).copy_into(ops.sum(grad, shared, True) if shared else grad)
        return whole


class AsStrided(Differentiable):
    """Function of a view's node that was made again after the base had changed."""

    on_arrays = True

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        region: Region = ctx.region
        return region.spread(grad)


class CopySlices(Differentiable):
    """Function of a base's node after a view has changed: the former base, but for a region with new values."""

    on_arrays = True

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> tuple[NDArray | None, NDArray | None]:
        (region,) = ctx.saved  # so that this runs once unless the graph is kept, as in PyTorch
        needs_base, needs_values = ctx.needs_input_grad
        fits = grad.strides == region.base_strides
        if fits and not needs_base:
            return None, region.seen(grad)
        rest = grad
        if not (fits and ctx.owns_grad):
            rest = region.zeros(grad)
            rest.copy_into(grad)
        seen = region.seen(rest)
        values = seen.clone() if needs_values else None
        seen.copy_into(0)  # what was overwritten has no part in the result
        return rest, values


class Overwrite(Differentiable):
    """Function of a tensor's node after its values were replaced by others that don't depend on them.

    ctx.shapes are those of the arguments: the former tensor, and either the new values or what decided on them.
    """

    on_arrays = True
    elementwise = True

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> tuple[NDArray, ...]:
        zeros = [grad.full_like(0, shape) for shape in ctx.shapes]
        return (zeros[0], grad) if ctx.passes else tuple(zeros)
