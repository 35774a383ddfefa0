"""Full backward hooks: two nodes of the graph around a module's call hear of the gradients that pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from genesis.autograd import Context, Function
from genesis.autograd.modes import unrecordable
from genesis.errors import GraphError
from genesis.tensor import Tensor

Result = TypeVar("Result")
Grads = tuple[Tensor | None, ...]
Before = Callable[[object, Grads], object]  # of a module and the gradients of its outputs
After = Callable[[object, Grads, Grads], object]  # of a module and the gradients of its inputs and outputs
_RUNS_HOOKS = "runs backward hooks of modules"


class BackwardHooks:
    """The full backward hooks of a module, which lie among its forward pre-hooks."""

    def __init__(self) -> None:
        self.before: list[Before] = []
        self.after: list[After] = []

    def and_then(self, own: BackwardHooks) -> BackwardHooks:
        """These hooks, then those of a module: as they are while it is called if both have some."""
        if not (self.before or self.after):
            return own
        both = BackwardHooks()
        both.before, both.after = [*self.before, *own.before], [*self.after, *own.after]
        return both

    def of_call(self, module: object) -> HookedCall | None:
        """Listen to the gradients of a call; None if no hook is left."""
        return HookedCall(module, self) if self.before or self.after else None


class HookedCall:
    """One call of a module with backward hooks."""

    def __init__(self, module: object, hooks: BackwardHooks) -> None:
        self.module, self.hooks = module, hooks
        self.places: list[int] = []  # of the inputs that need a gradient
        self.num_inputs = 0
        self.output_places: list[int] = []
        self.num_outputs = 0
        self.grad_output: Grads = ()

    def inputs(self, args: tuple[object, ...]) -> tuple[object, ...]:
        """The arguments of forward: those that need a gradient stand behind a node."""
        self.num_inputs = len(args)
        self.places, passed = _through(_Inputs, self, args)
        return passed

    def outputs(self, output: Result) -> Result:
        """The output that the caller sees, in front of a node."""
        parts = output if isinstance(output, tuple) else (output,)
        self.num_outputs = len(parts)
        self.output_places, passed = _through(_Outputs, self, parts)
        if not self.output_places:
            return output
        if not isinstance(output, tuple):
            return cast(Result, passed[0])
        make: Callable[[tuple[object, ...]], Result] = getattr(type(output), "_make", type(output))
        return make(passed)  # a named tuple stays one

    def reached_outputs(self, grads: tuple[Tensor, ...]) -> Grads:
        """The gradients of the outputs, after the pre-hooks; if no input needs one, the other hooks run as well."""
        unrecordable(_RUNS_HOOKS)
        known = _spread(grads, self.output_places, self.num_outputs)
        for hook in tuple(self.hooks.before):
            known = _replaced(known, hook(self.module, known))
        self.grad_output = known
        if not self.places:
            for after in tuple(self.hooks.after):
                new = after(self.module, (None,) * self.num_inputs, known)
                if new is not None and any(grad is not None for grad in _as_tuple(new)):
                    raise GraphError("backward hook: gradients were returned for inputs that need none")
        return tuple([known[place] for place in self.output_places])

    def reached_inputs(self, grads: tuple[Tensor, ...]) -> Grads:
        """The gradients of the inputs, after the hooks."""
        unrecordable(_RUNS_HOOKS)
        known = _spread(grads, self.places, self.num_inputs)
        for hook in tuple(self.hooks.after):
            known = _replaced(known, hook(self.module, known, self.grad_output))
        self.grad_output = ()
        return tuple([known[place] for place in self.places])


class _Inputs(Function):
    @staticmethod
    def forward(ctx: Context, call: HookedCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tensors

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> Grads:
        return None, *ctx.call.reached_inputs(grads)


class _Outputs(Function):
    @staticmethod
    def forward(ctx: Context, call: HookedCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tensors

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> Grads:
        return None, *ctx.call.reached_outputs(grads)


def _through(
    function: type[_Inputs | _Outputs], call: HookedCall, values: tuple[object, ...]
) -> tuple[list[int], tuple[object, ...]]:
    """The places of the tensors that require grad, and all values with those behind a node of this function."""
    places = [place for place, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
    if not places:
        return places, values
    passed = list(values)
    made = function.apply(call, *[cast(Tensor, values[place]) for place in places])
    for place, value in zip(places, made, strict=True):
        passed[place] = value
    return places, tuple(passed)


def _spread(grads: tuple[Tensor, ...], places: list[int], size: int) -> Grads:
    spread: list[Tensor | None] = [None] * size
    for place, grad in zip(places, grads, strict=True):
        spread[place] = grad
    return tuple(spread)


def _as_tuple(value: object) -> Grads:
    return value if isinstance(value, tuple) else cast(Grads, (value,))


def _replaced(grads: Grads, new: object) -> Grads:
    """The gradients after a hook."""
    if new is None:
        return grads
    given = _as_tuple(new)
    if len(given) != len(grads):
        raise GraphError(f"backward hook: expected {len(grads)} gradients from the hook, got {len(given)}")
    return given
