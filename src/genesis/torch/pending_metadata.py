"""The facts of a Pending that are known before it is computed: shape, dtype, device and the like."""

from __future__ import annotations

import torch
from torch import Tensor

from genesis.torch.activations import Function
from genesis.torch.pending import HANDLERS, NOT_HERE, NotHere, Pending, each

_METADATA = [
    Tensor.shape.__get__, Tensor.size, Tensor.dim, Tensor.ndim.__get__, Tensor.dtype.__get__, Tensor.numel,
    Tensor.device.__get__, Tensor.is_cuda.__get__, Tensor.is_cpu.__get__, Tensor.is_floating_point, Tensor.is_complex,
    Tensor.get_device, torch.is_floating_point, torch.is_complex, torch.numel, Tensor.nelement, Tensor.__len__,
    Tensor.layout.__get__, Tensor.is_sparse.__get__, Tensor.is_quantized.__get__,
    Tensor.is_meta.__get__,
]  # fmt: skip


def _metadata(func: Function, *args: object, **kwargs: object) -> object:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _strides(func: Function, p: Pending, *args: object, **kwargs: object) -> object:
    if p.link.plan.is_ambiguous and p.stage:  # known when they are there
        return NOT_HERE
    return _metadata(func, p, *args, **kwargs)


def _requires_grad(p: Pending) -> bool | NotHere:
    return p.link.needs_gradients(p.stage) if p.value is None else NOT_HERE


HANDLERS.update(
    {
        **each(_metadata, _METADATA),
        **each(_strides, (Tensor.stride, Tensor.is_contiguous)),
        Tensor.requires_grad.__get__: _requires_grad,
    }
)
