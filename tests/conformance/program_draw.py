"""Statements of random programs, as Python source: what is drawn fits the tensors that there are, most of the time.

A drawer is given the tensors as PyTorch has them, and gives a statement over their names, `lib` (genesis or torch) and
`F`; None where nothing fits. `new` stands for the name of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.fuzz_draw import Draw
from tests.conformance.surface import words

Pool = dict[str, torch.Tensor]
Drawer = Callable[[Draw, Pool], str | None]

NUMBERS = words("0 1 2 -1 3 300 0.5 -1.5 2.0 -0.0 1e3 True False nan inf")
DTYPES = words("float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool")
SMOOTH = words("exp sin cos tanh sigmoid erf square expm1 relu abs neg sqrt log1p")
STEPS = words("sign floor ceil round isnan isinf isfinite logical_not log rsqrt reciprocal")
ACTIVATIONS = words("relu6 hardtanh leaky_relu elu gelu silu softplus hardswish hardsigmoid")
ARITHMETIC = ("+", "-", "*", "/")
DIVISIONS = ("//", "%", "**")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


# --- what is drawn from the pool --------------------------------------------------------------------------------------
def name(d: Draw, pool: Pool, fits: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
    names = [key for key, tensor in pool.items() if fits(tensor)]
    return d.choice(names) if names else None


def of_rank(least: int, most: int = 9) -> Callable[[torch.Tensor], bool]:
    return lambda t: least <= t.ndim <= most


def floating(t: torch.Tensor) -> bool:
    return t.is_floating_point()


def other(d: Draw, pool: Pool, t: torch.Tensor) -> str:
    """An operand beside t: mostly one that broadcasts, or a number."""
    if d.chance(0.3):
        return d.choice(NUMBERS)
    fitting = [key for key, tensor in pool.items() if _broadcasts(tensor.shape, t.shape)]
    return d.choice(fitting if fitting and d.chance(0.9) else list(pool))


def apart(d: Draw, pool: Pool, t: str) -> str:
    """As other, but a change of t in place cannot change it midway: PyTorch's results depend on the order then."""
    drawn = other(d, pool, pool[t])
    return drawn if drawn in (t, *NUMBERS) or not _share(pool[drawn], pool[t]) else t


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _broadcasts(a: torch.Size, b: torch.Size) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def position(d: Draw, t: torch.Tensor) -> int:
    dim = d.integer(0, t.ndim - 1)
    return dim - t.ndim if d.chance(0.3) else dim


def index(d: Draw, pool: Pool, t: torch.Tensor) -> str:
    """An index into t: integers, slices, None, '...', lists of integers, masks."""
    if d.chance(0.1):
        mask = name(d, pool, lambda m: m.dtype is torch.bool and 0 < m.ndim <= t.ndim and m.shape == t.shape[: m.ndim])
        if mask is not None:
            return mask
    items = []
    for size in t.shape[: d.integer(0, t.ndim)]:
        kind = d.integer(0, 9)
        if kind < 3 and size:
            items.append(str(d.integer(-size, size - 1)))
        elif kind < 7:
            start, stop = d.integer(-size - 1, size), d.integer(-size, size + 1)
            items.append(d.choice([":", f"{start}:", f":{stop}", f"{start}:{stop}", f"::{d.integer(1, 3)}"]))
        elif kind < 8 and size:
            items.append(str([d.integer(-size, size - 1) for _ in range(d.integer(1, 3))]))
        else:
            items.append(":")
        if d.chance(0.08):
            items.append("None")
    if d.chance(0.15):
        items.insert(d.integer(0, len(items)), "...")
    return ", ".join(items) or "..."


# --- statements -------------------------------------------------------------------------------------------------------
def unary(d: Draw, pool: Pool) -> str | None:
    return f"new = {name(d, pool)}.{d.choice((*SMOOTH, *STEPS))}()"


def smooth(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, floating)
    return t and f"new = {t}.{d.choice(SMOOTH[:-2])}()"


def activation(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, floating)
    if t is None or not torch.isfinite(pool[t].detach()).all():  # PyTorch's CPU makes NaN of gelu(inf), others do not
        return None
    return f"new = F.{d.choice(ACTIVATIONS)}({t})"


def binary(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool)
    assert t is not None
    operator = d.choice((*ARITHMETIC, *ARITHMETIC, *DIVISIONS, *COMPARISONS, "&", "|", "^"))
    second = other(d, pool, pool[t])
    return f"new = {t} {operator} {second}" if d.chance(0.8) else f"new = {second} {operator} {t}"


def arithmetic(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, floating)
    return t and f"new = {t} {d.choice(ARITHMETIC)} {other(d, pool, pool[t])}"


def in_place_operator(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool)
    assert t is not None
    operator = d.choice((*ARITHMETIC, *ARITHMETIC, *DIVISIONS, "&", "|", "^"))
    return f"{t} {operator}= {apart(d, pool, t)}"


def in_place_arithmetic(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, floating)
    return t and f"{t} {d.choice(ARITHMETIC)}= {apart(d, pool, t)}"


def in_place_method(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool)
    assert t is not None
    kind = d.integer(0, 5)
    if kind == 0:
        return f"{t}.fill_({d.choice(NUMBERS)})"
    if kind == 1:
        return f"{t}.copy_({name(d, pool, _fitting(pool[t])) or t})"
    if kind == 2:
        return f"{t}.clamp_({d.choice(('0, 2', 'min=1', 'max=2', '-0.5, 1.5'))})"
    if kind == 3:
        return f"{t}.{d.choice(('eq_', 'lt_', 'ge_', 'ne_'))}({apart(d, pool, t)})"
    return f"{t}.{d.choice((*SMOOTH, *STEPS[:4], 'zero', 'logical_not'))}_()"


def _fitting(target: torch.Tensor) -> Callable[[torch.Tensor], bool]:
    """What can be copied into the target, and does not lie in its memory."""
    return lambda s: _safe_cast(s, target) and _broadcasts(s.shape, target.shape) and not _share(s, target)


def _safe_cast(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Casts of floats that an integer cannot hold differ between machines."""
    if target.is_floating_point() or target.dtype is torch.bool or not source.is_floating_point():
        return True
    low = 0 if target.dtype is torch.uint8 else -100
    return bool(((source >= low) & (source <= 100)).all())


def view(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, of_rank(1, 5))
    if t is None:
        return None
    x = pool[t]
    dim, second = position(d, x), position(d, x)
    size = x.shape[dim]
    start = d.integer(0, size)
    order = list(range(x.ndim))
    d._random.shuffle(order)
    choices = [
        f"{t}.transpose({dim}, {second})",
        f"{t}.permute({', '.join(map(str, order))})",
        f"{t}.unsqueeze({d.integer(0, x.ndim)})",
        f"{t}.squeeze()",
        f"{t}.narrow({dim}, {start}, {d.integer(0, size - start)})",
        f"{t}.flatten({0 if d.chance() else dim % x.ndim})",
        f"{t}.view({d.choice(('-1', ', '.join(map(str, x.shape)), f'{x.shape[0]}, -1'))})",
        f"{t}.reshape({d.choice(('-1', f'-1, {x.shape[-1]}', ', '.join(map(str, reversed(x.shape)))))})",
        f"{t}.expand({d.integer(1, 3)}, {', '.join('-1' for _ in x.shape)})",
        f"{t}.split({max(1, size // 2)}, {dim})[0]",
        f"{t}.chunk(2, {dim})[-1]",
        f"{t}.movedim({dim}, {second})",
        f"{t}.contiguous()",
        f"{t}.detach()",
        t,
        f"{t}[{index(d, pool, x)}]",
        f"{t}[{index(d, pool, x)}]",
    ]
    if x.ndim >= 2:
        choices.append(f"{t}.diagonal({d.integer(-1, 1)})")
    if size:
        choices.append(f"{t}.unbind({dim})[{d.integer(0, size - 1)}]")
    return f"new = {d.choice(choices)}"


def assignment(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, of_rank(1))
    if t is None:
        return None
    where = index(d, pool, pool[t])
    if d.chance(0.5):
        return f"{t}[{where}] = {d.choice(NUMBERS)}"
    source = name(d, pool, lambda s: s.numel() <= 1 and _fitting(pool[t])(s))
    value = f"{t}[{where}] * 2" if source is None or d.chance() else source
    return f"{t}[{where}] = {value}"


def reduction(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool)
    assert t is not None
    x = pool[t]
    op = d.choice(words("sum prod mean amax amin all any var std max min argmax argmin logsumexp norm"))
    if x.ndim == 0 or (d.chance(0.25) and op != "logsumexp"):
        return f"new = {t}.{op}()" if op != "logsumexp" else None
    dim, keep = position(d, x), d.choice(("", ", keepdim=True"))
    if op in ("max", "min"):
        return f"new = {t}.{op}({dim}{keep}).values"
    dtype = f", dtype=lib.{d.choice(DTYPES)}" if op in words("sum prod mean") and d.chance(0.2) and _small(x) else ""
    return f"new = {t}.{op}({'dim=' if op == 'norm' else ''}{dim}{keep}{dtype})"


def _small(x: torch.Tensor) -> bool:
    return bool((x.double().abs() <= 100).all()) and bool((x.double() >= 0).all())


def smooth_reduction(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, lambda x: floating(x) and x.numel() > 0)
    if t is None:
        return None
    op = d.choice(("sum", "mean", "amax", "amin", "logsumexp", "sum", "max", "min"))
    if pool[t].ndim == 0 or (d.chance(0.25) and op != "logsumexp"):
        return f"new = {t}.{op}()" if op != "logsumexp" else None
    dim = position(d, pool[t])
    return f"new = {t}.{op}({dim}){'.values' if op in ('max', 'min') else ''}"


def along(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, of_rank(1))
    if t is None:
        return None
    dim = position(d, pool[t])
    size = pool[t].shape[dim]
    wanted = str([d.integer(0, size - 1) for _ in range(d.integer(1, 3))]) if size else "[0]"
    at = f"lib.tensor({wanted}, device=device)" + ("" if size else "[:0]")
    choices = [
        f"{t}.cumsum({dim})",
        f"{t}.flip({dim})",
        f"{t}.roll({d.integer(-2, 2)}, {dim})",
        f"{t}.index_select({dim}, {at})",
        f"{t}.sort(dim={dim}, stable=True).values",
        f"{t}.softmax({dim})" if floating(pool[t]) else f"{t}.cumsum({dim})",
        f"lib.cat([{t}, {t}], {dim})",
        f"lib.stack([{t}, {t} * 2], {dim})",
        f"{t}.topk({d.integer(0, min(2, size))}, {dim}).values",
        f"lib.take_along_dim({t}, {t}.argsort(dim={dim}, stable=True), {dim})",
    ]
    return f"new = {d.choice(choices)}"


def selection(d: Draw, pool: Pool) -> str | None:
    """Gather and scatter, as new tensors and in place."""
    t = name(d, pool, lambda x: 0 < x.ndim <= 3 and x.numel() > 0)
    if t is None:
        return None
    x = pool[t]
    dim = position(d, x)
    size = x.shape[dim]
    shape = [1 if i == dim % x.ndim else n for i, n in enumerate(x.shape)]
    at = f"lib.full({shape}, {d.integer(0, size - 1)}, dtype=lib.int64, device=device)"
    first, value = f"{t}.narrow({dim}, 0, 1)", d.choice(NUMBERS)
    rows = f"lib.tensor([{d.integer(0, size - 1)}], device=device)"
    if d.chance(0.4):
        changes = (
            f"{t}.scatter_({dim}, {at}, {value})",
            f"{t}.scatter_add_({dim}, {at}, {first} * 1)",
            f"{t}.index_add_({dim}, {rows}, {first} * 1)",
            f"{t}.masked_fill_({t} > 0, {value})",
            f"{t}.index_put_(({rows},), {t}[:1] * 1, accumulate={d.chance()})",
            f"{t}.cumsum_({dim})",
        )
        return d.choice(changes)
    choices = (
        f"{t}.gather({dim}, {at})",
        f"{t}.scatter({dim}, {at}, {value})",
        f"{t}.scatter({dim}, {at}, {first})",
        f"{t}.scatter_add({dim}, {at}, {first})",
        f"{t}.index_add({dim}, {rows}, {first})",
    )
    return f"new = {d.choice(choices)}"


def arrangement(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool)
    assert t is not None
    x = pool[t]
    choices = [
        f"{t}.clone()",
        f"{t}.masked_fill({t} == {t}, {d.choice(NUMBERS)})",
        f"lib.where({t} > 1, {t}, {other(d, pool, x)})",
        f"lib.where({t} == {t}, {other(d, pool, x)}, {t})",
        f"{t}.masked_select({t} > 0)",
        f"{t}.repeat({', '.join(str(d.integer(0, 2)) for _ in range(max(1, x.ndim)))})",
        f"{t}.clamp({d.choice(('0', '-1.5, 1', 'max=2', '1, 0'))})",
        f"{t}.nonzero()",
        f"lib.zeros_like({t})",
        f"lib.full_like({t}, {d.choice(NUMBERS)})",
        f"lib.maximum({t}, {t} * 0 + 1)",
    ]
    if x.ndim:
        choices.append(f"F.pad({t}, ({d.integer(0, 2)}, {d.integer(-1, 2)}), value={d.choice(NUMBERS)})")
    if x.ndim >= 2:
        choices += [f"{t}.tril({d.integer(-1, 1)})", f"{t}.triu()"]
    return f"new = {d.choice(choices)}"


def product(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool, lambda x: floating(x) and x.ndim >= 2)
    return t and f"new = {t} @ {t}.{d.choice(('mT', 'mT', 'relu()'))}"


def cast(d: Draw, pool: Pool) -> str | None:
    t = name(d, pool)
    assert t is not None
    dtype = d.choice(DTYPES)
    target = torch.empty(0, dtype=getattr(torch, dtype))
    return f"new = {t}.to(lib.{dtype})" if _safe_cast(pool[t], target) else None


def image(d: Draw, pool: Pool) -> str | None:
    """Layers on four dimensions: their results are channels-last here."""
    t = name(d, pool, lambda x: x.ndim == 4 and x.dtype is torch.float32 and x.numel() > 0 and min(x.shape[2:]) > 1)
    if t is None:
        return None
    channels = pool[t].shape[1]
    ones = f"lib.ones(2, {channels}, 1, 1, device=device)"
    layers = (
        f"F.conv2d({t}, {ones})",
        f"F.max_pool2d({t}, 2)",
        f"F.avg_pool2d({t}, 2)",
        f"F.interpolate({t}, scale_factor=2.0)",
    )
    return f"new = {d.choice(layers)}"


VALUES: tuple[Drawer, ...] = (
    unary, activation, binary, binary, binary, in_place_operator, in_place_operator, in_place_method, in_place_method,
    view, view, view, view, view, assignment, assignment, assignment, reduction, along, selection, selection,
    arrangement, product, cast, image,
)  # fmt: skip
GRADIENTS: tuple[Drawer, ...] = (
    smooth, activation, arithmetic, arithmetic, in_place_arithmetic, view, view, view, assignment, smooth_reduction,
    along, selection, arrangement, product, image,
)  # fmt: skip


def statement(d: Draw, pool: Pool, gradients: bool) -> str:
    """One that could be drawn."""
    while True:
        drawn = d.choice(GRADIENTS if gradients else VALUES)(d, pool)
        if drawn is not None:
            return drawn


def tensor(d: Draw, gradients: bool) -> torch.Tensor:
    """What a program starts with: any shape, strides and dtype; NaN and infinities among floats."""
    shape: Any = (
        (2, 3, 4, 4)
        if d.chance(0.15)
        else tuple(d.choice((0, 1, 2, 3, 3)) if d.chance(0.9) else 5 for _ in range(d.choice((0, 1, 1, 2, 2, 3, 4))))
    )
    dtype = d.choice((torch.float32, torch.float64)) if gradients else d.any_dtype(with_bool=True)
    drawn: torch.Tensor = d.tensor(shape, dtype, layout=d.choice(("contiguous", "permuted", "sliced", "offset")))
    if not gradients and dtype.is_floating_point and drawn.numel() and d.chance(0.25):
        flat = drawn.reshape(-1).clone()
        for value in (float("nan"), float("inf"), -float("inf"), -0.0)[: d.integer(1, 4)]:
            flat[d.integer(0, flat.numel() - 1)] = value
        drawn.copy_(flat.view(shape))
    return drawn
