"""gradcheck: analytic gradients against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from genesis import dtypes
from genesis.autograd.graph import Variable
from genesis.autograd.modes import no_grad
from genesis.autograd.walk import grad
from genesis.errors import DTypeError, GraphError, describe
from genesis.ndarray import NDArray

if TYPE_CHECKING:
    from genesis.tensor import Tensor

Floats: TypeAlias = "npt.NDArray[np.float64]"
Checked: TypeAlias = "Callable[..., Tensor | Sequence[Tensor]]"  # of any arguments, some of them tensors


def gradcheck(
    func: Checked,
    inputs: Tensor | Sequence[object],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether the gradients of func(*inputs) agree with (f(x + eps) − f(x − eps)) / (2·eps), element by element.

    Args:
        func: takes the inputs, gives a tensor or a tuple of tensors.
        inputs: a tensor or a sequence, of any shapes; those that require grad are checked and must be float64.
        eps: half the difference of the two points.
        atol, rtol: the gradients may differ by atol + rtol · |expected|.
        raise_exception: False returns False instead of raising.
    Raises: GraphError: the first element that disagrees (unless raise_exception=False: then False is returned).

    Example:
        >>> x = genesis.randn(3, dtype=genesis.float64, requires_grad=True)
        >>> genesis.autograd.gradcheck(lambda x: x.exp().sum(), x)
        True
    """
    given: list[object] = [inputs] if isinstance(inputs, Variable) else list(inputs)
    checked = {
        i: cast("Tensor", value) for i, value in enumerate(given) if isinstance(value, Variable) and value.requires_grad
    }
    for i, value in checked.items():
        if value.array.dtype is not dtypes.float64:
            raise DTypeError(describe("gradcheck", f"inputs[{i}]", "genesis.float64", value.array.dtype))
    outputs = _differentiable(func(*given))
    for number, output in enumerate(outputs):
        numeric = [_numeric(func, given, i, value, number, eps) for i, value in checked.items()]
        analytic = _analytic(output, list(checked.values()))
        for i, expected, actual in zip(checked, numeric, analytic, strict=True):
            if not np.allclose(actual, expected, rtol=rtol, atol=atol):
                if not raise_exception:
                    return False
                worst = np.unravel_index(np.argmax(np.abs(actual - expected)), expected.shape)
                raise GraphError(
                    f"gradcheck: d output[{number}] element {worst[0]} / d inputs[{i}] element {worst[1]}: "
                    f"expected {expected[worst]:.6g} (numeric), got {actual[worst]:.6g}"
                )
    return True


def _differentiable(result: Tensor | Sequence[Tensor]) -> list[Tensor]:
    results = [result] if isinstance(result, Variable) else list(result)
    return [output for output in results if isinstance(output, Variable) and output.requires_grad]


def _analytic(output: Tensor, wanted: Sequence[Tensor]) -> list[Floats]:
    """One Jacobian (output elements × input elements) per wanted input, row by row."""
    size = output.array.numel
    jacobians = [np.zeros((size, variable.array.numel)) for variable in wanted]
    for row in range(size):
        seed = np.zeros(size)
        seed[row] = 1
        gradient = output._like(NDArray.from_numpy(seed, dtypes.float64).reshape(output.array.shape))
        gradient.array = gradient.array.to(output.array.dtype).to_device(output.array.device)
        for jacobian, found in zip(
            jacobians, grad(output, wanted, gradient, retain_graph=True, allow_unused=True), strict=True
        ):
            if found is not None:
                jacobian[row] = found.array.numpy().reshape(-1)
    return jacobians


def _numeric(func: Checked, given: Sequence[object], index: int, variable: Tensor, number: int, eps: float) -> Floats:
    values = variable.array.numpy().astype(np.float64).copy()
    columns = []
    for position in np.ndindex(values.shape):
        ends = []
        for step in (eps, -eps):
            shifted = values.copy()
            shifted[position] += step
            moved = variable._like(NDArray.from_numpy(shifted, dtypes.float64).to_device(variable.array.device))
            arguments = [*given[:index], moved.requires_grad_(), *given[index + 1 :]]
            output = _differentiable(func(*arguments))[number]
            with no_grad():
                ends.append(output.array.to(dtypes.float64).numpy().reshape(-1).astype(np.float64))
        columns.append((ends[0] - ends[1]) / (2 * eps))
    if not columns:  # an empty input
        return np.zeros((_differentiable(func(*given))[number].array.numel, 0))
    return np.stack(columns, axis=1)
