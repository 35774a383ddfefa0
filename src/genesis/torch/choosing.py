"""Whether a fused model's forward on the CPU takes less time than PyTorch's layers do, found by its first calls.

With few and small images the host's time for chains may be longer than what they save, and where most layers are in no
chain, nothing is saved. So for each kind of inputs some calls run fused and some plain, in turn, and the faster way
stays. Both give the same results but for their rounding; with GENESIS_DETERMINISTIC=1, and where PyTorch is to be
deterministic, all calls run fused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from genesis.settings import settings
from genesis.torch import bridge
from genesis.torch.autograd_functions import place
from genesis.torch.modes import nothing_intercepts

_UNTIMED = 8  # calls first, which learn what follows what, and pack weights
_BLOCK = 4  # calls in a row one way; the first, which finds in caches what the other way left there, is not counted
_COUNTED = 6  # calls of each way
_MOST_KINDS = 64

_Kind = tuple[object, ...]


class Times:
    """The calls with one kind of inputs. Threads may share it: a call more or less makes no difference."""

    def __init__(self) -> None:
        self.is_plain: bool | None = None  # None: not decided
        self.fused: list[float] = []  # seconds
        self.plain: list[float] = []
        self._calls = 0

    def begin_call(self) -> tuple[bool, bool]:
        """Return whether the next call is plain, and whether its time counts."""
        if self.is_plain is not None:
            return self.is_plain, False
        block, place_in_block = divmod(self._calls - _UNTIMED, _BLOCK)
        self._calls += 1
        return block > 0 and block % 2 == 1, block >= 0 and place_in_block > 0

    def add(self, was_plain: bool, seconds: float) -> None:
        (self.plain if was_plain else self.fused).append(seconds)
        if min(len(self.plain), len(self.fused)) >= _COUNTED:
            self.is_plain = _median(self.plain) < _median(self.fused)

    def __str__(self) -> str:
        return f"PyTorch's layers take {_median(self.plain) * 1e3:.4g} ms, and fused {_median(self.fused) * 1e3:.4g}"


class Choice:
    """The faster way of a model, by the kind of its inputs. Copies of the model start without."""

    def __init__(self) -> None:
        self._kinds: dict[_Kind, Times] = {}

    def times(self, model: nn.Module, args: Iterable[object]) -> Times | None:
        """The calls with such inputs; None where there is no choice: on CUDA, in a model's part, under modes."""
        tensors = [x for x in args if isinstance(x, Tensor)]
        if not tensors or not _may_choose(tensors[0]):
            return None
        modes = model.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        looks = tuple([(x.shape, x.stride(), x.dtype) for x in tensors])
        kind = (*modes, torch.get_num_threads(), autocast, looks, tensors[0].shape)
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            found = self._kinds[kind] = Times()
        return found

    def plain(self) -> list[str]:
        """Say for which inputs the plain layers are the faster ones."""
        return [_told(kind, times) for kind, times in self._kinds.items() if times.is_plain]


def _may_choose(x: Tensor) -> bool:
    if type(x) is not Tensor or bridge.activates(x) or place.model is not None or not nothing_intercepts():
        return False
    return not (settings.deterministic or torch.are_deterministic_algorithms_enabled())


@contextmanager
def timed(times: Times, is_plain: bool, counts: bool) -> Iterator[None]:
    """Inside, the model runs one of both ways; unless that raises, its time is noted if it counts."""
    was_left, place.left = place.left, is_plain
    began = time.perf_counter()
    try:
        yield
        if counts:
            times.add(is_plain, time.perf_counter() - began)
    finally:
        place.left = was_left


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _told(kind: _Kind, times: Times) -> str:
    """The kind as Choice.times() makes it."""
    training, *_, shape = kind
    assert isinstance(shape, torch.Size)
    return f"{'training' if training else 'inference'}, {'×'.join(map(str, shape))}: {times}"
