"""Window functions, and the frequencies of a Fourier transform."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis.settings import override

CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    **{
        f"{name}({length}, {periodic})": lambda lib, options, name=name, length=length, periodic=periodic: getattr(
            lib, name
        )(length, periodic, **options)
        for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")
        for length in (0, 1, 2, 7, 8)
        for periodic in (True, False)
    },
    "hamming_window of alpha and beta": lambda lib, options: lib.hamming_window(6, False, 0.7, 0.2, **options),
    "kaiser_window of beta": lambda lib, options: lib.kaiser_window(6, True, 3.5, **options),
    "fftfreq": lambda lib, options: lib.fft.fftfreq(5, 0.3, **options),
    "fftfreq, even": lambda lib, options: lib.fft.fftfreq(6, **options),
    "rfftfreq": lambda lib, options: lib.fft.rfftfreq(5, d=0.3, **options),
    "rfftfreq, even": lambda lib, options: lib.fft.rfftfreq(6, **options),
    "fftfreq of no time": lambda lib, options: lib.fft.fftfreq(3, 0.0, **options),
}


@pytest.mark.parametrize("name", CALLS)
def test_values(name: str) -> None:
    for dtype in ("float64", "float32", "float16"):
        ours = CALLS[name](genesis, {"dtype": getattr(genesis, dtype)})
        theirs = CALLS[name](torch, {"dtype": getattr(torch, dtype)})
        exact = CALLS[name](torch, {"dtype": torch.float64})
        assert (str(ours.dtype), ours.shape) == (f"genesis.{dtype}", tuple(theirs.shape))
        assert ours.tolist() == pytest.approx(
            exact.to(theirs.dtype).tolist(), rel=torch.finfo(theirs.dtype).eps, abs=1e-15, nan_ok=True
        )


def test_options() -> None:
    with override(cuda="simulated"):
        window = genesis.hann_window(4, device="cuda", requires_grad=True, pin_memory=False, layout="strided")
        assert (window.device.type, window.is_leaf, window.requires_grad) == ("cuda", True, True)
        assert window.tolist() == torch.hann_window(4).tolist()
        assert genesis.signal.windows.cosine(4, device="cuda").device.type == "cuda"
        assert genesis.fft.fftfreq(4, device="cuda").device.type == "cuda"


REFUSED: dict[str, Callable[[], Any]] = {
    "hann_window: argument 'window_length': expected at least 0, got -1": lambda: genesis.hann_window(-1),
    "hann_window: argument 'window_length': expected an int, got float": lambda: genesis.hann_window(2.0),  # type: ignore[arg-type]
    "hann_window: argument 'dtype': expected a floating dtype, got genesis.int64": lambda: genesis.hann_window(
        2, dtype=genesis.int64
    ),
    "kaiser_window: argument 'beta': expected at least 0, got -1.0": lambda: genesis.kaiser_window(2, True, -1.0),
    "fftfreq: argument 'n': expected at least 1, got 0": lambda: genesis.fft.fftfreq(0),
    "rfftfreq: argument 'n': expected an int, got float": lambda: genesis.fft.rfftfreq(2.5),  # type: ignore[arg-type]
    "fftfreq: argument 'dtype': expected a floating dtype, got genesis.int32": lambda: genesis.fft.fftfreq(
        2, dtype=genesis.int32
    ),
    "module 'genesis' has no attribute 'chalf': Genesis has no complex numbers of 16-bit parts": lambda: genesis.chalf,
    "module 'genesis' has no attribute 'vmap': Genesis has no function transforms": lambda: genesis.vmap,
    "module 'genesis' has no attribute 'masked': Genesis has no masked tensors": lambda: genesis.masked,
    "module 'genesis' has no attribute 'sparse_coo_tensor': Genesis has no sparse": lambda: genesis.sparse_coo_tensor,
    "module 'genesis' has no attribute 'quint8': Genesis has no quantization": lambda: genesis.quint8,
    "module 'genesis.fft' has no attribute 'fftt'": lambda: genesis.fft.fftt,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=re.escape(message)):
        REFUSED[message]()
