"""Genesis as a backend of torch.compile: torch.compile(model, backend="genesis").

Dynamo traces the model's code, guards all state that it read, and traces again when that changes. Its graphs arrive
here as calls of torch's functions. Convolution → batch norm (→ sum) → activation becomes one op in them, max pooling on
CUDA another, group norm between convolutions a third, and one of PyTorch's compilers compiles the rest.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from types import BuiltinFunctionType
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional

from genesis import activations as known
from genesis.fusion import Chain, Fusion, Step, find_chains
from genesis.fusion.chains import ACTIVATION, ADD, CONV, NORM, OTHER, POOL, SCALE
from genesis.records import Windows
from genesis.torch import activations, bridge, pooling
from genesis.torch.graph_batch_norms import replace_batch_norms
from genesis.torch.graph_caches import key
from genesis.torch.graph_choices import why_slower
from genesis.torch.graph_convs import geometry_of, operands, put_conv_act, run_alone, runs_alone, why_not
from genesis.torch.graph_edits import argument, tensor_of, value_of
from genesis.torch.graph_mends import mend
from genesis.torch.graph_norms import replace_group_norms
from genesis.torch.graph_orders import in_order, pass_on_channels_last
from genesis.torch.graph_scales import name_values_once, scaled_by
from genesis.torch.opaque import tell_inductor
from genesis.torch.parameter_guards import Compiled, Kinds, guard_kinds

_ADDS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_POOLS = {torch.max_pool2d, functional.max_pool2d}
_IN_PLACE = {operator.setitem, *(getattr(operator, name) for name in dir(operator) if name.startswith("i"))}
_IN_PLACE -= {operator.index, operator.indexOf, operator.inv, operator.invert, operator.is_, operator.is_not}
_logger = logging.getLogger("genesis.torch")


def genesis(
    graph: fx.GraphModule,
    inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: dict[str, object] | None = None,
) -> Compiled:
    """The backend: torch.compile(model, backend="genesis"), or backend=genesis.torch.dynamo.genesis.

    The logger "genesis.torch" lists the fused chains at level INFO.

    Args:
        graph: the traced graph; it is changed in place.
        inputs: examples of its inputs.
        mode: of torch.compile, for the compiler of everything that is not fused.
        options: {"compiler": name} chooses that compiler among PyTorch's ("inductor" by default; "aot_eager" compiles
            nothing and starts at once, "cudagraphs" captures that); other options are passed to it.
    Returns: the compiled graph.

    Example:
        >>> import genesis.torch.dynamo, torch
        >>> layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        >>> model = torch.nn.Sequential(*layers)
        >>> options = {"compiler": "aot_eager"}
        >>> compiled = torch.compile(model, backend=genesis.torch.dynamo.genesis, options=options)
        >>> compiled(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 8, 6, 6])
    """
    kinds = guard_what_changes(inputs)
    compiled = _compiled(graph, inputs, mode, dict(options or {}))
    return compiled if kinds is None else kinds.follow(compiled)


def _compiled(
    graph: fx.GraphModule, inputs: Sequence[object], mode: str | None, options: dict[str, object]
) -> Compiled:
    name = options.pop("compiler", "inductor")
    mend(graph, str(name))
    _logger.info("%s", fuse_graph(graph, str(name)))
    if name == "inductor":
        tell_inductor()
        return torch._TorchCompileInductorWrapper(mode or "default", {**options, **key(options)}, None)(graph, inputs)
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)(graph, inputs, **options)


def guard_what_changes(inputs: Sequence[object]) -> Kinds | None:
    """Have requires_grad of every parameter and the hooks of every module checked at each call.

    Dynamo passes over the former before PyTorch 2.13 (see parameter_guards.py); and hooks that are registered later are
    not called, in any version. Called by backends, as guards are built after a graph is compiled.

    Args:
        inputs: examples of the graph's inputs.
    Returns: what is to follow the compiled graph, if anything.
    """
    torch._dynamo.config.skip_nnmodule_hook_guards = False
    if torch.__version__ >= (2, 13):
        return None
    is_known = torch.__version__ >= (2, 11)  # its interior, to parameter_guards.py
    kinds = guard_kinds(inputs) if is_known else None
    torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags = kinds is not None
    return kinds


def fuse_graph(module: fx.GraphModule, compiler: str = "inductor") -> Fusion:
    """Replace convolutions, norms, sums, activations and max poolings in a Dynamo graph by Genesis' ops, in place.

    Args:
        compiler: of the graph: Inductor fuses activations too.
    Returns: the fused chains by the names of their nodes, and the convolutions that were left, each with the reason.
    """
    graph = module.graph
    name_values_once(graph)
    nodes = [node for node in graph.nodes if node.op != "output"]
    numbers, by_name = {node: number for number, node in enumerate(nodes)}, {node.name: node for node in nodes}
    outputs = [numbers[x] for node in graph.nodes if node.op == "output" for x in node.all_input_nodes]
    steps = [_step(node, numbers) for node in nodes]
    values = [
        value_of(node.args[0]) for node, step in zip(nodes, steps, strict=True) if step.kind == CONV and node.args
    ]
    without_norm = any(bridge.activates(each) for each in values if isinstance(each, Tensor))
    chains, left = find_chains(steps, outputs, without_norm)
    order = _Order(nodes)
    fusion = Fusion()
    share = sum(chain.norm is not None for chain in chains) / max(1, sum(step.kind == CONV for step in steps))
    for chain in chains:
        slower = "" if chain.norm is None else _why_slower(chain, nodes, share)
        if slower:
            left.append((steps[chain.conv].name, slower))
            continue
        parts = _parts(_without_promotion(chain, nodes), nodes, compiler == "inductor")
        allowed = next((part for part in parts if order.allows(part)), None)
        if allowed is None:
            reason = "a node between its layers conflicts with their move" if parts else "its activation runs by itself"
            left.append((steps[chain.conv].name, reason))
        else:
            fusion.add("", steps, [allowed])
            (_fuse_activation if allowed.norm is None else _fuse_chain)(graph, nodes, allowed)
    for step, node in zip(steps, nodes, strict=True):
        if step.kind == POOL:
            windows = _pooling(node)
            if windows is not None:
                fusion.replace("", step.name)
                _replace_pooling(graph, node, windows)
    for name in (*replace_group_norms(graph, _activation), *replace_batch_norms(graph, _activation)):
        fusion.replace("", name)
    for name, reason in left:  # last: those before look for convolutions
        conv = by_name[name]
        if not steps[numbers[conv]].obstacle and runs_alone(conv):
            run_alone(graph, conv)
            fusion.replace("", name)
        else:
            fusion.leave("", name, reason)
    changed = _changed(graph)
    pass_on_channels_last(graph, lambda copy: bool(_memory([copy]) & changed))
    graph.lint()
    module.recompile()
    return fusion


# --- reading the graph ---
def _step(node: fx.Node, numbers: dict[fx.Node, int]) -> Step:
    operands = tuple(numbers[x] for x in node.all_input_nodes)
    kind, obstacle = OTHER, ""
    target = node.target
    if node.op in ("call_function", "call_method"):
        if target is torch.conv2d:
            kind, obstacle = CONV, why_not(node)
            operands = tuple(numbers[x] for x in node.args[:1] if isinstance(x, fx.Node))
        elif target is functional.batch_norm:
            kind, obstacle = NORM, _why_not_norm(node)
            operands = tuple(numbers[x] for x in node.args[:1] if isinstance(x, fx.Node))
        elif len(operands) == 1 and _activation(node) is not None:
            kind, given, result = ACTIVATION, value_of(node.args[0]), value_of(node)
            if not (isinstance(given, Tensor) and isinstance(result, Tensor) and given.dtype == result.dtype):
                obstacle = "its activation changes the dtype"
        elif target in _ADDS and len(node.args) == 2 and not node.kwargs:
            if all(isinstance(value_of(x), Tensor) for x in node.args):
                kind, operands = ADD, tuple(numbers[x] for x in node.args if isinstance(x, fx.Node))
        elif (scaled := scaled_by(node)) is not None:
            kind, operands = SCALE, tuple(numbers[x] for x in scaled if isinstance(x, fx.Node))
        elif target in _POOLS:
            kind = POOL
    # Weights, and a norm's buffers, are no operands of a step: _Order checks them.
    return Step(kind, numbers[node], operands, node.name, obstacle)


def _activation(node: fx.Node) -> str | None:
    """The activation that a node applies to its first argument."""
    readers = activations.METHODS if node.op == "call_method" else activations.READERS
    reader = readers.get(node.target)
    if reader is None or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    found = activations.read(reader, node.args[1:], node.kwargs)
    return None if found is None else found[0]


def _why_not_norm(node: fx.Node) -> str:
    input, result = value_of(node.args[0] if node.args else None), value_of(node)
    if not isinstance(input, Tensor) or not isinstance(result, Tensor) or result.dtype != input.dtype:
        return "its batch norm changes the dtype"
    options = (
        argument(node, 5, "training", False),
        argument(node, 6, "momentum", 0.1),
        argument(node, 7, "eps", 1e-5),
    )
    if not isinstance(options[0], bool) or any(not isinstance(x, int | float) for x in options[1:]):
        return "its batch norm's training, momentum or eps is not a constant"
    return ""


def _norm_options(node: fx.Node) -> tuple[bool, float, float]:
    """Training, momentum, eps."""
    training, momentum = argument(node, 5, "training", False), argument(node, 6, "momentum", 0.1)
    return training, float(momentum), float(argument(node, 7, "eps", 1e-5))


def _parts(chain: Chain, nodes: list[fx.Node], generates: bool) -> list[Chain]:
    """The chain, and the shorter ones at its beginning.

    generates: the compiler makes a part of what comes next of an activation that no kernel of a convolution computes.
    """
    conv, inactive = nodes[chain.conv], chain._replace(activation=None)
    is_relu = chain.activation is not None and _activation(nodes[chain.activation]) == "relu"
    is_pass = chain.activation is not None and not is_relu and bridge.activates(tensor_of(conv))
    best = inactive if generates and is_pass else chain
    if chain.norm is not None:
        first = best if _folds(chain, nodes) else chain  # in training the norm takes a pass, which activates too
        return list(dict.fromkeys((first, inactive, chain._replace(activation=None, add=None, residual=None))))
    scaled = [chain._replace(activation=None, add=None, residual=None)] if chain.scales else []
    if chain.add is not None:
        return [*([chain] if is_relu else []), inactive, *scaled]  # conv_act knows no other after a sum, see links.Link
    is_left = chain.activation is None or (best is inactive and runs_alone(conv))
    return [*([] if is_left else [best]), *scaled]


def _folds(chain: Chain, nodes: list[fx.Node]) -> bool:
    """Is its norm a part of the weight: by running statistics, without gradients?"""
    assert chain.norm is not None
    norm, last = nodes[chain.norm], nodes[chain.last]
    has_statistics = argument(norm, 1, "running_mean") is not None
    return has_statistics and not _norm_options(norm)[0] and not tensor_of(last).requires_grad


def _before_sum(chain: Chain) -> int:
    return max(part for part in (chain.conv, chain.norm, *chain.scales) if part is not None)


def _without_promotion(chain: Chain, nodes: list[fx.Node]) -> Chain:
    """The chain, without a sum that changes the dtype or broadcasts: the op's residual has the shape of its result."""
    if chain.add is None:
        return chain
    before = _before_sum(chain)
    summand, residual, result = (tensor_of(nodes[i]) for i in (before, chain.residual, chain.add) if i is not None)
    fits = summand.dtype == residual.dtype == result.dtype and summand.shape == residual.shape
    return chain if fits else chain._replace(add=None, activation=None, residual=None)


class _Effects(NamedTuple):
    """The side effects of a node: storages that it reads and writes; whether it may do anything else, such as switch a
    mode."""

    reads: frozenset[int]
    changes: frozenset[int]
    unknown: bool


class _Order:
    """The order of side effects: a fused chain runs in place of its last layer, so that its convolution moves there."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self._nodes = nodes
        self._effects = [_effects(node) for node in nodes]

    def allows(self, chain: Chain) -> bool:
        """Return whether no node between a chain's layers conflicts with its move."""
        parts = set(chain.parts)
        own = [self._effects[part] for part in parts]
        inside = {key for part in parts for key in _memory([self._nodes[part]])}  # internal to the chain
        reads = frozenset().union(*(x.reads for x in own)) - inside
        changes = frozenset().union(*(x.changes for x in own)) - inside
        between = [self._effects[i] for i in range(chain.conv + 1, chain.last) if i not in parts]
        return not any(x.unknown or x.changes & (reads | changes) or x.reads & changes for x in between)


def _memory(nodes: Iterable[object]) -> frozenset[int]:
    """The storages of nodes' values: a view has that of its base."""
    values = [value_of(node) for node in nodes]
    tensors = [x for value in values for x in (value if isinstance(value, tuple | list) else (value,))]
    return frozenset(x.untyped_storage()._cdata for x in tensors if isinstance(x, Tensor) and not x.is_sparse)


def _effects(node: fx.Node) -> _Effects:
    reads, nothing = _memory(node.all_input_nodes), frozenset[int]()
    if node.op in ("placeholder", "get_attr"):
        return _Effects(nothing, nothing, False)
    if node.target is functional.batch_norm:
        changed = _memory(argument(node, i, n) for i, n in ((1, "running_mean"), (2, "running_var")))
        return _Effects(reads, changed if argument(node, 5, "training", False) else nothing, False)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if (
        in_place
        or node.target in _IN_PLACE
        or node.kwargs.get("inplace") is True
        or any(x is True for x in node.args[1:])
    ):
        return _Effects(reads, _memory(node.all_input_nodes[:1]), False)
    if node.kwargs.get("out") is not None:
        return _Effects(reads, reads, False)
    known = node.op == "call_method" or getattr(node.target, "__module__", None) in _PURE or _is_builtin(node.target)
    switches = value_of(node) is None and not node.users
    return _Effects(reads, nothing, not known or switches or node.target in _MODES)


def _changed(graph: fx.Graph) -> frozenset[int]:
    """The storages that nodes which are no ops of ours may change."""
    others = [x for x in graph.nodes if x.op != "output" and not isinstance(x.target, torch._ops.OpOverloadPacket)]
    effects = [_effects(node) for node in others]
    return frozenset().union(*(x.changes | (x.reads if x.unknown else frozenset()) for x in effects))


_PURE = {"torch.nn.functional", "torch.functional", "_operator", "torch._C._nn", "torch"}
_MODES = {torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast, torch._C._set_grad_enabled}


def _is_builtin(target: object) -> bool:
    """Return whether this is a function of torch's own in C, such as torch.cat."""
    return isinstance(target, _BUILTIN) and getattr(torch, target.__name__, None) is target


_BUILTIN: type[BuiltinFunctionType] = type(torch.cat)


def _why_slower(chain: Chain, nodes: list[fx.Node], share: float) -> str:
    assert chain.norm is not None
    activation = None if chain.activation is None else _activation(nodes[chain.activation])
    return why_slower(nodes[chain.conv], _norm_options(nodes[chain.norm])[0], activation, share)


# --- writing it ---
def _fuse_activation(graph: fx.Graph, nodes: list[fx.Node], chain: Chain) -> None:
    conv, last = nodes[chain.conv], nodes[chain.last]
    activation = None if chain.activation is None else _activation(nodes[chain.activation])
    residual = None
    if chain.add is not None:  # read now: it may be the end of another chain, which has been replaced
        residual = next(x for x in nodes[chain.add].args if x is not nodes[_before_sum(chain)])
        assert isinstance(residual, fx.Node)
    factors = [scaled[1] for scaled in (scaled_by(nodes[i]) for i in chain.scales) if scaled is not None]
    keeps = None
    if tensor_of(last).requires_grad and activation is not None:
        keeps = "result" if known.is_known_by_result(activation) else "input"
    put_conv_act(graph, conv, last, residual, activation, keeps, factors)
    for position in reversed(chain.parts):
        graph.erase_node(nodes[position])


def _fuse_chain(graph: fx.Graph, nodes: list[fx.Node], chain: Chain) -> None:
    assert chain.norm is not None
    conv, norm, last = nodes[chain.conv], nodes[chain.norm], nodes[chain.last]
    residual = None
    if chain.add is not None:  # read now: it may be the end of another chain, which has been replaced
        residual = next(x for x in nodes[chain.add].args if x is not norm)
    geometry = geometry_of(conv)
    with graph.inserting_before(last.next):
        mean, var, gamma, beta = (
            argument(norm, i + 1, name) for i, name in enumerate(("running_mean", "running_var", "weight", "bias"))
        )
        training, momentum, eps = _norm_options(norm)
        activation = None if chain.activation is None else _activation(nodes[chain.activation])
        vectors, how = (gamma, beta, mean, var, residual), (*geometry, activation)
        folds = _folds(chain, nodes)
        given = operands(graph, conv, keeps_parameters=folds)
        if folds:
            result = graph.call_function(torch.ops.genesis.conv_bn_relu_inference, (*given, *vectors, float(eps), *how))
        else:
            args = (*given, *vectors, training, float(momentum), float(eps), *how)
            both = graph.call_function(torch.ops.genesis.conv_bn_relu, args)
            result = graph.call_function(operator.getitem, (both, 0))
        result = in_order(graph, result, last)
    last.replace_all_uses_with(result)
    for position in reversed(chain.parts):
        graph.erase_node(nodes[position])


def _pooling(node: fx.Node) -> Windows | None:
    """The windows of a max pooling that Genesis' kernels run; None if PyTorch's function runs."""
    input = value_of(node.args[0] if node.args else None)
    if not isinstance(input, Tensor) or not pooling.has_kernels(input) or not isinstance(value_of(node), Tensor):
        return None  # with return_indices it has two results
    defaults = {"kernel_size": None, "stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    options = [argument(node, 1 + i, name, default) for i, (name, default) in enumerate(defaults.items())]
    return pooling.windows_of(input, *options)


def _replace_pooling(graph: fx.Graph, node: fx.Node, windows: Windows) -> None:
    needs_gradient = tensor_of(node).requires_grad
    with graph.inserting_before(node):
        both = graph.call_function(torch.ops.genesis.max_pool2d, (node.args[0], *windows, needs_gradient))
        result = graph.call_function(operator.getitem, (both, 0))
        result.meta["example_value"] = value_of(node)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
