"""op(): kernels as an op with a gradient, on Genesis' tensors and on PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

from genesis.autograd import Context, Function
from genesis.autograd.function import Forward
from genesis.cuda.arguments import framework_of
from genesis.cuda.frameworks.foreign import FOREIGN
from genesis.cuda.frameworks.genesis import GENESIS
from genesis.errors import DeviceError, DTypeError, describe

P = ParamSpec("P")
R = TypeVar("R")
Backward = Callable[..., object]
AnyFunction: TypeAlias = Callable[..., Any]


class Op(Generic[P, R]):
    """An op of kernels, created by op(); call it with tensors and other values."""

    def __init__(
        self, name: str, forward: Callable[Concatenate[Context, P], R], backward: Backward | None,
        cpu: Callable[P, R] | None,
    ) -> None:  # fmt: skip
        self.name = self.__name__ = name
        self._forward, self._backward = forward, backward
        self._cpu: AnyFunction | None = cpu
        methods: dict[str, object] = {"forward": staticmethod(forward)}
        if backward is not None:
            methods["backward"] = staticmethod(backward)
        self._genesis: Any = type(name, (Function,), methods)
        self._torch: AnyFunction | None = None

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:  # a gradient belongs to an argument by its position
            raise DTypeError(describe(self.name, next(iter(kwargs)), "an argument by position", "a keyword"))
        given: tuple[Any, ...] = args
        tensors = [(i, arg, found) for i, arg in enumerate(given) if (found := framework_of(type(arg))) is not None]
        if not tensors:
            kinds = ", ".join(type(arg).__name__ for arg in args)
            raise DTypeError(f"{self.name}: expected a tensor among the arguments, got ({kinds})")
        first = tensors[0][2]
        if any(found is not first or found is FOREIGN for _, _, found in tensors):
            kinds = ", ".join(f"{type(arg).__module__.partition('.')[0]}.{type(arg).__name__}" for _, arg, _ in tensors)
            raise DTypeError(f"{self.name}: expected tensors of Genesis, or of PyTorch, got {kinds}")
        on_cpu = [i for i, arg, _ in tensors if not arg.is_cuda]
        if on_cpu and (self._cpu is None or len(on_cpu) < len(tensors)):
            wanted = "a CUDA tensor" if len(on_cpu) < len(tensors) else "a CUDA tensor (or give the op a cpu= function)"
            raise DeviceError(describe(self.name, str(on_cpu[0]), wanted, "one on the CPU"))
        if self._cpu is not None and on_cpu:
            return self._cpu(*args)
        if first is GENESIS:
            return self._genesis.apply(*args)
        if self._torch is None:
            from genesis.cuda.frameworks.torch import make_function

            self._torch = make_function(self.name, self._forward, self._backward)
        return self._torch(*args)


@overload
def op(
    forward: type[Forward[Context, P, R]], *, cpu: Callable[P, R] | None = None, name: str | None = None
) -> Op[P, R]: ...
@overload
def op(
    forward: Callable[Concatenate[Context, P], R], backward: Backward | None = None, cpu: Callable[P, R] | None = None,
    name: str | None = None,
) -> Op[P, R]: ...  # fmt: skip
def op(
    forward: AnyFunction | type, backward: Backward | None = None, cpu: AnyFunction | None = None,
    name: str | None = None,
) -> Op[..., Any]:  # fmt: skip
    """Make an op of kernels: differentiable, on CUDA tensors of Genesis and of PyTorch, in the same call.

    Args:
        forward: forward(ctx, *args) → a tensor or a tuple of tensors. It is handed tensors of the library that the op
            is called with, and launches kernels on them; `x.new_empty(shape)` makes a result beside x in either. What
            the gradient needs it gives to `ctx.save_for_backward(…)`. Or a genesis.autograd.Function, for both.
        backward: backward(ctx, *grads) → the gradient of each argument of forward, None for those that have none. It is
            handed what was saved as `ctx.saved_tensors`. Without it the op cannot be differentiated.
        cpu: cpu(*args), for tensors on the CPU: the same in ops of the library, which know their gradients. It is also
            what a test compares with. Without it, tensors on the CPU raise.
        name: for messages; by default that of forward.
    Returns: the op, which is called with tensors and other values.
    Raises: DeviceError: a tensor is on the CPU, and there is no cpu; DTypeError: no tensor, or of different libraries.

    Example:
        >>> double = genesis.cuda.op(forward=lambda ctx, x: x + x, backward=lambda ctx, grad: grad + grad,
        ...                          cpu=lambda x: 2 * x, name="double")
        >>> double(genesis.ones(2)).tolist()
        [2.0, 2.0]
    """
    if isinstance(forward, type) and issubclass(forward, Function):
        if backward is not None:
            raise ValueError(describe("op", "backward", f"none, since {forward.__name__} has one", backward))
        has_backward = forward.backward is not Function.backward
        return Op(name or forward.__name__, forward.forward, forward.backward if has_backward else None, cpu)
    for argument, function in (("forward", forward), ("backward", backward), ("cpu", cpu)):
        if function is not None and not callable(function):
            raise DTypeError(describe("op", argument, "a function", type(function).__name__))
    return Op(name or str(getattr(forward, "__name__", "op")), forward, backward, cpu)
