"""The methods and operators of Tensor that are functions of the functional layer: one line each.

They stand apart from tensor.py because they need nothing of it; a method `float` would also hide Python's own there.
"""

from __future__ import annotations

from typing import Any

from genesis import dtypes
from genesis import functional as F
from genesis.autograd import Variable
from genesis.dtypes import DType


class Methods(Variable):
    """A part of Tensor: see the module's docstring."""

    # --- element-wise -------------------------------------------------------------------------------------------------

    add = F.add
    sub = F.sub
    mul = F.mul
    div = F.div
    floor_divide = F.floor_divide
    remainder = F.remainder
    pow = F.pow
    neg = F.neg
    abs = F.abs
    exp = F.exp
    expm1 = F.expm1
    log = F.log
    log1p = F.log1p
    sqrt = F.sqrt
    rsqrt = F.rsqrt
    square = F.square
    reciprocal = F.reciprocal
    sign = F.sign
    sin = F.sin
    cos = F.cos
    tanh = F.tanh
    sigmoid = F.sigmoid
    erf = F.erf
    floor = F.floor
    ceil = F.ceil
    round = F.round
    clamp = F.clamp
    clip = F.clamp
    maximum = F.maximum
    minimum = F.minimum
    relu = F.relu
    softmax = F.softmax
    log_softmax = F.log_softmax
    eq = F.eq
    ne = F.ne
    lt = F.lt
    le = F.le
    gt = F.gt
    ge = F.ge
    isnan = F.isnan
    isinf = F.isinf
    isfinite = F.isfinite
    logical_and = F.logical_and
    logical_or = F.logical_or
    logical_not = F.logical_not
    bitwise_and = F.bitwise_and
    bitwise_or = F.bitwise_or
    bitwise_xor = F.bitwise_xor
    bitwise_not = F.bitwise_not

    def where(self, condition: Any, other: Any) -> Any:
        return F.where(condition, self, other)

    # --- reductions ---------------------------------------------------------------------------------------------------

    sum = F.sum
    mean = F.mean
    prod = F.prod
    amax = F.amax
    amin = F.amin
    max = F.max
    min = F.min
    var = F.var
    std = F.std
    argmax = F.argmax
    argmin = F.argmin
    all = F.all
    any = F.any
    logsumexp = F.logsumexp
    cumsum = F.cumsum
    cummax = F.cummax
    norm = F.norm

    # --- shape: sizes and dimensions come one by one or as one sequence -----------------------------------------------

    def reshape(self, *shape: Any) -> Any:
        return F.reshape(self, _unpacked(shape))

    def view(self, *shape: Any) -> Any:
        """The same memory in another shape, see F.view; an error where only a copy could show it."""
        return F.view(self, _unpacked(shape))

    def permute(self, *dims: Any) -> Any:
        return F.permute(self, _unpacked(dims))

    def expand(self, *size: Any) -> Any:
        return F.expand(self, _unpacked(size))

    def repeat(self, *repeats: Any) -> Any:
        return F.repeat(self, _unpacked(repeats))

    def tile(self, *dims: Any) -> Any:
        return F.tile(self, _unpacked(dims))

    def flip(self, *dims: Any) -> Any:
        return F.flip(self, _unpacked(dims))

    def view_as(self, other: Methods) -> Any:
        return F.view(self, other.array.shape)

    def reshape_as(self, other: Methods) -> Any:
        return F.reshape(self, other.array.shape)

    def expand_as(self, other: Methods) -> Any:
        return F.expand(self, other.array.shape)

    broadcast_to = F.broadcast_to
    transpose = F.transpose
    swapaxes = F.swapaxes
    movedim = F.movedim
    t = F.t
    squeeze = F.squeeze
    unsqueeze = F.unsqueeze
    flatten = F.flatten
    unflatten = F.unflatten
    diagonal = F.diagonal
    roll = F.roll
    split = F.split
    chunk = F.chunk
    unbind = F.unbind
    narrow = F.narrow
    tril = F.tril
    triu = F.triu
    contiguous = F.contiguous
    clone = F.clone
    pin_memory = F.pin_memory

    # --- selection ----------------------------------------------------------------------------------------------------

    __getitem__ = F.getitem
    __setitem__ = F.setitem
    index_select = F.index_select
    index_add = F.index_add
    index_put = F.index_put
    gather = F.gather
    take_along_dim = F.take_along_dim
    scatter = F.scatter
    scatter_add = F.scatter_add
    masked_fill = F.masked_fill
    masked_select = F.masked_select
    sort = F.sort
    argsort = F.argsort
    topk = F.topk
    nonzero = F.nonzero

    # --- linear algebra -----------------------------------------------------------------------------------------------

    matmul = F.matmul
    mm = F.mm
    bmm = F.bmm
    mv = F.mv
    dot = F.dot
    outer = F.outer

    # --- operators ----------------------------------------------------------------------------------------------------

    __add__ = __radd__ = F.add
    __sub__ = F.sub
    __mul__ = __rmul__ = F.mul
    __truediv__ = F.div
    __floordiv__ = F.floor_divide
    __mod__ = F.remainder
    __pow__ = F.pow
    __matmul__ = F.matmul
    __neg__ = F.neg
    __abs__ = F.abs
    __invert__ = F.bitwise_not
    __and__ = __rand__ = F.bitwise_and
    __or__ = __ror__ = F.bitwise_or
    __xor__ = __rxor__ = F.bitwise_xor
    __lt__ = F.lt
    __le__ = F.le
    __gt__ = F.gt
    __ge__ = F.ge

    def __rsub__(self, other: Any) -> Any:
        return F.sub(other, self)

    def __rtruediv__(self, other: Any) -> Any:
        return F.div(other, self)

    def __rfloordiv__(self, other: Any) -> Any:
        return F.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Any:
        return F.remainder(other, self)

    def __rpow__(self, other: Any) -> Any:
        return F.pow(other, self)

    def __rmatmul__(self, other: Any) -> Any:
        return F.matmul(other, self)

    # --- dtypes: last, because the names hide Python's own from here on -----------------------------------------------

    def double(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.float64, memory_format)

    def half(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.float16, memory_format)

    def bfloat16(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.bfloat16, memory_format)

    def long(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.int64, memory_format)

    def short(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.int16, memory_format)

    def char(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.int8, memory_format)

    def byte(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.uint8, memory_format)

    def float(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.float32, memory_format)

    def int(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.int32, memory_format)

    def bool(self, memory_format: str = "preserve") -> Any:
        return _cast(self, dtypes.bool_, memory_format)


def _unpacked(sizes: tuple[Any, ...]) -> Any:
    """x.reshape(2, 3) and x.reshape((2, 3)) mean the same."""
    return sizes[0] if len(sizes) == 1 and not hasattr(sizes[0], "__index__") else sizes


def _cast(tensor: Variable, dtype: DType, memory_format: str) -> Any:
    result = F.cast(tensor, dtype)
    return result if memory_format == "preserve" else F.contiguous(result, memory_format)
