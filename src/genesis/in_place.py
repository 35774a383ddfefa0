"""The methods and operators of Tensor that change it in place.

self keeps its memory, shape and dtype, and every alias and view of it sees the change. The graph follows; leaves that
require grad, and views of them, change only under no_grad().
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Self, TypeVar

from genesis import dtypes
from genesis import functional as F
from genesis.autograd import Tensor
from genesis.autograd.in_place import change, overwrites, require_changeable
from genesis.autograd.modes import state
from genesis.dtypes import Number
from genesis.errors import GraphError, ShapeError, describe
from genesis.methods import Methods

P = ParamSpec("P")
T = TypeVar("T", bound=Tensor)


def _by(function: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[T, P], T]:
    """The method that gives self the values of function(self, ...)."""

    @functools.wraps(function)
    def change(self: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._change(function, *args, **kwargs)

    change.__name__ = change.__qualname__ = f"{function.__name__}_"
    change.__doc__ = f"{function.__name__} in place; returns self. See `F.{function.__name__}`."
    return change


def _as(view: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[T, P], T]:
    """The method that gives self the shape of view(self, ...), on the same memory."""

    @functools.wraps(view)
    def change(self: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
        recorded = state.recording and self.requires_grad
        if recorded:
            require_changeable(f"{view.__name__}_", self)
        before, seen = self.detach(), view(self, *args, **kwargs)
        before._take_place_of(self)
        self.array = seen.array
        changes = seen.array.changes
        changes.count += 1  # as in PyTorch: what was saved is not what self shows now
        if recorded:
            self._take_place_of(seen)
            self._keep_retaining(before)
            if self._base is not None:
                self._viewed_at = changes.count
        return self

    change.__name__ = change.__qualname__ = f"{view.__name__}_"
    change.__doc__ = f"{view.__name__} in place: self takes the shape, on the same memory. See `F.{view.__name__}`."
    return change


class InPlace(Methods):
    """A part of Tensor: see the module's docstring."""

    _change = change

    # --- values from elsewhere ----------------------------------------------------------------------------------------

    def copy_(self, other: Tensor | Number, non_blocking: bool = False) -> Self:
        """Copy the values of other into self.

        Args:
            other: a tensor that broadcasts to self, on any device and of any dtype, or a number.
            non_blocking: as in `genesis.Tensor.to`.
        Raises: ShapeError: other does not broadcast. GraphError: self is a leaf that requires grad.
        Grad: other; self's former values get none.

        Example:
            >>> genesis.zeros(2, 2).copy_(genesis.tensor([1, 2])).tolist()
            [[1.0, 2.0], [1.0, 2.0]]
        """
        return self._change(_copied, other, non_blocking)

    def fill_(self, value: Tensor | Number) -> Self:
        """Set every element to value.

        Args:
            value: a number that the dtype holds, or a 0-d tensor.
        Raises: ShapeError: value has dimensions. OverflowError: the dtype does not hold it.

        Example:
            >>> genesis.empty(3).fill_(7).tolist()
            [7.0, 7.0, 7.0]
        """
        return self._change(_filled, value)

    def zero_(self) -> Self:
        """Set every element to 0.

        Example:
            >>> genesis.ones(3).zero_().tolist()
            [0.0, 0.0, 0.0]
        """
        return self._change(_filled, 0)

    def fill_diagonal_(self, fill_value: Number, wrap: bool = False) -> Self:
        """Set the main diagonal to a number.

        Args:
            fill_value: a number that the dtype holds.
            wrap: not supported.
        Raises: ShapeError: self is no matrix. NotImplementedError: wrap.

        Example:
            >>> genesis.zeros(2, 2).fill_diagonal_(1).tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        if wrap:
            raise NotImplementedError("fill_diagonal_: wrap=True is not supported")
        if self.array.ndim != 2:
            raise ShapeError(describe("fill_diagonal_", "self", "2 dimensions", f"shape {self.array.shape}"))
        diagonal: Tensor = F.diagonal(self)  # type: ignore[arg-type]
        diagonal.fill_(fill_value)
        return self

    # --- element-wise -------------------------------------------------------------------------------------------------

    add_ = _by(F.add)
    sub_ = _by(F.sub)
    mul_ = _by(F.mul)
    div_ = _by(F.div)
    floor_divide_ = _by(F.floor_divide)
    remainder_ = _by(F.remainder)
    pow_ = _by(F.pow)
    neg_ = _by(F.neg)
    abs_ = _by(F.abs)
    exp_ = _by(F.exp)
    expm1_ = _by(F.expm1)
    log_ = _by(F.log)
    log1p_ = _by(F.log1p)
    sqrt_ = _by(F.sqrt)
    rsqrt_ = _by(F.rsqrt)
    square_ = _by(F.square)
    conj_physical_ = _by(F.conj_physical)
    reciprocal_ = _by(F.reciprocal)
    sign_ = _by(F.sign)
    sin_ = _by(F.sin)
    cos_ = _by(F.cos)
    tanh_ = _by(F.tanh)
    sigmoid_ = _by(F.sigmoid)
    erf_ = _by(F.erf)
    floor_ = _by(F.floor)
    ceil_ = _by(F.ceil)
    round_ = _by(F.round)
    clamp_ = _by(F.clamp)
    clip_ = _by(F.clamp)
    relu_ = _by(F.relu)
    tan_ = _by(F.tan)
    asin_ = _by(F.asin)
    acos_ = _by(F.acos)
    atan_ = _by(F.atan)
    sinh_ = _by(F.sinh)
    cosh_ = _by(F.cosh)
    asinh_ = _by(F.asinh)
    acosh_ = _by(F.acosh)
    atanh_ = _by(F.atanh)
    atan2_ = _by(F.atan2)
    hypot_ = _by(F.hypot)
    exp2_ = _by(F.exp2)
    log2_ = _by(F.log2)
    log10_ = _by(F.log10)
    erfc_ = _by(F.erfc)
    erfinv_ = _by(F.erfinv)
    i0_ = _by(F.i0)
    lgamma_ = _by(F.lgamma)
    digamma_ = _by(F.digamma)
    trunc_ = _by(F.trunc)
    frac_ = _by(F.frac)
    fmod_ = _by(F.fmod)
    copysign_ = _by(F.copysign)
    nextafter_ = _by(F.nextafter)
    logit_ = _by(F.logit)
    sinc_ = _by(F.sinc)
    nan_to_num_ = _by(F.nan_to_num)
    deg2rad_ = _by(F.deg2rad)
    rad2deg_ = _by(F.rad2deg)
    xlogy_ = _by(F.xlogy)
    heaviside_ = _by(F.heaviside)
    lerp_ = _by(F.lerp)
    addcmul_ = _by(F.addcmul)
    addcdiv_ = _by(F.addcdiv)
    ldexp_ = _by(F.ldexp)
    float_power_ = _by(F.float_power)
    clamp_min_ = _by(F.clamp_min)
    clamp_max_ = _by(F.clamp_max)
    mvlgamma_ = _by(F.mvlgamma)
    igamma_ = _by(F.gammainc)
    igammac_ = _by(F.gammaincc)
    logical_xor_ = _by(F.logical_xor)
    renorm_ = _by(F.renorm)
    cumprod_ = _by(F.cumprod)
    arctan_ = atan_
    arcsin_ = asin_
    arccos_ = acos_
    arcsinh_ = asinh_
    arccosh_ = acosh_
    arctanh_ = atanh_
    absolute_ = abs_
    negative_ = neg_
    subtract_ = sub_
    multiply_ = mul_
    divide_ = div_
    true_divide_ = div_
    fix_ = trunc_
    sgn_ = sign_
    arctan2_ = atan2_
    cumsum_ = _by(F.cumsum)
    tril_ = _by(F.tril)
    triu_ = _by(F.triu)

    # --- questions and bits: the answer in self's dtype ---------------------------------------------------------------

    eq_ = _by(F.eq)
    ne_ = _by(F.ne)
    lt_ = _by(F.lt)
    le_ = _by(F.le)
    gt_ = _by(F.gt)
    ge_ = _by(F.ge)
    greater_ = gt_
    greater_equal_ = ge_
    less_ = lt_
    less_equal_ = le_
    not_equal_ = ne_
    logical_and_ = _by(F.logical_and)
    logical_or_ = _by(F.logical_or)
    logical_not_ = _by(F.logical_not)
    bitwise_and_ = _by(F.bitwise_and)
    bitwise_or_ = _by(F.bitwise_or)
    bitwise_xor_ = _by(F.bitwise_xor)
    bitwise_not_ = _by(F.bitwise_not)
    bitwise_left_shift_ = _by(F.bitwise_left_shift)
    bitwise_right_shift_ = _by(F.bitwise_right_shift)

    # --- operators ----------------------------------------------------------------------------------------------------

    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_
    __ifloordiv__ = floor_divide_
    __imod__ = remainder_
    __ipow__ = pow_
    __iand__ = bitwise_and_
    __ior__ = bitwise_or_
    __ixor__ = bitwise_xor_
    __ilshift__ = bitwise_left_shift_
    __irshift__ = bitwise_right_shift_

    # --- selection ----------------------------------------------------------------------------------------------------

    masked_fill_ = _by(F.masked_fill)
    index_add_ = _by(F.index_add)
    index_fill_ = _by(F.index_fill)
    index_copy_ = _by(F.index_copy)
    masked_scatter_ = _by(F.masked_scatter)
    put_ = _by(F.put)
    addmm_ = _by(F.addmm)
    addmv_ = _by(F.addmv)
    addr_ = _by(F.addr)
    addbmm_ = _by(F.addbmm)
    baddbmm_ = _by(F.baddbmm)
    scatter_ = _by(F.scatter)
    scatter_add_ = _by(F.scatter_add)
    scatter_reduce_ = _by(F.scatter_reduce)
    gcd_ = _by(F.gcd)
    lcm_ = _by(F.lcm)
    polygamma_ = _by(Methods.polygamma)
    index_reduce_ = _by(F.index_reduce)
    index_put_ = F.index_put_

    # --- another shape on the same memory -----------------------------------------------------------------------------

    squeeze_ = _as(F.squeeze)
    unsqueeze_ = _as(F.unsqueeze)
    transpose_ = _as(F.transpose)
    swapaxes_ = _as(F.swapaxes)
    swapdims_ = transpose_
    t_ = _as(F.t)
    as_strided_ = _as(F.as_strided)

    def detach_(self) -> Self:
        """Leave the graph: self becomes a leaf that requires no grad.

        Raises: GraphError: self is a view.

        Example:
            >>> y = genesis.ones(2, requires_grad=True) * 2
            >>> y.detach_().is_leaf
            True
        """
        if self._base is not None:
            raise GraphError("detach_: a view cannot leave the graph in place; use .detach()")
        self._requires_grad, self._node, self._output_index = False, None, 0
        return self


@overwrites("copy_")
def _copied(target: Tensor, source: Tensor | Number, non_blocking: bool = False) -> Tensor:
    """source, broadcast and cast to target's shape and dtype: what copy_ writes."""
    if not isinstance(source, Tensor):
        return target._like(target.array.full_like(dtypes.number("copy_", "source", source, target.array.dtype)))
    moved = F.cast(F.to_device(source, target.array.device, non_blocking), target.array.dtype)
    return F.expand(moved, target.array.shape)


@overwrites("fill_")
def _filled(target: Tensor, value: Tensor | Number) -> Tensor:
    if not isinstance(value, Tensor):
        return target._like(target.array.full_like(dtypes.number("fill_", "value", value, target.array.dtype)))
    if value.array.ndim:
        raise ShapeError(describe("fill_", "value", "a number or a 0-d tensor", f"shape {value.array.shape}"))
    return _copied(target, value)
