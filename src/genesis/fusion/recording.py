"""What modules do with their layers, seen in a forward: calls of children, sums, ReLUs, by the values they pass on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from genesis import backends, nn, no_grad
from genesis.backends.contract import TRAITS
from genesis.fusion.chains import ADD, RELU
from genesis.tensor import Tensor

_OPS = {"add": ADD, "relu": RELU}


class Call(NamedTuple):
    """A child's name, ADD or RELU; the numbers of the operands and of the result. The module's input is number 0."""

    name: str
    operands: tuple[int, ...]
    result: int


class Recorded(NamedTuple):
    """The calls of one module in order, the number of what it returns, and why they cannot be replayed."""

    calls: list[Call]
    output: int
    obstacle: str = ""


def record(model: nn.Module, modules: Sequence[nn.Module], example: Tensor) -> dict[nn.Module, Recorded]:
    """What each of the modules does while the model runs on the example, in eval mode.

    It runs twice: the second time the modules themselves (not their layers) are told that they are training.
    """
    modes = [(module, module.training) for module in model.modules()]
    found: list[dict[nn.Module, Recorded]] = []
    try:
        for mode in (False, True):
            for module, _ in modes:
                module.__dict__["training"] = mode and module in modules
            found.append(_Recorder(modules).run(model, example))
    finally:
        for module, training in modes:
            module.__dict__["training"] = training
    return {
        module: seen if seen == found[1].get(module) else Recorded([], -1, "it does something else in training")
        for module, seen in found[0].items()
    }


class _Frame:
    """A module whose forward is running: what it has been seen to do."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.calls: list[Call] = []
        self.numbers: dict[int, int] = {}  # of values, by the identity of their handles
        self.kept: list[Any] = []  # so that an identity is not given to another
        self.obstacle = ""

    def number_of(self, handle: Any) -> int:
        """A value's number; one that came from nowhere is an obstacle."""
        if id(handle) not in self.numbers:
            self.obstacle = self.obstacle or "it uses values that are no results of its layers"
            self.name_value(handle)
        return self.numbers[id(handle)]

    def name_value(self, handle: Any) -> int:
        self.kept.append(handle)
        return self.numbers.setdefault(id(handle), len(self.numbers))

    def note(self, name: str, operands: Sequence[Any], result: Any) -> None:
        numbers = tuple([self.number_of(operand) for operand in operands])
        self.calls.append(Call(name, numbers, self.name_value(result)))


class _Recorder:
    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._stack: list[_Frame | None] = []  # None: in a layer, whose ops are its own
        self._found: dict[nn.Module, Recorded] = {}

    def run(self, model: nn.Module, example: Tensor) -> dict[nn.Module, Recorded]:
        backend = backends.get(example.device.type)
        with ExitStack() as stack, no_grad():
            stack.enter_context(backends.use(example.device.type, backend.wrapped(self._around)))
            for module in self._modules:
                stack.enter_context(_hooked(module, self._enter, self._leave))
                for name, child in module.named_children():
                    stack.enter_context(self._watching(name, child))
            model(example)
        return self._found

    def _around(self, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            frame = self._stack[-1] if self._stack else None
            if frame is not None and not TRAITS[op].query:
                if op in _OPS and all(hasattr(arg, "shape") for arg in args):
                    frame.note(_OPS[op], args, result)
                else:
                    frame.obstacle = frame.obstacle or f"it computes {op} beside its layers"
            return result

        return watched

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frame = _Frame(module)
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
            frame.name_value(args[0].array.handle)
        else:
            frame.obstacle = "it takes something else than one tensor"
        if module in self._found:
            frame.obstacle = "it is called several times"
        self._stack.append(frame)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        frame = self._stack.pop()
        assert frame is not None
        if not isinstance(output, Tensor):
            frame.obstacle = frame.obstacle or "it returns something else than one tensor"
        number = frame.number_of(output.array.handle) if not frame.obstacle else -1
        calls = [] if frame.obstacle else frame.calls
        self._found[module] = Recorded(calls, number, frame.obstacle)

    @contextmanager
    def _watching(self, name: str, child: nn.Module) -> Iterator[None]:
        """Note the calls of a child; if it is among the modules too, its own frame comes in between."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._stack.append(None)

        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self._stack.pop()
            frame = self._stack[-1] if self._stack else None
            if frame is None:
                return
            tensors = isinstance(output, Tensor) and all(isinstance(arg, Tensor) for arg in args)
            if tensors and len(args) == 1 and not kwargs:
                frame.note(name, [args[0].array.handle], output.array.handle)
            else:
                frame.obstacle = frame.obstacle or f"{name} takes or gives something else than one tensor"

        with _hooked(child, before, after, first=True):
            yield


@contextmanager
def _hooked(module: nn.Module, before: Any, after: Any, first: bool = False) -> Iterator[None]:
    """Hooks around a module's forward; first: around other such hooks."""
    handles = [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]
    if first:
        module._forward_pre_hooks.insert(0, module._forward_pre_hooks.pop())
    else:
        module._forward_hooks.insert(0, module._forward_hooks.pop())
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
