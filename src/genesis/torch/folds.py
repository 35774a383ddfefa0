"""Batch norm folded into the weight of a convolution on the CPU, and that packed for the kernels, for later calls.

A fold is used again only while the tensors that it was made of are bit for bit what they were: it keeps copies of small
ones and fingerprints of large ones, as no version counter tells of what `.data`, NumPy or another process writes. To
compare them is to read the weight once more, a fraction of what the norm's pass over the images takes. A weight that
changes from call to call is never packed.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry
from genesis.torch.bridge import call

Operands: TypeAlias = "tuple[Tensor | None, ...]"
"""Weight, bias, gamma, beta, mean and variance."""

_FINGERPRINTED = 1 << 17  # bytes, from where on one reading by all threads takes less time than a comparison by one
_MANY_BYTES, _MANY_THREADS = 1 << 20, 4  # from here on PyTorch's comparison, a third as fast on one, is the faster one
_MAX_WAIT = 16  # calls
_MAX_SHAPES = 4
_DTYPES = (torch.float32, torch.float64)


class Kept(NamedTuple):
    """A dense tensor's fingerprint, or a copy of its numbers as they lie in memory.

    Attributes:
        address: of the copy, where C's comparison is the fastest; else 0.
    """

    num_bytes: int
    fingerprint: bytes | None
    copy: Tensor | None
    address: int

    @classmethod
    def of(cls, x: Tensor) -> Kept:
        fingerprint = _fingerprint() if x.nbytes >= _FINGERPRINTED else None
        if fingerprint is not None:
            return cls(x.nbytes, fingerprint(x.data_ptr(), x.nbytes), None, 0)
        copy = _words(x).clone()
        fits_c = x.nbytes < _MANY_BYTES or torch.get_num_threads() < _MANY_THREADS
        return cls(x.nbytes, None, copy, copy.data_ptr() if fits_c and _compare is not None else 0)

    def is_of(self, x: Tensor) -> bool:
        """Is a tensor of the same form the same, where C does not compare them?"""
        if self.copy is None:
            fingerprint = _fingerprint()
            return fingerprint is not None and fingerprint(x.data_ptr(), self.num_bytes) == self.fingerprint
        words = _words(x)
        return self.copy.dtype is words.dtype and torch.equal(self.copy, words)


class Fold(NamedTuple):
    """A weight and bias with the norm folded in, and the operands that they were computed from.

    Attributes:
        kept: of the operands.
        settings: eps, geometry, dtype and precision; forms: of the operands, see form().
        looks: one, by which the operands of the last call were known to be of these forms.
        packed: the backend's own, by the input's shape, by None where that fits all shapes; it is filled once the
            operands have been seen twice.
    """

    kept: tuple[Kept | None, ...]
    settings: tuple[object, ...]
    forms: tuple[object, ...]
    looks: list[object]
    packed: dict[tuple[int, ...] | None, object]


class Folds:
    """The fold of a layer. Threads may share it: a fold is replaced as a whole."""

    __slots__ = ("_fold", "_misses", "_wait")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._fold: Fold | None = None
        self._misses = self._wait = 0

    def run(
        self, x: Tensor, operands: Operands, eps: float, geometry: ConvGeometry, residual: Tensor | None,
        activation: str | None, looks: object,
    ) -> Tensor | None:  # fmt: skip
        """activation(batch_norm(conv(x)) + residual); None where there is no fold, or not yet.

        Args:
            looks: what stands for the forms of the operands, which have been checked; None: they have not.
        """
        found = self.find(x, operands, eps, geometry, looks)
        if found is None:
            return None
        y: Tensor = call("conv_prepacked", x, found[1], residual, activation)
        return y

    def find(
        self, x: Tensor, operands: Operands, eps: float, geometry: ConvGeometry, looks: object
    ) -> tuple[Fold, object] | None:
        """The fold of these operands, and its packed weight for x; see run()."""
        if self._wait or x.dtype not in _DTYPES:
            self._wait = max(0, self._wait - 1)
            return None
        settings, fold = (eps, geometry, x.dtype, get_float32_precision()), self._fold
        if fold is None or not _is_of(fold, operands, settings, looks):
            self._look_at(operands, settings)
            return None
        self._misses = 0
        packed = fold.packed.get(None) or fold.packed.get(x.shape) or _pack(fold, operands, eps, geometry, x.shape)
        if packed is None:
            self._wait = _MAX_WAIT
            return None
        return fold, packed

    def _look_at(self, operands: Operands, settings: tuple[object, ...]) -> None:
        """Keep what the operands are now; not at each call where they change from call to call."""
        had_one, self._fold = self._fold is not None, None
        if had_one:
            self._misses += 1
            self._wait = min(self._misses - 1, _MAX_WAIT)
        weight, *others = operands
        if self._wait or weight is None or not (weight.is_cpu and weight.dtype is settings[2] and _is_dense(weight)):
            return
        number = (weight.dtype, True, weight.shape[:1], (1,))
        if all(each is None or form(each) == number for each in others):
            kept = tuple([None if each is None else Kept.of(each) for each in operands])
            self._fold = Fold(kept, settings, tuple(map(form, operands)), [None], {})


def _is_of(fold: Fold, operands: Operands, settings: tuple[object, ...], looks: object) -> bool:
    """Are the operands bit for bit what the fold was made of? A NaN is itself, and 0 is not -0."""
    if fold.settings != settings:
        return False
    if looks is None or fold.looks[0] is not looks:
        if tuple(map(form, operands)) != fold.forms:
            return False
        fold.looks[0] = looks
    return are_same(fold.kept, operands)


def are_same(kept: tuple[Kept | None, ...], tensors: Operands) -> bool:
    """Are tensors of the same forms bit for bit what was kept of them?"""
    for each, x in zip(kept, tensors, strict=True):
        if each is None or x is None:
            continue
        if each.address and _compare is not None:
            if _compare(each.address, x.data_ptr(), each.num_bytes):
                return False
        elif not each.is_of(x):
            return False
    return True


def form(x: Tensor | None) -> tuple[object, ...] | None:
    """Return the facts that must hold before a tensor's memory is read."""
    return None if x is None else (x.dtype, x.is_cpu, x.shape, x.stride())


def _is_dense(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)


def _words(x: Tensor) -> Tensor:
    """The numbers of a dense tensor, as they lie in memory, as integers: of 64 bits, where these fit."""
    flat = x.detach().as_strided((x.numel(),), (1,))
    odd = x.itemsize * (x.numel() | x.storage_offset()) % 8
    return flat.view(torch.int32 if odd else torch.int64)


@functools.cache
def _fingerprint() -> Callable[[int, int], bytes] | None:
    """Return the function of an address and a number of bytes; None where the machine has none."""
    from genesis.backends.cpu.x86 import fingerprint  # the CPU's backend: not before a tensor is there

    return fingerprint.fingerprint if fingerprint.is_available() else None


def _memcmp() -> Callable[[int, int, int], int] | None:
    """C's own, which takes half a microsecond."""
    try:
        compare = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # Windows
        return None
    compare.argtypes, compare.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return compare


_compare = _memcmp()


def _pack(fold: Fold, operands: Operands, eps: float, geometry: ConvGeometry, shape: tuple[int, ...]) -> object:
    """The packed weight, which the fold keeps; None where it isn't finite, and its products would be others."""
    weight, bias = _folded(operands, eps)
    if not bool(weight.isfinite().all()) or not bool(bias.isfinite().all()):
        return None
    packed = call("conv_prepack", weight, bias, shape, geometry)
    if len(fold.packed) >= _MAX_SHAPES:
        fold.packed.clear()
    fold.packed[None if packed.fits_all_shapes else shape] = packed
    return packed


def _folded(operands: Operands, eps: float) -> tuple[Tensor, Tensor]:
    """The weight and bias of the convolution and norm together, rounded once."""
    wide = [None if each is None else each.detach().double() for each in operands]
    weight, bias, gamma, beta, mean, var = wide
    assert operands[0] is not None
    assert weight is not None
    assert mean is not None
    assert var is not None
    dtype = operands[0].dtype
    scale = torch.rsqrt(var + eps)
    scale = scale if gamma is None else scale * gamma
    shift = -mean if bias is None else bias - mean
    shift = shift * scale if beta is None else shift * scale + beta
    return (weight * scale[:, None, None, None]).to(dtype), shift.to(dtype)
