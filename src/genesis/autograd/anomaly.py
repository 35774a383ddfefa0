"""detect_anomaly: a backward pass that makes NaN says of which op, and where that was called."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Self

from genesis import callsite
from genesis.autograd.modes import unrecordable
from genesis.errors import GraphError
from genesis.ndarray import NDArray, ops


class detect_anomaly:  # noqa: N801  (PyTorch's name)
    """Note the user's line of each op, and raise where the gradient of one is NaN. It is slow: for debugging only.

    Args:
        check_nan: look for NaN; else only the lines are noted, for errors of backward.

    Warns: UserWarning: that it is on, as in PyTorch.

    Example:
        >>> import warnings
        >>> x = genesis.tensor([0.0], requires_grad=True)
        >>> with warnings.catch_warnings(action="ignore"), genesis.autograd.detect_anomaly():
        ...     try:
        ...         (x.sqrt() * 0).sum().backward()
        ...     except RuntimeError as error:
        ...         str(error).startswith("Sqrt.backward: gradient 0 is NaN")
        True
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._before = callsite.anomaly
        self._mode = callsite.Anomaly(True, bool(check_nan))

    def __enter__(self) -> Self:
        warnings.warn("Anomaly Detection has been enabled. It is for debugging only, and slow.", stacklevel=2)
        callsite.anomaly = self._mode
        return self

    def __exit__(self, *exception: object) -> None:
        callsite.anomaly = self._before


class set_detect_anomaly(detect_anomaly):  # noqa: N801  (PyTorch's name)
    """Turn `genesis.autograd.detect_anomaly` on or off: for good when just called, or as a with block.

    Args:
        mode: whether it is on.
        check_nan: as in `genesis.autograd.detect_anomaly`.

    Example:
        >>> x = genesis.ones(1, requires_grad=True)
        >>> with genesis.autograd.set_detect_anomaly(True):
        ...     x.exp().sum().backward()
        >>> round(x.grad.item(), 2)
        2.72
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        super().__init__(check_nan)
        self._mode = callsite.Anomaly(bool(mode), bool(check_nan))
        callsite.anomaly = self._mode

    def __enter__(self) -> Self:
        return self


def require_no_nan(function: type, line: str | None, grads: Iterable[NDArray | None]) -> None:
    """Raise GraphError if a gradient that an op's backward gave is NaN."""
    unrecordable("looks for NaN in gradients")
    for number, grad in enumerate(grads):
        if grad is None or not grad.dtype.is_differentiable or not grad.numel:
            continue
        if ops.any(grad.isnan(), tuple(range(grad.ndim))).item():
            place = f"the op was called at {line}" if line else "the op was called outside detect_anomaly"
            raise GraphError(f"{function.__name__}.backward: gradient {number} is NaN; {place}")
