"""A convolution and its batch norm in eval mode without gradients, for genesis.torch.ConvBNReLU.

On the CPU the folded weight is kept while its operands are bit for bit the same (folds.py); on CUDA one launch folds at
each call, prepared for tensors that look like the last ones. So whatever changes a parameter takes effect at once.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from torch import Tensor, nn

from genesis.records import ConvGeometry, NormState
from genesis.torch import bridge, ops
from genesis.torch.folds import Folds
from genesis.torch.modes import is_plain
from genesis.torch.tensor_guards import Check, guard

if TYPE_CHECKING:
    from genesis.torch.prepared import Folded
    from genesis.torch.unprepared import Unprepared

_Operands: TypeAlias = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # input, weight, bias, residual
_MAX_LOOKS = 8


class _Prepared(NamedTuple):
    """Launches, and the guard of the tensors that they were prepared for."""

    same: Check
    launches: Folded | Unprepared


class Inferred:
    """The state that a convolution and its norm keep between calls in inference. Copies of the model start without."""

    def __init__(self) -> None:
        self._folds = Folds()  # on the CPU
        self._prepared: dict[tuple[object, ...], _Prepared] = {}  # on CUDA

    def run(
        self, operands: _Operands, norm: NormState[Tensor], eps: float, geometry: ConvGeometry, activation: str | None
    ) -> Tensor:
        """activation(batch_norm(conv(input)) + residual), by the running statistics."""
        input, weight, bias, residual = operands
        y = None
        if all(each is None or is_plain(each) for each in (weight, bias, residual, *norm)):
            if bridge.keeps_folds(input):
                y = self._folds.run(input, (weight, bias, *norm[:4]), eps, geometry, residual, activation, None)
            else:
                y = self._run_prepared(operands, norm, eps, geometry, activation)
        if y is None:
            y = ops.conv_bn_relu_inference(input, weight, bias, norm, residual, eps, geometry, activation)
        return y

    def _run_prepared(
        self, operands: _Operands, norm: NormState[Tensor], eps: float, geometry: ConvGeometry, activation: str | None
    ) -> Tensor | None:
        input, weight, bias, residual = operands
        gamma, beta, mean, var, _ = norm
        if gamma is None or beta is None or mean is None or var is None:
            return None
        tensors = (input, weight, gamma, beta, mean, var, *(() if bias is None else (bias,)))
        key = (input.shape, len(tensors), residual is not None, activation, eps, geometry)
        known = self._prepared.get(key)
        if known is None or not known.same(*tensors) or not known.launches.is_current():
            how = (eps, geometry, residual is not None, activation)
            found = bridge.prepare_inference(input, weight, bias, norm, *how)
            if len(self._prepared) >= _MAX_LOOKS:
                self._prepared.clear()
            known = self._prepared[key] = _Prepared(guard(*tensors), found)
        return known.launches.run(input, weight, bias, norm, residual)


_inferred: weakref.WeakKeyDictionary[nn.Module, Inferred] = weakref.WeakKeyDictionary()


def inferred(conv: nn.Conv2d) -> Inferred:
    """Return the state of a convolution, new at its first call."""
    return _inferred.get(conv) or _inferred.setdefault(conv, Inferred())


def forget(module: nn.Module) -> None:
    """Drop what the convolutions in a module keep."""
    for part in module.modules():
        _inferred.pop(part, None)
