"""DistributedDataParallel: a replica of a module in each process, whose gradients are the means over all of them."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from genesis import dtypes
from genesis.autograd.modes import is_grad_enabled, state
from genesis.distributed.group import ProcessGroup, require
from genesis.errors import DTypeError, GraphError, describe
from genesis.ndarray import NDArray
from genesis.ndarray.capturing import capture_of
from genesis.nn.module import Module
from genesis.nn.modules.sync_batchnorm import SyncBatchNorm
from genesis.nn.parallel.coalesced import Coalesced, coalesced
from genesis.nn.parallel.reducer import Reducer
from genesis.nn.parameter import Parameter
from genesis.nn.state import IncompatibleKeys, Loading, Metadata
from genesis.tensor import Tensor

_PREFIX = "module."  # of the keys in PyTorch's state_dicts
_COMPRESSIONS = {None: None, "bfloat16": dtypes.bfloat16, "float16": dtypes.float16}


class DistributedDataParallel(Module):
    """Train a module in several processes: each computes on its part of the batch, and backward averages gradients.

    Parameters and buffers begin as those of rank 0. Gradients become views of flat buckets, each of which is averaged
    as soon as backward has made its last gradient, while others are still being made. The optimizer takes the
    parameters as usual, and all ranks take the same step. A change of the parameters, as a growth step or an unfrozen
    layer, is made on all ranks alike; the next forward then takes up rank 0's values and fills new buckets.

    Args:
        module: its parameters are on one device; at least one requires grad.
        device_ids: accepted for PyTorch's signature; the module is where it is.
        broadcast_buffers: take over rank 0's buffers before each forward of the training.
        process_group: all ranks.
        bucket_cap_mb: MiB of a bucket.
        find_unused_parameters: a backward pass may leave parameters out; without, that is an error that names them. If
            no rank has used one, its gradient stays None.
        gradient_as_bucket_view: accepted for PyTorch's signature; it is always so.
        compression: "bfloat16" or "float16": gradients are sent in it. They are divided by the number of ranks first.
    Raises: DistributedError: there is no process group, or the modules of the ranks differ; ValueError: no parameter
        requires grad.
    Source: Li et al. 2020, arXiv:2006.15704.

    Example:
        >>> from torch.distributed import HashStore
        >>> genesis.distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        >>> model(genesis.ones(4, 2)).sum().backward()
        >>> model.module.weight.grad.tolist(), list(model.state_dict())
        ([[4.0, 4.0]], ['weight', 'bias'])
        >>> genesis.distributed.destroy_process_group()
    """

    def __init__(
        self, module: Module, device_ids: Sequence[object] | None = None, broadcast_buffers: bool = True,
        process_group: ProcessGroup | None = None, bucket_cap_mb: float = 25.0, find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = True, compression: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        op = "DistributedDataParallel"
        if not isinstance(module, Module):
            raise DTypeError(describe(op, "module", "a Module", type(module).__name__))
        if not bucket_cap_mb > 0:
            raise ValueError(describe(op, "bucket_cap_mb", "a positive number", bucket_cap_mb))
        if compression not in _COMPRESSIONS:
            raise ValueError(describe(op, "compression", "'bfloat16', 'float16' or None", repr(compression)))
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ValueError(describe(op, "module", "a parameter that requires grad", "none"))
        self._group = require(op, process_group)
        self.module = module
        self.broadcast_buffers, self.find_unused_parameters = broadcast_buffers, find_unused_parameters
        self._most_bytes, self._dtype = bucket_cap_mb * 2**20, _COMPRESSIONS[compression]
        self._reducer: Reducer | None = None
        self._known: list[tuple[Parameter, object]] = []
        self._order: list[str] = []  # for the next buckets
        self._sources: list[NDArray] = []  # as they were last broadcast, by these:
        self._coalesced: list[Coalesced] = []
        self._begin(self._present())

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """Run the module; in training, first bring what has changed to all ranks.

        Args:
            args, kwargs: the module's.
        Returns: what the module returns.
        Raises: DistributedError: the parameters of the ranks differ.
        """
        if self.training and is_grad_enabled():
            self._prepare()
        result: Tensor = self.module(*args, **kwargs)
        return result

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate gradients without averaging them; that of the first backward pass after the block averages all.

        The forward calls inside the block count.

        Example:
            >>> from torch.distributed import HashStore
            >>> genesis.distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
            >>> model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
            >>> with model.no_sync():
            ...     model(genesis.ones(1, 1)).sum().backward()
            >>> model(genesis.ones(1, 1)).sum().backward()
            >>> model.module.weight.grad.item()
            2.0
            >>> genesis.distributed.destroy_process_group()
        """
        return _Unsynced(self)

    @property
    def bucket_order(self) -> list[str]:
        """The parameters' names in the order of the buckets, which the first backward pass shows; none before it.

        More than two ranks sum a gradient in an order that depends on its place. So a training that is to go on bit for
        bit saves this list with its checkpoint, and sets it after loading.

        Example:
            >>> from torch.distributed import HashStore
            >>> genesis.distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
            >>> model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
            >>> model(genesis.ones(1, 1)).sum().backward()
            >>> sorted(model.bucket_order)
            ['bias', 'weight']
            >>> genesis.distributed.destroy_process_group()
        """
        assert self._reducer is not None
        return [self._reducer.names[number] for number in self._reducer.order]

    @bucket_order.setter
    def bucket_order(self, names: Sequence[str]) -> None:
        self._order, self._known = list(names), []  # the next forward begins anew

    # --- the state: the module's, under its own names -----------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Tensor] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """The module's state, without PyTorch's prefix "module."; see `nn.Module.state_dict`.

        Returns: names and tensors.
        """
        return self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def _load_parts(self, state_dict: dict[str, object], prefix: str, metadata: Metadata, loading: Loading) -> None:
        self.module._load_parts(state_dict, prefix, metadata, loading)

    def load_state_dict(
        self, state_dict: Mapping[str, object], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Load the module's state, on every rank; keys may all have PyTorch's prefix "module.".

        Args:
            state_dict, strict, assign: as in `nn.Module.load_state_dict`.
        Returns: the missing and the unexpected keys.
        Raises: CheckpointError: the keys or the shapes do not fit.
        """
        if isinstance(state_dict, Mapping) and state_dict and all(str(key).startswith(_PREFIX) for key in state_dict):
            state_dict = {str(key).removeprefix(_PREFIX): value for key, value in state_dict.items()}
        return self.module.load_state_dict(state_dict, strict, assign)

    def __reduce__(self) -> NoReturn:
        raise GraphError("DistributedDataParallel: belongs to its process; copy or pickle its .module")

    # --- what all ranks have in common --------------------------------------------------------------------------------

    def _present(self) -> list[tuple[Parameter, object]]:
        """The parameters that are trained, and what decides how their gradients are sent."""
        present: list[tuple[Parameter, object]] = []
        for parameter in self.module.parameters():
            if parameter._requires_grad:
                array = parameter.array
                present.append((parameter, (array.shape, array.dtype, array.device)))
        return present

    def _prepare(self) -> None:
        if self._reducer is not None:
            self._reducer.recover()
        present = self._present()
        known = self._known
        same = len(present) == len(known) and all(
            a[0] is b[0] and a[1] == b[1] for a, b in zip(present, known, strict=True)
        )
        if not same:
            self._begin(present)
        assert self._reducer is not None
        self._reducer.is_on = id(self) not in state.unsynced
        if self._reducer.is_on:
            self._reducer.reorder()
            if self.broadcast_buffers:
                self._broadcast_buffers()

    def _begin(self, present: list[tuple[Parameter, object]]) -> None:
        """Compare the ranks' modules, take up rank 0's values, and fill buckets."""
        if self._reducer is not None:
            self._reducer.close()
        named = [(name, tensor) for name, tensor in self.module.named_parameters() if tensor._requires_grad]
        tensors = [*self.module.parameters(), *self.module.buffers()]
        layout = [*map(_line, self.module.named_parameters()), *map(_line, self.module.named_buffers())]
        digest = hashlib.sha256("\n".join(layout).encode()).hexdigest()[:12]
        elements = sum(tensor.array.numel for tensor in tensors)
        text = f"{len(named)} parameters and {elements} elements, names and shapes {digest}"
        self._group.agree(self._group.call("DistributedDataParallel", text)._replace(checked=True))
        for part in coalesced([tensor.array for tensor in tensors]):
            part.broadcast(self._group)
        # Where ranks use different parameters, their buckets fill at different times: calls that backward makes besides
        # would meet others.
        find = self.find_unused_parameters
        waits = find and any(isinstance(module, SyncBatchNorm) for module in self.module.modules())
        numbers = {name: number for number, (name, _) in enumerate(named)}
        order = [numbers[name] for name in self._order] if self._order and set(self._order) == set(numbers) else []
        self._order = []
        self._reducer = Reducer(self._group, named, self._most_bytes, find, self._dtype, waits, order)
        self._known, self._sources = present, []

    def _broadcast_buffers(self) -> None:
        """Take over rank 0's buffers, in memory that is kept for the next time."""
        assert self._reducer is not None
        arrays = [buffer.array for buffer in self.module.buffers()]
        if len(arrays) == len(self._sources) and all(map(operator.is_, arrays, self._sources)):
            parts = self._coalesced
        else:
            parts = coalesced(arrays)
            # Memory of a recorded or captured run is that run's own.
            if state.watcher is None and all(capture_of(array.device) is None for array in arrays):
                self._sources, self._coalesced = arrays, parts
                self._reducer.beside = [array for part in parts for array in part.arrays]
        for part in parts:
            part.broadcast(self._group)


class _Unsynced:
    """A no_sync() block, in this thread."""

    def __init__(self, model: Module) -> None:
        self._model = model
        self._before: list[frozenset[int]] = []

    def __enter__(self) -> None:
        self._before.append(state.unsynced)
        state.unsynced |= {id(self._model)}

    def __exit__(self, *exception: object) -> None:
        state.unsynced = self._before.pop()


def _line(named: tuple[str, Tensor]) -> str:
    name, tensor = named
    return f"{name} {tensor.array.dtype.name} {tensor.array.shape} {tensor._requires_grad}"
