"""Mixed precision: autocast chooses the dtype of each function, GradScaler keeps small gradients alive."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from genesis import dtypes
from genesis import functional as F
from genesis.autograd.modes import state as thread
from genesis.dtypes import DType
from genesis.errors import DTypeError, GraphError, describe
from genesis.interrupts import at_once, held
from genesis.ndarray import NDArray, ops
from genesis.optim import Optimizer
from genesis.tensor import Tensor

_LOWER_DTYPES = {"cpu": dtypes.bfloat16, "cuda": dtypes.float16}  # PyTorch's defaults


class autocast:  # noqa: N801  (PyTorch's name)
    """Compute products and convolutions in a 16-bit dtype and delicate functions in float32: a with block or decorator.

    A Function's class attribute `autocast` says what happens to its floating inputs (float64 ones stay as they are):
    "lower": cast to dtype; "float32": cast to float32; "widest": cast to the widest among them; None: left alone. The
    casts are part of the graph, so that float32 weights get float32 gradients. Only the calling thread is affected.

    Args:
        device_type: "cpu" | "cuda": the tensors that are cast; None: those of every device.
        dtype: float16 | bfloat16; by default bfloat16 on the CPU and float16 on CUDA.
        enabled: False leaves everything alone inside the block, in an outer autocast too.
        cache_enabled: cast a float32 weight once for the whole (outermost) block; by default as in the outer block.
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
        self._outer: list[Callable[..., Any] | None] = []

    def __enter__(self) -> autocast:
        outer = thread.autocast
        self._outer.append(outer)
        casts = outer if isinstance(outer, _Casts) else _Casts({}, {}, True)
        cached = casts.cache_enabled if self._cache_enabled is None else self._cache_enabled
        thread.autocast = _Casts({**casts.targets, **self._targets}, casts.cache, cached)
        return self

    def __exit__(self, *exception: object) -> None:
        thread.autocast = self._outer.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_autocast(*args: Any, **kwargs: Any) -> Any:
            block = copy.copy(self)  # the calls of several threads must not share what they return to
            block._outer = []
            with block:
                return function(*args, **kwargs)

        return with_autocast


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether this thread is inside an autocast block for tensors of device_type; None: of any device."""
    if not isinstance(thread.autocast, _Casts):
        return False
    targets = thread.autocast.targets
    return any(targets.values()) if device_type is None else targets.get(device_type) is not None


class _Casts:
    """What an autocast block does to the arguments of a Function: Function.apply calls it."""

    def __init__(self, targets: dict[str, DType | None], cache: dict[Any, Any], cache_enabled: bool) -> None:
        self.targets = targets  # the lower dtype by type of device; None where autocast is switched off
        self.cache = cache  # of the weights that were cast; it goes with the outermost block
        self.cache_enabled = cache_enabled

    def __call__(self, function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        policy = function.autocast
        if policy is None or not any(self._lower_dtype(arg) for arg in args):
            return args
        if policy == "widest":
            eligible = [arg.array.dtype for arg in args if self._lower_dtype(arg)]
            widest = functools.reduce(dtypes.promote, eligible)
            return tuple([F.cast(arg, widest) if self._lower_dtype(arg) else arg for arg in args])
        return tuple([self._cast(arg, policy) for arg in args])

    def _lower_dtype(self, arg: Any) -> DType | None:
        """The 16-bit dtype for arg, or None if autocast leaves it alone."""
        if not isinstance(arg, Tensor) or not arg.dtype.is_floating_point or arg.dtype is dtypes.float64:
            return None
        return self.targets.get(arg.device.type)

    def _cast(self, arg: Any, policy: str) -> Any:
        lower = self._lower_dtype(arg)
        if lower is None:
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


class GradScaler:
    """Scale the loss so that float16 gradients don't vanish; skip steps in which they overflow, and adapt the scale.

    Args:
        device: where the losses live; kept for PyTorch's signature, any device works.
        growth_factor: the scale grows by it after growth_interval steps without an overflow in a row.
        backoff_factor: the scale shrinks by it after a step that was skipped.
        enabled: False makes every method pass its arguments on.
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

    def scale(self, outputs: Any) -> Any:
        """outputs (a tensor, or nested lists and tuples of them) times the scale."""
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
        """Divide the gradients of optimizer by the scale, in place: to clip them before step().

        Raises: GraphError: a second time since update(), or after step(); DTypeError: a gradient is float16.
        """
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise GraphError("GradScaler.unscale_: called after step() of the same optimizer; call update() first")
        if id(optimizer) in self._found:
            raise GraphError("GradScaler.unscale_: called a second time for the same optimizer since the last update()")
        groups: dict[Any, list[NDArray]] = {}
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

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step() with unscaled gradients, unless one of them is not finite: then nothing happens.

        Raises: GraphError: a second time since update(), or there are no gradients.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise DTypeError(describe("GradScaler.step", "closure", "none: it would make unscaled gradients", "one"))
        if id(optimizer) in self._stepped:
            raise GraphError("GradScaler.step: called a second time for the same optimizer since the last update()")
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        if not self._found[id(optimizer)]:
            del self._found[id(optimizer)]
            raise GraphError("GradScaler.step: the optimizer's parameters have no gradients; call backward() first")
        self._stepped.add(id(optimizer))
        return None if self._overflowed(optimizer) else optimizer.step()

    def _overflowed(self, optimizer: Optimizer) -> bool:
        return any(found.item() for found in self._found[id(optimizer)])

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale to what the steps since the last update found; or set it to new_scale."""
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
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale and what governs it, as PyTorch's scaler names them; empty if not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what state_dict() gave: Genesis' or PyTorch's."""
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
