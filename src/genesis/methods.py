"""The methods and operators of Tensor that are functions of the functional layer: a table of names.

They stand apart from tensor.py because they need nothing of it; a method `float` would also hide Python's own there.
"""

from __future__ import annotations

from genesis import functional as F
from genesis import linalg
from genesis.adapted import (
    expand,
    expand_as,
    flip,
    permute,
    polygamma,
    rdiv,
    repeat,
    reshape,
    reshape_as,
    rfloor_divide,
    rlshift,
    rmatmul,
    rpow,
    rremainder,
    rrshift,
    rsub,
    split,
    sum_to_size,
    tile,
    to_bfloat16,
    to_bool,
    to_complex64,
    to_complex128,
    to_float16,
    to_float32,
    to_float64,
    to_int8,
    to_int16,
    to_int32,
    to_int64,
    to_uint8,
    view,
    view_as,
    where,
)
from genesis.functional.keywords import also
from genesis.linalg import older
from genesis.properties import Properties


class Methods(Properties):
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
    hardshrink = F.hardshrink
    prelu = F.prelu
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
    bitwise_left_shift = F.bitwise_left_shift
    bitwise_right_shift = F.bitwise_right_shift
    where = where
    tan = F.tan
    asin = F.asin
    acos = F.acos
    atan = F.atan
    sinh = F.sinh
    cosh = F.cosh
    asinh = F.asinh
    acosh = F.acosh
    atanh = F.atanh
    atan2 = F.atan2
    hypot = F.hypot
    exp2 = F.exp2
    log2 = F.log2
    log10 = F.log10
    erfc = F.erfc
    erfinv = F.erfinv
    i0 = F.i0
    frexp = F.frexp
    lgamma = F.lgamma
    digamma = F.digamma
    trunc = F.trunc
    frac = F.frac
    fmod = F.fmod
    copysign = F.copysign
    nextafter = F.nextafter
    signbit = F.signbit
    logit = F.logit
    sinc = F.sinc
    nan_to_num = F.nan_to_num
    deg2rad = F.deg2rad
    rad2deg = F.rad2deg
    logaddexp = F.logaddexp
    logaddexp2 = F.logaddexp2
    xlogy = F.xlogy
    heaviside = F.heaviside
    lerp = F.lerp
    addcmul = F.addcmul
    addcdiv = F.addcdiv
    ldexp = F.ldexp
    float_power = F.float_power
    fmax = F.fmax
    fmin = F.fmin
    clamp_min = F.clamp_min
    clamp_max = F.clamp_max
    mvlgamma = F.mvlgamma
    igamma = F.gammainc
    igammac = F.gammaincc
    logical_xor = F.logical_xor
    isclose = F.isclose
    isposinf = F.isposinf
    isneginf = F.isneginf
    isreal = F.isreal
    arctan = F.atan
    arcsin = F.asin
    arccos = F.acos
    arcsinh = F.asinh
    arccosh = F.acosh
    arctanh = F.atanh
    arctan2 = F.atan2
    absolute = F.abs
    negative = F.neg
    positive = F.positive
    subtract = F.sub
    multiply = F.mul
    divide = F.div
    true_divide = F.div
    greater = F.gt
    greater_equal = F.ge
    less = F.lt
    less_equal = F.le
    not_equal = F.ne
    fix = F.trunc
    sgn = F.sign
    angle = F.angle
    conj = F.conj
    conj_physical = F.conj_physical
    resolve_conj = F.resolve_conj
    resolve_neg = F.resolve_neg

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
    nansum = F.nansum
    nanmean = F.nanmean
    aminmax = F.aminmax
    median = F.median
    nanmedian = F.nanmedian
    mode = F.mode
    kthvalue = F.kthvalue
    quantile = F.quantile
    nanquantile = F.nanquantile
    msort = F.msort
    cummin = F.cummin
    cumprod = F.cumprod
    count_nonzero = F.count_nonzero
    diff = F.diff
    histc = F.histc
    bincount = F.bincount
    renorm = F.renorm
    dist = F.dist
    cov = F.cov
    corrcoef = F.corrcoef
    allclose = F.allclose
    equal = F.equal
    unique = F.unique
    unique_consecutive = F.unique_consecutive

    # --- shape --------------------------------------------------------------------------------------------------------

    reshape = reshape
    reshape_as = reshape_as
    view = view
    view_as = view_as
    expand = expand
    expand_as = expand_as
    permute = permute
    repeat = repeat
    tile = tile
    flip = flip
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
    split = split
    sum_to_size = sum_to_size
    chunk = F.chunk
    unbind = F.unbind
    narrow = F.narrow
    tril = F.tril
    triu = F.triu
    contiguous = F.contiguous
    clone = F.clone
    pin_memory = F.pin_memory
    moveaxis = F.moveaxis
    swapdims = F.swapdims
    fliplr = F.fliplr
    flipud = F.flipud
    rot90 = F.rot90
    ravel = F.ravel
    tensor_split = F.tensor_split
    hsplit = F.hsplit
    vsplit = F.vsplit
    dsplit = F.dsplit
    split_with_sizes = F.split_with_sizes
    unsafe_chunk = F.unsafe_chunk
    unsafe_split = also(axis="dim")(split)
    repeat_interleave = F.repeat_interleave
    diag = F.diag
    diag_embed = F.diag_embed
    diagflat = F.diagflat
    select = F.select
    unfold = F.unfold_windows
    stft = F.stft
    istft = F.istft

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
    scatter_reduce = F.scatter_reduce
    as_strided = F.as_strided
    gcd = F.gcd
    lcm = F.lcm
    logcumsumexp = F.logcumsumexp
    polygamma = polygamma
    index_reduce = F.index_reduce
    masked_fill = F.masked_fill
    masked_select = F.masked_select
    sort = F.sort
    argsort = F.argsort
    topk = F.topk
    nonzero = F.nonzero
    take = F.take
    put = F.put
    index_fill = F.index_fill
    index_copy = F.index_copy
    masked_scatter = F.masked_scatter
    diagonal_scatter = F.diagonal_scatter
    select_scatter = F.select_scatter
    slice_scatter = F.slice_scatter
    argwhere = F.argwhere

    # --- linear algebra -----------------------------------------------------------------------------------------------

    matmul = F.matmul
    mm = F.mm
    bmm = F.bmm
    mv = F.mv
    dot = F.dot
    outer = F.outer
    addmm = F.addmm
    addmv = F.addmv
    addr = F.addr
    addbmm = F.addbmm
    baddbmm = F.baddbmm
    inner = F.inner
    vdot = F.vdot
    cross = F.cross
    kron = F.kron
    trace = F.trace
    ger = F.ger
    matrix_power = linalg.matrix_power
    det = linalg.det
    logdet = linalg.logdet
    slogdet = linalg.slogdet
    inverse = linalg.inv
    cholesky = older.cholesky
    matrix_exp = linalg.matrix_exp
    adjoint = older.adjoint
    cholesky_inverse = older.cholesky_inverse
    cholesky_solve = older.cholesky_solve
    lu_solve = older.lu_solve
    pinverse = older.pinverse
    qr = older.qr
    svd = older.svd
    triangular_solve = older.triangular_solve

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
    __pos__ = F.positive
    __abs__ = F.abs
    __invert__ = F.bitwise_not
    __and__ = __rand__ = F.bitwise_and
    __or__ = __ror__ = F.bitwise_or
    __xor__ = __rxor__ = F.bitwise_xor
    __lshift__ = F.bitwise_left_shift
    __rshift__ = F.bitwise_right_shift
    __rlshift__ = rlshift
    __rrshift__ = rrshift
    __lt__ = F.lt
    __le__ = F.le
    __gt__ = F.gt
    __ge__ = F.ge
    __rsub__ = rsub
    __rtruediv__ = rdiv
    __rfloordiv__ = rfloor_divide
    __rmod__ = rremainder
    __rpow__ = rpow
    __rmatmul__ = rmatmul

    # --- dtypes: last, because the names hide Python's own from here on -----------------------------------------------

    cfloat = to_complex64
    cdouble = to_complex128
    double = to_float64
    half = to_float16
    bfloat16 = to_bfloat16
    long = to_int64
    short = to_int16
    char = to_int8
    byte = to_uint8
    float = to_float32
    int = to_int32
    bool = to_bool
