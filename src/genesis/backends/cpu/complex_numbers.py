"""Complex numbers, and discrete Fourier transforms by torch's library (MKL's or pocketfft)."""

from __future__ import annotations

import torch
from torch import Tensor

from genesis.backends.contract import Shape

_SCALES = {"none": 0, "sqrt": 1, "size": 2}


def make_complex(real: Tensor, imag: Tensor) -> Tensor:
    return torch.complex(real, imag)


def conj(x: Tensor) -> Tensor:
    return torch.conj_physical(x)


def angle(x: Tensor) -> Tensor:
    return torch.angle(x)


def fft(x: Tensor, dims: Shape, scale: str, forward: bool) -> Tensor:
    return torch._fft_c2c(x, dims, _SCALES[scale], forward)


def rfft(x: Tensor, dims: Shape, scale: str, onesided: bool) -> Tensor:
    return torch._fft_r2c(x, dims, _SCALES[scale], onesided)


def irfft(x: Tensor, dims: Shape, scale: str, size: int) -> Tensor:
    return torch._fft_c2r(x, dims, _SCALES[scale], size)
