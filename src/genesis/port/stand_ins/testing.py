"""torch.testing: assert_close of Genesis' tensors, by PyTorch's."""

from __future__ import annotations

from typing import Any

import torch

from genesis import Tensor


def _to_torch(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().to_torch()
    if isinstance(value, dict):
        return {key: _to_torch(each) for key, each in value.items()}
    return type(value)(map(_to_torch, value)) if type(value) in (list, tuple) else value


def assert_close(actual: Any, expected: Any, *, check_device: bool = True, **options: Any) -> None:
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
