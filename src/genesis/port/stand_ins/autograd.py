"""torch.autograd: Variable, which PyTorch merged with Tensor."""

from __future__ import annotations

from genesis.tensor import Tensor


class _Tensors(type):
    def __call__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Tensor:
        return data.detach().requires_grad_(requires_grad)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_Tensors):
    """Return the tensor, outside the graph."""
