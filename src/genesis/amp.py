"""Mixed precision: autocast chooses the dtype of each function, GradScaler keeps small gradients alive."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar, overload

from genesis import dtypes
from genesis import functional as F
from genesis.autograd import Function
from genesis.autograd.modes import Autocast
from genesis.autograd.modes import state as thread
from genesis.dtypes import DType
from genesis.errors import DTypeError, GraphError, describe
from genesis.interrupts import at_once, held
from genesis.ndarray import Device, NDArray, ops
from genesis.optim import Optimizer
from genesis.tensor import Tensor

P = ParamSpec("P")
Result = TypeVar("Result")
Args = tuple[object, ...]

_LOWER_DTYPES = {"cpu": dtypes.bfloat16, "cuda": dtypes.float16}  # PyTorch's defaults


class autocast:  # noqa: N801  (PyTorch's name)
    """Mixed precision, as a with block or decorator: matrix products and convolutions run in a 16-bit dtype.

    Functions that need the range or precision of float32, such as exp and losses, run in it. A Function's class
    attribute `autocast` decides what happens to its floating inputs (float64 ones are never cast): "lower" casts to
    dtype, "float32" to float32, "widest" to the widest among them; None leaves them. Casts are part of the graph, so
    float32 weights get float32 gradients. Only the calling thread is affected.

    Args:
        device_type: "cpu" | "cuda", the device whose tensors are cast; None for all.
        dtype: float16 | bfloat16; by default bfloat16 on the CPU and float16 on CUDA.
        enabled: False switches autocast off inside the block, also within an outer autocast.
        cache_enabled: cast a float32 weight once per outermost block; by default as in the outer block.
    Raises: ValueError: another device_type; DTypeError: another dtype.
    Example:
        >>> x = genesis.ones(2, 2)
        >>> with genesis.autocast("cpu"):
        ...     x.exp().dtype
        genesis.float32
    """

    def __init__(
        self, device_type: str | None = None, dtype: DType | None = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        if device_type is not None and device_type not in _LOWER_DTYPES:
            raise ValueError(describe("autocast", "device_type", "'cpu', 'cuda' or None", repr(device_type)))
        if dtype not in (None, dtypes.float16, dtypes.bfloat16):
            raise DTypeError(describe("autocast", "dtype", "genesis.float16 or genesis.bfloat16", dtype))
        device_types = tuple(_LOWER_DTYPES) if device_type is None else (device_type,)
        self._targets = {each: (dtype or _LOWER_DTYPES[each]) if enabled else None for each in device_types}
        self._cache_enabled = cache_enabled
        self._outer: list[Callable[[type[Function], Args], Args] | None] = []

    def __enter__(self) -> autocast:
        outer = thread.autocast
        self._outer.append(outer)
        casts = outer if isinstance(outer, _Casts) else _Casts({}, {}, True)
        cached = casts.cache_enabled if self._cache_enabled is None else self._cache_enabled
        thread.autocast = _Casts({**casts.targets, **self._targets}, casts.cache, cached)
        return self

    def __exit__(self, *exception: object) -> None:
        thread.autocast = self._outer.pop()

    def __call__(self, function: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def with_autocast(*args: P.args, **kwargs: P.kwargs) -> Result:
            block = copy.copy(self)  # the calls of several threads must not share what they return to
            block._outer = []
            with block:
                return function(*args, **kwargs)

        return with_autocast


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether this thread is inside an autocast block for tensors of device_type, "cpu" or "cuda"; None for any.

    Args:
        device_type: "cpu", "cuda" or None.

    Example:
        >>> with genesis.autocast("cpu"):
        ...     genesis.amp.is_autocast_enabled("cpu"), genesis.amp.is_autocast_enabled("cuda")
        (True, False)
    """
    if not isinstance(thread.autocast, _Casts):
        return False
    targets = thread.autocast.targets
    return any(targets.values()) if device_type is None else targets.get(device_type) is not None


# By weight (its id), dtype, and whether a graph is recorded: the weight, its array and version, and the result.
_Cache = dict[tuple[int, DType, bool], tuple[Tensor, NDArray, int, Tensor]]


class _Casts:
    """The casts of an autocast block: Function.apply applies them to a Function's arguments."""

    def __init__(self, targets: dict[str, DType | None], cache: _Cache, cache_enabled: bool) -> None:
        self.targets = targets  # the lower dtype by type of device; None where autocast is switched off
        self.cache = cache  # of the weights that were cast; it goes with the outermost block
        self.cache_enabled = cache_enabled

    def __call__(self, function: type[Function], args: Args) -> Args:
        policy = function.autocast
        if policy is None or not any(self._lower_dtype(arg) for arg in args):
            return args
        if policy == "widest":
            eligible = [arg.dtype for arg in args if isinstance(arg, Tensor) and self._lower_dtype(arg)]
            widest = functools.reduce(dtypes.promote, eligible)
            return tuple([
                F.cast(arg, widest) if isinstance(arg, Tensor) and self._lower_dtype(arg) else arg for arg in args
            ])  # fmt: skip
        return tuple([self._cast(arg, policy) for arg in args])

    def _lower_dtype(self, arg: object) -> DType | None:
        """The 16-bit dtype for arg, or None if autocast leaves it alone."""
        if not isinstance(arg, Tensor) or not arg.dtype.is_floating_point or arg.dtype is dtypes.float64:
            return None
        return self.targets.get(arg.device.type)

    def _cast(self, arg: object, policy: str) -> object:
        lower = self._lower_dtype(arg)
        if lower is None or not isinstance(arg, Tensor):
            return arg
        target = lower if policy == "lower" else dtypes.float32
        is_weight = arg.requires_grad and arg.is_leaf and arg.dtype is dtypes.float32
        version = arg.array.changes.version
        if not (self.cache_enabled and is_weight and target is lower) or version is None:
            return F.cast(arg, target)
        # A cast that was made without a graph, or from values that have changed since, must not be used again.
        key = (id(arg), target, thread.recording)
        known = self.cache.get(key)
        if known is None or known[1] is not arg.array or known[2] != version:
            known = self.cache[key] = (arg, arg.array, version, F.cast(arg, target))
        return known[3]


def with_new_cache(casts: Autocast | None) -> Autocast | None:
    """These casts with a cache of their own: a CUDA graph must not read a cast weight that goes away before it."""
    return _Casts(casts.targets, {}, casts.cache_enabled) if isinstance(casts, _Casts) else casts


class GradScaler:
    """Loss scaling: keeps float16 gradients from underflowing, skips steps that overflow, and adapts the scale.

    Args:
        device: accepted for PyTorch's signature; losses may be on any device.
        init_scale: initial factor of the loss.
        growth_factor: the scale is multiplied by it after growth_interval steps in a row without overflow.
        backoff_factor: the scale is multiplied by it after a step that overflowed.
        growth_interval: number of steps.
        enabled: False makes scale() return its argument and step() run optimizer.step().
    Raises: ValueError: growth_factor ≤ 1, or backoff_factor outside (0, 1).
    Source: Micikevicius et al. 2018, arXiv:1710.03740.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer, scaler = genesis.optim.SGD([p], lr=0.1), genesis.amp.GradScaler()
        >>> scaler.scale(p * p).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> round(p.item(), 4)
        0.8
    """

    def __init__(
        self, device: str = "cpu", init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if growth_factor <= 1.0:
            raise ValueError(describe("GradScaler", "growth_factor", "a number > 1", growth_factor))
        if not 0 < backoff_factor < 1.0:
            raise ValueError(describe("GradScaler", "backoff_factor", "a number in (0, 1)", backoff_factor))
        self._scale, self._growth_factor, self._backoff_factor = float(init_scale), growth_factor, backoff_factor
        self._growth_interval, self._growth_tracker, self._enabled = growth_interval, 0, enabled
        # By id of the optimizer, since the last update: whether it stepped, and whether a gradient was not finite.
        self._stepped: set[int] = set()
        self._found: dict[int, list[NDArray]] = {}

    @overload
    def scale(self, outputs: Tensor) -> Tensor: ...
    @overload
    def scale(self, outputs: list[Tensor]) -> list[Tensor]: ...
    @overload
    def scale(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]: ...
    @overload
    def scale(self, outputs: Iterable[object]) -> object: ...
    def scale(self, outputs: object) -> object:
        """Multiply a loss, or each in nested lists and tuples, by the scale; float16 losses become float32.

        Args:
            outputs: a floating tensor of any shape, or nested lists and tuples of them.
        Returns: the same structure.
        Raises: DTypeError: something is not a tensor.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            # A 0-d float32 tensor: a 0-d float16 loss becomes float32 and cannot overflow.
            return outputs * Tensor(NDArray.full((), self._scale, dtypes.float32, outputs.device))
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | dict):
            scaled = [self.scale(output) for output in outputs]
            return tuple(scaled) if isinstance(outputs, tuple) else scaled
        raise DTypeError(describe("GradScaler.scale", "outputs", "tensors", type(outputs).__name__))

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of optimizer by the scale, in place, so that they can be clipped before step().

        Args:
            optimizer: its gradients are divided.
        Raises: GraphError: called twice since update(), or after step(); DTypeError: a gradient is float16.

        Example:
            >>> p = genesis.tensor([1.0], requires_grad=True)
            >>> optimizer, scaler = genesis.optim.SGD([p], lr=0.1), genesis.amp.GradScaler(init_scale=8.0)
            >>> scaler.scale(p * p).backward()
            >>> before = p.grad.item()
            >>> scaler.unscale_(optimizer)
            >>> before, p.grad.item()
            (16.0, 2.0)
        """
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise GraphError("GradScaler.unscale_: called after step() of the same optimizer; call update() first")
        if id(optimizer) in self._found:
            raise GraphError("GradScaler.unscale_: called a second time for the same optimizer since the last update()")
        groups: dict[tuple[DType, Device], list[NDArray]] = {}
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    grad = param.grad.array
                    if grad.dtype is dtypes.float16:
                        raise DTypeError(
                            describe(
                                "GradScaler.unscale_", "grad", "gradients of float32 weights", "a float16 gradient"
                            )
                        )
                    groups.setdefault((grad.dtype, grad.device), []).append(grad)
        factor = 1.0 / self._scale
        with held():  # gradients that were divided, and not noted, would be divided again
            self._found[id(optimizer)] = [ops.unscale_into(grads, factor) for grads in groups.values()]

    def step(self, optimizer: Optimizer, closure: Callable[[], Result] | None = None) -> Result | None:
        """Run optimizer.step() with unscaled gradients; skip it if one of them is not finite.

        Args:
            optimizer: its step() runs.
            closure: only where the scaler is not enabled: its gradients would not be scaled.
        Returns: what optimizer.step() returned, or None.
        Raises: GraphError: called twice since update(), or there are no gradients; DTypeError: a closure is given.
        """
        if not self._enabled:
            return optimizer.step() if closure is None else optimizer.step(closure)
        if closure is not None:
            raise DTypeError(describe("GradScaler.step", "closure", "none: it would make unscaled gradients", "one"))
        if id(optimizer) in self._stepped:
            raise GraphError("GradScaler.step: called a second time for the same optimizer since the last update()")
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        if not self._found[id(optimizer)]:
            del self._found[id(optimizer)]
            raise GraphError("GradScaler.step: the optimizer's parameters have no gradients; call backward() first")
        self._stepped.add(id(optimizer))
        if not self._overflowed(optimizer):
            optimizer.step()
        return None

    def _overflowed(self, optimizer: Optimizer) -> bool:
        return any(found.item() for found in self._found[id(optimizer)])

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale to whether the steps since the last update overflowed; or set it to new_scale.

        Args:
            new_scale: a number, or a tensor of one element; None adapts the scale.
        Raises: GraphError: there has been no step since the last update.
        """
        if not self._enabled:
            return
        found = [flag.item() for flags in self._found.values() for flag in flags]
        scale, tracker = self._scale, self._growth_tracker
        if new_scale is not None:
            scale = float(new_scale)
        elif not found:
            raise GraphError("GradScaler.update: no step() or unscale_() has been called since the last update()")
        elif any(found):
            scale, tracker = scale * self._backoff_factor, 0
        else:
            tracker += 1
            if tracker == self._growth_interval:
                grown = scale * self._growth_factor
                scale, tracker = grown if grown < _FLOAT32_LIMIT else scale, 0
        state = {"_scale": scale, "_growth_tracker": tracker, "_stepped": set(), "_found": {}}
        at_once([(vars(self).update, state)])

    def get_scale(self) -> float:
        """The present scale; 1 if not enabled.

        Example:
            >>> genesis.amp.GradScaler(init_scale=8.0).get_scale()
            8.0
        """
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether the scaler is enabled.

        Example:
            >>> genesis.amp.GradScaler(enabled=False).is_enabled()
            False
        """
        return self._enabled

    def state_dict(self) -> dict[str, float]:
        """The scale and the settings.

        Returns: named as by PyTorch's scaler; empty if not enabled.

        Example:
            >>> scaler = genesis.amp.GradScaler()
            >>> scaler.load_state_dict(genesis.amp.GradScaler(init_scale=4.0).state_dict())
            >>> scaler.get_scale()
            4.0
        """
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, float]) -> None:
        """Load the state of a scaler, of Genesis or PyTorch. See `genesis.amp.GradScaler.state_dict`.

        Args:
            state_dict: what state_dict() returned.
        Raises: ValueError: an entry is missing; nothing has changed.
        """
        if not self._enabled:
            return
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(
                describe(
                    "GradScaler.load_state_dict",
                    "state_dict",
                    "the state of an enabled scaler",
                    f"no {sorted(missing)}",
                )
            )
        names = ("growth_factor", "backoff_factor", "growth_interval")
        state = {f"_{name}": state_dict[name] for name in names} | {"_scale": float(state_dict["scale"])}
        at_once([(vars(self).update, state | {"_growth_tracker": state_dict["_growth_tracker"]})])


_FLOAT32_LIMIT = math.ldexp(1.0, 128)
