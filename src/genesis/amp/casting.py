"""autocast: a dtype for the inputs of each function, by what the function needs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import ParamSpec, TypeVar

from genesis import dtypes
from genesis import functional as F
from genesis.amp import cast_groups
from genesis.autograd import Function
from genesis.autograd.modes import Autocast
from genesis.autograd.modes import state as thread
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.functional.conversion import Cast
from genesis.ndarray import NDArray, ops
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
        self._outer: list[Autocast | None] = []

    def __enter__(self) -> autocast:
        outer = thread.autocast
        self._outer.append(outer)
        casts = outer if isinstance(outer, _Casts) else _Casts({}, _WeightCasts(), True)
        cached = casts.cache_enabled if self._cache_enabled is None else self._cache_enabled
        thread.autocast = _Casts({**casts.targets, **self._targets}, casts.weights, cached)
        return self

    def __exit__(self, *exception: object) -> None:
        casts, outer = thread.autocast, self._outer.pop()
        if not isinstance(outer, _Casts) and not any(exception):  # a block that was left half way used fewer of them
            note_weights(casts)
        thread.autocast = outer

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


_Key = tuple[int, DType, bool]  # a weight (its id), a dtype, and whether a graph is recorded


class _WeightCasts:
    """The weights that an outermost block has cast.

    Attributes:
        used: those that a function has asked for, by their ids and dtypes.
    """

    def __init__(self) -> None:
        self.used: dict[tuple[int, DType], Tensor] = {}
        self._casts: dict[_Key, _Cast] = {}

    def get(self, weight: Tensor, target: DType) -> Tensor:
        """A weight in a dtype: cast now, with its group, or before."""
        self.used[id(weight), target] = weight
        # A cast that was made without a graph, or from values that have changed since, must not be used again.
        key = (id(weight), target, thread.recording)
        if not self._has(weight, key):
            self._cast(cast_groups.group_of(weight, target), target)
        known = self._casts[key]
        if known.result is None:
            # Only now does it get its place in the graph: backward goes from the latest place to the first, and makes
            # the gradients of a layer when that was used, while others are sent to other ranks.
            is_made = known.made is not None and thread.observer is None  # observers see the cast of F.cast
            known.result = Cast.apply(weight, dtype=target, made=known.made) if is_made else F.cast(weight, target)
        return known.result

    def _has(self, weight: Tensor, key: _Key) -> bool:
        known = self._casts.get(key)
        return known is not None and known.array is weight.array and known.version == weight.array.changes.version

    def _cast(self, group: Sequence[Tensor], target: DType) -> None:
        """Cast what is missing of a group, several in one launch."""
        keys = [(id(weight), target, thread.recording) for weight in group]
        missing = {key: weight for weight, key in zip(group, keys, strict=True) if not self._has(weight, key)}
        arrays = [weight.array for weight in missing.values()]
        results: list[NDArray | None] = [None]
        if len(arrays) > 1:
            together = [NDArray.empty(x.shape, target, x.device, x.dense_strides()) for x in arrays]
            ops.copy_all_into(together, arrays)
            results = [*together]
        for (key, weight), made in zip(missing.items(), results, strict=True):
            self._casts[key] = _Cast(weight, made)


class _Cast:
    """The cast of a weight.

    Attributes:
        array, version: what was cast.
        made: its values, if they were cast in a group.
        result: the tensor, once a function has asked for it.
    """

    def __init__(self, weight: Tensor, made: NDArray | None) -> None:
        self.weight = weight  # kept alive, as its id is a key
        self.array, self.version = weight.array, weight.array.changes.version
        self.made = made
        self.result: Tensor | None = None


class _Casts:
    """The casts of an autocast block: Function.apply applies them to a Function's arguments."""

    def __init__(self, targets: dict[str, DType | None], weights: _WeightCasts, cache_enabled: bool) -> None:
        self.targets = targets  # the lower dtype by type of device; None where autocast is switched off
        self.weights = weights  # those of the outermost block
        self.cache_enabled = cache_enabled

    def __call__(self, function: type[Function], args: Args) -> Args:
        policy = function.autocast
        if policy is None or not any(self.lower_dtype(arg) for arg in args):
            return args
        if policy == "widest":
            eligible = [arg.dtype for arg in args if isinstance(arg, Tensor) and self.lower_dtype(arg)]
            widest = functools.reduce(dtypes.promote, eligible)
            return tuple([
                F.cast(arg, widest) if isinstance(arg, Tensor) and self.lower_dtype(arg) else arg for arg in args
            ])  # fmt: skip
        return tuple([self._cast(arg, policy) for arg in args])

    def lower_dtype(self, arg: object) -> DType | None:
        """The 16-bit dtype for arg, or None if autocast leaves it alone."""
        if not isinstance(arg, Tensor) or not arg.dtype.is_floating_point or arg.dtype is dtypes.float64:
            return None
        return self.targets.get(arg.device.type)

    def _cast(self, arg: object, policy: str) -> object:
        lower = self.lower_dtype(arg)
        if lower is None or not isinstance(arg, Tensor):
            return arg
        target = lower if policy == "lower" else dtypes.float32
        if not (self.cache_enabled and target is lower and cast_groups.is_weight(arg)):
            return F.cast(arg, target)
        return self.weights.get(arg, target)


def note_weights(casts: Autocast | None) -> None:
    """A block ends: the weights that it has cast are cast in one launch the next time."""
    if isinstance(casts, _Casts):
        cast_groups.note(casts.weights.used)


def with_new_cache(casts: Autocast | None) -> Autocast | None:
    """These casts with a cache of their own: a CUDA graph must not read a cast weight that goes away before it."""
    return _Casts(casts.targets, _WeightCasts(), casts.cache_enabled) if isinstance(casts, _Casts) else casts


def casts_key(casts: Hashable) -> Hashable:
    """Equal for autocast blocks that cast alike."""
    return (frozenset(casts.targets.items()), casts.cache_enabled) if isinstance(casts, _Casts) else casts
