"""fuse(model): chains in Genesis' modules, from the order in a Sequential or from one recorded forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

from genesis import functional as F
from genesis import nn
from genesis.errors import DTypeError, describe
from genesis.fusion.chains import ACTIVATION, ADD, CONV, NORM, OTHER, Chain, Step, find_chains
from genesis.fusion.recording import RELU, Call, Recorded, record
from genesis.fusion.report import Fusion
from genesis.tensor import Tensor

M = TypeVar("M", bound=nn.Module)


def fuse(model: M, example: Tensor | None = None) -> M:
    """Run convolution → batch norm (→ sum) → activation as one op wherever a model has that, in training and inference.

    A Sequential is understood by itself. What other modules do with their layers is seen in one forward of the example
    (in eval mode, so nothing changes): those that only call layers, add and apply ReLU are replayed so from then on.
    Parameters, buffers, their names and the state_dict stay the same objects; classes become subclasses of what they
    were. In eval mode without gradients the norm is folded into the weight, and anew when a parameter has changed.
    model.fusion says what was fused, and what was left and why.

    Args:
        model: any Module; it is changed in place.
        example: an input of the model, or None to look into Sequentials only.
    Returns: model.
    Raises: DTypeError: model is not a Module.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1))
        >>> print(genesis.fuse(model).fusion)
        1 fused, 1 left
          0 → 1 → 2
          3: left, as no batch norm follows
        >>> model(genesis.ones(2, 3, 8, 8)).shape
        (2, 1, 6, 6)
    """
    if not isinstance(model, nn.Module):
        raise DTypeError(describe("fuse", "model", "a Module", type(model).__name__))
    fusion = Fusion()
    candidates = {
        prefix: module
        for prefix, module in model.named_modules()
        if not isinstance(module, Fused | nn.ConvBNReLU)
        and any(isinstance(child, nn.Conv2d) for child in module.children())
    }
    unknown = {prefix: module for prefix, module in candidates.items() if type(module) is not nn.Sequential}
    seen = {} if example is None or not unknown else record(model, list(unknown.values()), example)
    for prefix, module in candidates.items():
        if type(module) is nn.Sequential:
            calls = [Call(name, (place,), place + 1) for place, name in enumerate(module._modules)]
            found = Recorded(calls, output=len(calls))
        elif example is None:
            fusion.leave(prefix, "", "what it does with its layers is only seen with an example")
            continue
        else:
            found = seen.get(module, Recorded([], -1, "the example does not come past it"))
        _fuse_module(prefix, module, found, fusion)
    object.__setattr__(model, "fusion", fusion)
    return model


_Names = tuple[str, str, int | None, str | None]  # of conv and norm, the residual's value, the activation


class _Part(NamedTuple):
    """One step of a replayed forward: a call, or a chain of them."""

    call: Call
    chain: _Names | None = None


class Fused(nn.Module):
    """Base of the classes of fused modules: a forward that replays what was seen, with chains as single ops."""

    _plan: tuple[_Part, ...]
    _planned_for: tuple[object, ...]
    _fused: list[nn.FusedConv]

    def forward(self, input: Tensor) -> Tensor:
        if self.__dict__.get("_planned_for") != _parts_of(self):  # sliced or rebuilt since
            return super().forward(input)
        values: dict[int, Tensor] = {0: input}
        fused = iter(self._fused)
        for call, chain in self._plan:
            operands = [values[number] for number in call.operands]
            values[call.result] = (
                self._replay(call.name, *operands)
                if chain is None
                else self._run(next(fused), chain, values, *operands)
            )
        return values[self._plan[-1].call.result]

    def _replay(self, name: str, *operands: Tensor) -> Tensor:
        if name == ADD:
            return operands[0] + operands[1]
        return F.relu(operands[0]) if name == RELU else self._modules[name](operands[0])  # type: ignore[misc]

    def _run(self, fused: nn.FusedConv, chain: _Names, values: dict[int, Tensor], input: Tensor) -> Tensor:
        conv, norm, residual, activation = chain
        layers: Any = self._modules
        return fused(layers[conv], layers[norm], input, None if residual is None else values[residual], activation)

    def train(self, mode: bool = True) -> Self:
        for fused in self.__dict__.get("_fused", ()):
            fused.clear()
        return super().train(mode)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self).__mro__[2], self.__dict__)


def _restore(unfused: type[nn.Module], state: dict[str, object]) -> nn.Module:
    module = object.__new__(_fused_class(unfused))
    module.__dict__.update(state)
    return module


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _fused_class(unfused: type[nn.Module]) -> type[nn.Module]:
    if unfused not in _classes:
        _classes[unfused] = type(f"Fused{unfused.__name__}", (Fused, unfused), {})
    return _classes[unfused]


def _parts_of(module: nn.Module) -> tuple[object, ...]:
    return tuple(module._modules), tuple(map(type, module._modules.values()))


def _fuse_module(prefix: str, module: nn.Module, found: Recorded, fusion: Fusion) -> None:
    if found.obstacle:
        fusion.leave(prefix, "", found.obstacle)
        return
    steps = [_step(module, call) for call in found.calls]
    chains, left = find_chains(steps, [found.output])
    fusion.add(prefix, steps, chains)
    for name, reason in left:
        fusion.leave(prefix, name, reason)
    if not chains:
        return
    plan = _plan(module, found.calls, chains)
    if plan[-1].call.result != found.output:
        fusion.leave(prefix, "", "its last step does not give its result")
        return
    state = {"_plan": plan, "_planned_for": _parts_of(module), "_fused": [nn.FusedConv() for _ in chains]}
    module.__dict__.update(state)
    object.__setattr__(module, "__class__", _fused_class(type(module)))


def _plan(module: nn.Module, calls: list[Call], chains: list[Chain]) -> tuple[_Part, ...]:
    """The calls with each chain as one, at the place of its last."""
    ends = {chain.last: chain for chain in chains}
    inner = {step for chain in chains for step in (chain.conv, chain.norm, chain.add, chain.activation)}
    plan = []
    for position, call in enumerate(calls):
        chain = ends.get(position)
        if chain is not None:
            assert chain.norm is not None
            conv, norm = calls[chain.conv], calls[chain.norm]
            activation = None if chain.activation is None else _activation(module, calls[chain.activation])
            whole = Call(call.name, conv.operands, call.result)
            plan.append(_Part(whole, (conv.name, norm.name, chain.residual, activation)))
        elif position not in inner:
            plan.append(_Part(call))
    return tuple(plan)


def _step(module: nn.Module, call: Call) -> Step:
    if call.name in (ADD, RELU):
        return Step(ADD if call.name == ADD else ACTIVATION, call.result, call.operands, call.name)
    kind, obstacle = _kind_of(module._modules[call.name])
    return Step(kind, call.result, call.operands, call.name, obstacle)


def _kind_of(module: nn.Module | None) -> tuple[str, str]:
    """The kind of a layer, and why it must stay."""
    kinds: dict[type[nn.Module], str] = {
        nn.Conv2d: CONV,
        nn.BatchNorm2d: NORM,
        **dict.fromkeys(_ACTIVATIONS, ACTIVATION),
    }
    if module is None:
        return OTHER, ""
    for layer, kind in kinds.items():
        if type(module) is layer:
            hooked = module._forward_hooks or module._forward_pre_hooks
            return kind, "it has hooks" if hooked else _unlike_zeros(module)
        if isinstance(module, layer):
            return kind, f"{type(module).__name__} is a subclass of {layer.__name__}"
    return OTHER, ""


_ACTIVATIONS: dict[type[nn.Module], Callable[[Any], str]] = {
    nn.ReLU: lambda layer: "relu",
    nn.ReLU6: lambda layer: "relu6",
    nn.LeakyReLU: lambda layer: f"leaky_relu({float(layer.negative_slope)!r})",
    nn.ELU: lambda layer: f"elu({float(layer.alpha)!r})",
    nn.SiLU: lambda layer: "silu",
    nn.Mish: lambda layer: "mish",
    nn.GELU: lambda layer: "gelu_tanh" if layer.approximate == "tanh" else "gelu",
    nn.Hardswish: lambda layer: "hardswish",
    nn.Hardsigmoid: lambda layer: "hardsigmoid",
    nn.Sigmoid: lambda layer: "sigmoid",
    nn.Tanh: lambda layer: "tanh",
}


def _activation(module: nn.Module, call: Call) -> str:
    if call.name == RELU:
        return "relu"
    layer = module._modules[call.name]
    return _ACTIVATIONS[type(layer)](layer)  # type: ignore[index]


def _unlike_zeros(layer: nn.Module) -> str:
    """Why a convolution must stay: the fused op pads with zeros, as many on each side."""
    if not isinstance(layer, nn.Conv2d):
        return ""
    if layer.padding_mode != "zeros":
        return f"its padding_mode is '{layer.padding_mode}'"
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    return "it pads one side more than the other" if layer.padding == "same" and any(r % 2 for r in reach) else ""
