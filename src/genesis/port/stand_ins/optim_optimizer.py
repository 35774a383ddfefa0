"""torch.optim.optimizer: what optimizers that derive from PyTorch's import from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeAlias, TypeVar

from genesis import Tensor

ParamsT: TypeAlias = Iterable[Tensor] | Iterable[dict[str, object]] | Iterable[tuple[str, Tensor]]


_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Required:
    """A parameter of a group that must be given."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


def _use_grad_for_differentiable(func: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run a step without recording gradients."""
    from genesis.autograd import no_grad

    return no_grad()(func)


def _default_to_fused_or_foreach(
    params: list[Tensor], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Neither fused nor foreach: one parameter after the other."""
    return False, False


def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
    """The devices on which a step can be captured."""
    return ["cuda"]


def _get_value(x: Tensor | float) -> float:
    """The number that a tensor or number is."""
    return x.item() if isinstance(x, Tensor) else x


def _stack_if_compiling(x: _T) -> _T:
    """Return what is given: nothing is compiled."""
    return x


def _view_as_real(params: list[Tensor], *state_and_grads: list[Tensor]) -> None:
    """Change nothing: no parameter is complex."""
