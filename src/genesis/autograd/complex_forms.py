"""Functions over complex tensors: which have a gradient there, and by which backward.

The gradient of a real loss L with respect to z = x + iy is ∂L/∂x + i·∂L/∂y, as in PyTorch. For a function that is
complex-differentiable, w = f(z), this is grad · conj(f′(z)). genesis.functional.complex_gradients says which functions
have one; the others are refused where they would be recorded.
"""

from __future__ import annotations

from genesis.autograd.context import Differentiable

FORMS: dict[type[Differentiable], type[Differentiable]] = {}  # a function, and the one whose backward is right


def over_complex(function: type[Differentiable]) -> type[Differentiable]:
    """The function whose backward gives the gradients of a call with complex results.

    Args:
        function: the one that was called; of users, its backward is taken as it is.
    Raises: NotImplementedError: it has no gradient over complex numbers.
    """
    form = FORMS.get(function)
    if form is not None or not function.__module__.startswith("genesis."):
        return form or function
    raise NotImplementedError(f"{function.__name__} {_REFUSED}")


def require_form(function: type[Differentiable]) -> None:
    """Refuse to give a complex argument a gradient that a formula for real numbers made.

    Raises: NotImplementedError: the function has no gradient over complex numbers.
    """
    if function.__module__.startswith("genesis.") and function not in FORMS.values():
        raise NotImplementedError(f"{function.__name__} {_REFUSED}")


_REFUSED = (
    "has no gradient over complex tensors; compute with real and imaginary parts (view_as_real), or use .detach()"
)
