"""Buffers of a DistributedDataParallel of PyTorch's around a compiled model: one call per dtype sends them from rank 0.

PyTorch's wrapper does so before each forward in training: it looks for them in all modules, and copies each by itself
(of ResNet-50, 159 launches), for which a compiled step waits. Here all of a dtype are copied into one tensor and back
in a few launches, and modules are looked through again only where something in them is new.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, broadcast
from torch.nn.parallel import DistributedDataParallel

_TAKES = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32))


class _Wrapper(Protocol):
    """The parts of DistributedDataParallel that are used here."""

    module: nn.Module
    modules_buffers: list[Tensor]
    parameters_to_ignore: set[str]
    process_group: ProcessGroup | None


class _Flat:
    """Buffers of one dtype, and the tensor in which they travel."""

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = list(buffers)
        self._whole = torch.empty(sum(x.numel() for x in buffers), dtype=buffers[0].dtype, device=buffers[0].device)
        parts = self._whole.split([x.numel() for x in buffers])
        self._parts = [part.view(x.shape) for part, x in zip(parts, buffers, strict=True)]

    def broadcast(self, group: ProcessGroup, source: int) -> None:
        torch._foreach_copy_(self._parts, self._buffers)
        broadcast(self._whole, group=group, group_src=source)
        torch._foreach_copy_(self._buffers, self._parts)


class _Buffers:
    """All buffers of a wrapper."""

    def __init__(self) -> None:
        self._known: list[Tensor] = []
        self._flats: list[_Flat] = []
        self._looks: object = None  # of the modules when they were last looked through

    def are_new(self, wrapper: _Wrapper) -> bool:
        """Whether modules, or buffers in them, may be others than at the last call."""
        modules = {id(wrapper.module): wrapper.module}
        waiting = [wrapper.module]
        while waiting:
            for each in waiting.pop()._modules.values():
                if each is not None and id(each) not in modules:
                    modules[id(each)] = each
                    waiting.append(each)
        # The wrapper keeps the buffers that it knows, so that no other has the address of one of them.
        looks = [id(x) for each in modules.values() for x in each._buffers.values()], len(wrapper.parameters_to_ignore)
        before, self._looks = self._looks, looks
        return looks != before

    @torch.no_grad()
    def broadcast(self, wrapper: _Wrapper, source: int) -> bool:
        """Send them. Returns: False: it has not, as some are of a kind that is not taken."""
        buffers, group = wrapper.modules_buffers, wrapper.process_group
        if len(buffers) != len(self._known) or any(x is not y for x, y in zip(buffers, self._known, strict=True)):
            self._known, self._flats = list(buffers), []
            kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
            for x in buffers:
                kinds.setdefault((x.dtype, x.device), []).append(x)
            if all(dtype in _TAKES for dtype, _ in kinds) and all(x.layout is torch.strided for x in buffers):
                self._flats = [_Flat(each) for each in kinds.values()]
        if group is None or not self._flats:
            return False
        for flat in self._flats:
            flat.broadcast(group, source)
        return True


_buffers: weakref.WeakKeyDictionary[nn.Module, _Buffers] = weakref.WeakKeyDictionary()
_broadcast_by_pytorch = DistributedDataParallel._default_broadcast_coalesced
_assign_by_pytorch = DistributedDataParallel._assign_modules_buffers


def broadcast_at_once() -> None:
    """Send buffers so from now on, for the wrapper whose forward is running, if there is one."""
    active = getattr(DistributedDataParallel, "_get_active_ddp_module", None)
    wrapper = None if active is None else active()
    if wrapper is not None and type(wrapper) is DistributedDataParallel and wrapper not in _buffers:
        DistributedDataParallel._default_broadcast_coalesced = _broadcast
        DistributedDataParallel._assign_modules_buffers = _assign
        _buffers[wrapper] = _Buffers()


def _broadcast(
    wrapper: DistributedDataParallel, bufs: list[Tensor] | None = None, bucket_size: int | None = None,
    authoritative_rank: int = 0,
) -> None:  # fmt: skip
    """Send the buffers; in the place of a method of PyTorch, which it calls for all other wrappers."""
    buffers = _buffers.get(wrapper) if bufs is None else None
    if buffers is None or not buffers.broadcast(wrapper, authoritative_rank):
        _broadcast_by_pytorch(wrapper, bufs, bucket_size, authoritative_rank)


def _assign(wrapper: DistributedDataParallel) -> None:
    """Make the lists of buffers anew; in the place of a method of PyTorch, which it calls for all other wrappers."""
    buffers = _buffers.get(wrapper)
    if buffers is None or buffers.are_new(wrapper):
        _assign_by_pytorch(wrapper)
