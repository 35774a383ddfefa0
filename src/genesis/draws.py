"""The methods of Tensor that fill it with random numbers, or draw by its elements."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Self, TypeVarTuple

from genesis import dtypes
from genesis import functional as F
from genesis.autograd import Tensor
from genesis.autograd.in_place import overwrites
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.keywords import also
from genesis.in_place import InPlace
from genesis.ndarray import NDArray, ops

if TYPE_CHECKING:
    from genesis.generator import Generator

Ts = TypeVarTuple("Ts")

LARGEST = 1.0 - 2.0**-24  # below 1, so that the logarithm of what is left stays finite


class Draws(InPlace):
    """A part of Tensor: see the module's docstring. A generator, where one is given, is drawn from."""

    @also(**{"from": "low", "to": "high"})
    def uniform_(
        self, low: float | Tensor = 0.0, high: float | Tensor = 1.0, *, generator: Generator | None = None
    ) -> Self:  # fmt: skip
        """Fill with draws from the uniform distribution over [low, high).

        Args:
            low, high: bounds, numbers or tensors of one element; low ≤ high.
            generator: as in `genesis.rand`.
        Raises: ValueError: high < low. DTypeError: self is not floating.

        Example:
            >>> bool((genesis.empty(100).uniform_(2.0, 3.0) >= 2).all())
            True
        """
        low, high = float(low), float(high)  # a tensor of one element too, as PyTorch takes it
        if not low <= high:
            raise ValueError(describe("uniform_", "high", f"at least low ({low:g})", f"{high:g}"))
        return self._draw("uniform_", generator, _drawn, "rand", high - low, low)

    def normal_(
        self, mean: float | Tensor = 0.0, std: float | Tensor = 1.0, *, generator: Generator | None = None
    ) -> Self:  # fmt: skip
        """Fill with draws from the normal distribution.

        Args:
            mean, std: of the distribution, numbers or tensors of one element; std ≥ 0.
            generator: as in `genesis.rand`.
        Raises: ValueError: std < 0. DTypeError: self is not floating.

        Example:
            >>> genesis.empty(2).normal_(mean=3.0, std=0.0).tolist()
            [3.0, 3.0]
        """
        mean, std = float(mean), float(std)
        if not std >= 0:
            raise ValueError(describe("normal_", "std", "at least 0", f"{std:g}"))
        return self._draw("normal_", generator, _drawn, "randn", std, mean)

    def bernoulli_(self, p: float | Tensor = 0.5, *, generator: Generator | None = None) -> Self:
        """Fill with draws that are 1 with probability p, else 0.

        Args:
            p: in [0, 1]; a number, or a tensor of probabilities that broadcasts to self.
            generator: as in `genesis.rand`.
        Raises: ValueError: a number that is no probability.

        Example:
            >>> genesis.empty(2).bernoulli_(1.0).tolist()
            [1.0, 1.0]
        """
        if not isinstance(p, Tensor) and not 0 <= p <= 1:
            raise ValueError(describe("bernoulli_", "p", "a probability in [0, 1]", p))
        return self._draw("bernoulli_", generator, _tossed, p)

    def exponential_(self, lambd: float | Tensor = 1.0, *, generator: Generator | None = None) -> Self:
        """Fill with draws from the exponential distribution.

        Args:
            lambd: the rate, a number or a tensor of one element; above 0.
            generator: as in `genesis.rand`.
        Raises: ValueError: lambd ≤ 0. DTypeError: self is not floating.

        Example:
            >>> bool((genesis.empty(100).exponential_() > 0).all())
            True
        """
        lambd = float(lambd)
        if not lambd > 0:
            raise ValueError(describe("exponential_", "lambd", "above 0", lambd))
        return self._draw("exponential_", generator, _by_quantiles, lambda u: (-u).log1p() / -lambd)

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Self:
        """Fill with draws from the Cauchy distribution.

        Args:
            median: of the distribution.
            sigma: half its width at half its height, above 0.
            generator: as in `genesis.rand`.
        Raises: ValueError: sigma ≤ 0. DTypeError: self is not floating.

        Example:
            >>> genesis.empty(100).cauchy_().shape
            (100,)
        """
        if not sigma > 0:
            raise ValueError(describe("cauchy_", "sigma", "above 0", sigma))
        return self._draw("cauchy_", generator, _by_quantiles, lambda u: ((u - 0.5) * math.pi).tan() * sigma + median)

    def log_normal_(self, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Self:
        """Fill with exp of draws from the normal distribution.

        Args:
            mean, std: of the logarithms; std above 0.
            generator: as in `genesis.rand`.
        Raises: ValueError: std ≤ 0. DTypeError: self is not floating.

        Example:
            >>> bool((genesis.empty(100).log_normal_() > 0).all())
            True
        """
        if not std > 0:
            raise ValueError(describe("log_normal_", "std", "above 0", std))
        return self._draw("log_normal_", generator, _by_normal, mean, std)

    def geometric_(self, p: float, *, generator: Generator | None = None) -> Self:
        """Fill with numbers of trials up to the first success.

        Args:
            p: the probability of success, in (0, 1).
            generator: as in `genesis.rand`.
        Raises: ValueError: another p.

        Example:
            >>> bool((genesis.empty(100).geometric_(0.5) >= 1).all())
            True
        """
        if not 0 < p < 1:
            raise ValueError(describe("geometric_", "p", "a probability in (0, 1)", p))
        rate = -math.log1p(-p)
        return self._draw("geometric_", generator, _by_quantiles, lambda u: ((-u).log1p() / -rate).ceil().clamp(min=1))

    @also(**{"from": "from_"})
    def random_(self, from_: int = 0, to: int | None = None, *, generator: Generator | None = None) -> Self:
        """Fill with uniform integers in [from_, to), or in [0, from_) as random_(from_).

        Args:
            from_: the least value.
            to: above the largest; by default what the dtype represents exactly.
            generator: as in `genesis.rand`.
        Raises: ValueError: to ≤ from_.

        Example:
            >>> sorted(set(genesis.empty(100).random_(2, 4).tolist()))
            [2.0, 3.0]
        """
        if to is None:
            from_, to = (0, from_) if from_ else (0, _ABOVE.get(self.dtype, 2**63 - 1))
        if to <= from_:
            raise ValueError(describe("random_", "to", f"more than from_ ({from_})", to))
        return self._draw("random_", generator, _integers, from_, to)

    def bernoulli(self, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
        """1 with the probability that each element is, or with probability p, else 0. See `genesis.bernoulli`."""
        made = self._like(NDArray.empty(self.shape, self.dtype, self.device))
        if p is not None:
            return made.bernoulli_(p, generator=generator)
        if not self.dtype.is_floating_point:
            raise DTypeError(describe("bernoulli", "input", "a floating dtype", self.dtype))
        each = self.detach()
        if not bool(((each >= 0) & (each <= 1)).all()):
            raise ValueError(describe("bernoulli", "input", "probabilities", "others"))
        return made.bernoulli_(each, generator=generator)

    def multinomial(
        self, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
    ) -> Tensor:  # fmt: skip
        """Indices with the probabilities that weights have in each row. See `genesis.multinomial`."""
        if self.ndim not in (1, 2) or not self.dtype.is_floating_point:
            raise ShapeError(describe("multinomial", "input", "floats of 1 or 2 dimensions", f"shape {self.shape}"))
        weights = self.detach().double()
        possible = int((weights > 0).sum(-1).amin().item())
        if not bool((weights >= 0).all()) or not possible or not bool(weights.isfinite().all()):
            raise ValueError(describe("multinomial", "input", "finite weights of at least 0, some above", "others"))
        if num_samples < 1 or (not replacement and num_samples > possible):
            expected = "at least 1" if replacement else f"from 1 to {possible}, the weights above 0"
            raise ValueError(describe("multinomial", "num_samples", expected, num_samples))
        if replacement:
            return draw_indices(weights, num_samples, generator=generator)
        draws = self._like(NDArray.empty(self.shape, dtypes.float64, self.device)).uniform_(generator=generator)
        times = -(-draws).log1p()  # of the first arrivals, each at the rate of its weight
        return F.topk(-times / weights, num_samples, -1).indices

    def _draw(self, op: str, generator: Generator | None, fill: Callable[[Tensor, *Ts], Tensor], *args: *Ts) -> Self:
        with _drawing(op, generator, self):
            return self._change(fill, *args)


def draw_indices(weights: Tensor, num_samples: int, *, generator: Generator | None = None) -> Tensor:
    """The draws of multinomial() with replacement, for weights that are known to be good ones."""
    ends = weights.double().cumsum(-1)
    shape = (*weights.shape[:-1], num_samples)
    drawn = weights._like(NDArray.empty(shape, dtypes.float64, weights.device)).uniform_(generator=generator)
    draws = drawn * ends[..., -1:]
    if num_samples == 1:  # fewer and cheaper calls, which count where a policy draws one action a step
        places = F.sum(ends <= draws, -1, keepdim=True)
    else:
        places = F.searchsorted(ends, draws, right=True)
    return places.clamp(0, weights.shape[-1] - 1)


_ABOVE = {
    dtypes.float64: 2**53 + 1, dtypes.float32: 2**24 + 1, dtypes.float16: 2**11 + 1, dtypes.bfloat16: 2**8 + 1,
    dtypes.int32: 2**31 - 1, dtypes.int16: 2**15, dtypes.int8: 2**7, dtypes.uint8: 2**8, dtypes.bool_: 2,
}  # fmt: skip
_NONE = contextlib.nullcontext()


def _drawing(op: str, generator: Generator | None, target: Draws) -> contextlib.AbstractContextManager[None]:
    if generator is None:
        return _NONE
    if getattr(generator, "device", None) is not target.device:
        raise DTypeError(describe(op, "generator", f"a Generator of {target.device}", repr(generator)))
    return generator._in_place_of_the_devices()


@overwrites("bernoulli_")
def _tossed(target: Tensor, p: float | Tensor) -> Tensor:
    array = target.array
    if isinstance(p, Tensor) or not 0 < p < 1:
        wide = dtypes.float64 if isinstance(p, Tensor) and p.dtype is dtypes.float64 else dtypes.float32  # as PyTorch
        draws = NDArray.random("rand", array.device, array.shape, None, wide)
        return target._like(draws.lt(p.array if isinstance(p, Tensor) else p).to(array.dtype))
    kept = ops.dropout(NDArray.full(array.shape, 1, dtypes.float32, array.device), 1 - p)[1]  # as PyTorch draws them
    return target._like(kept.to(array.dtype))


@overwrites("rand")
def _drawn(target: Tensor, op: Literal["rand", "randn"], scale: float, shift: float) -> Tensor:
    """scale · draws + shift, in target's shape and dtype."""
    array = target.array
    if not array.dtype.is_floating_point:
        raise DTypeError(describe(op, "self", "a floating dtype", array.dtype))
    draws = NDArray.random(op, array.device, array.shape, None, array.dtype)
    return target._like(draws.mul(scale).add(shift))


@overwrites("rand")
def _by_quantiles(target: Tensor, quantile: Callable[[Tensor], Tensor]) -> Tensor:
    """Draws from the distribution with this quantile function, of u in (0, 1)."""
    array = target.array
    wide = array.dtype if array.dtype in (dtypes.float32, dtypes.float64) else dtypes.float32
    draws = NDArray.random("rand", array.device, array.shape, None, wide)
    return target._like(quantile(target._like(draws).clamp(1.0 - LARGEST, LARGEST)).array.to(array.dtype))


@overwrites("randn")
def _by_normal(target: Tensor, mean: float, std: float) -> Tensor:
    return target._like(_drawn(target, "randn", std, mean).array.exp())


@overwrites("randint")
def _integers(target: Tensor, low: int, high: int) -> Tensor:
    array = target.array
    draws = NDArray.random("randint", array.device, low, high, array.shape, dtypes.int64)
    return target._like(draws.to(array.dtype))
