"""Functions that make random tensors, and the state of the generators that they draw from."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import overload

import numpy as np

from genesis import dtypes
from genesis import functional as F
from genesis.autograd.modes import unrecordable
from genesis.creation import DeviceLike, device_of, dtype_of, shape_of, tensor
from genesis.creation_like import strides_like
from genesis.dtypes import DType
from genesis.errors import DTypeError, ShapeError, describe
from genesis.generator import READS_STATE, SETS_STATE, Generator, drawing
from genesis.ndarray import Device, NDArray, random
from genesis.pinning import placed
from genesis.shapes import Shape
from genesis.tensor import Tensor

# --- generators -------------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the generators of all devices. On the CPU, the draws are those of PyTorch with this seed.

    Args:
        seed: any int.
    Raises: DTypeError: seed is no int.

    Example:
        >>> genesis.manual_seed(0)
        >>> [round(value, 4) for value in genesis.rand(3).tolist()]
        [0.4963, 0.7682, 0.0885]
    """
    if isinstance(seed, float) or not hasattr(seed, "__index__"):
        raise DTypeError(describe("manual_seed", "seed", "an int", repr(seed)))
    unrecordable(SETS_STATE)
    random.manual_seed(operator.index(seed))


def get_rng_state(device: DeviceLike = None) -> Tensor:
    """Return the state of a device's generator.

    Args:
        device: "cpu" if None.
    Returns: bytes, a uint8 vector on the CPU.

    Example:
        >>> state = genesis.get_rng_state()
        >>> first = genesis.rand(2).tolist()
        >>> genesis.set_rng_state(state)
        >>> genesis.rand(2).tolist() == first
        True
    """
    unrecordable(READS_STATE)
    return tensor(np.frombuffer(random.get_state(Device(device or "cpu")), dtype=np.uint8), device="cpu")


def set_rng_state(new_state: Tensor, device: DeviceLike = None) -> None:
    """Restore a state of a device's generator. See `genesis.get_rng_state`.

    Args:
        new_state: what get_rng_state returned, a uint8 vector.
        device: "cpu" if None.
    Raises: DTypeError: new_state is no uint8 tensor.
    """
    if not isinstance(new_state, Tensor) or new_state.dtype is not dtypes.uint8:
        raise DTypeError(
            describe("set_rng_state", "new_state", "a tensor of uint8", getattr(new_state, "dtype", new_state))
        )
    unrecordable(SETS_STATE)
    random.set_state(new_state.numpy().tobytes(), Device(device or "cpu"))


# --- draws ------------------------------------------------------------------------------------------------------------


@placed
def rand(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Draws from the uniform distribution over [0, 1).

    Args:
        sizes, size, device, requires_grad: as in `genesis.empty`.
        dtype: floating; the default float dtype if None.
        generator: draw from this stream, not the device's.
    Returns: a tensor of that shape.
    Raises: DTypeError: dtype is not floating, or a size is no int. ShapeError: a negative size.

    Example:
        >>> x = genesis.rand(2, 3)
        >>> x.shape, bool(((x >= 0) & (x < 1)).all())
        ((2, 3), True)
    """
    return _random("rand", shape_of("rand", sizes, size), dtype, device, requires_grad, generator)


@placed
def randn(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Draws from the normal distribution with mean 0 and variance 1.

    Args:
        sizes, size, device, requires_grad: as in `genesis.empty`.
        dtype: floating; the default float dtype if None.
        generator: draw from this stream, not the device's.
    Returns: a tensor of that shape.
    Raises: DTypeError: dtype is not floating, or a size is no int. ShapeError: a negative size.

    Example:
        >>> genesis.manual_seed(0)
        >>> [round(value, 4) for value in genesis.randn(2).tolist()]
        [1.541, -0.2934]
    """
    return _random("randn", shape_of("randn", sizes, size), dtype, device, requires_grad, generator)


def _random(
    op: str, shape: Shape, dtype: DType | None, device: DeviceLike, requires_grad: bool, generator: Generator | None
) -> Tensor:  # fmt: skip
    dtype = dtype_of(dtype)
    if not dtype.is_differentiable:
        raise DTypeError(describe(op, "dtype", "a floating or complex dtype", dtype))
    place = device_of(device)
    with drawing(op, generator, place):
        return Tensor(NDArray.random(op, place, shape, None, dtype), requires_grad)


@overload
def randint(
    high: int, size: Sequence[int], /, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor: ...  # fmt: skip
@overload
def randint(
    low: int, *, size: Sequence[int], dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor: ...  # fmt: skip
@overload
def randint(
    low: int, high: int, size: Sequence[int], *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor: ...  # fmt: skip
@placed
def randint(
    low: int, high: int | Sequence[int] | None = None, size: Sequence[int] | None = None, *,
    dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Uniform integers in [low, high), or in [0, high) as randint(high, size) or randint(high, size=size).

    Args:
        low: the least value.
        high: above the largest.
        size: a sequence of sizes.
        dtype: int64 if None; floating dtypes are possible.
        device, requires_grad: as in `genesis.empty`.
        generator: as in `genesis.rand`.
    Returns: a tensor of that shape.
    Raises: ValueError: high ≤ low. ShapeError: size is no sequence of sizes.

    Example:
        >>> sorted(set(genesis.randint(1, 4, (100,)).tolist()))
        [1, 2, 3]
    """
    shape = high if size is None else size
    start, end = (0, low) if high is None or size is None else (low, high)
    if shape is None or isinstance(shape, int):
        raise ShapeError(describe("randint", "size", "a sequence of sizes", shape))
    if isinstance(end, Sequence):
        raise ValueError(describe("randint", "high", f"more than low ({start})", end))
    return _integers("randint", (start, end), shape_of("randint", (shape,)), dtype, device, requires_grad, generator)


def _integers(
    op: str, bounds: tuple[int, int], shape: Shape, dtype: DType | None, device: DeviceLike, requires_grad: bool,
    generator: Generator | None,
) -> Tensor:  # fmt: skip
    start, end = bounds
    if start >= end:
        raise ValueError(describe(op, "high", f"more than low ({start})", end))
    place = device_of(device)
    with drawing(op, generator, place):
        array = NDArray.random("randint", place, start, end, shape, dtype or dtypes.int64)
    return Tensor(array, requires_grad)


@placed
def randperm(
    n: int, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """The integers 0 … n − 1 in random order.

    Args:
        n: how many, at least 0.
        dtype: int64 if None.
        device, requires_grad: as in `genesis.empty`.
        generator: as in `genesis.rand`.
    Returns: (n,).
    Raises: ValueError: n < 0.

    Example:
        >>> sorted(genesis.randperm(4).tolist())
        [0, 1, 2, 3]
    """
    if n < 0:
        raise ValueError(describe("randperm", "n", "at least 0", n))
    place = device_of(device)
    with drawing("randperm", generator, place):
        return Tensor(NDArray.random("randperm", place, n, dtype or dtypes.int64), requires_grad)


@placed
def rand_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    generator: Generator | None = None, memory_format: str = "preserve",
) -> Tensor:  # fmt: skip
    """Draws from the uniform distribution over [0, 1) in the shape of another tensor. See `genesis.zeros_like`."""
    shape, back = _order_of_draws("rand_like", input, memory_format)
    drawn = _random("rand", shape, dtype or input.dtype, device or input.device, requires_grad, generator)
    return drawn if back is None else drawn.detach().permute(back).requires_grad_(requires_grad)


@placed
def randn_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    generator: Generator | None = None, memory_format: str = "preserve",
) -> Tensor:  # fmt: skip
    """Draws from the normal distribution in the shape of another tensor. See `genesis.zeros_like`."""
    shape, back = _order_of_draws("randn_like", input, memory_format)
    drawn = _random("randn", shape, dtype or input.dtype, device or input.device, requires_grad, generator)
    return drawn if back is None else drawn.detach().permute(back).requires_grad_(requires_grad)


@placed
def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False, generator: Generator | None = None, memory_format: str = "preserve",
) -> Tensor:  # fmt: skip
    """Uniform integers in [low, high), or in [0, high) as randint_like(input, high), in the shape of another tensor.

    Args:
        input, dtype, device, requires_grad, memory_format: as in `genesis.zeros_like`.
        low, high: as in `genesis.randint`.
        generator: as in `genesis.rand`.
    Returns: the shape of input.
    Raises: ValueError: high is not above low.

    Example:
        >>> genesis.randint_like(genesis.zeros(2), 5, 6).tolist()
        [5.0, 5.0]
    """
    bounds = (0, low) if high is None else (low, high)
    shape, back = _order_of_draws("randint_like", input, memory_format)
    where = device or input.device
    drawn = _integers("randint_like", bounds, shape, dtype or input.dtype, where, requires_grad, generator)
    return drawn if back is None else drawn.detach().permute(back).requires_grad_(requires_grad)


def _order_of_draws(op: str, input: Tensor, memory_format: str) -> tuple[Shape, Shape | None]:
    """The shape to draw, and the permutation back if that isn't input's: draws follow the memory, as PyTorch's do."""
    strides = strides_like(op, input, memory_format)
    if strides is None:
        return input.array.shape, None
    return _shape_in_order(input, strides)


def _shape_in_order(input: Tensor, strides: Shape) -> tuple[Shape, Shape]:
    """The shape to draw, so that draws follow the memory as PyTorch's do, and the permutation to input's dimensions."""
    order = sorted(range(input.ndim), key=lambda dim: -strides[dim])
    return tuple(input.shape[dim] for dim in order), tuple(map(order.index, range(input.ndim)))


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """Draw 1 with the probability that each element is, or with probability p, else 0.

    Args:
        input: probabilities, any shape, floating; with p, any dtype, and only the shape counts.
        p: one probability for all elements.
        generator: as in `genesis.rand`.
    Returns: shape and dtype of input.
    Raises: ValueError: an element is no probability.

    Example:
        >>> genesis.bernoulli(genesis.tensor([0.0, 1.0])).tolist()
        [0.0, 1.0]
    """
    return input.bernoulli(p, generator=generator)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:  # fmt: skip
    """Draw indices with the probabilities that weights have in each row.

    Args:
        input: weights, (N,) or (M, N), floating, at least 0; they need not sum to 1.
        num_samples: how many from each row.
        replacement: an index may be drawn again.
        generator: as in `genesis.rand`.
    Returns: (num_samples,) or (M, num_samples), int64.
    Raises: ValueError: more samples than weights above 0, without replacement, or a negative weight.

    Example:
        >>> genesis.multinomial(genesis.tensor([0.0, 1.0]), 3, replacement=True).tolist()
        [1, 1, 1]
    """
    return input.multinomial(num_samples, replacement, generator=generator)


@placed
def normal(
    mean: Tensor | float, std: Tensor | float = 1.0, size: Sequence[int] | None = None, *,
    dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Draws from normal distributions.

    Args:
        mean, std: tensors whose shapes broadcast, or numbers; std at least 0.
        size: of the result, if both are numbers.
        dtype, device, requires_grad: as in `genesis.empty`, if both are numbers.
        generator: as in `genesis.rand`.
    Returns: their common shape, or size.
    Raises: ValueError: std is below 0. ShapeError: two numbers without a size.

    Example:
        >>> genesis.normal(genesis.tensor([3.0]), 0.0).tolist()
        [3.0]
    """
    if bool((std < 0).any()) if isinstance(std, Tensor) else std < 0:
        raise ValueError(describe("normal", "std", "at least 0", std))
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    if not tensors:
        if size is None:
            raise ShapeError(describe("normal", "size", "a sequence of sizes, as mean and std are numbers", size))
        drawn = randn(size, dtype=dtype, device=device, generator=generator) * std + mean
        return drawn.requires_grad_(requires_grad)
    shape = F.broadcast_shapes(*[tensor.shape for tensor in tensors])
    return randn(shape, dtype=tensors[0].dtype, device=tensors[0].device, generator=generator) * std + mean
