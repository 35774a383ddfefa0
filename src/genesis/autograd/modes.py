"""Per thread: whether ops are recorded, what amp.autocast does to their inputs, and who watches the calls."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, Self, TypeAlias, TypeVar, overload

from genesis.errors import GraphError

if TYPE_CHECKING:
    from genesis.amp.device_scale import Rehearsal
    from genesis.dtypes import DType
    from genesis.ndarray import NDArray
    from genesis.optim.batch import Batch
    from genesis.optim.optimizer import Optimizer
    from genesis.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Observer: TypeAlias = "Callable[[type, tuple[object, ...], dict[str, object], list[Tensor]], None]"  # see observe


class Autocast(Protocol):
    """Gives a function's arguments in its precision."""

    def __hash__(self) -> int: ...
    def __call__(self, function: type, args: tuple[Any, ...], /) -> tuple[Any, ...]: ...
    def lower_dtype(self, arg: object) -> DType | None:
        """The 16-bit dtype for arg, or None if autocast leaves it alone."""


class Watcher(Protocol):
    """Records a run of this thread as calls of a backend, and hears of what happens besides."""

    @property
    def rehearsal(self) -> Rehearsal | None:
        """Protocol of what stands in for the capture of a CUDA graph that is to make the same calls."""

    def refuse(self, reason: str) -> None:
        """The run does what cannot be replayed."""

    def update(self, optimizer: Optimizer, batch: Batch) -> None:
        """Make this update of an optimizer's step."""

    def repeat(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray],
        is_wait: bool = False,
    ) -> None:  # fmt: skip
        """Make call(arrays), which no backend hears of and which changes some of them; make it in each replay.

        is_wait: it may be made later then, just before the first call that uses memory of these arrays.
        """

    def launch(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray]
    ) -> None:
        """Make call(arrays), a launch of a user's kernel, which changes some of them; make it in each replay."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """A block whose calls are no part of the run: they will be made again before each replay."""


class Constant:
    """An object whose calls always do the same, whatever it remembers of them: guards need not look into it."""


class _State(threading.local):
    """Holds a thread's modes in state.__dict__, so that a function that needs several looks it up once."""

    def __init__(self) -> None:
        self.recording = True
        # Layers may compute with weights that were folded together beforehand, see without_folding.
        self.folding = True
        self.checking = True  # functions read values of tensors to refuse bad ones, see without_value_checks
        self.dropping = True  # dropout drops, see without_dropout
        self.inference = False  # inside inference_mode
        # Set by genesis.amp.
        self.autocast: Autocast | None = None
        # Sees each call, see observe.
        self.observer: Observer | None = None
        self.watcher: Watcher | None = None  # see watched
        self.unsynced: frozenset[int] = frozenset()  # ids of models that are in DistributedDataParallel.no_sync()
        self.after_backward: list[Callable[[], None]] | None = None  # while a backward pass runs, see after_backward


state = _State()


class set_grad_enabled:  # noqa: N801  (PyTorch's name)
    """Record ops or not: as a with block, as a decorator, or for good when just called.

    Args:
        mode: whether ops are recorded.

    Example:
        >>> x = genesis.ones(2, requires_grad=True)
        >>> with genesis.set_grad_enabled(False):
        ...     (x * 2).requires_grad
        False
    """

    def __init__(self, mode: bool) -> None:
        self._before, self._mode = state.recording, mode
        state.recording = mode

    def __enter__(self) -> None:
        state.recording = self._mode

    def __exit__(self, *exception: object) -> None:
        state.recording = self._before

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        state.recording = self._before  # the decorated function sets it, not the decoration

        @functools.wraps(function)
        def with_mode(*args: P.args, **kwargs: P.kwargs) -> R:
            with set_grad_enabled(self._mode):
                return function(*args, **kwargs)

        return with_mode


class _With(contextlib.AbstractContextManager[None]):
    """Inside, this thread's state has another value.

    No generator: one that an interrupt had left suspended would put the value back when it is collected, in the midst
    of something else.
    """

    __slots__ = ("_before", "_name", "_value")

    def __init__(self, name: str, value: object) -> None:
        self._name, self._value = name, value

    def __enter__(self) -> None:
        self._before = getattr(state, self._name)
        setattr(state, self._name, self._value)

    def __exit__(self, *exception: object) -> None:
        setattr(state, self._name, self._before)


def without_autocast() -> contextlib.AbstractContextManager[None]:
    """Inside, functions take their inputs as they come."""
    return _With("autocast", None)


def with_autocast(autocast: Autocast | None) -> contextlib.AbstractContextManager[None]:
    """Inside, functions take their inputs as this autocast gives them."""
    return _With("autocast", autocast)


def without_folding() -> contextlib.AbstractContextManager[None]:
    """Inside, layers compute with their parameters as they are: for weights that change before folding them pays."""
    return _With("folding", False)


def without_dropout() -> contextlib.AbstractContextManager[None]:
    """Inside, dropout hands its input on in training too: for what must not depend on its draws."""
    return _With("dropping", False)


def without_value_checks() -> contextlib.AbstractContextManager[None]:
    """Inside, functions that would refuse some values of a tensor take them unseen: a recording must not read any."""
    return _With("checking", False)


def checks_values() -> bool:
    """Whether functions may read the values of a tensor to refuse bad ones."""
    return state.checking


class _GradMode:
    mode: ClassVar[bool]

    @overload
    def __new__(cls, function: None = None) -> Self: ...
    @overload
    def __new__(cls, function: Callable[P, R]) -> Callable[P, R]: ...  # type: ignore[misc]
    def __new__(cls, function: Callable[P, R] | None = None) -> object:  # type: ignore[misc]
        """Make a context, or, as a decorator without parentheses, the function in it."""
        return super().__new__(cls) if function is None else cls()(function)

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(state.recording)
        state.recording = self.mode

    def __exit__(self, *exception: object) -> None:
        state.recording = self._before.pop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def with_mode(*args: P.args, **kwargs: P.kwargs) -> R:
            with type(self)():
                return function(*args, **kwargs)

        return with_mode


class no_grad(_GradMode):  # noqa: N801  (PyTorch's name)
    """Record nothing inside a with block or a decorated function.

    Example:
        >>> x = genesis.ones(2, requires_grad=True)
        >>> with genesis.no_grad():
        ...     (x * 2).requires_grad
        False
    """

    mode = False


class enable_grad(_GradMode):  # noqa: N801  (PyTorch's name)
    """Record again, inside a no_grad block.

    Example:
        >>> x = genesis.ones(2, requires_grad=True)
        >>> with genesis.no_grad(), genesis.enable_grad():
        ...     (x * 2).requires_grad
        True
    """

    mode = True


class inference_mode(_GradMode):  # noqa: N801  (PyTorch's name)
    """Record nothing, as no_grad does; a decorator too. What is computed inside may be used for gradients later.

    Args:
        mode: False ends the mode inside another one, and records.

    Example:
        >>> x = genesis.ones(2, requires_grad=True)
        >>> with genesis.inference_mode():
        ...     (x * 2).requires_grad, genesis.is_inference_mode_enabled()
        (False, True)
    """

    mode = False

    def __new__(cls, mode: bool | Callable[P, R] = True) -> Any:
        return super().__new__(cls, None if isinstance(mode, bool) else mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._inference, self._outside = mode, [state.inference]

    def __enter__(self) -> None:
        self._before.append(state.recording)
        self._outside.append(state.inference)
        state.inference = self._inference
        state.recording = not self._inference

    def __exit__(self, *exception: object) -> None:
        state.inference = self._outside.pop()
        super().__exit__(*exception)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def with_mode(*args: P.args, **kwargs: P.kwargs) -> R:
            with type(self)(self._inference):
                return function(*args, **kwargs)

        return with_mode


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside inference_mode. See `genesis.inference_mode`."""
    return state.inference


def observe(observer: Observer) -> contextlib.AbstractContextManager[None]:
    """Have observer(function, args, kwargs, outputs) called after each Function.apply of this thread."""
    return _With("observer", observer)


def watched(watcher: Watcher) -> contextlib.AbstractContextManager[None]:
    """Inside, watcher is told of what this thread does beside the calls of its backend."""
    return _With("watcher", watcher)


def after_backward(callback: Callable[[], None]) -> None:
    """Have callback() called once when the backward pass that runs in this thread has ended; not if it fails.

    For hooks: they see each gradient, but not the last one.
    """
    if state.after_backward is None:
        raise GraphError("after_backward: expected to be called in a backward pass")
    state.after_backward.append(callback)


def repeated(
    call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray],
    is_wait: bool = False,
) -> None:  # fmt: skip
    """Make call(arrays), which no backend hears of and which changes those written; who records this run repeats it.

    A replay makes the call in its place among the others, on arrays of its own; is_wait: or as late as it can.
    """
    if state.watcher is None:
        call(arrays)
    else:
        state.watcher.repeat(call, arrays, written, is_wait)


def unrecordable(reason: str) -> None:
    """Tell who records this run, if someone does, that it cannot be replayed: it `reason`."""
    if state.watcher is not None:
        state.watcher.refuse(reason)


def is_grad_enabled() -> bool:
    """Whether this thread records ops for gradients.

    Example:
        >>> with genesis.no_grad():
        ...     genesis.is_grad_enabled()
        False
    """
    return state.recording
