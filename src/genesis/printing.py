"""How tensors print: set_printoptions()."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from genesis.dtypes import HostArray
from genesis.errors import describe


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


def text_of(values: HostArray, prefix: str) -> str:
    """The elements as text, to stand behind prefix."""
    options = _options
    form = f".{options.precision}{'e' if options.sci_mode else 'f'}"
    return np.array2string(
        values,
        max_line_width=options.linewidth,
        precision=options.precision,
        separator=", ",
        prefix=prefix,
        formatter=None if options.sci_mode is None else {"float_kind": lambda value: format(value, form)},
        threshold=int(min(options.threshold, 2**62)),
        edgeitems=options.edgeitems,
    )
