"""Optimizer: parameter groups, state by parameter, and a step that changes everything or nothing."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast, overload

from genesis import dtypes, interop, shapes
from genesis.autograd import enable_grad
from genesis.autograd.modes import state as thread
from genesis.callsite import user_line
from genesis.dtypes import DType
from genesis.errors import CaptureError, CheckpointError, DeviceError, DTypeError, GraphError, ShapeError, describe
from genesis.frames import in_room
from genesis.interrupts import at_once, held
from genesis.ndarray import Device, NDArray
from genesis.ndarray.capturing import Capture, capture_of, replays
from genesis.optim.arrays import as_real, in_order_of, zeros_like
from genesis.optim.batch import Batch, State
from genesis.optim.capturable import Captured, is_number
from genesis.optim.hooks import Hooked
from genesis.optim.hooks import register_optimizer_step_post_hook as register_optimizer_step_post_hook
from genesis.optim.hooks import register_optimizer_step_pre_hook as register_optimizer_step_pre_hook
from genesis.optim.options import Entries, Group, as_number
from genesis.records import StepInputs
from genesis.shapes import Shape
from genesis.tensor import Tensor

StateDict = Entries
Params = Iterable[Tensor | Group]  # all of one kind
Loss = TypeVar("Loss")


# With which power of the gradient an entry of a state scales, if not with the first or, if called …_sq, the second.
_POWERS = {
    "square_avg": 2, "sum": 2, "variance": 2, "row_var": 2, "col_var": 2, "step_size": -1, "ax": -1, "acc_delta": -2,
}  # fmt: skip


class Optimizer(Hooked):
    """Base class of optimizers: a subclass defines the options, the state of a parameter, and the update of a batch.

    Args:
        params: parameters, or groups: dicts of "params" and the options that differ from the defaults.
        defaults: options of the groups that do not set their own.
    Raises: ValueError: no parameters, one given twice, an option out of range; GraphError: a parameter is not a leaf;
        DTypeError: a parameter is not a floating Tensor.
    Example:
        >>> net = nn.Linear(2, 1)
        >>> optimizer = genesis.optim.SGD([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.01}], lr=0.1)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.1, 0.01]
    """

    def __init__(self, params: Params, defaults: Entries) -> None:
        self.defaults = defaults
        self.state: dict[Tensor, State] = defaultdict(dict)
        self.param_groups: list[Group] = []
        if isinstance(params, Tensor | dict | str):
            raise DTypeError(describe(self._name, "params", "parameters, or dictionaries", type(params).__name__))
        listed = list(params)
        if not listed:
            raise ValueError(describe(self._name, "params", "at least one parameter", "none"))
        groups = cast(list[Group], listed) if isinstance(listed[0], dict) else [{"params": listed}]
        for group in groups:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        lines = [f"  group {i}: {_options_text(group)}" for i, group in enumerate(self.param_groups)]
        return "\n".join([f"{self._name} (", *lines, ")"])

    _takes_complex: ClassVar[bool] = True
    _NUMBERS: ClassVar[tuple[str, ...]] = ("step",)  # entries of a state that are numbers; PyTorch's are 0-d tensors

    # --- defined by subclasses --------------------------------------------------------------------------------------

    def _check_options(self, group: Group) -> None:
        """Raise for an option out of range."""

    def _options(self, group: Group) -> tuple[object, ...]:
        """The group's options as a NamedTuple, for _update; called before anything changes."""
        raise NotImplementedError

    def _missing_state(self, group: Group, array: NDArray, state: State) -> State:
        """New entries for those that the state of array lacks."""
        raise NotImplementedError

    def _history(self, state: State) -> Hashable:
        """A key that parameters in one fused call have in common, such as their number of steps."""
        return None

    def _update(self, batch: Batch) -> None:
        """Update batch.params and the arrays in batch.states in place, in one with the calls in batch.after."""
        raise NotImplementedError

    # In CUDA graphs, see capturable.py:
    reads_numbers: ClassVar[bool] = False  # does _update read batch.inputs.numbers?
    can_skip: ClassVar[bool] = False  # does it obey batch.inputs.found_inf?
    counts_on_host: ClassVar[bool] = False  # steps, after each replay; else the device does, from a capture on

    def replayed_options(self, batch: Batch, steps_before: int) -> tuple[object, ...]:
        """The values that a replay reads, after so many steps of the same graph. See `optim.Optimizer.step`."""
        return self._options(batch.group)

    def replayed_dtype(self, batch: Batch) -> DType:
        """The dtype of the numbers that a replay reads. See `optim.Optimizer.step`."""
        return dtypes.float64

    def count(self, batch: Batch) -> None:
        """Count a step that a replay has made, if the host counts. See `optim.Optimizer.step`."""

    def structure(self, options: tuple[object, ...]) -> Hashable:
        """The part of the options that a CUDA graph fixes, even if it reads the numbers. See `optim.Optimizer.step`.

        Args:
            options: of a group, as the subclass has them.
        Returns: the flags.
        """
        return tuple([value for value in options if not is_number(value)])

    def refusal(self, batch: Batch) -> str:
        """Why the update of a batch cannot be captured; "" if it can. See `optim.Optimizer.step`."""
        return ""

    # --- groups -----------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Optimize further parameters too, as when a frozen part of a network is to be trained.

        Args:
            param_group: a dict of "params" and the options that differ from the defaults.
        Raises: see Optimizer; then nothing has changed.
        Example:
            >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=0.1)
            >>> optimizer.add_param_group({"params": [genesis.zeros(2, requires_grad=True)], "lr": 0.01})
            >>> [group["lr"] for group in optimizer.param_groups]
            [0.1, 0.01]
        """
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise DTypeError(describe(self._name, "param_group", "a dictionary with 'params'", repr(param_group)))
        params = param_group["params"]
        if isinstance(params, set | frozenset):
            raise DTypeError(describe(self._name, "params", "parameters in an order that stays", "a set"))
        params = [params] if isinstance(params, Tensor) else list(params)
        known = {id(param) for group in self.param_groups for param in group["params"]}
        for index, param in enumerate(params):
            if not isinstance(param, Tensor):
                raise DTypeError(describe(self._name, f"params[{index}]", "a Tensor", type(param).__name__))
            if not param.is_leaf:
                raise GraphError(describe(self._name, f"params[{index}]", "a leaf", f"a result of {param.grad_fn}"))
            if not (param.dtype.is_floating_point or (param.dtype.is_complex and self._takes_complex)):
                raise DTypeError(describe(self._name, f"params[{index}]", "a floating dtype", param.dtype))
            if id(param) in known:
                raise ValueError(describe(self._name, f"params[{index}]", "each parameter once", "one twice"))
            known.add(id(param))
        group = {"params": params, **self.defaults, **{k: v for k, v in param_group.items() if k != "params"}}
        self._check_options(group)
        self.param_groups.append(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Delete the gradients of all parameters, or fill them with zeros.

        Args:
            set_to_none: False fills them with zeros.

        Example:
            >>> p = genesis.ones(2, requires_grad=True)
            >>> p.sum().backward()
            >>> genesis.optim.SGD([p], lr=0.1).zero_grad()
            >>> p.grad is None
            True
        """
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none:
                    param.grad = None
                elif param.grad is not None:
                    param.grad = param.grad.detach()
                    param.grad.array.copy_into(0)

    # --- the step ---------------------------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:
        """Update every parameter that has a gradient. Everything is checked first: a step that raises changes nothing.

        Ctrl-C waits while a batch of parameters (of one group, dtype and device) is updated: each parameter and its
        state are both from before the step, or both from after it.

        Args:
            closure: recomputes the loss and the gradients before the update.
        Returns: the closure's result, or None.
        Raises: ShapeError, DTypeError, DeviceError: a gradient or a state does not fit its parameter.

        Example:
            >>> p = genesis.tensor([1.0], requires_grad=True)
            >>> (p * 3).backward()
            >>> genesis.optim.SGD([p], lr=0.1).step()
            >>> round(p.item(), 4)
            0.7
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        in_room(self.step_unless, None)
        return loss

    def step_unless(self, found_inf: Mapping[Device, NDArray] | None) -> None:
        """step(), in which the device skips parameters where a flag is true. See `genesis.amp.GradScaler`.

        Args:
            found_inf: a 0-d bool array for each device; None: no flags.
        Raises: CaptureError: what a CUDA graph would not do again; nothing has changed.
        """
        batches = [batch for group in self.param_groups for batch in self._batches(group)]
        watcher = thread.watcher
        if replays.captures:
            for batch in batches:
                self._prepare_capture(batch)
        if found_inf is not None:
            if not self.can_skip:
                raise CaptureError(
                    f"{user_line()}: {self._name}.step: no CUDA graph can hold its scaled step, which the device would "
                    "have to skip after an overflow: call it after replay()"
                )
            for batch in batches:
                if not batch.captured and watcher is not None and watcher.rehearsal is not None:
                    self._prepare_capture(batch, watcher.rehearsal)
                batch.inputs = batch.inputs._replace(found_inf=found_inf[batch.params[0].device])
        for batch in batches:
            if watcher is None:
                self.update(batch)
            else:
                watcher.update(self, batch)

    def _prepare_capture(self, batch: Batch, capture: Capture | None = None) -> None:
        capture = capture or capture_of(batch.params[0].device)
        if capture is not None:
            batch.inputs, batch.captured = StepInputs(Captured(self, batch, capture).numbers), True

    def _present_options(self, group: Group) -> tuple[object, ...]:
        """_options(), read before the step: a recorded one reads them anew, tensors too."""
        watcher = thread.watcher
        if watcher is None:
            return self._options(group)
        with watcher.paused():
            return self._options(group)

    def _batches(self, group: Group) -> Iterable[Batch]:
        options = self._present_options(group)
        batches: dict[Hashable, Batch] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            array, grad = as_real(param.array), as_real(self._checked_grad(param))
            state = self._checked_state(param)
            missing = self._missing_state(group, array, state)
            state = state | missing if missing else state
            key = (array.dtype, array.device, bool(missing), self._history(state))
            batch = batches.get(key)
            if batch is None:
                batch = batches[key] = Batch(group, options, bool(missing))
            batch.owners.append(param)
            batch.params.append(array)
            batch.grads.append(grad)
            batch.states.append(state)
        return batches.values()

    def _checked_grad(self, param: Tensor) -> NDArray:
        """The gradient, with the parameter's memory order: fused kernels traverse both in parallel."""
        assert param.grad is not None  # who has none is not updated
        array, grad = param.array, param.grad.array
        if grad.shape != array.shape:
            raise ShapeError(describe(f"{self._name}.step", "grad", f"the parameter's shape {array.shape}", grad.shape))
        if grad.dtype is not array.dtype:
            raise DTypeError(describe(f"{self._name}.step", "grad", f"the parameter's {array.dtype}", grad.dtype))
        if grad.device is not array.device:
            raise DeviceError(describe(f"{self._name}.step", "grad", f"the parameter's {array.device}", grad.device))
        strides = array.strides
        if not _is_dense(array.shape, strides):
            raise ShapeError(describe(f"{self._name}.step", "params", "dense memory", f"a view with strides {strides}"))
        return grad if grad.strides == strides else in_order_of(grad, array)

    def _checked_state(self, param: Tensor) -> State:
        """The parameter's state, whose tensors have the parameter's shape: kernels rely on it."""
        state, shape = self.state.get(param, {}), as_real(param.array).shape
        for name, entry in state.items():
            if isinstance(entry, Tensor) and entry.array.shape != self.shape_of(name, shape):
                expected = f"the parameter's shape {shape} (was it resized, or grown, without its optimizer?)"
                raise ShapeError(describe(f"{self._name}.step", name, expected, entry.array.shape))
        return state

    # How a state grows with its parameter, see growth/edits.py:
    by_parameter: ClassVar[bool] = True  # is the state of a parameter its own, not that of all together?

    def shape_of(self, name: str, shape: Shape) -> Shape:
        """The shape of an entry of the state of a parameter of this shape. See `optim.Optimizer.step`."""
        return () if name == "step" else shape

    def gradient_power(self, name: str) -> int:
        """With which power of the gradient an entry of the state scales. See `optim.Optimizer.step`.

        Args:
            name: of the entry.
        Returns: 1 for momenta, 2 for means of squares, −1 and −2 for what has the units of the parameter instead.
        """
        return _POWERS.get(name, 2 if name.endswith("_sq") else 1)

    # --- the step of a recording, which knows the batches already ---------------------------------------------------

    def update(self, batch: Batch, grads: Sequence[NDArray] | None = None, found_inf: NDArray | None = None) -> None:
        """Update the parameters of a batch, as a recorded step does. See `optim.Optimizer.step`."""
        if grads is not None:
            batch.options, batch.fresh, batch.grads = self._options(batch.group), False, list(grads)
            if replays.captures:
                self._prepare_capture(batch)
            batch.inputs = batch.inputs._replace(found_inf=found_inf)
        batch.after = [(self.state.update, zip(batch.owners, batch.states, strict=True))]
        with held():
            self._update(batch)
        batch.grads, batch.after = [], ()

    def would_repeat(self, batch: Batch) -> bool:
        """Whether step() would form this batch again, of the same arrays and states. See `optim.Optimizer.step`."""
        return (
            any(group is batch.group for group in self.param_groups)
            and all(map(operator.is_, [owner.array for owner in batch.owners], batch.params))
            and all(map(operator.is_, map(self.state.get, batch.owners), batch.states))
            and len(set(map(self._history, batch.states))) == 1
            and not any(map(functools.partial(self._missing_state, batch.group), batch.params, batch.states))
        )

    # --- saving and loading -----------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """The state and the options, in PyTorch's format: parameters are numbered by their position.

        Returns: {"state": {position: entries}, "param_groups": groups with positions as "params"}; memory is shared.
        Example:
            >>> p = genesis.zeros(1, requires_grad=True)
            >>> genesis.optim.SGD([p], lr=0.1).state_dict()["param_groups"][0]["params"]
            [0]
        """
        positions: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for param in group["params"]:
                positions[id(param)] = len(positions)
            groups.append({**group, "params": [positions[id(param)] for param in group["params"]]})
        state = {positions[id(param)]: dict(entries) for param, entries in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what state_dict() returned, of Genesis or PyTorch; it is copied. If it does not fit, nothing changes.

        Args:
            state_dict: of an optimizer with as many parameters in each group.
        Raises: CheckpointError: the groups have other sizes, or a tensor has not its parameter's shape.

        Example:
            >>> p = genesis.ones(1, requires_grad=True)
            >>> first, second = genesis.optim.SGD([p], lr=0.1), genesis.optim.SGD([p], lr=0.5)
            >>> second.load_state_dict(first.state_dict())
            >>> second.param_groups[0]["lr"]
            0.1
        """
        saved_groups, saved_state = state_dict["param_groups"], state_dict["state"]
        sizes = [len(group["params"]) for group in self.param_groups]
        saved_sizes = [len(group["params"]) for group in saved_groups]
        if saved_sizes != sizes:
            raise CheckpointError(
                describe(f"{self._name}.load_state_dict", "state_dict", f"groups of {sizes} parameters", saved_sizes)
            )
        owners = {
            position: param
            for group, saved in zip(self.param_groups, saved_groups, strict=True)
            for position, param in zip(saved["params"], group["params"], strict=True)
        }
        state: dict[Tensor, State] = defaultdict(dict)
        for position, entries in saved_state.items():
            param = owners[position]
            state[param] = {key: self._loaded(position, key, value, param) for key, value in entries.items()}
        groups = []
        for group, saved in zip(self.param_groups, saved_groups, strict=True):
            options = {key: as_number(value) for key, value in saved.items()}
            groups.append({**group, **options, "params": group["params"]})
            self._check_options(groups[-1])
        at_once([(vars(self).update, {"state": state, "param_groups": groups})])

    def _loaded(self, position: int, key: str, value: Any, param: Tensor) -> object:
        if key in self._NUMBERS:
            return int(value) if key == "step" else float(value)
        if not hasattr(value, "__dlpack__"):
            return value
        tensor = value if isinstance(value, Tensor) else interop.from_dlpack(value)
        tensor, array = Tensor(as_real(tensor.array)), as_real(param.array)
        shape = self.shape_of(key, array.shape)
        if tensor.shape != shape:
            name = f"state[{position}][{key!r}]"
            expected = f"the parameter's shape {shape}" if shape == array.shape else f"shape {shape}"
            raise CheckpointError(describe(f"{self._name}.load_state_dict", name, expected, tensor.shape))
        own = zeros_like(array if shape == array.shape else NDArray.empty(shape, array.dtype, array.device))
        own.copy_into(tensor.array.to_device(own.device))
        return Tensor(own)


@functools.lru_cache(maxsize=4096)
def _is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements fill their memory without gaps, in any order of the dimensions."""
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim]))
    return shapes.equivalent(shape, strides, shapes.strides_in_order(shape, order))


def _options_text(group: Group) -> str:
    options = ", ".join(f"{key}={value!r}" for key, value in group.items() if key != "params")
    return f"{len(group['params'])} parameters, {options}"
