"""fuse(model) for PyTorch, and the way back."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from genesis.errors import DTypeError, describe
from genesis.torch.activations import LAYERS
from genesis.torch.autograd_functions import install
from genesis.torch.conv_call_entries import ConvCallEntry
from genesis.torch.entries import (
    SCRIPT,
    ActivationEntry,
    AveragePoolEntry,
    ConvEntry,
    ModelEntry,
    PoolEntry,
    Scriptable,
    SequentialEntry,
    strip,
)  # fmt: skip
from genesis.torch.entry import FORWARD, Entry
from genesis.torch.norm_entries import FrozenNormEntry, NormCallEntry, NormEntry
from genesis.torch.recordings import Recordings, compiled_of, uncompile
from genesis.torch.reporting import Report, attach, detach
from genesis.torch.sequences import is_sequential
from genesis.torch.setting_aside import put_back

_FORWARDS: dict[type[nn.Module], type[Entry]] = {
    nn.Conv2d: ConvEntry, nn.BatchNorm2d: NormEntry, nn.MaxPool2d: PoolEntry,
    nn.AvgPool2d: AveragePoolEntry, **dict.fromkeys(LAYERS, ActivationEntry)
}  # fmt: skip


def fuse(model: nn.Module) -> nn.Module:
    """Run convolution → batch norm (→ sum) → activation as one op wherever a model has that, on CUDA without norms too.

    Nothing is traced and no layer is replaced: the model's own code runs at each call. A convolution is deferred until
    that code uses its result: batch norm, a sum and an activation that follow run with it as one op, and before
    anything else it is computed as usual. On CUDA, max pooling layers run Genesis' kernels, and average pooling layers
    where PyTorch's gradient is wrong. On the CPU the first calls with each kind of inputs are timed, fused and plain,
    and the faster way stays. model.fusion, or report(model), lists the chains that were fused, and the convolutions
    that were not, each with the reason.

    Args:
        model: any torch.nn.Module; its convolutions, norms and poolings get an attribute, which unfuse(model) removes.
    Returns: model.
    Raises: TypeError: model is no torch.nn.Module.

    Example:
        >>> import genesis.torch, torch
        >>> layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 1)
        >>> model = genesis.torch.fuse(torch.nn.Sequential(*layers))
        >>> print(model.fusion)
        1 fused, 1 left
          0 → 1 → 2
          3: left, as no batch norm or activation follows
        >>> model(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 1, 6, 6])
    """
    _check("fuse", model)
    install()
    entries: dict[type[nn.Module], type[Entry] | None] = {}
    found: dict[nn.Module, str] = {}
    _name_layers(model, "", found)
    for module, name in found.items():
        put_back(module)
        state, kind = module.__dict__, type(module)
        if kind not in entries:
            entries[kind] = _entry_for(kind)
        entry = entries[kind]
        if entry is SequentialEntry and module is model:
            continue
        if entry is not None and FORWARD not in state and "_conv_forward" not in state:
            state[FORWARD] = entry(module, name)
    forward = model.__dict__.get(FORWARD)
    if not isinstance(forward, Entry):
        model.__dict__[FORWARD] = whole = ModelEntry(model, "")
        if forward is not None:
            whole.inner = forward
    model.__dict__.setdefault(SCRIPT, Scriptable(model))
    attach(model)
    return model


def _name_layers(module: nn.Module, name: str, found: dict[nn.Module, str]) -> None:
    """model.named_modules() in a third of its time, which was a third of fuse()."""
    found[module] = name
    prefix = f"{name}." if name else ""
    for part, child in module.__dict__["_modules"].items():
        if child is not None and child not in found:
            _name_layers(child, prefix + part, found)


def _entry_for(kind: type[nn.Module]) -> type[Entry] | None:
    """Find the entry that stands for the forward of modules of a class; None: they keep their own."""
    if f"{kind.__module__}.{kind.__qualname__}" in FrozenNormEntry.NAMES:
        return FrozenNormEntry
    if kind in _FORWARDS:
        return _FORWARDS[kind]
    if issubclass(kind, nn.Conv2d) and not issubclass(kind, LazyModuleMixin):
        return ConvEntry if kind.forward is nn.Conv2d.forward else ConvCallEntry
    if issubclass(kind, nn.BatchNorm2d) and not issubclass(kind, LazyModuleMixin):
        return NormEntry if kind.forward is nn.BatchNorm2d.forward else NormCallEntry
    return SequentialEntry if is_sequential(kind) else None


def unfuse(model: nn.Module) -> nn.Module:
    """Undo fuse() and compile(): the same modules, parameters, buffers and hooks, without what those added.

    Exporters, quantization and other tools that need plain layers take the result.

    Args:
        model: the model that fuse() or compile() was called with, or a part or copy of it; it is changed in place.
    Returns: model.
    Raises: TypeError: model is no torch.nn.Module.

    Example:
        >>> import genesis.torch, torch
        >>> model = genesis.torch.fuse(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)))
        >>> hasattr(genesis.torch.unfuse(model), "fusion")
        False
    """
    _check("unfuse", model)
    uncompile(model)
    for module in strip(model).modules():
        detach(module)
    return model


def report(model: nn.Module) -> Report | Recordings:
    """Report which convolutions and max pooling layers of a model are fused or replaced, and why others are not.

    It is based on the calls so far; before the first one, on the order of layers in each Sequential. Of a compiled
    model it lists the graphs: what was fused in each, why they end where they do, and why which calls ran eagerly.

    Args:
        model: a model that fuse() or compile() was called with.
    Returns: a report whose fused, left and replaced are read anew at each access; printing it lists all of them. Of a
        compiled model, its recordings.
    Raises: TypeError: model is no torch.nn.Module.

    Example:
        >>> import genesis.torch, torch
        >>> model = genesis.torch.fuse(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)))
        >>> genesis.torch.report(model).fused
        [('0', '1')]
    """
    _check("report", model)
    compiled = compiled_of(model)
    return compiled.report() if compiled is not None else Report(model)


def _check(op: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise DTypeError(describe(op, "model", "a torch.nn.Module", type(model).__name__))
