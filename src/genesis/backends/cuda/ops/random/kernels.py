"""Random numbers by Philox 4x32-10 (Salmon et al. 2011): a function of (seed, call, element), whatever the grid.

Elements 4i … 4i + 3 take the four words of counter (i, call); 64-bit ones take the four words of counter (their number,
call) for themselves.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen


@triton.jit
def _words(seed, call, counters):
    """Four words of 32 bits for each counter."""
    low, high = counters.to(tl.uint32), (counters >> 32).to(tl.uint32)
    call_low, call_high = call.to(tl.uint32) + low * 0, (call >> 32).to(tl.uint32) + low * 0
    return tl.philox(seed, low, high, call_low, call_high)


@triton.jit
def _drawn(seed, call):
    """The seed and the number of this call. In a CUDA graph, seed is the address of the generator's seed and of the
    number of calls before the replay, and call counts those in the graph."""
    if seed.dtype.is_ptr():
        return tl.load(seed), tl.load(seed + 1) + call
    else:
        return seed, call


@triton.jit
def _in_order(a, b, c, d):
    """a₀ b₀ c₀ d₀ a₁ …"""
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def _long(high, low):
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def _unit(bits, BITS: tl.constexpr):
    """Uniform in [0, 1) from the upper bits, as many as the dtype holds exactly."""
    return (bits >> (32 - BITS)).to(tl.float32) * (1.0 / (1 << BITS))


@triton.jit
def _unit_float64(high, low):
    return (_long(high, low) >> 11).to(tl.float64) * (1.0 / (1 << 53))


@triton.jit
def _elements(BLOCK: tl.constexpr):
    """This program's counters, and the elements that belong to them in fours."""
    block = tl.program_id(0).to(tl.int64)
    return block * (BLOCK // 4) + tl.arange(0, BLOCK // 4), block * BLOCK + tl.arange(0, BLOCK)


@triton.jit(do_not_specialize=["seed", "call"])
def _rand_kernel(out_ptr, seed: tl.int64, call: tl.int64, num_elements, BITS: tl.constexpr, BLOCK: tl.constexpr):
    seed, call = _drawn(seed, call)
    if out_ptr.dtype.element_ty == tl.float64:
        elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        a, b, _, _ = _words(seed, call, elements)
        values = _unit_float64(a, b)
    else:
        counters, elements = _elements(BLOCK)
        a, b, c, d = _words(seed, call, counters)
        values = _unit(_in_order(a, b, c, d), BITS)
    tl.store(out_ptr + elements, values.to(out_ptr.dtype.element_ty), mask=elements < num_elements)


@triton.jit
def _normal_pair(a, b):
    """Two standard normals from two words (Box & Muller 1958)."""
    radius = libdevice.sqrt(-2.0 * libdevice.log((a.to(tl.float32) + 1.0) * 2.3283064365386963e-10))
    angle = b.to(tl.float32) * 1.4629180792671596e-09  # 2π / 2³²
    return radius * libdevice.cos(angle), radius * libdevice.sin(angle)


@triton.jit(do_not_specialize=["seed", "call"])
def _randn_kernel(out_ptr, seed: tl.int64, call: tl.int64, num_elements, BLOCK: tl.constexpr):
    seed, call = _drawn(seed, call)
    if out_ptr.dtype.element_ty == tl.float64:
        elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        a, b, c, d = _words(seed, call, elements)
        radius = libdevice.sqrt(-2.0 * libdevice.log(1.0 - _unit_float64(a, b)))
        values = radius * libdevice.cos(6.283185307179586 * _unit_float64(c, d))
    else:
        counters, elements = _elements(BLOCK)
        a, b, c, d = _words(seed, call, counters)
        w, x = _normal_pair(a, b)
        y, z = _normal_pair(c, d)
        values = _in_order(w, x, y, z)
    tl.store(out_ptr + elements, values.to(out_ptr.dtype.element_ty), mask=elements < num_elements)


@triton.jit(do_not_specialize=["seed", "call", "low", "span"])
def _randint_kernel(
    out_ptr,
    seed: tl.int64,
    call: tl.int64,
    low: tl.int64,
    span: tl.int64,
    num_elements,
    IS_SHORT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """low + ⌊u·span⌋ with u of 64 bits: no value is favoured by more than span / 2⁶⁴. IS_SHORT: span ≤ 2³¹."""
    seed, call = _drawn(seed, call)
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a, b, _, _ = _words(seed, call, elements)
    if IS_SHORT:  # the upper 32 bits of u·span, in two halves
        width = span.to(tl.uint64)
        carried = (a.to(tl.uint64) * width) + ((b.to(tl.uint64) * width) >> 32)
        drawn = (carried >> 32).to(tl.int64)
    else:
        drawn = tl.umulhi(_long(a, b), span.to(tl.uint64)).to(tl.int64)
    values = low + drawn
    if out_ptr.dtype.element_ty.is_floating():
        values = values.to(tl.float64)
        if out_ptr.dtype.element_ty != tl.float64:
            values = values.to(tl.float32)
    tl.store(out_ptr + elements, values.to(out_ptr.dtype.element_ty), mask=elements < num_elements)


@triton.jit
def _key(seed, call, counters):
    high, low, _, _ = _words(seed, call, counters)
    return _long(high, low)


@triton.jit(do_not_specialize=["seed", "call"])
def _randperm_ranks_kernel(out_ptr, seed: tl.int64, call: tl.int64, n, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """For few elements: element i goes where its random key ranks among all, so that every order is equally likely."""
    seed, call = _drawn(seed, call)
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    key = _key(seed, call, rows)[:, None]
    rank = tl.zeros((BLOCK_ROWS,), tl.int64)
    for start in range(0, n, BLOCK):
        others = start + tl.arange(0, BLOCK)
        other = _key(seed, call, others.to(tl.int64))[None, :]
        before = (other < key) | ((other == key) & (others[None, :] < rows[:, None]))
        rank += tl.sum((before & (others < n)[None, :]).to(tl.int32), 1)
    tl.store(out_ptr + rank, rows.to(out_ptr.dtype.element_ty), mask=rows < n)


@triton.jit
def _shuffled(values, seed, call, HALF_BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    """A permutation of the numbers of 2·HALF_BITS bits: a Feistel network whose round function is Philox."""
    MASK: tl.constexpr = (1 << HALF_BITS) - 1
    left, right = values >> HALF_BITS, values & MASK
    for k in tl.static_range(NUM_ROUNDS):
        word, _, _, _ = _words(seed, call, right + (k << 32))
        left, right = right, left ^ (word.to(tl.int64) & MASK)
    return (left << HALF_BITS) | right


@triton.jit(do_not_specialize=["seed", "call"])
def _randperm_kernel(
    out_ptr, seed: tl.int64, call: tl.int64, n, HALF_BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """For many elements: a permutation of a power of 4, walked on until it falls below n (Black & Rogaway 2002)."""
    seed, call = _drawn(seed, call)
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < n
    values = _shuffled(elements, seed, call, HALF_BITS, NUM_ROUNDS)
    outside = mask & (values >= n)
    while tl.max(outside.to(tl.int32), 0) != 0:
        values = tl.where(outside, _shuffled(values, seed, call, HALF_BITS, NUM_ROUNDS), values)
        outside = mask & (values >= n)
    tl.store(out_ptr + elements, values.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["seed", "call", "threshold"])
def _dropout_kernel(
    y_ptr,
    mask_ptr,
    x_ptr,
    seed: tl.int64,
    call: tl.int64,
    threshold: tl.int64,
    scale,
    num_elements,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = x·scale where a word is not below the threshold (p·2³²), else 0."""
    seed, call = _drawn(seed, call)
    counters, elements = _elements(BLOCK)
    a, b, c, d = _words(seed, call, counters)
    is_kept = _in_order(a, b, c, d).to(tl.int64) >= threshold
    exists = elements < num_elements
    x = tl.load(x_ptr + elements, mask=exists, other=0).to(COMPUTE)
    y = x * (is_kept.to(COMPUTE) * scale)
    tl.store(y_ptr + elements, y.to(y_ptr.dtype.element_ty), mask=exists)
    tl.store(mask_ptr + elements, is_kept, mask=exists)


SPECIMENS = [
    *(
        Specimen(_rand_kernel, (dtype, 7, 7, 1024), {"BITS": bits, "BLOCK": 1024})
        for dtype, bits in ((dtypes.float32, 24), (dtypes.bfloat16, 8), (dtypes.float64, 53))
    ),
    *(
        Specimen(_randn_kernel, (dtype, 7, 7, 1024), {"BLOCK": 1024})
        for dtype in (dtypes.float32, dtypes.float16, dtypes.float64)
    ),
    *(
        Specimen(_randint_kernel, (dtype, 7, 7, -5, 10, 1024), {"IS_SHORT": short, "BLOCK": 1024})
        for dtype in (dtypes.int64, dtypes.uint8, dtypes.bfloat16)
        for short in (True, False)
    ),
    # In a CUDA graph, seed is an address.
    Specimen(_rand_kernel, (dtypes.float32, dtypes.int64, 7, 1024), {"BITS": 24, "BLOCK": 1024}),
    Specimen(_randn_kernel, (dtypes.float32, dtypes.int64, 7, 1024), {"BLOCK": 1024}),
    Specimen(_randint_kernel, (dtypes.int64, dtypes.int64, 7, -5, 10, 1024), {"IS_SHORT": True, "BLOCK": 1024}),
    Specimen(
        _randperm_kernel, (dtypes.int64, dtypes.int64, 7, 100_000), {"HALF_BITS": 9, "NUM_ROUNDS": 8, "BLOCK": 512}
    ),
    Specimen(_randperm_ranks_kernel, (dtypes.int64, dtypes.int64, 7, 1000), {"BLOCK_ROWS": 32, "BLOCK": 128}),
    Specimen(
        _dropout_kernel,
        (dtypes.float32, dtypes.bool_, dtypes.float32, dtypes.int64, 7, 2**31, 2.0, 1024),
        {"COMPUTE": tl.float32, "BLOCK": 1024},
    ),
    Specimen(_randperm_ranks_kernel, (dtypes.int64, 7, 7, 1000), {"BLOCK_ROWS": 32, "BLOCK": 128}),
    Specimen(_randperm_kernel, (dtypes.int64, 7, 7, 100_000), {"HALF_BITS": 9, "NUM_ROUNDS": 8, "BLOCK": 512}),
    *(
        Specimen(
            _dropout_kernel, (dtype, dtypes.bool_, dtype, 7, 7, 2**31, 2.0, 1024), {"COMPUTE": compute, "BLOCK": 1024}
        )
        for dtype, compute in (
            (dtypes.float32, tl.float32),
            (dtypes.bfloat16, tl.float32),
            (dtypes.float64, tl.float64),
        )
    ),
]
