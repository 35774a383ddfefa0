"""All that a growth step can change, kept so that it can be put back bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from genesis.autograd import modes
from genesis.growth.places import tensors_of
from genesis.interrupts import Call, Whole, at_once, replacing
from genesis.ndarray import Copies, NDArray
from genesis.nn.module import Module
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.growth.history import Step


@runtime_checkable
class HasState(Protocol):
    """Something whose state can be saved and restored, such as a learning-rate scheduler."""

    def state_dict(self) -> object: ...
    def load_state_dict(self, state_dict: Any, /) -> object: ...


class Snapshot:
    """The state of modules, optimizers and other objects.

    Args:
        lists: whose contents are kept too.
    """

    def __init__(
        self, modules: Sequence[Module], optimizers: Sequence[Optimizer], others: Sequence[HasState] = (),
        lists: Sequence[list[Step]] = (),
    ) -> None:  # fmt: skip
        parts = {id(part): part for module in modules for part in module.modules()}.values()
        tensors = tensors_of(parts)
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._tables = Tables([vars(each) for each in (*parts, *tensors, *optimizers)] + groups + states, lists)
        gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
        moments = [entry for state in states for entry in state.values() if isinstance(entry, Tensor)]
        self._arrays = [(tensor, tensor.array) for tensor in (*tensors, *gradients, *moments)]
        self._values = copies_of([array for _, array in self._arrays])
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]

    def restore(self, *more: Call) -> None:
        """Restore everything; training since is lost. Interrupted and begun again, it does the same.

        Args:
            more: calls that are made in one instruction with the restoring of the network.
        """
        self._values.restore()
        self._tables.restore([(setattr, tensor, "array", array) for tensor, array in self._arrays] + list(more))
        for other, state in self._others:
            other.load_state_dict(copy.deepcopy(state))


class Restoring(Whole[None]):
    """A with block at whose failure everything is put back as it is now."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._modes = snapshot, thread_modes()

    def begin(self) -> None:
        pass

    def undo(self, error: BaseException) -> None:
        self._modes.restore()
        self._snapshot.restore()


def thread_modes() -> Tables:
    """Whether gradients are recorded, and the like: an interrupt may leave a no_grad block without its end."""
    return Tables([vars(modes.state)])


def copies_of(arrays: Iterable[NDArray]) -> Copies:
    return Copies([_without_repeats(array) if array.is_expanded else array for array in arrays])


def _without_repeats(array: NDArray) -> NDArray:
    """Each element of memory once: of what expand() repeats, the first."""
    for dim, stride in enumerate(array.strides):
        array = array.narrow(dim, 0, 1) if stride == 0 else array
    return array


_CONTAINERS = (dict, list, set)


class Tables:
    """Dictionaries (the attributes of an object, a group of an optimizer, its state of a parameter), what they held,
    and the contents of those values that are containers: hooks, registries, lists of parameters; and of lists."""

    def __init__(self, tables: Iterable[dict[str, object]], lists: Sequence[list[Step]] = ()) -> None:
        self._tables = list(tables)
        self._held = [table.copy() for table in self._tables]
        found = [value for table in self._held for value in table.values() if isinstance(value, _CONTAINERS)]
        self._containers = [*found, *lists]
        self._contents = [container.copy() if container else () for container in self._containers]

    def restore(self, more: Sequence[Call] = ()) -> None:
        """Put all of it back in one instruction, and make these calls with it."""
        pairs = [*zip(self._tables, self._held, strict=True), *zip(self._containers, self._contents, strict=True)]
        alive = [container.copy() for container, _ in pairs]  # whose finalizers would run in between
        at_once([*[call for pair in pairs for call in replacing(*pair)], *more])
        del alive
