"""Module: what layers and networks are made of. It knows its parameters, buffers and submodules by their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Self

from genesis import dtypes
from genesis.autograd import HookHandle
from genesis.dtypes import DType
from genesis.errors import CheckpointError, DTypeError, describe
from genesis.ndarray import Device, NDArray
from genesis.nn import state
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor


class _Hook:
    """A hook as it is called, whether it wants the keyword arguments or not."""

    def __init__(self, function: Callable[..., Any], with_kwargs: bool) -> None:
        self.function, self.with_kwargs = function, with_kwargs

    def __call__(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], *output: Any) -> Any:
        return self.function(module, args, *((kwargs,) if self.with_kwargs else ()), *output)


class Module:
    """Base of all layers and networks. A subclass makes its parts in __init__ and computes in forward.

    A Parameter or Module that is assigned to an attribute is registered under that name; register_buffer registers
    tensors that are no parameters but belong to the state, such as running statistics.

    Example:
        >>> class Scale(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = nn.Parameter(genesis.tensor([2.0]))
        ...     def forward(self, x):
        ...         return self.factor * x
        >>> scale = Scale()
        >>> scale(genesis.ones(2)).tolist()
        [2.0, 2.0]
        >>> scale.state_dict()
        {'factor': tensor([2.])}
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        # Written past __setattr__, which needs them.
        self.__dict__.update(
            training=True, _parameters={}, _buffers={}, _modules={}, _non_persistent_buffers=set(),
            _forward_pre_hooks=[], _forward_hooks=[],
        )  # fmt: skip

    # --- the call -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_pre_hooks or self._forward_hooks:
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: a Module needs a method forward")

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook in tuple(self._forward_pre_hooks):
            new = hook(self, args, kwargs)
            if new is not None and hook.with_kwargs:
                args, kwargs = new
            elif new is not None:
                args = new if isinstance(new, tuple) else (new,)
        output = self.forward(*args, **kwargs)
        for hook in tuple(self._forward_hooks):
            new = hook(self, args, kwargs, output)
            output = output if new is None else new
        return output

    def register_forward_pre_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> HookHandle:
        """Call hook(module, args) before each forward; what it returns, if not None, replaces the arguments.

        with_kwargs: call hook(module, args, kwargs), which returns None or both.
        """
        return HookHandle(self._forward_pre_hooks, _Hook(hook, with_kwargs))

    def register_forward_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> HookHandle:
        """Call hook(module, args, output) after each forward; what it returns, if not None, replaces the output.

        with_kwargs: call hook(module, args, kwargs, output).
        """
        return HookHandle(self._forward_hooks, _Hook(hook, with_kwargs))

    # --- attributes ---------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        # Only for names that are no plain attributes.
        own = self.__dict__
        if "_modules" not in own:
            raise AttributeError(f"{type(self).__name__}.{name}: __init__ must call super().__init__() before all else")
        for kind in ("_parameters", "_buffers", "_modules"):
            registry = own[kind]
            if name in registry:
                return registry[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._assign("_parameters", name, value)
        elif isinstance(value, Module):
            self._assign("_modules", name, value)
        elif name in self.__dict__ or "_modules" not in self.__dict__:
            object.__setattr__(self, name, value)
        elif name in self._parameters:
            if value is not None:
                raise DTypeError(
                    describe(type(self).__name__, name, "a Parameter or None", type(value).__name__)
                    + "; copy_ under no_grad() changes its values"
                )
            self._parameters[name] = None
        elif name in self._modules:
            if value is not None:
                raise DTypeError(describe(type(self).__name__, name, "a Module or None", type(value).__name__))
            self._modules[name] = None
        elif name in self._buffers:
            if not (value is None or isinstance(value, Tensor)):
                raise DTypeError(describe(type(self).__name__, name, "a Tensor or None", type(value).__name__))
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def _assign(self, kind: str, name: str, value: Any) -> None:
        """Register value under name, which may have meant something else before."""
        if isinstance(getattr(type(self), name, None), property):
            return object.__setattr__(self, name, value)  # to its setter; it would hide what is registered
        registry = getattr(self, kind)
        _check_name(type(self).__name__, name)
        for other in (self.__dict__, self._parameters, self._buffers, self._modules):
            if other is not registry:
                other.pop(name, None)
        registry[name] = value

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            if name in registry:
                del registry[name]
                self._non_persistent_buffers.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; None keeps the name free for one (a layer without bias)."""
        self._check_new("register_parameter", name, self._parameters)
        if not (param is None or isinstance(param, Parameter)):
            raise DTypeError(describe("register_parameter", "param", "a Parameter or None", type(param).__name__))
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that moves with the module but is not learned; persistent ones are part of the state_dict."""
        self._check_new("register_buffer", name, self._buffers)
        if not (tensor is None or isinstance(tensor, Tensor)):
            raise DTypeError(describe("register_buffer", "tensor", "a Tensor or None", type(tensor).__name__))
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers.discard(name)
        else:
            self._non_persistent_buffers.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under any name, "0" too."""
        self._check_new("add_module", name, self._modules)
        if not (module is None or isinstance(module, Module)):
            raise DTypeError(describe("add_module", "module", "a Module or None", type(module).__name__))
        self._modules[name] = module

    register_module = add_module

    def _check_new(self, op: str, name: str, registry: dict[str, Any]) -> None:
        _check_name(op, name)
        if name not in registry and hasattr(self, name):
            raise KeyError(describe(op, "name", "a name that is not taken", repr(name)))

    # --- what it holds ------------------------------------------------------------------------------------------------

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        return self._members("_parameters", recurse)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Names and parameters, each parameter once unless remove_duplicate is off."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return self._members("_buffers", recurse)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def _named_members(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for module_name, module in modules:
            for name, member in getattr(module, kind).items():
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield _join(module_name, name), member

    def _members(self, kind: str, recurse: bool) -> Iterator[Any]:
        """As _named_members gives them, without making up names."""
        seen = set()
        for module in self.modules() if recurse else (self,):
            for member in module.__dict__[kind].values():
                if member is not None and id(member) not in seen:
                    seen.add(id(member))
                    yield member

    def children(self) -> Iterator[Module]:
        for _, module in self.named_children():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        seen = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """The module itself and all below it, parents first, each once."""
        seen = set()
        waiting: list[Module | None] = [self]
        while waiting:
            module = waiting.pop()
            if module is not None and module not in seen:
                seen.add(module)
                yield module
                waiting += reversed(module.__dict__["_modules"].values())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """The module itself and all below it, parents first."""
        memo = set() if memo is None else memo
        waiting = [(prefix, self)]  # a stack, as each level of a recursion would hand on all that lies below it
        while waiting:
            path, module = waiting.pop()
            if module in memo:
                continue
            if remove_duplicate:
                memo.add(module)
            yield path, module
            below = [(_join(path, name), part) for name, part in module._modules.items() if part is not None]
            waiting += reversed(below)

    def get_submodule(self, target: str) -> Module:
        """The module of this dotted name; "" is the module itself."""
        module: Any = self
        for name in target.split(".") if target else ():
            module = module._modules.get(name)
            if module is None:
                known = [key for key, _ in self.named_modules()]
                raise AttributeError(state.unknown_name("get_submodule", type(self).__name__, target, known))
        return module

    def get_parameter(self, target: str) -> Parameter:
        return self._get_member("get_parameter", target, "_parameters")

    def get_buffer(self, target: str) -> Tensor:
        return self._get_member("get_buffer", target, "_buffers")

    def _get_member(self, op: str, target: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        member = getattr(self.get_submodule(path), kind).get(name)
        if member is None:
            known = [key for key, _ in self._named_members(kind, "", True, False)]
            raise AttributeError(state.unknown_name(op, type(self).__name__, target, known))
        return member

    def apply(self, fn: Callable[[Module], None]) -> Self:
        """Call fn on every submodule, then on the module itself."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # --- modes and gradients ------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Training mode for the module and all below it: batch statistics, dropout."""
        if not isinstance(mode, bool):
            raise DTypeError(describe("train", "mode", "a bool", type(mode).__name__))
        self.__dict__["training"] = mode  # past __setattr__: networks have hundreds of modules
        for module in self._modules.values():
            if module is not None:
                module.train(mode)
        return self

    def eval(self) -> Self:
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Learn these parameters, or freeze them."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.detach().zero_()

    # --- other dtypes and devices -------------------------------------------------------------------------------------

    def to(
        self, *args: Any, device: Any = None, dtype: DType | None = None, non_blocking: bool = False,
        memory_format: str | None = None,
    ) -> Self:  # fmt: skip
        """Move parameters and buffers: to(device), to(dtype), to(device, dtype), to(tensor); the module itself changes.

        dtype applies to floating tensors, memory_format ("channels_last") to 4-d ones. Gradients move along, and
        parameters stay the same objects: tied weights stay tied, an optimizer keeps its parameters.
        """
        for arg in args:
            if isinstance(arg, DType):
                dtype = arg
            elif isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, str | Device):
                device = arg
            elif not isinstance(arg, bool) and arg is not None:
                raise DTypeError(describe("to", "args", "a device, a dtype or a tensor", type(arg).__name__))
        if dtype is not None and not dtype.is_floating_point:
            raise DTypeError(describe("to", "dtype", "a floating dtype", dtype))
        target = None if device is None else Device(device)

        def moved(array: NDArray) -> NDArray:
            if dtype is not None and array.dtype.is_floating_point:
                array = array.to(dtype)
            if target is not None:
                array = array.to_device(target)
            if memory_format is not None and array.ndim == 4:
                array = array.contiguous(memory_format == "channels_last")
            return array

        for tensor in (*self.parameters(), *self.buffers()):
            tensor.array = moved(tensor.array)
            if tensor.grad is not None:
                tensor.grad.array = moved(tensor.grad.array)
        return self

    def cpu(self) -> Self:
        return self.to("cpu")

    def cuda(self, device: int | str | Device | None = None) -> Self:
        return self.to(Device("cuda", device) if isinstance(device, int) or device is None else Device(device))

    def float(self) -> Self:
        return self.to(dtypes.float32)

    def double(self) -> Self:
        return self.to(dtypes.float64)

    def half(self) -> Self:
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        return self.to(dtypes.bfloat16)

    # --- state --------------------------------------------------------------------------------------------------------

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """All parameters and persistent buffers by their names, under PyTorch's names; memory is shared.

        keep_vars: the parameters themselves instead of detached tensors.
        """
        return {prefix + name: tensor if keep_vars else tensor.detach() for name, tensor in self._named_state()}

    def _named_state(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and persistent buffer here and below; shared ones under each of their names."""
        for path, module in self.named_modules(remove_duplicate=False):
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and name not in module._non_persistent_buffers:
                    yield _join(path, name), tensor

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> state.IncompatibleKeys:
        """Take over the values of state_dict; all of them, or none if they do not fit.

        Args:
            state_dict: names and tensors, Genesis' or anything with __dlpack__ (PyTorch's, numpy's); broadcast nothing,
                cast to the dtype and moved to the device that the parameter has.
            strict: refuse missing and unexpected keys. Wrong shapes are always refused.
            assign: let the parameters hold the given memory, dtype and device instead of copying from it.
        Returns: the missing and the unexpected keys.
        Raises: CheckpointError: the keys or the shapes do not fit; the message shows the closest names.
        """
        return state.load(type(self).__name__, self._named_state(), state_dict, strict, assign)

    def load(self, path: str | os.PathLike[str], strict: bool = True) -> state.IncompatibleKeys:
        """Take over the values in a file; all of them, or none if they do not fit.

        Args:
            path: what genesis.save() or torch.save() wrote, or any safetensors file: a state_dict, or a training's
                file with one under "model", "state_dict" or "model_state_dict". torchvision's files fit its models.
                Pickled code is never run. Keys that all begin with "module." lose it.
            strict: as of load_state_dict.
        Returns: the missing and the unexpected keys.
        Raises: CheckpointError: the file is damaged, or the keys or the shapes do not fit; the message shows the
            closest names. FileNotFoundError: there is no such file.

        Example:
            >>> import tempfile
            >>> path = tempfile.mkdtemp() + "/linear.safetensors"
            >>> genesis.save(nn.Linear(2, 1), path)
            >>> nn.Linear(2, 1).load(path)
            IncompatibleKeys(missing_keys=[], unexpected_keys=[])
        """
        weights = state.weights_in(state.read(path), path)
        try:
            return self.load_state_dict(weights, strict)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error

    # --- text ---------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands between the parentheses of repr: the settings of the layer."""
        return ""

    def __repr__(self) -> str:
        settings = self.extra_repr()
        lines = settings.split("\n") if settings else []
        children = [f"({name}): {module!r}" for name, module in self._modules.items()]
        return format_parts(type(self).__name__, lines, children)


def format_parts(name: str, lines: list[str], children: list[str]) -> str:
    """PyTorch's layout: settings on the first line where there is nothing else, children indented by two."""
    if not children and len(lines) <= 1:
        return f"{name}({''.join(lines)})"
    return f"{name}(\n  " + "\n".join(lines + children).replace("\n", "\n  ") + "\n)"


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _check_name(op: str, name: Any) -> None:
    if not isinstance(name, str):
        raise DTypeError(describe(op, "name", "a str", type(name).__name__))
    if not name or "." in name:
        raise KeyError(describe(op, "name", "a name without dots", repr(name)))
