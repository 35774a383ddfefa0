"""torch.testing: assert_close of Genesis' tensors, by PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

import torch

from genesis import Tensor


def _to_torch(value: object) -> object:
    if isinstance(value, Tensor):
        return value.detach().cpu().to_torch()
    if isinstance(value, dict):
        return {key: _to_torch(each) for key, each in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(map(_to_torch, value))
    return value


class _Options(TypedDict, total=False):
    """Options of PyTorch's function."""

    allow_subclasses: bool
    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_dtype: bool
    check_layout: bool
    check_stride: bool
    msg: str | Callable[[str], str] | None


def assert_close(actual: object, expected: object, *, check_device: bool = True, **options: Unpack[_Options]) -> None:
    """Raise AssertionError unless numbers or tensors, or lists, tuples and dicts of them, are close.

    See torch.testing.assert_close; tensors are compared on the CPU.
    """
    if (
        check_device
        and isinstance(actual, Tensor)
        and isinstance(expected, Tensor)
        and actual.device != expected.device
    ):
        raise AssertionError(f"The values for attribute 'device' do not match: {actual.device} != {expected.device}.")
    torch.testing.assert_close(_to_torch(actual), _to_torch(expected), **options)
