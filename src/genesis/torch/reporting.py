"""The report of fuse(): read from the layers' entries at each access."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from genesis.fusion import Fusion
from genesis.torch import bridge
from genesis.torch.activations import of_layer
from genesis.torch.entries import BY_PYTORCH, TRAINED_BY_PYTORCH, ConvEntry, ModelEntry, PoolEntry
from genesis.torch.norm_entries import NormCallEntry, NormEntry
from genesis.torch.pending_scales import LAYER_SCALE
from genesis.torch.reasons import LEFT_IN_INFERENCE, NOTHING_FOLLOWS
from genesis.torch.setting_aside import entry_of

_OTHER_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm, _BatchNorm)


class Report(Fusion):
    """The current state of each convolution and max pooling layer: fused, replaced, or left and why."""

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)

    @property
    def fused(self) -> list[tuple[str, ...]]:  # type: ignore[override]
        return [parts for parts, _ in self._convolutions() if len(parts) > 1]

    @property
    def left(self) -> list[tuple[str, str]]:  # type: ignore[override]
        found = [(parts[0], reason) for parts, reason in self._convolutions() if len(parts) == 1]
        return found + [(name, reason) for name, reason in self._poolings() if reason]

    @property
    def replaced(self) -> list[str]:  # type: ignore[override]
        return [name for name, reason in self._poolings() if not reason]

    @property
    def plain(self) -> list[str]:
        """The inputs on the CPU with which PyTorch's layers alone took less time, and now run; see choosing.py."""
        model = self.model()
        entry = None if model is None else entry_of(model)
        return entry.choice.plain() if isinstance(entry, ModelEntry) else []

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  runs plain: {each}" for each in self.plain)])

    def _convolutions(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The names of the layers that run as one op; for a convolution that runs alone, the reason."""
        model = self.model()
        if model is None:
            return
        norms: dict[int, str] = {}
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                for tensor in (module._parameters.get("weight"), module._buffers.get("running_mean")):
                    norms[id(tensor)] = name
        order = _followers(model)
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                yield _of_convolution(name, module, norms, order)
            elif isinstance(entry := entry_of(module), NormEntry | NormCallEntry) and entry.bare.kinds:
                yield (name, *entry.bare.kinds[1:]), ""

    def _poolings(self) -> Iterator[tuple[str, str]]:
        model = self.model()
        for name, module in () if model is None else model.named_modules():
            if isinstance(module, nn.MaxPool2d):
                if not isinstance(entry_of(module), PoolEntry):
                    yield name, f"{type(module).__name__} is a subclass of MaxPool2d"
                elif module.return_indices:
                    yield name, "it returns indices too"
                else:
                    yield name, ""

    def __deepcopy__(self, memo: dict[int, nn.Module]) -> Report:
        model = self.model()
        return Report(memo.get(id(model), model))

    def __reduce__(self) -> tuple[type[Report], tuple[nn.Module | None]]:
        return Report, (self.model(),)


def _of_convolution(
    name: str, conv: nn.Conv2d, norms: dict[int, str], order: dict[str, list[tuple[str, nn.Module]]]
) -> tuple[tuple[str, ...], str]:
    entry = entry_of(conv)
    if not isinstance(entry, ConvEntry):
        kind = type(conv).__name__
        return (name,), "it is not fused" if type(conv) is nn.Conv2d else f"{kind} is a subclass of Conv2d"
    if conv.padding_mode != "zeros":
        return (name,), f"its padding mode is {conv.padding_mode}"
    if conv._forward_hooks or conv._backward_hooks or conv._backward_pre_hooks:
        return (name,), "it has hooks"
    followers = order.get(name)
    if not entry.active:
        return (name,), entry.reason
    if entry.kinds:
        names = {kind: part for part, kind in _kinds(followers or [])}
        names["norm"] = "mul" if entry.norm == LAYER_SCALE else norms.get(entry.norm, "batch norm")
        return (name, *(names.get(kind, kind) for kind in entry.kinds)), ""
    if entry.trained_by_pytorch:
        return (name,), TRAINED_BY_PYTORCH
    if entry.reason:  # of the calls so far
        return (name,), entry.reason
    if entry.left_in_inference:
        return (name,), LEFT_IN_INFERENCE
    if followers is not None:
        kinds = _kinds(followers)
        if kinds and kinds[0][1] != "norm" and not bridge.activates(conv.weight):
            return (name,), BY_PYTORCH
        if kinds:
            return (name, *(part for part, _ in kinds)), ""
        if followers and isinstance(followers[0][1], _OTHER_NORMS):
            return (name,), f"{type(followers[0][1]).__name__} is not BatchNorm2d"
        return (name,), NOTHING_FOLLOWS
    return (name,), "it has not been called yet"


def _kinds(followers: list[tuple[str, nn.Module]]) -> list[tuple[str, str]]:
    """The followers that run with a convolution, each with its kind."""
    found = []
    if followers and type(followers[0][1]) is nn.BatchNorm2d:
        found.append((followers[0][0], "norm"))
    activation = of_layer(followers[len(found)][1]) if len(followers) > len(found) else None
    if activation is not None:
        found.append((followers[len(found)][0], activation[0]))
    return found


def _followers(model: nn.Module) -> dict[str, list[tuple[str, nn.Module]]]:
    """For each layer of a plain Sequential, the two after it that do something."""
    found = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            parts = [
                (f"{prefix}.{name}" if prefix else name, child)
                for name, child in module._modules.items()
                if child is not None and type(child) is not nn.Identity
            ]
            for position, (name, _) in enumerate(parts):
                found[name] = parts[position + 1 : position + 3]
    return found


def attach(model: nn.Module) -> None:
    """model.fusion, where the name is free."""
    if not hasattr(model, "fusion"):
        model.__dict__["fusion"] = Report(model)


def detach(model: nn.Module) -> None:
    if isinstance(model.__dict__.get("fusion"), Report):
        del model.__dict__["fusion"]
