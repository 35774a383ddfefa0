"""Ops of the backends on PyTorch's tensors: their memory, their stream, no copies."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from genesis.errors import DeviceError, describe
from genesis.precision import get_float32_precision
from genesis.settings import settings
from genesis.torch.backend import backend_of
from genesis.torch.unprepared import UNPREPARED, Unprepared

if TYPE_CHECKING:
    from genesis.records import ConvGeometry, NormState
    from genesis.torch.prepared import Chain, Folded
    from genesis.torch.prepared_act import Activated

    Norm = NormState[torch.Tensor]


def call(op: str, first: torch.Tensor, *args: object) -> Any:
    """Return backend.op(first, *args) on the backend of first's device; tensors in, tensors out.

    On the CPU these are the backend's own arrays. On CUDA the op runs on PyTorch's current stream, and all its memory
    comes from PyTorch's allocator. Arguments and results that are no arrays (a packed weight) pass unchanged.
    """
    if first.is_cuda:
        return _handles().call(op, first, args)
    if first.device.type == "cpu":
        return getattr(backend_of("cpu"), op)(first, *args)
    raise DeviceError(describe(op, "input", "a tensor on cpu or cuda", first.device))


def call_arrays(op: str, first: torch.Tensor, *args: object) -> Any:
    """call() whose results are the backend's own arrays, for another call to take."""
    return _handles().call_arrays(op, first, args) if first.is_cuda else call(op, first, *args)


def call_cuda(op: str, first: torch.Tensor, *args: object) -> object:
    """call() on the CUDA backend; on a simulated device with tensors in host memory."""
    return _handles().call(op, first, args)


def call_cuda_arrays(op: str, first: torch.Tensor, *args: object) -> object:
    """call_arrays() on the CUDA backend."""
    return _handles().call_arrays(op, first, args)


def prepare(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: Norm, eps: float, geometry: ConvGeometry
) -> Chain | Unprepared:
    """Prepare a convolution and batch norm in training for tensors that look like these: see prepared.py."""
    return prepare_cuda(x, weight, bias, norm, eps, geometry) if x.is_cuda else UNPREPARED


def prepare_inference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: Norm, eps: float, geometry: ConvGeometry,
    has_residual: bool, activation: str | None,
) -> Folded | Unprepared:  # fmt: skip
    """Prepare a convolution, batch norm, sum and activation in inference."""
    how = (eps, geometry, has_residual, activation)
    return prepare_inference_cuda(x, weight, bias, norm, *how) if x.is_cuda else UNPREPARED


def activates(x: torch.Tensor) -> bool:
    """Return whether convolution, sum and activation of this input are faster as one op: on the CPU no pass of
    PyTorch's is saved."""
    return x.is_cuda


def convolves(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, groups: int) -> bool:
    """Return whether a convolution of this input with which nothing is fused runs by Genesis' plans in compiled graphs:
    on CUDA, in 16 bits, and in float32 where neither rounds. PyTorch rounds to TF32 by default, and Genesis does not;
    but depthwise, where tensor cores do not help, Genesis' kernels are the faster ones with all bits."""
    if not x.is_cuda or not _may_vary():
        return False
    if dtype is torch.float32:
        is_depthwise = groups > 1 and weight.shape[1] == 1
        return is_depthwise or (get_float32_precision() == "highest" and _is_exact(torch.backends.cudnn.conv))
    return dtype in (torch.bfloat16, torch.float16)


def multiplies(x: torch.Tensor) -> bool:
    """Return whether products of float32 run by Genesis' plans in compiled graphs: where all bits count for PyTorch too
    and the GPU has tensor cores on which Genesis multiplies such numbers."""
    if not x.is_cuda or not _is_exact(torch.backends.cuda.matmul):
        return False
    from genesis.backends.cuda.ops.matmul.launch import splits_float32

    return _may_vary() and splits_float32(x.device.index or 0)


def keeps_more_bits(x: torch.Tensor) -> bool:
    """Return whether Genesis' convolutions of this input have all bits of float32 where PyTorch's would round them."""
    exact = get_float32_precision() == "highest" and not _is_exact(torch.backends.cudnn.conv)
    return x.is_cuda and x.dtype is torch.float32 and exact


class _Backend(Protocol):
    """PyTorch's settings of what computes products, or convolutions."""

    fp32_precision: str


def _is_exact(backend: _Backend) -> bool:
    """Return whether PyTorch computes float32 with all bits there."""
    return backend.fp32_precision in ("none", "ieee")


def _may_vary() -> bool:
    """Return whether PyTorch is not to be deterministic, or Genesis is as well."""
    asked = torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
    return settings.deterministic or not asked


def keeps_folds(x: torch.Tensor) -> bool:
    """Return whether folded weights are kept for later calls (folds.py): on CUDA a launch folds them each time."""
    return not x.is_cuda


def trains(x: torch.Tensor) -> bool:
    """Return whether a chain whose gradients are needed is faster as one op: on the CPU PyTorch's layers are (of
    ResNets and MobileNetV2 by a tenth to a third, benchmarks/bench_fuse_cpu.py)."""
    return x.is_cuda


def prepare_activation(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: ConvGeometry,
    activation: str | None, keeps: str | None, has_residual: bool,
) -> Activated | Unprepared:  # fmt: skip
    """Prepare a convolution, a sum and an activation."""
    how = (geometry, activation, keeps, has_residual)
    return prepare_activation_cuda(x, weight, bias, *how) if x.is_cuda else UNPREPARED


def prepare_cuda(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: Norm, eps: float, geometry: ConvGeometry
) -> Chain | Unprepared:
    """prepare() on the CUDA backend."""
    from genesis.torch import prepared

    return prepared.prepare(x, weight, bias, norm, eps, geometry)


def prepare_inference_cuda(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: Norm, eps: float, geometry: ConvGeometry,
    has_residual: bool, activation: str | None,
) -> Folded | Unprepared:  # fmt: skip
    """prepare_inference() on the CUDA backend."""
    from genesis.torch import prepared

    return prepared.prepare_inference(x, weight, bias, norm, eps, geometry, has_residual, activation)


def prepare_activation_cuda(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: ConvGeometry,
    activation: str | None, keeps: str | None, has_residual: bool,
) -> Activated | Unprepared:  # fmt: skip
    """prepare_activation() on the CUDA backend."""
    from genesis.torch import prepared_act

    return prepared_act.prepare(x, weight, bias, geometry, activation, keeps, has_residual)


@functools.cache
def _handles() -> ModuleType:
    """genesis.torch.handles, which loads the CUDA backend: not before it is needed."""
    from genesis.torch import handles

    return handles
