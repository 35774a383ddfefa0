"""fuse(model) for PyTorch: modules that call convolutions or max pooling of their own get forwards of Genesis' ops."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from genesis.errors import DTypeError, describe
from genesis.fusion import Chain, Fusion, Step, find_chains, takers
from genesis.fusion.chains import ADD, CONV, NORM, OTHER, POOL, RELU
from genesis.torch.modules import conv_bn_relu, conv_bn_relu_and_input, forget
from genesis.torch.pooling import max_pool, max_pool2d

_ADDS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_RELUS = {torch.relu, torch.relu_, nn.functional.relu, nn.functional.relu_, "relu", "relu_"}
_POOLS = {torch.max_pool2d, nn.functional.max_pool2d}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fuse(model: nn.Module) -> nn.Module:
    """Run convolution → batch norm (→ sum) → ReLU as one op wherever a model has that, in training and inference.

    Max pooling beside it runs by Genesis' kernels where the model is on CUDA; on a CPU these are PyTorch's.

    Changed are the forwards of the modules that have Conv2d or MaxPool2d layers of their own: their code is traced with
    torch.fx, the rest of the model is not looked into. Parameters, buffers, their names and the state_dict stay the
    same objects; classes become subclasses of what they were. Nothing is folded for good: eval mode folds on the way
    and forgets on the first change, so that a model can go back to training. model.fusion says what was fused or
    replaced, and what was left and why.

    Args:
        model: any torch.nn.Module; it is changed in place. On CUDA its memory stays with PyTorch.
    Returns: model.

    Example:
        >>> import genesis.torch, torch
        >>> layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 1)
        >>> model = genesis.torch.fuse(torch.nn.Sequential(*layers))
        >>> print(model.fusion)
        1 fused, 1 left
          0 → 1 → 2
          3: left, as no batch norm follows
        >>> model(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 1, 6, 6])
    """
    if not isinstance(model, nn.Module):
        raise DTypeError(describe("fuse", "model", "a torch.nn.Module", type(model).__name__))
    fusion = Fusion()
    for prefix, module in model.named_modules():
        if not isinstance(module, Fused) and any(isinstance(x, nn.Conv2d | nn.MaxPool2d) for x in module.children()):
            _fuse_module(prefix, module, fusion)
    model.fusion = fusion
    return model


class Fused(nn.Module):
    """Marks the classes of fused modules, whose forwards were made from traces."""

    def train(self, mode: bool = True) -> Any:
        for child in self.children():
            if isinstance(child, nn.Conv2d):
                forget(child)
        return super().train(mode)

    def __reduce__(self) -> Any:
        """Pickled as what it was before, and fused again when it is loaded."""
        state = {name: value for name, value in self.__dict__.items() if name != "fusion"}
        return _restore, (type(self).__mro__[2], state, self.__dict__.get("fusion"))


def _restore(unfused: type[nn.Module], state: dict[str, Any], fusion: Fusion | None) -> nn.Module:
    module: nn.Module = object.__new__(unfused)
    module.__dict__.update(state)
    _fuse_module("", module, Fusion())
    if fusion is not None:
        module.fusion = fusion
    return module


def _fuse_module(prefix: str, module: nn.Module, fusion: Fusion) -> None:
    """Give a module a forward with fused chains and Genesis' pooling, if there are any."""
    if "forward" in module.__dict__:
        fusion.leave(prefix, "", "its forward was replaced")
        return
    training = module.training
    forwards, codes = {}, {}
    try:
        for mode in (training, not training):
            _set_mode(module, mode)
            graph = _Tracer().trace(module)
            codes[mode] = str(graph)
            steps, nodes = _steps(module, graph)
            chains, left = find_chains(steps, [nodes.index(x) for x in _outputs(graph)])
            pools = [step for step in steps if step.kind == POOL and not step.obstacle]
            if mode is training:
                fusion.add(prefix, steps, chains)
                for step in pools:
                    fusion.replace(prefix, step.name)
                left += [(step.name, step.obstacle) for step in steps if step.kind == POOL and step.obstacle]
                for name, reason in left:
                    fusion.leave(prefix, name, reason)
            changed = chains or pools
            forwards[mode] = _rewritten(module, graph, steps, nodes, chains, pools) if changed else None
    except Exception as error:  # whatever a forward does while it is traced
        first_line = (str(error).splitlines() or [""])[0]
        fusion.leave(prefix, "", f"torch.fx cannot trace its forward ({type(error).__name__}: {first_line})")
        return
    finally:
        _set_mode(module, training)
    if all(forward is None for forward in forwards.values()):
        return
    unfused = type(module)
    forwards = {mode: forward or unfused.forward for mode, forward in forwards.items()}
    forward = forwards[True] if codes[True] == codes[False] else _by_mode(forwards[True], forwards[False])
    module.__class__ = type(f"Fused{unfused.__name__}", (Fused, unfused), {"forward": forward})


def _by_mode(training: Any, inference: Any) -> Any:
    """The forward of a module that does something else in training."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (training if self.training else inference)(self, *args, **kwargs)

    return forward


def _set_mode(module: nn.Module, training: bool) -> None:
    """For tracing: only the flag that its code may ask for."""
    module.__dict__["training"] = training


class _Tracer(fx.Tracer):
    """Looks into one module only."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return True


def _outputs(graph: fx.Graph) -> list[fx.Node]:
    return [node for output in graph.nodes if output.op == "output" for node in output.all_input_nodes]


def _steps(module: nn.Module, graph: fx.Graph) -> tuple[list[Step], list[fx.Node]]:
    """The graph as steps; values are numbered as the nodes are."""
    nodes = [node for node in graph.nodes if node.op != "output"]
    numbers = {node: number for number, node in enumerate(nodes)}
    return [_step(module, node, numbers) for node in nodes], nodes


def _step(module: nn.Module, node: fx.Node, numbers: dict[fx.Node, int]) -> Step:
    kind, name, obstacle, only_computes = OTHER, node.name, "", False
    positional = tuple(numbers[arg] for arg in node.args if isinstance(arg, fx.Node))
    operands = tuple(numbers[arg] for arg in node.all_input_nodes)
    changes = (node.op == "call_method" and str(node.target).endswith("_")) or node.target is operator.iadd
    changes = changes or node.kwargs.get("inplace") is True
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        name = str(node.target)
        changes = getattr(called, "inplace", False) is True
        if len(node.args) == 1 and not node.kwargs:
            kind, obstacle = _kind_of(called)
            only_computes = _begins_with_conv(called)
    elif node.op in ("call_function", "call_method"):
        if node.target in _RELUS and len(positional) == 1:
            kind = RELU
        elif node.target in _POOLS:
            kind = POOL
        elif node.target in _ADDS and len(positional) == 2 and len(node.args) == 2 and not node.kwargs:
            kind, operands = ADD, positional
    return Step(kind, numbers[node], operands, name, obstacle, operands[:1] if changes else (), only_computes)


def _begins_with_conv(module: nn.Module) -> bool:
    """Is it a Sequential that hands its input to a convolution and to nobody else?"""
    while isinstance(module, nn.Sequential) and len(module) > 0 and not _has_hooks(module):
        unfused: type[nn.Module] = type(module).__mro__[2] if isinstance(module, Fused) else type(module)
        if unfused.forward is not nn.Sequential.forward or "forward" in module.__dict__:
            return False
        module = module[0]
    return _kind_of(module) == (CONV, "")


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, hooks) for hooks in _HOOKS)


def _kind_of(module: nn.Module) -> tuple[str, str]:
    """What a layer is, and why it must stay."""
    obstacle = "it has hooks" if _has_hooks(module) else ""
    if isinstance(module, nn.Conv2d):
        if type(module) is not nn.Conv2d:
            return CONV, f"a {type(module).__name__} may do something else"
        if module.padding_mode != "zeros":
            return CONV, f"it pads by {module.padding_mode}"
        return CONV, obstacle
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        exact = type(module) is nn.BatchNorm2d
        return NORM, obstacle if exact else f"a {type(module).__name__} may do something else"
    if isinstance(module, nn.MaxPool2d):
        if type(module) is not nn.MaxPool2d:
            return POOL, f"a {type(module).__name__} may do something else"
        return POOL, "it returns indices too" if module.return_indices else obstacle
    return (RELU, obstacle) if type(module) is nn.ReLU else (OTHER, "")


def _rewritten(
    module: nn.Module, graph: fx.Graph, steps: list[Step], nodes: list[fx.Node], chains: list[Chain],
    pools: list[Step],
) -> Any:  # fmt: skip
    """The module's forward with these chains as calls of conv_bn_relu, and Genesis' max pooling.

    The chains hand on the inputs that are used later.
    """
    handed_to = takers(steps, chains)
    for chain in sorted(chains, key=lambda chain: chain.last):  # as they are run
        conv, norm, last = nodes[chain.conv], nodes[chain.norm], nodes[chain.last]
        residual = None
        if chain.add is not None:  # looked up now, as it may be the end of another chain
            residual = next(arg for arg in nodes[chain.add].args if arg is not norm)
        activation = None if chain.relu is None else "relu"
        with graph.inserting_before(last.next):
            layers = [graph.get_attr(str(node.target)) for node in (conv, norm)]
            args = (*layers, conv.args[0], residual, activation)
            if chain in handed_to:
                both = graph.call_function(conv_bn_relu_and_input, args)
                call, view = (graph.call_function(operator.getitem, (both, i)) for i in (0, 1))
                for taker in handed_to[chain]:
                    nodes[taker].replace_input_with(args[2], view)
            else:
                call = graph.call_function(conv_bn_relu, args)
        last.replace_all_uses_with(call)
        for position in (chain.relu, chain.add, chain.norm, chain.conv):
            if position is not None:
                graph.erase_node(nodes[position])
    for step in pools:
        _replace_pool(graph, nodes[step.result])
    graph.lint()
    return type(fx.GraphModule(module, graph)).forward


def _replace_pool(graph: fx.Graph, node: fx.Node) -> None:
    if node.op == "call_function":
        node.target = max_pool2d
        return
    with graph.inserting_before(node):
        call = graph.call_function(max_pool, (graph.get_attr(str(node.target)), node.args[0]))
    node.replace_all_uses_with(call)
    graph.erase_node(node)
