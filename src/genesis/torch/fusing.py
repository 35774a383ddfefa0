"""fuse(model) for PyTorch, and the way back."""

from __future__ import annotations

from typing import Any

from torch import nn

from genesis.errors import DTypeError, describe
from genesis.torch.entries import (
    FORWARD,
    SCRIPT,
    ConvEntry,
    ModelEntry,
    NormEntry,
    PoolEntry,
    ReLUEntry,
    Scriptable,
    _Entry,
    strip,
)  # fmt: skip
from genesis.torch.pending import install
from genesis.torch.reporting import Report, attach, detach

_FORWARDS: dict[type[nn.Module], Any] = {
    nn.Conv2d: ConvEntry, nn.BatchNorm2d: NormEntry, nn.ReLU: ReLUEntry, nn.MaxPool2d: PoolEntry
}  # fmt: skip


def fuse(model: nn.Module) -> nn.Module:
    """Run convolution → batch norm (→ sum) → ReLU as one op wherever a model has that, in training and inference.

    Nothing is traced and no layer is replaced: the model's own code runs at each call. What a convolution gives is put
    off until that code shows what it does with it; where batch norm, a sum or ReLU follow, these become one op, and
    with anything else the convolution is computed as ever. Max pooling layers run by Genesis' kernels on CUDA.
    model.fusion, or report(model), says what was fused, and what was left and why.

    Args:
        model: any torch.nn.Module; its Conv2d and MaxPool2d layers get an attribute, which unfuse(model) removes.
    Returns: model.

    Example:
        >>> import genesis.torch, torch
        >>> layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 1)
        >>> model = genesis.torch.fuse(torch.nn.Sequential(*layers))
        >>> print(model.fusion)
        1 fused, 1 left
          0 → 1 → 2
          3: left, as no batch norm follows
        >>> model(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 1, 6, 6])
    """
    _check("fuse", model)
    install()
    for name, module in model.named_modules():
        state = module.__dict__
        if type(module) in _FORWARDS and state.keys().isdisjoint((FORWARD, "_conv_forward")):
            state[FORWARD] = _FORWARDS[type(module)](module, name)
    forward = model.__dict__.get(FORWARD)
    if not isinstance(forward, _Entry):
        model.__dict__[FORWARD] = entry = ModelEntry(model, "")
        if forward is not None:
            entry.inner = forward
    model.__dict__.setdefault(SCRIPT, Scriptable(model))
    attach(model)
    return model


def unfuse(model: nn.Module) -> nn.Module:
    """The plain model again: the same modules, parameters, buffers and hooks, and no attribute of fuse's.

    For what wants to see plain layers: exporters, quantization, surgery on compiled code.

    Args:
        model: what fuse() was called with, or a part or copy of it; it is changed in place.
    Returns: model.

    Example:
        >>> import genesis.torch, torch
        >>> model = genesis.torch.fuse(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)))
        >>> hasattr(genesis.torch.unfuse(model), "fusion")
        False
    """
    _check("unfuse", model)
    for module in strip(model).modules():
        detach(module)
    return model


def report(model: nn.Module) -> Report:
    """What became of each convolution and max pooling layer of a model that was fused, as far as its calls have shown.

    Before the first call it says what a Sequential's order promises.

    Example:
        >>> import genesis.torch, torch
        >>> model = genesis.torch.fuse(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)))
        >>> genesis.torch.report(model).fused
        [('0', '1')]
    """
    _check("report", model)
    return Report(model)


def _check(op: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise DTypeError(describe(op, "model", "a torch.nn.Module", type(model).__name__))
