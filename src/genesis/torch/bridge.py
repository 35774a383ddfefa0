"""Ops of the backends on PyTorch's tensors: their memory, their stream, no copies."""

from __future__ import annotations

import functools
from typing import Any

import torch

from genesis.errors import DeviceError, describe
from genesis.torch.backend import backend_of
from genesis.torch.unprepared import UNPREPARED


def call(op: str, first: torch.Tensor, *args: Any) -> Any:
    """backend.op(first, *args) of the backend of first's device; tensors in, tensors out.

    On the CPU these are the backend's own arrays. On CUDA the op runs on PyTorch's current stream, and all memory that
    it takes comes from PyTorch's allocator. What is no array (a packed weight) is handed on as it is.
    """
    if first.is_cuda:
        return _handles().call(op, first, args)
    if first.device.type == "cpu":
        return getattr(backend_of("cpu"), op)(first, *args)
    raise DeviceError(describe(op, "input", "a tensor on cpu or cuda", first.device))


def call_arrays(op: str, first: torch.Tensor, *args: Any) -> Any:
    """call() with the backend's own arrays as the results, for another call to take."""
    return _handles().call_arrays(op, first, args) if first.is_cuda else call(op, first, *args)


def call_cuda(op: str, first: torch.Tensor, *args: Any) -> Any:
    """call() for the CUDA backend; on a simulated device with tensors in host memory."""
    return _handles().call(op, first, args)


def call_cuda_arrays(op: str, first: torch.Tensor, *args: Any) -> Any:
    """call_arrays() for the CUDA backend."""
    return _handles().call_arrays(op, first, args)


def prepare(x: torch.Tensor, *args: Any) -> Any:
    """A convolution and batch norm in training, ready for tensors that look like these: see prepared.py."""
    return _prepared().prepare(x, *args) if x.is_cuda else UNPREPARED


def prepare_inference(x: torch.Tensor, *args: Any) -> Any:
    """The same in inference, with all that follows."""
    return _prepared().prepare_inference(x, *args) if x.is_cuda else UNPREPARED


def prepare_cuda(*args: Any) -> Any:
    """prepare() for the CUDA backend."""
    return _prepared().prepare(*args)


def prepare_inference_cuda(*args: Any) -> Any:
    """prepare_inference() for the CUDA backend."""
    return _prepared().prepare_inference(*args)


@functools.cache
def _handles() -> Any:
    """The CUDA backend is loaded when it is needed."""
    from genesis.torch import handles

    return handles


@functools.cache
def _prepared() -> Any:
    from genesis.torch import prepared

    return prepared
