"""How tensors print: set_printoptions()."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from genesis import dtypes
from genesis.autograd import Variable
from genesis.dtypes import HostArray
from genesis.errors import GraphError, describe


@dataclass(frozen=True)
class Options:
    """See set_printoptions."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


PROFILES = {
    "default": Options(), "short": Options(precision=2, edgeitems=2), "full": Options(threshold=float("inf")),
}  # fmt: skip
_PREFIX = "tensor("
_options = PROFILES["default"]


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Set how tensors print; what is None stays as it is.

    Args:
        precision: digits behind the point.
        threshold: number of elements from which on "..." stands for the middle.
        edgeitems: rows and columns before and behind it.
        linewidth: characters of a line.
        profile: "default", "short" or "full", which the others change.
        sci_mode: whether floats print as 1.0000e+00; by default where numbers are large or small.
    Raises: ValueError: no such profile.

    Example:
        >>> genesis.set_printoptions(precision=2)
        >>> genesis.tensor([1.2345])
        tensor([1.23])
        >>> genesis.set_printoptions(profile="default")
    """
    global _options
    if profile is not None and profile not in PROFILES:
        raise ValueError(describe("set_printoptions", "profile", ", ".join(PROFILES), repr(profile)))
    base = _options if profile is None else PROFILES[profile]
    _options = Options(
        base.precision if precision is None else precision,
        base.threshold if threshold is None else threshold,
        base.edgeitems if edgeitems is None else edgeitems,
        base.linewidth if linewidth is None else linewidth,
        sci_mode,
    )


def text_of(tensor: Variable) -> str:
    """A tensor as PyTorch prints it: its elements, and notes behind them."""
    values, indent = tensor.array.numpy_values(), len(_PREFIX)
    if values.size:
        summarize = values.size > _options.threshold
        shown = _corners(values) if summarize else values
        form = ComplexFormatter(shown, _options) if values.dtype.kind == "c" else Formatter(shown, _options)
        body = _block(values, form, indent, summarize)
    else:
        body = "[]"
    parts = [_PREFIX, body]
    length = indent + len(body) - body.rfind("\n") + 1
    for note in _notes(tensor):
        if length + len(note) + 2 > _options.linewidth:
            parts += [",\n", " " * indent, note]
            length = indent + len(note)
        else:
            parts += [", ", note]
            length += len(note) + 2
    return "".join((*parts, ")"))


def _notes(tensor: Variable) -> list[str]:
    """Device, size, dtype and graph, as far as they don't go without saying."""
    array = tensor.array
    notes = [] if array.device.type == "cpu" else [f"device='{array.device}'"]
    is_empty = not array.numel
    if is_empty and array.ndim != 1:
        notes.append(f"size={array.shape}")
    default = dtypes.get_default_dtype()
    is_plain = array.dtype is default or (
        not is_empty and array.dtype in (dtypes.int64, dtypes.bool_, default.to_complex())
    )
    if not is_plain:
        notes.append(f"dtype={array.dtype}")
    try:
        made_by = repr(tensor.grad_fn)
    except GraphError:  # one of several views, whose base has changed
        made_by = "<Invalid>"
    if made_by != "None":
        notes.append(f"grad_fn={made_by}")
    elif tensor.requires_grad:
        notes.append("requires_grad=True")
    return notes


class Formatter:
    """Formats the elements of a tensor alike: all in one width, and either as integers, fixed or with exponents."""

    def __init__(self, values: HostArray, options: Options) -> None:
        self.is_floating, self.precision = values.dtype.kind == "f", options.precision
        self.is_integral, self.has_exponents, self.width = True, False, 1
        if not self.is_floating:
            self.width = max(len(str(value)) for value in values.ravel().tolist())
            return
        wide = values.astype(np.float64).ravel()
        wide = wide[np.isfinite(wide) & (wide != 0)]
        if not wide.size:
            return
        sizes = np.abs(wide)
        self.is_integral = bool((wide == np.ceil(wide)).all())
        least, most = sizes.min(), sizes.max()
        is_wide = bool(most / least > 1000.0 or most > 1e8 or least < 1e-4)
        self.has_exponents = is_wide if options.sci_mode is None else options.sci_mode
        self.width = max(1, *(len(self(value)) for value in wide.tolist()))

    def __call__(self, value: object) -> str:
        if not isinstance(value, float):
            text = str(value)
        elif self.has_exponents:
            text = f"{value:.{self.precision}e}"
        elif self.is_integral:
            text = f"{value:.0f}" + ("." if math.isfinite(value) else "")
        else:
            text = f"{value:.{self.precision}f}"
        return text.rjust(self.width)


class ComplexFormatter:
    """Formats complex numbers: their real parts alike, and their imaginary ones."""

    def __init__(self, values: HostArray, options: Options) -> None:
        self._real, self._imag = Formatter(values.real, options), Formatter(values.imag, options)
        self.width = self._real.width + self._imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = f"{self._imag(value.imag)}j".lstrip()
        return self._real(value.real) + (imag if imag[0] in "+-" else f"+{imag}")


def _block(values: HostArray, form: Formatter | ComplexFormatter, indent: int, summarize: bool) -> str:
    """The elements in brackets, a row to a line or to several."""
    if values.ndim == 0:
        return form(values.item())
    edge = _options.edgeitems
    is_cut = summarize and len(values) > 2 * edge
    kept = [*values[:edge], *values[len(values) - edge :]] if is_cut else list(values)
    if values.ndim > 1:
        blocks = [_block(each, form, indent + 1, summarize) for each in kept]
        if is_cut:
            blocks.insert(edge, "...")
        return "[" + (",".ljust(values.ndim, "\n") + " " * (indent + 1)).join(blocks) + "]"
    words = [form(each.item()) for each in kept]
    if is_cut:
        words.insert(edge, " ...")
    per_line = max(1, (_options.linewidth - indent) // (form.width + 2))
    lines = [", ".join(words[first : first + per_line]) for first in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _corners(values: HostArray) -> HostArray:
    """The elements that remain where "..." stands for the middle."""
    edge = _options.edgeitems
    for dim, size in enumerate(values.shape):
        if size > 2 * edge:
            values = np.take(values, [*range(edge), *range(size - edge, size)], dim)
    return values
